"""Tests of the check of setting trials against live gateways."""

from bench.tune_live import TrialRun, figures_of


def test_figures_count_the_right_results() -> None:
    better = [TrialRun("improved", 60, 3), TrialRun("undecided", 180, 3)]
    harmful = [TrialRun("worse", 10, 1.24), TrialRun("worse", 20, 2.06)]

    assert figures_of(better, harmful) == {"runs": 2, "kept": 1, "reverted": 2, "revert_s": 2.1}
