"""Scripts printed by `headgate completion`."""

import subprocess
from pathlib import Path

import pytest

from headgate.cli.main import VERBS
from tests.cli.conftest import Headgate

COMPLETE = """\
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_headgate
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(headgate: Headgate, tmp_path: Path) -> Path:
    said = headgate("completion", "bash")
    assert (said.code, said.err) == (0, "")
    file = tmp_path / "headgate.bash"
    file.write_text(said.out)
    return file


def completed(script: Path, *words: str) -> list[str]:
    command = ["bash", "-c", COMPLETE, "bash", str(script), "headgate", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=script.parent)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["se"], ["serve"]),
        (["s"], ["serve", "scheduler", "status", "simulate"]),
        ([""], list(VERBS)),
        (["operate", "dr"], ["drain"]),
        (["generate", "c"], ["config-schema"]),
        (["serve", "--log-"], ["--log-level", "--log-format"]),
        (["serve", "--log-level", "w"], ["warning"]),
        (["serve", "--config", "headgate.b"], ["headgate.bash"]),
        (["serve", "--workers", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["simulate", "headgate.b"], ["headgate.bash"]),
        (["operate", "list", "--u"], ["--url"]),
    ],
)
def test_bash_completes_verbs_actions_options_and_values(script: Path, words: list[str], expected: list[str]) -> None:
    assert completed(script, *words) == expected


@pytest.mark.process
def test_bash_script_registers_the_completion(script: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"source {script}; complete -p headgate"], capture_output=True, text=True, check=True
    )

    assert "-F _headgate headgate" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_script_names_every_verb_with_its_purpose(headgate: Headgate, shell: str) -> None:
    said = headgate("completion", shell)

    assert said.code == 0
    for verb, purpose in VERBS.items():
        assert (f"'{verb}:{purpose}'" if shell == "zsh" else f"-a '{verb}' -d '{purpose}'") in said.out


def test_hidden_options_are_not_completed(headgate: Headgate) -> None:
    assert "--worker-index" not in headgate("completion", "bash").out
