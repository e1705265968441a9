"""User input never becomes part of an SQL query.

The test finds every database call in the source. Its query must be a literal, or be built from literals and
module-level values. Values known only at run time are passed as arguments, and the query contains a placeholder such as
`$1`, which `put` returns.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.house.small_tree import PROJECT

FOLDER = PROJECT / "src/headgate"
ASKING = {"fetch", "fetchrow", "fetchval", "execute", "executemany", "prepare", "cursor"}
DEPTH_MAX = 12
WRITTEN_ELSEWHERE = {
    # Migrations are files in the package.
    ("ledger/schema_migration.py", "each.sql"),
    # A statement cannot have parameters here, and the partition name is validated before use.
    ("ledger/partitions.py", "f'drop table headgate.{name}'"),
    ("ledger/partitions.py", "f'lock table headgate.{name} in access exclusive mode'"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    """Return the modules that import the driver or get a connection."""
    found = [
        path for path in FOLDER.rglob("*.py") if "asyncpg" in (text := path.read_text()) or "ledger.connection" in text
    ]
    return sorted(found)


class Module:
    """Decides which expressions in a module are literal text."""

    def __init__(self, tree: ast.Module) -> None:
        self.held = {name for name, _ in _bound(tree.body)}
        """Names bound at import, before any user input exists."""
        self.functions = {each.name: each for each in tree.body if isinstance(each, Function)}

    def written(self, node: ast.expr, inside: "Inside", depth: int = 0) -> bool:
        if depth > DEPTH_MAX:
            return False

        def also(*nodes: ast.expr) -> bool:
            return all(self.written(each, inside, depth + 1) for each in nodes)

        match node:
            case ast.Constant():
                return True
            case ast.JoinedStr():
                return also(*(each.value for each in node.values if isinstance(each, ast.FormattedValue)))
            case ast.BinOp(op=ast.Add()):
                return also(node.left, node.right)
            case ast.IfExp():
                return also(node.body, node.orelse)
            case ast.NamedExpr():
                return also(node.value)
            case ast.Name(id=name):
                return self._name(name, inside, also)
            case ast.Subscript(value=ast.Name(id=name)):
                return name in self.held and name not in inside.bound
            case ast.Call():
                return self._call(node, inside, also, depth)
        return False

    def _name(self, name: str, inside: "Inside", also: Callable[..., bool]) -> bool:
        if name in inside.bound:
            return also(*inside.bound[name])
        return name in inside.given or (name in self.held and name not in inside.parameters)

    def _call(self, node: ast.Call, inside: "Inside", also: Callable[..., bool], depth: int) -> bool:
        match node.func:
            case ast.Attribute(value=ast.Name(id="values"), attr="add"):
                return True
            case ast.Attribute(value=ast.Name(id=name), attr="get"):
                return name in self.held and name not in inside.bound
            case ast.Name(id=name) if name in self.functions:
                return self._returns_text(self.functions[name], node, also, depth)
        return False

    def _returns_text(self, function: Function, call: ast.Call, also: Callable[..., bool], depth: int) -> bool:
        """Return whether the function returns literal text for these arguments. The first element of a tuple counts."""
        given = {parameter.arg for parameter, value in zip(function.args.args, call.args, strict=False) if also(value)}
        defaults = {each.arg for each in function.args.args[len(call.args) :]} if not call.keywords else set()
        inside = Inside(function, given | defaults)
        returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
        texts = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in returned]
        return bool(texts) and all(self.written(each, inside, depth + 1) for each in texts)


class Inside:
    """A function and the values that its names are bound to."""

    def __init__(self, function: Function, given: set[str] | None = None) -> None:
        arguments = function.args
        self.parameters = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
        self.given = given or set()
        """Parameters that are known to be literal text."""
        self.bound: dict[str, list[ast.expr]] = {}
        for name, value in _bound([each for each in ast.walk(function) if isinstance(each, ast.stmt)]):
            self.bound.setdefault(name, []).append(value)


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that these statements bind, and its value."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from (
                    (each.id, value) for each, value in zip(names, values, strict=True) if isinstance(each, ast.Name)
                )
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), *_])], value=ast.Call() as value):
                # If a function returns a tuple, the query text is its first element.
                yield name, ast.copy_location(ast.Call(value.func, value.args, []), value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                yield name, value
            case ast.For(target=ast.Name(id=name), iter=value):
                yield name, value
            case _:
                pass


def unwritten(path: str, text: str) -> list[str]:
    """Return the queries in a file that are not literal text."""
    tree = ast.parse(text)
    module = Module(tree)
    found = set[str]()
    for function in (each for each in ast.walk(tree) if isinstance(each, Function)):
        inside = Inside(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING:
                asked = ast.unparse(node.args[0]) if node.args else ""
                if node.args and not module.written(node.args[0], inside) and (path, asked) not in WRITTEN_ELSEWHERE:
                    found.add(f"{path}:{node.lineno}: {asked}")
    return sorted(found)


@pytest.mark.parametrize(
    "way",
    [
        'await link.fetch(f"select * from t where id = {name}")',
        'await link.fetch("select * from t where id = \'" + name + "\'")',
        "await link.fetch(\"select * from t where id = '%s'\" % name)",
        'await link.fetch("select * from t where id = {}".format(name))',
        'query = "select " + name\n    await link.execute(query)',
        'query = "select 1"\n    query += f" where {name}"\n    await link.execute(query)',
        "await link.execute(name)",
        "await link.execute(made(name))",
        "for each in name:\n        await link.execute(each)",
    ],
)
def test_query_with_user_input_is_detected(way: str) -> None:
    text = f'def made(column):\n    return f"select {{column}}"\n\nasync def ask(link, name):\n    {way}\n'

    assert unwritten("x.py", text) != []


@pytest.mark.parametrize(
    "way",
    [
        'await link.fetch(f"select {COLUMNS} from t where id = $1", name)',
        'await link.fetch(f"select 1 where id = {values.add(name)}", *values.values)',
        'await link.fetch(made("id"), name)',
        "for each in STEPS:\n        await link.execute(each)",
    ],
)
def test_literal_query_is_not_reported(way: str) -> None:
    held = 'COLUMNS = "id, name"\nSTEPS = ("select 1",)\ndef made(column):\n    return f"select {column}"\n'

    assert unwritten("x.py", f"{held}\nasync def ask(link, name):\n    {way}\n") == []


def test_sources_include_the_ledger_modules() -> None:
    assert {
        FOLDER / "ledger/directory/postgres_directory.py",
        FOLDER / "ledger/directory/directory_replica.py",
        FOLDER / "ledger/writer.py",
    } <= set(sources())


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_query_is_literal_text(path: Path) -> None:
    assert unwritten(str(path.relative_to(FOLDER)), path.read_text()) == []
