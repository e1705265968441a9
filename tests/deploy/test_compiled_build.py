"""Source preparation for the compiled build. `just test-compiled` runs the scheduler's tests on that build."""

import ast
import asyncio
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "headgate"
COMPILED = sorted(hatch_build.compiled_files(PACKAGE))
SOURCES = {path: path.read_text() for path in COMPILED}

SOURCE = '''\
from headgate.model.message import message


@message
class Ended:
    """Class."""

    request: str
    tokens: tuple[int, ...] = ()

    def count(self) -> int:
        return len(self.tokens)


class Pair(NamedTuple):
    left: "tuple[int, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    first: int
    second: int = field(default=3, compare=False)

    def __post_init__(self) -> None: ...


@dataclass(slots=True)
class Made:
    names: dict[str, int] = field(default_factory=dict)


class Plain(asyncio.Protocol):
    known: int
'''

PREPARED = '''\
from dataclasses import dataclass as message


@message(unsafe_hash=True)
class Ended:
    """Class."""

    request: str
    tokens: tuple[int, ...] = ()

    def count(self) -> int:
        return len(self.tokens)
    def __init__(self, request: str, tokens: tuple[int, ...] = ()) -> None: self.request = request; self.tokens = tokens
{complete}Ended, {{'request': 'str', 'tokens': 'tuple[int, ...]'}})
class Pair(NamedTuple):
    left: "tuple[int, ...]"

{complete}Pair, {{'left': 'tuple[int, ...]'}})
@dataclass(frozen=True, kw_only=True)
class Rules:
    first: int
    second: int = field(default=3, compare=False)

    def __post_init__(self) -> None: ...
    def __init__(self, *, first: int, second: int = 3) -> None: {rules}
{complete}Rules, {{'first': 'int', 'second': 'int'}})
@dataclass()
class Made:
    names: dict[str, int] = field(default_factory=dict)

{complete}Made, {{'names': 'dict[str, int]'}})
class Plain:
    known: int
'''


def test_initializers_and_annotations_are_written_on_blank_lines() -> None:
    prepared = hatch_build.prepare(SOURCE).replace("  # type: ignore[misc]", "")

    complete = "import headgate.compiled_classes; headgate.compiled_classes.complete_class("
    rules = "self.first = first; self.second = second; self.__post_init__()"
    assert prepared == PREPARED.format(complete=complete, rules=rules)


def test_every_function_of_a_prepared_file_is_on_its_original_line() -> None:
    moved = {
        str(path): functions
        for path, source in SOURCES.items()
        if (functions := lines_of(source) - lines_of(hatch_build.prepare(source)))
    }
    assert moved == {}


def lines_of(source: str) -> set[tuple[str, int]]:
    found = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {(node.name, node.lineno) for node in ast.walk(ast.parse(source)) if isinstance(node, found)}


def test_no_compiled_coroutine_waits_while_it_handles_an_exception() -> None:
    """mypyc does not save the exception of a suspended coroutine, so other coroutines would see it as theirs."""
    assert {str(path): lines for path, source in SOURCES.items() if (lines := waits_in_handlers(source))} == {}


def test_compiled_coroutines_use_async_with_only_for_timeouts() -> None:
    """The exit of `asyncio.timeout` never waits. Other exits could wait while an exception is handled."""
    assert {str(path): lines for path, source in SOURCES.items() if (lines := other_contexts(source))} == {}


def test_waits_in_every_kind_of_handler_are_found() -> None:
    handlers = ("except ValueError", "except* ValueError", "finally")
    waits = ("await a", "async with a: pass", "async for b in a: pass", "yield a", "if a: return await b")

    for handler in handlers:
        for wait in waits:
            source = f"async def f():\n  try:\n    await a\n  {handler}:\n    {wait}\n  await a\n"
            assert waits_in_handlers(source) == [5], source


def test_asynchronous_contexts_other_than_timeouts_are_found() -> None:
    source = """
async def f():
    limit = asyncio.timeout(1)
    lock = asyncio.Lock()
    both = asyncio.timeout(1)
    both = asyncio.Lock()
    async with limit, asyncio.timeout(2) as inner: pass
    async with lock: pass
    async with asyncio.timeout(1), asyncio.TaskGroup(): pass
    async with both: pass
    async with self.limit: pass
async def g():
    async with limit: pass
"""
    assert other_contexts(source) == [
        (8, "lock"),
        (9, "asyncio.TaskGroup()"),
        (10, "both"),
        (11, "self.limit"),
        (13, "limit"),
    ]


