"""The example in the guide on capacity plans is what its command prints."""

import re
import shlex

import pytest

from headgate.cli.main import main
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/guides/plan.md").read_text()


def test_example_is_the_output_of_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("COLUMNS", "100")
    command, *_ = re.findall(r"^headgate (plan .*)$", PAGE, re.MULTILINE)
    [shown] = re.findall(r"It prints:\n\n```text\n(.*?)```", PAGE, re.DOTALL)

    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown
