"""Tests that the cell scheduler benchmark measures complete request lifecycles."""

import json

import pytest

from bench import cell_speed
from bench.cell_speed import LoadedCell, cost_per_request, costs_by_part
from bench.python_yardstick import Yardstick


def test_every_request_is_granted_and_finishes() -> None:
    rig = LoadedCell(64, members=2)
    for _ in range(20):
        rig.step(8)
    rig.one_by_one()

    assert rig.ended == 161
    assert len(rig.running) == 64
    assert rig.leader.summary().requests == rig.opened - rig.ended
    assert sum(member.held for member in rig.members) == rig.opened - rig.ended


def test_every_part_of_the_scheduler_work_is_measured() -> None:
    rig, yardstick = LoadedCell(64, members=2), Yardstick()

    cost = cost_per_request(rig, yardstick, 8, 400)
    assert min(cost.us, cost.over_yardstick) > 0
    spent = {name: part.us for name, part in costs_by_part(rig, yardstick, 8, 400).items()}
    assert min(spent.values()) > 0
    assert spent["core"] > spent["reading"] + spent["writing"]


def test_last_output_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    cell_speed.main(["--requests", "250"], in_flight_usual=64, calm=lambda: None)

    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    measured = {"requests_per_s", "requests_per_s_at_8", "requests_per_s_at_1"}
    assert measured | {f"{name}_over_yardstick" for name in (*measured, "core")} | {"core_us"} <= figures.keys()
