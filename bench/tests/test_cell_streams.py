"""Tests for cell-streams results."""

import pytest

from bench.cell_streams import leader_cost
from bench.cell_streams.__main__ import missed_thresholds, stream_figures, table_of
from bench.cell_streams.stages import (
    Grant,
    MemberTimes,
    SchedulerTimes,
    TakeoverTimes,
    grant_stages,
    takeover_stages,
)
from bench.cell_streams.streams import StreamFigures, readmit_s
from headgate.model.units import RequestId


def some_figures(*, readmits: tuple[float, ...] = (), lost: int = 0) -> StreamFigures:
    return StreamFigures(
        offered_per_s=1_000,
        new_per_s=998,
        open=15_000,
        leader_cores=0.8,
        leader_us_per_request=800,
        grant_ms_p50=3,
        grant_ms_p99=20,
        grant_stages_ms={"member_sends": (0.5, 2.5)},
        arrival_late_ms=(0.1, 1.0),
        member_round_trip_ms=(0.3, 1.5),
        leader_round_trip_ms=(0.3, 1.5),
        window_islands=0,
        progress_per_s=60_000,
        store_cores=0.1,
        member_cores=0.8,
        leader_turn_ms=20,
        readmit_s=readmits,
        takeover_turn_ms=tuple(40.0 for _ in readmits),
        takeover_stages_ms=tuple({"lease": 610.0} for _ in readmits),
        islands=0,
        lost=lost,
    )


def test_readmission_is_longest_gap_after_the_kill_at_any_member() -> None:
    def grant(at_s: float, member: int) -> Grant:
        return Grant(round(at_s * 1e6), 1_000, member)

    grants = [grant(1.0, 0), grant(4.0, 0), grant(4.1, 1), grant(4.3, 0), grant(5.2, 1), grant(5.3, 0)]

    assert readmit_s(grants, killed_s=4.2, until_s=5.5, members=2) == pytest.approx(1.1)
    assert readmit_s(grants, killed_s=4.2, until_s=8.0, members=2) == pytest.approx(2.8)


def test_member_without_grants_has_waited_since_the_kill() -> None:
    assert readmit_s([Grant(5_000_000, 0, 0)], killed_s=4.0, until_s=5.5, members=2) == pytest.approx(1.5)


def test_stages_of_a_grant_add_up_to_its_wait() -> None:
    member = MemberTimes(RequestId("member-0-0013"), 1_000, 3_000, 12_000, 12_500)
    unmatched = MemberTimes(RequestId("member-0-0026"), 1_000, 2_000, 3_000, 4_000)
    scheduler = SchedulerTimes(RequestId("member-0-0013"), 7_000, 8_000)

    assert grant_stages([member, unmatched], [scheduler]) == {
        "member_sends": (2.0, 2.0),
        "scheduler_decides": (4.0, 4.0),
        "scheduler_sends": (1.0, 1.0),
        "member_receives": (4.0, 4.0),
        "member_starts": (0.5, 0.5),
    }


def test_takeover_ends_with_the_first_grant_of_the_last_member() -> None:
    times = TakeoverTimes(leased_us=600_000, begun_us=650_000, gathered_us=900_000, adopted_us=1_500_000)
    granted = [Grant(at_us, 0, member) for at_us, member in ((100, 0), (1_510_000, 1), (1_520_000, 1), (1_600_000, 0))]

    assert takeover_stages(times, 0, granted) == {
        "lease": 600.0,
        "begin": 50.0,
        "gather": 250.0,
        "adopt": 600.0,
        "first_grant": 10.0,
        "all_granted": 90.0,
    }


def test_worst_readmission_and_losses_are_checked() -> None:
    figures = stream_figures(some_figures(readmits=(0.9, 2.5), lost=3))

    assert figures["readmit_s_worst"] == 2.5
    assert [sentence.split(";")[0] for sentence in missed_thresholds(figures)] == [
        "missed: leader_cores is 0.8",
        "missed: readmit_s_worst is 2.5",
        "missed: lost is 3",
    ]
    assert table_of(figures).count("MISSED") == 3


def test_figures_that_were_not_measured_are_not_checked() -> None:
    figures = stream_figures(some_figures()) | {"leader_cores": None}

    assert missed_thresholds(figures) == []
    assert "not measured" in table_of(figures)


def test_virtual_cell_completes_requests_and_survives_a_takeover() -> None:
    cell = leader_cost.VirtualCell(rate=100, stream_s=0.5, members=4, endpoints=8)
    for _ in range(leader_cost.SETTLE_STEPS):
        cell.step()
    cell.run(1.5)
    assert cell.ended > 50
    assert cell.spent_ns > 0

    ended, number = cell.ended, cell.leader.epoch.number
    cell.take_over()
    assert (cell.leader.epoch.number, cell.leader.gathering) == (number + 1, False)
    cell.run(1.5)
    assert cell.ended >= ended + 100
