"""Is what was written read again as it was, and what is not understood taken for nothing else?"""

from dataclasses import replace

import msgspec
import pytest

from headgate.core.commands import Abort, End
from headgate.core.counters import Counters, LimitCounter
from headgate.core.events import AttemptReported, FirstToken, RequestReported, RequestSettled
from headgate.hosts.cell.protocol import codec
from headgate.hosts.cell.protocol.codec import (
    Unintelligible,
    Unwritable,
    decoded_snapshot,
    encoded,
    encoded_snapshot,
    member_entry,
    scheduler_entry,
    writable_snapshot,
)
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    Arrived,
    Covered,
    Declined,
    Echo,
    Ended,
    EndpointGone,
    EndpointTold,
    Epoch,
    FromMember,
    FromScheduler,
    Granted,
    Leaves,
    MemberEntry,
    MemberHead,
    MemberNoted,
    ReportDone,
    Runs,
    SchedulerEntry,
    SchedulerHead,
    Settled,
    Share,
    Snapshot,
    Snapshots,
    Waits,
)
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, Duration, EndpointId, PoolName, RequestId, TenantId
from testing.builders import an_endpoint, at, client_left, completed, dispatch, lasting, progressed
from tests.hosts.cell.builders import a_ticket

TICKET = a_ticket("r1", first_token_within=2, key="k")
FROM_MEMBER: tuple[FromMember, ...] = (
    Arrived(TICKET, lasting(1)),
    Waits(RequestReported(TICKET, lasting(1), 1, failed_at=EndpointId("e1")), 3),
    Runs(
        AttemptReported(
            TICKET, 1, EndpointId("e1"), lasting(1), True, 8, lasting(2), PoolName("p"), ClassName("c"), Caps()
        ),
        3,
        Snapshots(1, 2),
        4,
    ),
    Settled(RequestSettled(TICKET, 1, usage=None), 7, 3, None),
    ReportDone(),
    FirstToken(RequestId("r1"), 1),
    progressed("r1", "r2"),
    Ended(completed("r1", tokens=9), over=True),
    client_left("r1"),
    Declined(RequestId("r1"), 1, False, lasting(1), "late"),
    Leaves(),
)
FROM_SCHEDULER: tuple[FromScheduler, ...] = (
    Granted(dispatch("r1"), lasting(1), Snapshots(1, 2)),
    Abort(RequestId("r1"), 1, EndpointId("e1"), "why"),
    End(RequestId("r1"), Outcome.EXPIRED, ClassName("c"), 1, lasting(1), None, "why"),
    EndpointTold(an_endpoint(), ready=True),
    EndpointGone(EndpointId("e1")),
    Share(1, 3),
    Covered(8),
)


def a_member_entry(*messages: FromMember) -> MemberEntry:
    head = MemberHead("g1", 5, Epoch(1, "one"), False, 2, 3, 4, 5, 6, at(1), Echo(at(2), lasting(1)), Share(0, 2), "h")
    return MemberEntry(head, tuple((Duration(number), each) for number, each in enumerate(messages)))


def a_scheduler_entry(*messages: FromScheduler) -> SchedulerEntry:
    head = SchedulerHead(Epoch(1, "one"), 5, 2, 1, 4, 6, at(1), None, "h")
    return SchedulerEntry(head, tuple((Duration(number), each) for number, each in enumerate(messages)))


def test_every_message_of_a_member_comes_back_as_it_was() -> None:
    entry = a_member_entry(*FROM_MEMBER)

    assert [member_entry(written) for written in encoded(entry)] == [entry]


def test_every_message_of_a_scheduler_comes_back_as_it_was() -> None:
    entry = a_scheduler_entry(*FROM_SCHEDULER)

    assert [scheduler_entry(written) for written in encoded(entry)] == [entry]


def test_all_kinds_are_looked_at_above() -> None:
    assert {type(each).__name__ for each in FROM_MEMBER} == set(codec._FROM_MEMBER)
    assert {type(each).__name__ for each in FROM_SCHEDULER} == set(codec._FROM_SCHEDULER)