def waits_in_handlers(source: str) -> list[int]:
    """Return the lines of statements that wait in an `except`, `except*` or `finally` block."""
    handlers = [
        statement
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Try | ast.TryStar)
        for statement in (*(each for handler in node.handlers for each in handler.body), *node.finalbody)
    ]
    waits = (ast.Await, ast.AsyncWith, ast.AsyncFor, ast.Yield, ast.YieldFrom)
    return [node.lineno for each in handlers for node in ast.walk(each) if isinstance(node, waits)]


def other_contexts(source: str) -> list[tuple[int, str]]:
    """Return line and expression of each `async with` on something else than an `asyncio.timeout` of its function."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AsyncFunctionDef)]
    return [
        (node.lineno, ast.unparse(item.context_expr))
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if not is_timeout(item.context_expr, function)
    ]


def is_timeout(context: ast.expr, function: ast.AsyncFunctionDef) -> bool:
    if isinstance(context, ast.Call):
        return ast.unparse(context.func) in {"asyncio.timeout", "asyncio.timeout_at"}
    assigned = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(context) in map(ast.unparse, node.targets)
    ]
    return bool(assigned) and all(isinstance(value, ast.Call) and is_timeout(value, function) for value in assigned)


def compiled_protocols() -> list[type]:
    """Return the compiled network protocols, without those from which another one inherits."""
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in COMPILED]
    found = {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, asyncio.Protocol) and value.__module__ == name
    }
    inherited = {base for each in found for base in each.__mro__[1:]}
    return sorted(found - inherited, key=lambda each: each.__name__)


PROTOCOLS = compiled_protocols()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_network_protocols_define_every_method_of_their_base_class(protocol: type) -> None:
    """Their compiled form has no base class."""
    callbacks = [name for name in dir(asyncio.Protocol) if not name.startswith("_")]

    assert [name for name in callbacks if getattr(protocol, name) is getattr(asyncio.Protocol, name)] == []


def test_every_network_protocol_loses_its_base_class() -> None:
    bases = {each.__name__ for protocol in PROTOCOLS for each in protocol.__mro__ if asyncio.Protocol in each.__bases__}
    removed = {
        node.name
        for source in SOURCES.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and f"class {node.name}{hatch_build._PROTOCOL_BASE}:" in source
    }

    assert {"Connection", "EngineConnection"} <= {each.__name__ for each in PROTOCOLS}
    assert bases == removed


def test_preparation_fails_if_a_class_is_not_followed_by_blank_lines() -> None:
    with pytest.raises(AssertionError, match="line 5 is not blank"):
        hatch_build.prepare("@dataclass\nclass A:\n    a: int\nb = 1\nc = 2\n")


def build_requirements(monkeypatch: pytest.MonkeyPatch, value: str) -> list[str]:
    monkeypatch.setenv("HEADGATE_COMPILE", value)
    hook = hatch_build.WheelHook(str(PROJECT), {}, None, None, "", "wheel")  # type: ignore[arg-type]
    return hook.dependencies()


@pytest.mark.parametrize("value", ["0", ""])
def test_pure_build_requires_no_compiler(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert build_requirements(monkeypatch, value) == []


def test_compiled_build_requires_compiler_and_all_imported_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pip's build environment, mypyc fails if it cannot find the types of an imported library."""
    required = {re.split(r"[<>=\[]", each)[0].lower() for each in build_requirements(monkeypatch, "1")}
    imported = {
        name.partition(".")[0]
        for source in SOURCES.values()
        for node in ast.walk(ast.parse(source))
        for name in imported_modules(node)
    }

    assert "mypy" in required
    assert imported - sys.stdlib_module_names - {"headgate"} - required == set()


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_compiled_wheel_reports_its_build(tmp_path: Path) -> None:
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, PROJECT]
    subprocess.run(wheel, env={**os.environ, "HEADGATE_COMPILE": "1"}, check=True)
    [built] = tmp_path.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", tmp_path / "installed"]
    subprocess.run([*install, built], check=True)

    said = subprocess.run(
        [sys.executable, "-m", "headgate.cli.main", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "-none-any" not in built.name
    assert said.stdout.endswith(" (compiled)\n")
