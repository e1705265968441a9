"""Units of source code to count instructions for: packages, files or functions.

A unit is the beginning of PATH:QUALNAME;, with the path relative to the package `headgate`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import headgate

ROOT: Final = Path(headgate.__file__).parent
PACKAGES: Final = {
    "core/": "core",
    "model/": "core",
    "hosts/": "hosts",
    "edge/": "edge",
    "wire/": "wire",
    "engines/": "engines",
    "telemetry/": "telemetry",
}
OTHER: Final = "other"
"""Name for all other packages."""


def units(by: str, under: str) -> dict[str, str]:
    """Return the name of each unit by its beginning. `under` limits files and functions to a path."""
    if by == "package":
        rest = {f"{path.name}/": OTHER for path in sorted(ROOT.iterdir()) if path.is_dir()}
        return rest | PACKAGES
    files = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).as_posix().startswith(under)]
    if by == "file":
        return {f"{name}:": name for name in (path.relative_to(ROOT).as_posix() for path in files)}
    return {
        f"{path.relative_to(ROOT).as_posix()}:{name};": f"{path.relative_to(ROOT).as_posix()} {name}"
        for path in files
        for name in qualified_names(ast.parse(path.read_text()))
    }


def qualified_names(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Names of functions and methods. Nested functions count for the function that contains them."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name):
                yield from qualified_names(node, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield f"{prefix}{name}"
            case ast.If() | ast.Try():
                yield from qualified_names(node, prefix)
            case _:
                pass
