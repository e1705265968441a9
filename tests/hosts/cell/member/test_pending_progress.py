"""Tests for the progress reports that a member sends to the scheduler."""

import pytest

from headgate.core.events import AttemptProgress, AttemptsProgressed
from headgate.hosts.cell.member.pending_progress import PendingProgress
from headgate.hosts.cell.protocol.messages import FinishedAttempt
from headgate.model.units import EndpointId, Instant, RequestId
from testing.builders import at, client_disconnected, completed, failed, progressed
from tests.hosts.cell.member.test_member import with_one_running

SWEEP_S = 0.25


def sweep(progress: PendingProgress, streams: int, now: Instant, *, endpoints: int = 10, late: bool = False) -> None:
    for number in range(streams):
        report = AttemptProgress(RequestId(f"r{number}"), 1, 7)
        progress.add(report, EndpointId(f"e{number % endpoints}"), late=late)


def tokens(reports: list[AttemptsProgressed]) -> dict[str, int]:
    return {each.request_id: each.tokens for report in reports for each in report.attempts}


def test_few_streams_are_reported_after_every_measurement() -> None:
    progress = PendingProgress()
    for number in range(1, 5):
        sweep(progress, 60, at(number * SWEEP_S))
        assert tokens(progress.pop_due(at(number * SWEEP_S))) == {f"r{each}": 7 for each in range(60)}


@pytest.mark.parametrize("streams", [250, 940, 3_000])
def test_many_streams_are_reported_once_per_second(streams: int) -> None:
    progress, counts = PendingProgress(), dict[str, int]()
    total = 0
    for number in range(1, 41):
        sweep(progress, streams, at(number * SWEEP_S))
        for report in progress.pop_due(at(number * SWEEP_S)):
            assert len(report.attempts) <= 1_000
            for each in report.attempts:
                counts[each.request_id] = counts.get(each.request_id, 0) + 1
                total += each.tokens

    # Ten seconds contain at most eleven reports of each stream, and no tokens are lost.
    assert set(counts.values()) <= {10, 11}
    left = sum(tokens(progress.pop_due(at(100))).values())
    assert total + left == 40 * 7 * streams


def test_report_about_an_endpoint_includes_all_its_streams() -> None:
    progress = PendingProgress()
    sweep(progress, 250, at(1))
    progress.pop_due(at(1))
    progress.add(AttemptProgress(RequestId("r1"), 1, 3), EndpointId("e1"), late=False)
    assert progress.pop_due(at(1.001)) == []
    sweep(progress, 250, at(2.5))

    reports = progress.pop_due(at(2.5))

    assert tokens(reports)["r1"] == 10
    assert len(tokens(reports)) == 250


def test_pending_progress_is_reported_even_if_none_is_added() -> None:
    progress = PendingProgress()
    sweep(progress, 250, at(1))
    progress.pop_due(at(1))
    sweep(progress, 250, at(1.1))
    assert progress.pop_due(at(1.1)) == []

    assert len(tokens(progress.pop_due(at(2.1)))) == 250
    assert progress.pop_due(at(3)) == []


def test_report_is_late_if_any_part_of_it_is_late() -> None:
    progress = PendingProgress()
    sweep(progress, 2, at(1), late=True)
    sweep(progress, 2, at(1))
    assert [report.late for report in progress.pop_due(at(1))] == [True]
    sweep(progress, 2, at(2))
    assert [report.late for report in progress.pop_due(at(2))] == [False]


def test_remaining_progress_is_reported_before_a_request_is_withdrawn() -> None:
    member, scheduler = with_one_running()
    member.handle(progressed("r1"), at(0.2))
    member.handle(client_disconnected("r1"), at(0.2))

    assert scheduler.listen(at(0.2)) == [progressed("r1"), client_disconnected("r1")]


def test_remaining_progress_is_reported_only_if_the_usage_is_unknown() -> None:
    member, scheduler = with_one_running()
    member.handle(progressed("r1"), at(0.2))
    member.handle(failed("r1"), at(0.2))
    assert scheduler.listen(at(0.2)) == [progressed("r1"), FinishedAttempt(failed("r1"), request_over=False)]

    member, scheduler = with_one_running()
    member.handle(progressed("r1"), at(0.2))
    member.handle(completed("r1", tokens=8), at(0.2))
    assert scheduler.listen(at(0.2)) == [FinishedAttempt(completed("r1", tokens=8), request_over=True)]
