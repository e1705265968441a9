"""Verbs, help and exit codes of the command line."""

import re
import subprocess
import sys

import pytest

from headgate import __version__
from headgate.build import BUILD
from headgate.cli.main import GROUPS, VERBS
from tests.cli.conftest import Headgate


def test_help_lists_every_verb(headgate: Headgate) -> None:
    said = headgate("--help")

    assert said.code == 0
    assert re.findall(r"^(\w+):$", said.out, re.MULTILINE)[: len(GROUPS)] == [*GROUPS, "options"][: len(GROUPS)]
    assert re.findall(r"^  (\w+)  +[A-Z]", said.out, re.MULTILINE) == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(headgate: Headgate, verb: str) -> None:
    said = headgate(verb, "--help")

    assert said.code == 0
    assert VERBS[verb] in said.out


def test_version_is_printed(headgate: Headgate) -> None:
    assert headgate("--version").out == f"headgate {__version__} ({BUILD})\n"


@pytest.mark.parametrize("arguments", [(), ("fly",), ("check", "--fast"), ("keys",), ("keys", "new"), ("check", "a")])
def test_invalid_command_line_exits_with_code_2_and_reason(headgate: Headgate, arguments: tuple[str, ...]) -> None:
    said = headgate(*arguments)

    assert (said.code, said.out) == (2, "")
    assert "usage: headgate" in said.err


@pytest.mark.process
def test_help_imports_no_heavy_modules() -> None:
    program = (
        "import contextlib, io, sys\n"
        "from headgate.cli.main import VERBS, main\n"
        "for arguments in ['--help'], *([verb, '--help'] for verb in VERBS):\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(arguments)\n"
        "    heavy = {'aiohttp', 'asyncio', 'msgspec', 'uvloop', 'yaml'} & {*sys.modules}\n"
        "    print(arguments, heavy or 'nothing heavy')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert [line for line in done.stdout.splitlines() if not line.endswith("nothing heavy")] == []
    assert len(done.stdout.splitlines()) == 1 + len(VERBS)
