"""Does the command line find its verbs?"""

import re
import subprocess
import sys

import pytest

from headgate import __version__
from headgate.cli.main import VERBS
from tests.cli.conftest import Headgate


def test_help_names_every_verb(headgate: Headgate) -> None:
    said = headgate("--help")

    assert said.code == 0
    # The longest has its purpose on a line of its own.
    assert re.findall(r"^    (\w+)\s+\w", said.out, re.MULTILINE) == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(headgate: Headgate, verb: str) -> None:
    said = headgate(verb, "--help")

    assert said.code == 0
    assert VERBS[verb] in said.out


def test_version_is_told(headgate: Headgate) -> None:
    assert headgate("--version").out == f"headgate {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [(), ("fly",), ("check", "--fast"), ("keys",), ("keys", "new"), ("check", "a", "b")]
)
def test_a_wrong_command_line_is_code_two_and_says_why(headgate: Headgate, arguments: tuple[str, ...]) -> None:
    said = headgate(*arguments)

    assert (said.code, said.out) == (2, "")
    assert "usage: headgate" in said.err


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
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