def test_a_snapshot_comes_back_as_it_was() -> None:
    counters = Counters(limits=(LimitCounter(TenantId("acme"), 7, 0, lasting(1)),))
    snapshot = Snapshot(Snapshots(3, 4), counters, (MemberNoted("g1", 5, 6, Share(0, 1)),), "h")

    assert decoded_snapshot(encoded_snapshot(snapshot)) == snapshot


def test_snapshot_with_an_unencodable_number_is_not_written() -> None:
    snapshot = Snapshot(Snapshots(1, 1), Counters(), ())
    beyond = Counters(limits=(LimitCounter(TenantId("acme"), 1 << 70, 0, lasting(1)),))

    assert writable_snapshot(snapshot) == encoded_snapshot(snapshot)
    assert writable_snapshot(replace(snapshot, counters=beyond)) is None


def test_what_is_too_large_for_one_entry_becomes_several() -> None:
    parts = list(encoded(a_member_entry(*FROM_MEMBER), bytes_max=1_000))

    assert len(parts) > 1
    assert max(len(part) for part in parts) <= 1_000
    read = [member_entry(part) for part in parts]
    assert [each for entry in read for _, each in entry.messages] == list(FROM_MEMBER)
    assert [entry.head.first for entry in read] == [
        5 + sum(len(entry.messages) for entry in read[:place]) for place in range(len(read))
    ]


def test_a_message_of_a_scheduler_is_split_likewise() -> None:
    parts = list(encoded(a_scheduler_entry(*FROM_SCHEDULER), bytes_max=700))

    assert len(parts) > 1
    assert [each for part in parts for _, each in scheduler_entry(part).messages] == list(FROM_SCHEDULER)


def test_only_the_last_part_of_an_entry_says_which_arrivals_were_judged() -> None:
    whole = a_scheduler_entry(*FROM_SCHEDULER)
    parts = encoded(replace(whole, head=replace(whole.head, judged=6)), bytes_max=700)
    judged = [scheduler_entry(part).head.judged for part in parts]

    assert len(judged) > 1
    assert judged == [0] * (len(judged) - 1) + [6]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Covered(1 << 70), "OverflowError"),
        (Abort(RequestId("r1"), 1, EndpointId("e1"), "\ud800"), "UnicodeEncodeError"),
        (Abort(RequestId("r1"), 1, EndpointId("e1"), "x" * codec.ENTRY_BYTES_MAX), "a single message"),
    ],
    ids=["number", "text", "size"],
)
def test_encoding_an_unwritable_entry_raises_unwritable(said: FromScheduler, why: str) -> None:
    with pytest.raises(Unwritable, match=why):
        list(encoded(a_scheduler_entry(Covered(8), said)))


def test_an_entry_beyond_the_bound_is_not_read() -> None:
    (written,) = encoded(a_member_entry(*FROM_MEMBER))

    with pytest.raises(Unintelligible, match="bytes"):
        member_entry(written, bytes_max=len(written) - 1)


@pytest.mark.parametrize("written", [b"", b"\x00", b"not an entry", b"\x92\x80\x90", b"\x91" * 1_000_000])
def test_what_is_no_entry_is_said_to_be_none(written: bytes) -> None:
    for read in (member_entry, scheduler_entry, decoded_snapshot):
        with pytest.raises(Unintelligible):
            read(written)


def test_one_version_apart_is_read_and_two_are_not() -> None:
    for version, is_read in ((VERSION + 1, True), (VERSION - 1, True), (VERSION + 2, False)):
        (written,) = encoded(a_member_entry())
        head, messages = msgspec.msgpack.decode(written)
        head |= {"version": version, "from a later version": 1}
        other = msgspec.msgpack.encode((head, messages))
        if is_read:
            assert member_entry(other).head.version == version
        else:
            with pytest.raises(Unintelligible, match="version"):
                member_entry(other)


def test_a_field_that_an_earlier_version_lacks_has_its_default() -> None:
    (written,) = encoded(a_member_entry())
    head, messages = msgspec.msgpack.decode(written)
    del head["serves"]

    assert member_entry(msgspec.msgpack.encode((head, messages))).head.serves is True
