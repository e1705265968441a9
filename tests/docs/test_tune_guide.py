"""The example in the guide on tuning is what its command prints."""

import re
import shlex
from pathlib import Path

import pytest

from headgate.cli.main import main
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/guides/tune.md").read_text()


def test_example_is_the_output_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [(old, new)] = re.findall(r"^sed 's/(.*)/(.*)/' scenarios/tune.yaml > wrong.yaml$", PAGE, re.MULTILINE)
    [command] = re.findall(r"^headgate (tune wrong.yaml .*)$", PAGE, re.MULTILINE)
    [shown] = re.findall(r"It prints:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    scenario = (PROJECT / "scenarios/tune.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(scenario.replace(old, new))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown
