"""Tests of the check of capacity plans against live gateways."""

from pathlib import Path

import pytest
import yaml

from bench.plan_live import OBJECTIVE, LiveRun, Planned, figures_of, planned_engines, workload
from headgate.config.scenarios.workload import parse_workload


def test_figures_count_the_seeds_for_which_each_fleet_holds() -> None:
    runs = [
        LiveRun(seed, engines, attainment, behind=seed == 1)
        for seed, planned, fewer in ((0, 0.99, 0.70), (1, OBJECTIVE, OBJECTIVE), (2, 0.94, 0.60))
        for engines, attainment in ((3, planned), (2, fewer))
    ]

    assert figures_of(Planned(3, 0.98, 0.72), runs) == {
        "seeds": 3,
        "planned": 3,
        "planned_holds": 2,
        "one_fewer_holds": 1,
        "planned_attainment_min": 0.94,
        "one_fewer_attainment_max": OBJECTIVE,
        "simulated_planned_attainment_min": 0.98,
        "simulated_one_fewer_attainment_min": 0.72,
        "behind": 2,
    }


def test_plan_and_load_test_have_the_same_workload(tmp_path: Path) -> None:
    parsed = parse_workload(yaml.safe_dump(workload(3.0)), tmp_path / "workload.yaml", {})

    assert [each.traffic.classes for each in parsed.sources] == [(("interactive", pytest.approx(1)),)]


@pytest.mark.process
def test_workload_needs_several_engines(tmp_path: Path) -> None:
    planned = planned_engines(tmp_path, seconds=10.0, seeds=(0,))

    assert planned.engines >= 2
    assert planned.attainment_one_fewer is not None
    assert planned.attainment_one_fewer < OBJECTIVE <= planned.attainment
