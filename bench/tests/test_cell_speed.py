"""Are whole lives of requests what is measured of a cell's scheduler?"""

import json

import pytest

from bench import cell_speed
from bench.cell_speed import Rig, measured, parts


def test_every_request_that_comes_is_granted_and_ends() -> None:
    rig = Rig(64, members=2)
    for _ in range(20):
        rig.step(8)
    rig.one_by_one()

    assert rig.ended == 161
    assert len(rig.running) == 64
    assert rig.leader.summary().requests == rig.opened - rig.ended
    assert sum(member.held for member in rig.members) == rig.opened - rig.ended


def test_all_that_the_scheduler_does_is_counted() -> None:
    rig = Rig(64, members=2)

    assert measured(rig, 8, 400) > 0
    spent = parts(rig, 8, 400)
    assert min(spent.values()) > 0
    assert spent["core"] > spent["reading"] + spent["writing"]


def test_the_last_line_is_machine_readable(capsys: pytest.CaptureFixture[str]) -> None:
    cell_speed.main(["--requests", "250"], in_flight_usual=64, calm=lambda: None)

    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"requests_per_s", "requests_per_s_at_8", "requests_per_s_at_1", "core_us"} <= figures.keys()
