"""The simulation in the guide on batching has the stated result."""

import re
from pathlib import Path

import pytest

from headgate.cli.main import main
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/guides/batching.md").read_text()
[SCENARIO] = re.findall(r"as `embeddings.yaml`:\n\n```yaml\n(.*?)```", PAGE, re.DOTALL)


def simulated(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    file = folder / "embeddings.yaml"
    file.write_text(text)

    assert main(["simulate", str(file), "--quiet"]) == 0
    return capsys.readouterr().out


def test_batched_example_reports_the_line_in_the_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [line] = re.findall(r"```text\n(vectors: .*)\n```", PAGE)

    report = simulated(SCENARIO, tmp_path, capsys)

    assert line in report
    assert "100.0%" in report


def test_example_without_batching_attains_the_share_in_the_guide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [share] = re.findall(r"Without the line `batching`.*?([\d.]+) % of the requests", PAGE, re.DOTALL)

    assert f"{share}%" in simulated(re.sub(r"    batching: .*\n", "", SCENARIO), tmp_path, capsys)
