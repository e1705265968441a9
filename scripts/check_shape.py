"""Check the shape of the source that no linter we know can check.

- Each file under src opens with a docstring and has at most 500 lines; no function there is over 70 lines, and no class
  over 300 lines or 30 methods.
- The configuration imports only the options modules of the parts that it configures.
- No file is named for nothing in particular (utils, helpers, common, manager).
- The pure rooms, core and model, import only from a short list and use nothing that touches the world, differs
  between runs or is rounded differently by machines.
- No file names a path of one machine or the host of a package registry.

Usage: check_shape.py [FOLDER]. Complaints go to stdout, one per line; the exit status is 1 if there are any.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_LINES_MAX = 500
CLASS_LINES_MAX = 300
CLASS_METHODS_MAX = 30
FUNCTION_LINES_MAX = 70
NAMES_OF_NOTHING = frozenset({"utils", "helpers", "common", "manager"})
CONFIGURATION = "src/headgate/config/"
BELOW_ALL_PARTS = frozenset({"config", "ports", "wire", "core", "model"})
PURE_ROOMS = ("src/headgate/core/", "src/headgate/model/")

# A list of what is allowed, because a list of what is forbidden is never complete.
PURE_IMPORTS = frozenset(
    {"__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "hashlib"}
    | {"headgate", "heapq", "itertools", "math", "operator", "re", "string", "struct", "types", "typing"}
)
# `sqrt` is the only float function that every machine rounds in the same way; `isqrt` takes integers.
PURE_MATH = frozenset({"isqrt", "sqrt"})
IMPURE_BUILTINS = {
    "__import__": "imports what no contract can see",
    "eval": "runs what no contract can see",
    "exec": "runs what no contract can see",
    "hash": "differs between runs; order by a sequence number or a key of the model",
    "id": "differs between runs; order by a sequence number or a key of the model",
    "input": "is I/O; return a command and let a host perform it",
    "open": "is I/O; return a command and let a host perform it",
    "print": "is I/O; a command carries its reason, and telemetry observes",
}

# Each pattern is written so that it does not match itself.
NOT_TO_BE_NAMED = re.compile(
    r"/wor[k]/|/far[m]/|/roo[t]/\.|/op[t]/(pyp[i]|wheel[s])|fil[e]:///"
    r"|pythonhoste[d]\.org|pyp[i]\.org/simple|registry\.npmj[s]|deb\.debia[n]\.org"
)


def complaints(root: Path, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = root / name
        yield from name_complaints(name)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # Not text: nothing below applies.
            continue
        yield from address_complaints(name, text)
        if name.startswith("src/") and name.endswith(".py") and not name.endswith("_pb2.py"):  # Not generated.
            tree = ast.parse(text, filename=name)
            yield from docstring_complaints(name, tree)
            yield from length_complaints(name, text, tree)
            if name.startswith(CONFIGURATION):
                yield from options_complaints(name, tree)
            if name.startswith(PURE_ROOMS):
                yield from purity_complaints(name, tree)


def files_of(root: Path) -> list[str]:
    """What is tracked, and what would be with the next `git add`."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return sorted(name for name in set(listing.split("\0")) if name and (root / name).is_file())


def name_complaints(name: str) -> Iterator[str]:
    path = Path(name)
    if path.suffix == ".py" and path.stem in NAMES_OF_NOTHING:
        yield f"{name}:1: name the file for its noun, not {path.name!r}"


def address_complaints(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := NOT_TO_BE_NAMED.search(line):
            yield f"{name}:{number}: names a path of one machine or a package registry's host: {found[0]!r}"


def docstring_complaints(name: str, tree: ast.Module) -> Iterator[str]:
    if Path(name).name == "__init__.py" and not tree.body:
        return
    if ast.get_docstring(tree) is None:
        yield f"{name}:1: open the file with a docstring that says what it is or does"


def length_complaints(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    if (lines := len(text.splitlines())) > FILE_LINES_MAX:
        yield f"{name}:1: the file has {lines} lines, more than {FILE_LINES_MAX}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from too_long(name, node, FUNCTION_LINES_MAX)
        elif isinstance(node, ast.ClassDef):
            yield from too_long(name, node, CLASS_LINES_MAX)
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > CLASS_METHODS_MAX:
                yield f"{name}:{node.lineno}: {node.name} has {methods} methods, more than {CLASS_METHODS_MAX}"


def too_long(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lines_max: int) -> Iterator[str]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > lines_max:
        yield f"{name}:{node.lineno}: {node.name} has {lines} lines, more than {lines_max}"


def options_complaints(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None or not node.module.startswith("headgate."):
            continue
        room, last = node.module.split(".")[1], node.module.split(".")[-1]
        if room not in BELOW_ALL_PARTS and last != "options":
            yield f"{name}:{node.lineno}: the configuration may import only options of a part, not {node.module}"


def purity_complaints(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for reason in impurities(node):
            yield f"{name}:{getattr(node, 'lineno', 1)}: {reason}"


def impurities(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [f"a pure room may not import {each.name}" for each in names if not is_pure(each.name)]
        case ast.ImportFrom(module="math", names=names):
            return [f"a pure room may not use math.{each.name}" for each in names if each.name not in PURE_MATH]
        case ast.ImportFrom(module=str(module)) if not is_pure(module):
            return [f"a pure room may not import {module}"]
        case ast.Attribute(value=ast.Name(id="math"), attr=function) if function not in PURE_MATH:
            return [f"a pure room may not use math.{function}"]
        case ast.Name(id=builtin, ctx=ast.Load()) if builtin in IMPURE_BUILTINS:
            return [f"{builtin}() {IMPURE_BUILTINS[builtin]}"]
        case _:
            return []


def is_pure(module: str) -> bool:
    return module.partition(".")[0] in PURE_IMPORTS


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    found = list(complaints(root, files_of(root)))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
