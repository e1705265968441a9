"""Does the benchmark of records make what it says, and find it?"""

import json
from pathlib import Path

import pytest

from bench.records_speed import made, main, measured
from headgate.telemetry.records.row import history_of


def test_the_same_rows_are_made_each_time_each_with_its_history() -> None:
    rows = list(made(50))

    assert rows == list(made(50))
    assert len({row.key.request_id for row in rows}) == 50
    assert all(history_of(row) is not None and len(row.stages) >= 8 for row in rows)


def test_a_small_folder_is_measured(tmp_path: Path) -> None:
    figures = measured(1_000, tmp_path)

    assert figures.rows == 1_000
    assert 50 < figures.bytes_per_row < 500
    assert figures.find_s_max > 0
    assert figures.search_all_s > 0


def test_the_last_line_is_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "10"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 10
