"""Source preparation for the compiled build. `just test-compiled` runs the scheduler's tests on that build."""

import ast
import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build
from headgate.edge.connection import Connection
from headgate.engines.engine_connection import EngineConnection

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "headgate"
COMPILED = sorted(hatch_build.compiled_files(PACKAGE))

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


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_function_of_a_prepared_file_is_on_its_original_line(path: Path) -> None:
    source = path.read_text()

    assert lines_of(source) <= lines_of(hatch_build.prepare(source))


def lines_of(source: str) -> set[tuple[str, int]]:
    found = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {(node.name, node.lineno) for node in ast.walk(ast.parse(source)) if isinstance(node, found)}


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_compiled_coroutine_waits_while_it_handles_an_exception(path: Path) -> None:
    """mypyc does not save the exception of a suspended coroutine, so other coroutines would see it as theirs."""
    handlers = [
        statement
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Try)
        for statement in (*(each for handler in node.handlers for each in handler.body), *node.finalbody)
    ]
    waits = (ast.Await, ast.AsyncWith, ast.AsyncFor, ast.Yield, ast.YieldFrom)

    assert [node.lineno for each in handlers for node in ast.walk(each) if isinstance(node, waits)] == []


@pytest.mark.parametrize("protocol", [Connection, EngineConnection])
def test_network_protocols_define_every_method_of_their_base_class(protocol: type) -> None:
    """Their compiled form has no base class."""
    callbacks = [name for name in dir(asyncio.Protocol) if not name.startswith("_")]

    assert [name for name in callbacks if getattr(protocol, name) is getattr(asyncio.Protocol, name)] == []


def test_preparation_fails_if_a_class_is_not_followed_by_blank_lines() -> None:
    with pytest.raises(AssertionError, match="line 5 is not blank"):
        hatch_build.prepare("@dataclass\nclass A:\n    a: int\nb = 1\nc = 2\n")


def build_requirements(monkeypatch: pytest.MonkeyPatch, value: str) -> list[str]:
    monkeypatch.setenv("HEADGATE_COMPILE", value)
    hook = hatch_build.CompileHook(str(PROJECT), {}, None, None, "", "wheel")  # type: ignore[arg-type]
    return hook.dependencies()


@pytest.mark.parametrize("value", ["0", ""])
def test_pure_build_requires_no_compiler(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert build_requirements(monkeypatch, value) == []


def test_compiled_build_requires_compiler_and_all_imported_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pip's build environment, mypyc fails if it cannot find the types of an imported library."""
    required = {re.split(r"[<>=\[]", each)[0].lower() for each in build_requirements(monkeypatch, "1")}
    imported = {
        name.partition(".")[0]
        for path in hatch_build.compiled_files(PROJECT / "src" / "headgate")
        for node in ast.walk(ast.parse(path.read_text()))
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
