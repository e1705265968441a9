"""Tests for the records benchmark."""

import json
from pathlib import Path

import pytest

from bench.records_speed import main, make_rows, measure
from headgate.telemetry.records.row import history_of


def test_generated_rows_are_reproducible_and_have_histories() -> None:
    rows = list(make_rows(50))

    assert rows == list(make_rows(50))
    assert len({row.key.request_id for row in rows}) == 50
    assert all(history_of(row) is not None and len(row.stages) >= 8 for row in rows)


def test_measure_returns_results_for_small_directory(tmp_path: Path) -> None:
    figures = measure(1_000, tmp_path)

    assert figures.rows == 1_000
    assert 50 < figures.bytes_per_row < 500
    assert figures.find_s_max > 0
    assert figures.search_all_s > 0


def test_last_output_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "10"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 10
