"""Fixtures for the command-line tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.cli.main import main


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


Headgate = Callable[..., Said]


@pytest.fixture
def headgate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headgate:
    """Runs a command line in an empty directory, without secrets in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADGATE_KEY_SECRET", raising=False)

    def run(*arguments: str) -> Said:
        try:
            code = main(arguments)
        except SystemExit as left:
            code = int(str(left.code))
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The command line's default configuration file."""
    return tmp_path / "headgate.yaml"
