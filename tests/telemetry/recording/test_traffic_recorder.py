"""Recordings of a process's traffic: windows, pages and bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.events import RequestArrived, TimerFired
from headgate.model.outcome import Outcome
from headgate.model.routes import MIRROR_TENANT
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.ports.directory import ChangeRejected, NotFound
from headgate.ports.observer import Observer
from headgate.ports.records import AttemptRecord, RequestRecord
from headgate.ports.traffic import TrafficRow
from headgate.telemetry.recording.traffic_recorder import (
    PAGE_ROWS_MAX,
    RECORDINGS_MAX,
    UNREAD_S_MAX,
    ServedModels,
    TrafficRecorder,
    traffic_row,
)
from testing.builders import arrived

PREFIX = bytes(range(16))


class Gateway:
    """A recorder, its clock and the observers of its process."""

    def __init__(self, **bounds: int) -> None:
        self.at_s = 1_000.0
        self.observers: list[Observer] = []
        self.recorder = TrafficRecorder(self.now, self.attach, clock=lambda: self.at_s, **bounds)

    def now(self) -> Instant:
        return Instant(round(self.at_s * SECOND))

    def attach(self, observer: Observer) -> Callable[[], None]:
        self.observers.append(observer)
        return lambda: self.observers.remove(observer)

    def start(self, seconds: int = 60) -> str:
        return self.recorder.start(Duration(seconds * SECOND)).recording

    def arrive(self, name: str, **fields: Any) -> RequestRecord:
        """A request arrives. Returns its record, which has not ended."""
        ticket = replace(arrived(name).ticket, prefix_hashes=PREFIX, prompt_bytes_before_prefix=40, **fields)
        for each in list(self.observers):
            each.observe(RequestArrived(ticket), (), self.now())
        record = RequestRecord(RequestId(name), self.now(), 1)
        record.tenant, record.api, record.model, record.outcome = ticket.tenant, ticket.api, "m", Outcome.COMPLETED
        return record

    def rows(self, recording: str) -> list[TrafficRow]:
        return self.recorder.read(recording, after=0, end=False).rows


def test_row_contains_the_prefix_of_the_ticket_and_the_sizes_of_the_record() -> None:
    gateway = Gateway()
    recording = gateway.start()
    gateway.at_s += 1.5
    record = gateway.arrive("r1")
    record.prompt_tokens, record.cached_tokens, record.output_tokens, record.stream = 100, 64, 7, True
    record.caller_stages = (("retrieval", 2_000_000),)
    assert gateway.recorder.read(recording, after=0, end=False).open == 1
    gateway.recorder.add(record)

    [row] = gateway.rows(recording)
    assert (row.at_us, row.prefix, row.bytes_before_prefix) == (1_500_000, PREFIX, 40)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens, row.stream) == (100, 64, 7, True)
    assert row.stages == (("retrieval", 2_000),)


def test_process_is_observed_only_while_a_recording_takes_requests() -> None:
    gateway = Gateway()
    assert gateway.observers == []
    first, second = gateway.start(10), gateway.start(20)
    assert len(gateway.observers) == 1
    gateway.recorder.read(first, after=0, end=True)
    assert len(gateway.observers) == 1
    gateway.at_s += 20
    gateway.arrive("late")

    assert gateway.observers == []
    assert gateway.recorder.read(second, after=0, end=False).open == 0


def test_recording_contains_exactly_the_requests_that_arrive_during_it() -> None:
    gateway = Gateway()
    gateway.start(60)
    before = gateway.arrive("before")
    recording = gateway.start(10)
    during = gateway.arrive("during")
    gateway.at_s += 10
    after = gateway.arrive("after")
    for record in (before, during, after):
        gateway.recorder.add(record)

    page = gateway.recorder.read(recording, after=0, end=False)
    assert ([row.at_us for row in page.rows], page.open, page.ended) == ([0], 0, True)


def test_copies_of_mirrored_requests_and_other_events_are_not_recorded() -> None:
    gateway = Gateway()
    recording = gateway.start()
    record = gateway.arrive("copy", mirror_route="shadow")
    gateway.observers[0].observe(TimerFired(), (), gateway.now())
    gateway.recorder.add(record)

    assert gateway.rows(recording) == []


def test_rows_are_kept_until_the_reader_confirms_them() -> None:
    gateway = Gateway()
    recording = gateway.start()
    for number in range(3):
        gateway.at_s += 1
        gateway.recorder.add(gateway.arrive(f"r{number}"))

    assert len(gateway.rows(recording)) == len(gateway.rows(recording)) == 3
    page = gateway.recorder.read(recording, after=2, end=False)
    assert (page.first, [row.at_us for row in page.rows]) == (2, [3_000_000])


def test_slow_reader_loses_rows_which_are_counted() -> None:
    gateway = Gateway(rows_max=2)
    recording = gateway.start()
    for number in range(5):
        gateway.recorder.add(gateway.arrive(f"r{number}"))

    page = gateway.recorder.read(recording, after=0, end=False)
    assert (len(page.rows), page.dropped) == (2, 3)


def test_open_requests_are_bounded() -> None:
    gateway = Gateway(pending_max=2)
    recording = gateway.start()
    for number in range(5):
        gateway.arrive(f"r{number}")

    page = gateway.recorder.read(recording, after=0, end=False)
    assert (page.open, page.dropped) == (2, 3)


def test_abandoned_recording_ends_by_itself() -> None:
    gateway = Gateway()
    recording = gateway.start(3_600)
    gateway.arrive("kept open")
    gateway.at_s += UNREAD_S_MAX + 1
    gateway.arrive("last")

    assert gateway.observers == []
    with pytest.raises(NotFound, match="start another"):
        gateway.recorder.read(recording, after=0, end=False)


def test_number_of_recordings_is_limited() -> None:
    gateway = Gateway()
    for _ in range(RECORDINGS_MAX):
        gateway.start()
    with pytest.raises(ChangeRejected, match=f"{RECORDINGS_MAX} recordings are running"):
        gateway.start()
    gateway.at_s += UNREAD_S_MAX + 1
    gateway.start()


def test_ended_recording_takes_no_new_requests_and_can_be_read_to_its_end() -> None:
    gateway = Gateway()
    recording = gateway.start()
    for number in range(PAGE_ROWS_MAX + 5):
        gateway.recorder.add(gateway.arrive(f"r{number}"))
    first = gateway.recorder.read(recording, after=0, end=True)
    gateway.recorder.add(gateway.arrive("later"))
    second = gateway.recorder.read(recording, after=PAGE_ROWS_MAX, end=True)
    last = gateway.recorder.read(recording, after=PAGE_ROWS_MAX + 5, end=True)

    assert [(len(page.rows), page.dropped, page.ended) for page in (first, second, last)] == [
        (PAGE_ROWS_MAX, 0, True),
        (5, 0, True),
        (0, 0, True),
    ]
    with pytest.raises(NotFound):
        gateway.recorder.read(recording, after=0, end=False)


def test_recent_requests_are_read_in_pages_and_have_no_prefix() -> None:
    gateway = Gateway()
    records = []
    for number in range(PAGE_ROWS_MAX + 5):
        gateway.at_s += 1
        records.append(gateway.arrive(f"r{number}"))
    nameless = RequestRecord(RequestId("rejected before authentication"), Instant(0), 1)
    copy = gateway.arrive("copy of another request")
    copy.tenant = MIRROR_TENANT
    first = gateway.recorder.start_with([nameless, *records, copy])
    second = gateway.recorder.read(first.recording, after=len(first.rows), end=False)

    assert (len(first.rows), len(second.rows), second.ended) == (PAGE_ROWS_MAX, 5, True)
    assert (first.rows[0].at_us, first.rows[1].at_us) == (0, 1_000_000)
    assert first.rows[0].prefix == b""
    assert gateway.observers == []


def an_attempt() -> AttemptRecord:
    return AttemptRecord(1, EndpointId("e"), PoolName("p"), reason="", hedge=False, waited_ns=0, now=1)


@pytest.mark.parametrize("outcome", [Outcome.MODEL_NOT_FOUND, Outcome.QUEUE_FULL, Outcome.CANCELLED, None])
def test_model_that_has_served_no_request_is_left_out(outcome: Outcome | None) -> None:
    rejected, served, models = Gateway().arrive("r1"), Gateway().arrive("r2"), ServedModels()
    rejected.outcome, served.attempts = outcome, [an_attempt()]

    assert [traffic_row(each, models).model for each in (rejected, served, rejected)] == ["", "m", "m"]
