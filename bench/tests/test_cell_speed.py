"""Tests that the cell scheduler benchmark measures complete request lifecycles."""

import json

import pytest

from bench import cell_speed
from bench.cell_speed import Cost, LoadedCell, cost_per_request, costs_by_part, part_figures, table_of
from bench.python_yardstick import Yardstick
from testing.builds import IS_COMPILED


def test_every_request_is_granted_and_finishes() -> None:
    rig = LoadedCell(64, members=2)
    for _ in range(20):
        rig.step(8)
    rig.one_by_one()

    assert rig.ended == 161
    assert len(rig.running) == 64
    assert rig.leader.summary().requests == rig.opened - rig.ended
    assert sum(member.held for member in rig.members) == rig.opened - rig.ended


@pytest.mark.skipif(IS_COMPILED, reason="the core cannot be measured separately on the compiled build")
def test_every_part_of_the_scheduler_work_is_measured() -> None:
    rig, yardstick = LoadedCell(64, members=2), Yardstick()

    cost = cost_per_request(rig, yardstick, 8, 400)
    assert min(cost.us, cost.over_yardstick) > 0
    spent = {name: part.us for name, part in costs_by_part(rig, yardstick, 8, 400, is_compiled=False).items()}
    assert min(spent.values()) > 0
    assert spent["core"] > spent["reading"] + spent["writing"]


def test_time_of_the_core_is_part_of_deciding_on_the_compiled_build() -> None:
    rig, yardstick = LoadedCell(64, members=2), Yardstick()

    spent = {name: part.us for name, part in costs_by_part(rig, yardstick, 8, 400, is_compiled=True).items()}
    assert spent.keys() == {"reading", "deciding", "writing"}
    assert min(spent.values()) > 0
    assert spent["deciding"] > spent["reading"] + spent["writing"]


def test_last_output_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    cell_speed.main(["--requests", "250"], in_flight_usual=64, calm=lambda: None)

    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    measured = {"requests_per_s", "requests_per_s_at_8", "requests_per_s_at_1"}
    assert measured | {f"{name}_over_yardstick" for name in (*measured, "core")} | {"core_us"} <= figures.keys()
    assert (figures["core_us"] is None) == (figures["core_over_yardstick"] is None) == IS_COMPILED
    assert [line.split("|")[1].strip() for line in table[-4:]] == (
        ["reading", "deciding", "writing", "core"] if IS_COMPILED else ["reading", "deciding", "core", "writing"]
    )


def test_figures_of_the_core_are_null_if_it_was_not_measured() -> None:
    parts = {"deciding": Cost(108.12, 0.4771)}

    assert part_figures(parts) == {
        "core_us": None,
        "core_over_yardstick": None,
        "deciding_us": 108.1,
        "deciding_over_yardstick": 0.477,
    }
    assert table_of(parts).splitlines()[-2:] == [
        "| deciding | 108 | 0.477 |",
        "| core | part of deciding: compiled code does not accept a scheduler that measures its time | |",
    ]
