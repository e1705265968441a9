"""Tests for `just cells`."""

import json

import pytest

from bench import several_cells
from bench.several_cells import BUDGET_PPM_MAX, simulated_overspending
from testing.cell_fleet import excess_ppm


def test_cells_overspend_a_budget_only_by_what_the_ledger_lags() -> None:
    assert simulated_overspending(1, seconds=300) * 5 <= BUDGET_PPM_MAX
    assert simulated_overspending(4, seconds=120) <= BUDGET_PPM_MAX


def test_excess_counts_requests_beyond_the_limit_and_its_burst() -> None:
    # A burst of one minute, and then one request per second.
    usual = [(0.0, 0.1)] * 60 + [(float(at), at + 0.1) for at in range(1, 60)]
    assert excess_ppm(usual, limit=60) == 0
    assert excess_ppm([*usual, *[(30.0, 30.1)] * 6], limit=60) == pytest.approx(100_000, abs=20_000)
    assert excess_ppm([(0.0, 10.0)] * 70, limit=60) == 0
    assert excess_ppm([], limit=60) == 0


@pytest.mark.cell
@pytest.mark.timeout(400)
def test_last_output_line_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert several_cells.main(["--smoke"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["cells"], figures["lost"], figures["overspent_ppm"], figures["violations"]) == (2, 0, 0, 0)
    assert 0 < figures["live_budget_spent_ppm"] <= 1_500_000
    assert figures["live_budget_usd"] == 33
    assert figures["takeover_s"] < figures["share_takeover_s"]
