"""Entries and snapshots survive encoding, and malformed data is rejected."""

from dataclasses import replace

import msgspec
import pytest

from headgate.core.commands import Abort
from headgate.core.counters import Counters, LimitCounter
from headgate.hosts.cell.protocol import codec
from headgate.hosts.cell.protocol.codec import (
    InvalidSchedulerEntry,
    UnencodableEntry,
    UnreadableEntry,
    decode_member_entry,
    decode_scheduler_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    try_encode_snapshot,
)
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    CellVersion,
    FromScheduler,
    Share,
    Snapshot,
    SnapshotCoverage,
    SnapshotId,
)
from headgate.model.units import EndpointId, RequestId, TenantId
from testing.builders import duration
from testing.cell_samples import FROM_MEMBER, FROM_SCHEDULER, SNAPSHOT, a_member_entry, a_scheduler_entry


def test_member_messages_round_trip() -> None:
    entry = a_member_entry(*FROM_MEMBER)

    assert [decode_member_entry(written) for written in encode_entry(entry)] == [entry]


def test_scheduler_messages_round_trip() -> None:
    entry = a_scheduler_entry(*FROM_SCHEDULER)

    assert [decode_scheduler_entry(written) for written in encode_entry(entry)] == [entry]


def test_samples_contain_every_message_type() -> None:
    assert {type(each).__name__ for each in FROM_MEMBER} == set(codec._FROM_MEMBER)
    assert {type(each).__name__ for each in FROM_SCHEDULER} == set(codec._FROM_SCHEDULER)


def test_snapshot_round_trips() -> None:
    assert decode_snapshot(encode_snapshot(SNAPSHOT)) == SNAPSHOT


def test_snapshot_with_an_unencodable_number_is_not_written() -> None:
    snapshot = Snapshot(SnapshotId(1, 1), Counters(), ())
    beyond = Counters(limits=(LimitCounter(TenantId("acme"), 1 << 70, 0, duration(1)),))

    assert try_encode_snapshot(snapshot) == encode_snapshot(snapshot)
    assert try_encode_snapshot(replace(snapshot, counters=beyond)) is None


def test_oversized_member_entry_is_split() -> None:
    parts = list(encode_entry(a_member_entry(*FROM_MEMBER), bytes_max=1_100))

    assert len(parts) > 1
    assert max(len(part) for part in parts) <= 1_100
    read = [decode_member_entry(part) for part in parts]
    assert [each for entry in read for _, each in entry.messages] == list(FROM_MEMBER)
    assert [entry.head.first_serial for entry in read] == [
        5 + sum(len(entry.messages) for entry in read[:place]) for place in range(len(read))
    ]


def test_oversized_scheduler_entry_is_split() -> None:
    parts = list(encode_entry(a_scheduler_entry(*FROM_SCHEDULER), bytes_max=700))

    assert len(parts) > 1
    assert [each for part in parts for _, each in decode_scheduler_entry(part).messages] == list(FROM_SCHEDULER)


def test_only_the_last_part_of_an_entry_reports_decided_arrivals() -> None:
    whole = a_scheduler_entry(*FROM_SCHEDULER)
    parts = encode_entry(replace(whole, head=replace(whole.head, decided_serial=6)), bytes_max=700)
    judged = [decode_scheduler_entry(part).head.decided_serial for part in parts]

    assert len(judged) > 1
    assert judged == [0] * (len(judged) - 1) + [6]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (SnapshotCoverage(1 << 70), "OverflowError"),
        (Abort(RequestId("r1"), 1, EndpointId("e1"), "\ud800"), "UnicodeEncodeError"),
        (Abort(RequestId("r1"), 1, EndpointId("e1"), "x" * codec.ENTRY_BYTES_MAX), "a single message"),
    ],
    ids=["number", "text", "size"],
)
def test_encoding_an_unwritable_entry_raises_unwritable(said: FromScheduler, why: str) -> None:
    with pytest.raises(UnencodableEntry, match=why):
        list(encode_entry(a_scheduler_entry(SnapshotCoverage(8), said)))


def test_entry_over_the_size_limit_is_rejected() -> None:
    (written,) = encode_entry(a_member_entry(*FROM_MEMBER))

    with pytest.raises(UnreadableEntry, match="bytes"):
        decode_member_entry(written, bytes_max=len(written) - 1)


@pytest.mark.parametrize("written", [b"", b"\x00", b"not an entry", b"\x92\x80\x90", b"\x91" * 1_000_000])
def test_malformed_bytes_are_rejected(written: bytes) -> None:
    for read in (decode_member_entry, decode_scheduler_entry, decode_snapshot):
        with pytest.raises(UnreadableEntry):
            read(written)


def test_only_adjacent_protocol_versions_are_accepted() -> None:
    for version, is_read in ((VERSION + 1, True), (VERSION - 1, True), (VERSION + 2, False)):
        (written,) = encode_entry(a_member_entry())
        head, messages = msgspec.msgpack.decode(written)
        head |= {"version": version, "from a later version": 1}
        other = msgspec.msgpack.encode((head, messages))
        if is_read:
            assert decode_member_entry(other).head.version == version
        else:
            with pytest.raises(UnreadableEntry, match="version"):
                decode_member_entry(other)


def test_message_unknown_to_an_earlier_version_is_rejected_by_it() -> None:
    (written,) = encode_entry(a_scheduler_entry(Share(1, 3), CellVersion(VERSION)))

    with pytest.raises(InvalidSchedulerEntry, match="CellVersion is unknown in protocol version 3"):
        decode_scheduler_entry(written, version=3)


def test_field_missing_from_an_earlier_version_gets_its_default() -> None:
    (written,) = encode_entry(a_member_entry())
    head, messages = msgspec.msgpack.decode(written)
    del head["serves"]

    assert decode_member_entry(msgspec.msgpack.encode((head, messages))).head.serves is True
