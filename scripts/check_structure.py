"""Check structural rules of the source code that common linters do not cover.

- Each file in src starts with a docstring and has at most 500 lines. Functions have at most 70 lines, classes at most
  300 lines and 30 methods.
- Public class names in src are unique.
- The configuration imports only the `options` modules of the components it configures.
- File names are specific: not utils, helpers, common or manager.
- The pure packages, core and model, import only modules from a short list. They use nothing that performs I/O, differs
  between runs or rounds differently between machines.
- No file contains a machine-specific path or the host name of a package registry.

Usage: check_structure.py [DIRECTORY]. Violations go to stdout, one per line. The exit status is 1 if there are any.
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
VAGUE_NAMES = frozenset({"utils", "helpers", "common", "manager"})
CONFIGURATION = "src/headgate/config/"
SHARED_PACKAGES = frozenset({"config", "ports", "wire", "core", "model"})
PURE_PACKAGES = ("src/headgate/core/", "src/headgate/model/")

# An allowlist, because a list of forbidden modules would never be complete.
PURE_IMPORTS = frozenset(
    {"__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "hashlib"}
    | {"headgate", "heapq", "itertools", "math", "operator", "re", "string", "struct", "types", "typing"}
)
# `sqrt` is the only float function that rounds identically on every machine. `isqrt` works on integers.
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
FORBIDDEN_TEXT = re.compile(
    r"/wor[k]/|/far[m]/|/roo[t]/\.|/op[t]/(pyp[i]|wheel[s])|fil[e]:///"
    r"|pythonhoste[d]\.org|pyp[i]\.org/simple|registry\.npmj[s]|deb\.debia[n]\.org"
)


def violations(root: Path, names: Iterable[str]) -> Iterator[str]:
    classes: dict[str, str] = {}
    for name in names:
        path = root / name
        yield from name_violations(name)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # Binary file.
            continue
        yield from address_violations(name, text)
        if name.startswith("src/") and name.endswith(".py") and not name.endswith("_pb2.py"):  # Skip generated code.
            tree = ast.parse(text, filename=name)
            yield from docstring_violations(name, tree)
            yield from length_violations(name, text, tree)
            yield from duplicate_class_violations(name, tree, classes)
            if name.startswith(CONFIGURATION):
                yield from import_violations(name, tree)
            if name.startswith(PURE_PACKAGES):
                yield from purity_violations(name, tree)


def files_of(root: Path) -> list[str]:
    """Files that git tracks or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return sorted(name for name in set(listing.split("\0")) if name and (root / name).is_file())


def name_violations(name: str) -> Iterator[str]:
    path = Path(name)
    if path.suffix == ".py" and path.stem in VAGUE_NAMES:
        yield f"{name}:1: name the file for its noun, not {path.name!r}"


def address_violations(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := FORBIDDEN_TEXT.search(line):
            yield f"{name}:{number}: names a path of one machine or a package registry's host: {found[0]!r}"


def docstring_violations(name: str, tree: ast.Module) -> Iterator[str]:
    if Path(name).name == "__init__.py" and not tree.body:
        return
    if ast.get_docstring(tree) is None:
        yield f"{name}:1: open the file with a docstring that says what it is or does"


def length_violations(name: str, text: str, tree: ast.Module) -> Iterator[str]:
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


def duplicate_class_violations(name: str, tree: ast.Module, classes: dict[str, str]) -> Iterator[str]:
    """Yield a violation for each public class that another file also defines. Add all other classes to `classes`."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            first = classes.setdefault(node.name, f"{name}:{node.lineno}")
            if first != f"{name}:{node.lineno}":
                yield f"{name}:{node.lineno}: {first} defines a class {node.name} too; rename one of them"


def import_violations(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None or not node.module.startswith("headgate."):
            continue
        room, last = node.module.split(".")[1], node.module.split(".")[-1]
        if room not in SHARED_PACKAGES and last != "options":
            yield f"{name}:{node.lineno}: the configuration may import only options of a part, not {node.module}"


def purity_violations(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for reason in impurities(node):
            yield f"{name}:{getattr(node, 'lineno', 1)}: {reason}"


def impurities(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [f"a pure package may not import {each.name}" for each in names if not is_pure(each.name)]
        case ast.ImportFrom(module="math", names=names):
            return [f"a pure package may not use math.{each.name}" for each in names if each.name not in PURE_MATH]
        case ast.ImportFrom(module=str(module)) if not is_pure(module):
            return [f"a pure package may not import {module}"]
        case ast.Attribute(value=ast.Name(id="math"), attr=function) if function not in PURE_MATH:
            return [f"a pure package may not use math.{function}"]
        case ast.Name(id=builtin, ctx=ast.Load()) if builtin in IMPURE_BUILTINS:
            return [f"{builtin}() {IMPURE_BUILTINS[builtin]}"]
        case _:
            return []


def is_pure(module: str) -> bool:
    return module.partition(".")[0] in PURE_IMPORTS


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    found = list(violations(root, files_of(root)))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
