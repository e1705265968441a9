"""Tests for the progress reports that a member sends to the scheduler."""

from dataclasses import replace

import pytest

from headgate.core.events import AttemptProgress, AttemptsProgressed
from headgate.hosts.cell.member.held_requests import HeldRequest, HeldRequests
from headgate.hosts.cell.member.pending_progress import PendingProgress, pop_progress
from headgate.hosts.cell.protocol.messages import FinishedAttempt
from headgate.model.units import Instant, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import at, client_disconnected, completed, dispatch, failed, progressed
from tests.hosts.cell.builders import a_ticket
from tests.hosts.cell.member.test_member import with_one_running

SWEEP_S = 0.25


class Streams:
    """Running streams of a member, and their unreported progress."""

    def __init__(self, count: int) -> None:
        self.held = HeldRequests(unsettled_max=1)
        self._progress = PendingProgress(self.held)
        for number in range(count):
            request = HeldRequest(a_ticket(f"r{number}"), at(0))
            request.start_attempt(dispatch(f"r{number}"), None, at(0))
            self.held.requests[request.id] = request

    def add(self, *names: str, tokens: int = 7, late: bool = False) -> None:
        chosen = [RequestId(name) for name in names] or list(self.held.requests)
        self.held.add_progress(AttemptsProgressed(tuple(AttemptProgress(each, 1, tokens) for each in chosen), late))
        self._progress.note_added()

    def pop_due(self, now: Instant) -> list[AttemptsProgressed]:
        return self._progress.pop_due(now)

    def clear(self) -> None:
        self._progress.clear()


def tokens(reports: list[AttemptsProgressed]) -> dict[str, int]:
    return {each.request_id: each.tokens for report in reports for each in report.attempts}


def test_few_streams_are_reported_after_every_measurement() -> None:
    streams = Streams(60)
    for number in range(1, 5):
        streams.add()
        assert tokens(streams.pop_due(at(number * SWEEP_S))) == {f"r{each}": 7 for each in range(60)}


@pytest.mark.parametrize("count", [250, 940, 3_000])
def test_many_streams_are_reported_once_per_second(count: int) -> None:
    streams, counts = Streams(count), dict[str, int]()
    total = 0
    for number in range(1, 41):
        streams.add()
        for report in streams.pop_due(at(number * SWEEP_S)):
            assert len(report.attempts) <= 1_000
            for each in report.attempts:
                counts[each.request_id] = counts.get(each.request_id, 0) + 1
                total += each.tokens

    # Ten seconds contain at most eleven reports of each stream, and no tokens are lost.
    assert set(counts.values()) <= {10, 11}
    left = sum(tokens(streams.pop_due(at(100))).values())
    assert total + left == 40 * 7 * count


def test_report_includes_all_streams() -> None:
    streams = Streams(250)
    streams.add()
    streams.pop_due(at(1))
    streams.add("r1", tokens=3)
    assert streams.pop_due(at(1.999)) == []
    streams.add()

    reports = streams.pop_due(at(2))

    assert tokens(reports)["r1"] == 10
    assert len(tokens(reports)) == 250


def test_pending_progress_is_reported_even_if_none_is_added() -> None:
    streams = Streams(250)
    streams.add()
    streams.pop_due(at(1))
    streams.add()
    assert streams.pop_due(at(1.1)) == []

    assert len(tokens(streams.pop_due(at(2.1)))) == 250
    assert streams.pop_due(at(3)) == []


def test_progress_without_tokens_is_reported() -> None:
    streams = Streams(1)
    streams.add("r0", tokens=0)

    assert tokens(streams.pop_due(at(1))) == {"r0": 0}
    assert streams.pop_due(at(3)) == []


def test_queued_requests_do_not_delay_reports() -> None:
    streams = Streams(1)
    for number in range(300):
        request = HeldRequest(a_ticket(f"q{number}"), at(0))
        streams.held.requests[request.id] = request
    for number in range(1, 5):
        streams.add("r0")
        assert tokens(streams.pop_due(at(number * SWEEP_S))) == {"r0": 7}


def test_report_is_late_if_any_part_of_it_is_late() -> None:
    streams = Streams(2)
    streams.add(late=True)
    streams.add()
    assert [report.late for report in streams.pop_due(at(1))] == [True]
    streams.add()
    assert [report.late for report in streams.pop_due(at(2))] == [False]


def test_progress_that_a_full_report_included_is_not_reported_again() -> None:
    streams = Streams(2)
    streams.add(late=True)
    attempt = streams.held.requests[RequestId("r0")].running[1]
    streams.clear()

    assert attempt.request.running_report(attempt, at(1)).report.tokens == 7
    assert streams.pop_due(at(1)) == []
    assert pop_progress(attempt) is None

    streams.add("r0", tokens=2)
    assert pop_progress(attempt) == AttemptsProgressed((AttemptProgress(RequestId("r0"), 1, 2),))
    assert pop_progress(attempt) is None


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
    estimated = replace(completed("r1"), usage=Usage(1, 8, 0, UsageSource.ESTIMATED))
    member.handle(estimated, at(0.2))
    assert scheduler.listen(at(0.2)) == [progressed("r1"), FinishedAttempt(estimated, request_over=True)]

    member, scheduler = with_one_running()
    member.handle(progressed("r1"), at(0.2))
    member.handle(completed("r1", tokens=8), at(0.2))
    assert scheduler.listen(at(0.2)) == [FinishedAttempt(completed("r1", tokens=8), request_over=True)]
