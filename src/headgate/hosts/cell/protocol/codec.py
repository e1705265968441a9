"""Encodes and decodes entries.

An entry is its head and its messages, each with its age and the name of its type, as MessagePack. Fields are keyed by
name; a reader ignores unknown fields and uses the default for missing ones. So two adjacent versions can read each
other; entries of other versions are not read.

The size of an entry is bounded: a larger one is split into several, and a reader rejects larger ones. Decoded entries
are checked by `validation`; an invalid one raises an exception that names its sender.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, get_args

import msgspec

from headgate.hosts.cell.protocol.messages import (
    VERSION,
    FromMember,
    FromScheduler,
    MemberEntry,
    MemberHead,
    SchedulerEntry,
    SchedulerHead,
    Snapshot,
)
from headgate.hosts.cell.protocol.validation import (
    Implausible,
    check_from_member,
    check_from_scheduler,
    check_holder,
    check_member_head,
    check_scheduler_head,
    check_snapshot,
)
from headgate.model.units import Duration

ENTRY_BYTES_MAX: Final = 1 << 20
SNAPSHOT_BYTES_MAX: Final = 16 << 20

_UNREAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError, Implausible)

_UNWRITTEN: Final = (msgspec.MsgspecError, OverflowError, TypeError, ValueError, RecursionError)

_Frame = tuple[msgspec.Raw, list[tuple[int, str, msgspec.Raw]]]

_ENCODER: Final = msgspec.msgpack.Encoder()
_FRAMES: Final = msgspec.msgpack.Decoder(_Frame)
_MEMBER_HEADS: Final = msgspec.msgpack.Decoder(MemberHead)
_SCHEDULER_HEADS: Final = msgspec.msgpack.Decoder(SchedulerHead)
_SNAPSHOTS: Final = msgspec.msgpack.Decoder(Snapshot)
_FROM_MEMBER: Final[dict[str, msgspec.msgpack.Decoder[FromMember]]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(FromMember)
}
_FROM_SCHEDULER: Final[dict[str, msgspec.msgpack.Decoder[FromScheduler]]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(FromScheduler)
}


class Unintelligible(Exception):
    """These bytes are not an entry that this version reads."""


class Unwritable(Exception):
    """This entry cannot be encoded: a number is out of range, a text is not Unicode, or one message is too large."""


class UntrustedMember(Unintelligible):
    """An entry of a member with a valid head and an invalid message."""

    def __init__(self, what: str, head: MemberHead) -> None:
        super().__init__(what)
        self.head = head


class UntrustedScheduler(Unintelligible):
    """An entry of a scheduler with a valid head and an invalid message."""

    def __init__(self, what: str, head: SchedulerHead) -> None:
        super().__init__(what)
        self.head = head


def encoded(entry: MemberEntry | SchedulerEntry, *, bytes_max: int = ENTRY_BYTES_MAX) -> Iterator[bytes]:
    """The encoded entry, split if it is too large. Raises `Unwritable` if a message cannot be encoded."""
    messages = [(age_ns, type(each).__name__, each) for age_ns, each in entry.messages]
    try:
        written = _ENCODER.encode((entry.head, messages))
    except _UNWRITTEN as error:
        raise Unwritable(f"{type(error).__name__}: {error}") from error
    if len(written) <= bytes_max:
        yield written
        return
    half = len(entry.messages) // 2
    if not half:
        raise Unwritable(f"a single message of {len(written)} bytes; an entry has at most {bytes_max}")
    yield from encoded(_part(entry, 0, half), bytes_max=bytes_max)
    yield from encoded(_part(entry, half, len(entry.messages)), bytes_max=bytes_max)


def _part(entry: MemberEntry | SchedulerEntry, start: int, end: int) -> MemberEntry | SchedulerEntry:
    if isinstance(entry, MemberEntry):
        return MemberEntry(replace(entry.head, first=entry.head.first + start), entry.messages[start:end])
    head = replace(entry.head, first=entry.head.first + start)
    if end < len(entry.messages):
        # Decisions may be in the messages that follow.
        head = replace(head, judged=0)
    return SchedulerEntry(head, entry.messages[start:end])


def member_entry(written: bytes, *, bytes_max: int = ENTRY_BYTES_MAX) -> MemberEntry:
    try:
        head, messages = _frame(written, bytes_max)
        read = _MEMBER_HEADS.decode(head)
        _check(read.version)
        check_member_head(read)
    except _UNREAD as error:
        raise Unintelligible(f"not an entry of a member: {error}") from error
    said: list[tuple[Duration, FromMember]] = []
    try:
        for age_ns, kind, raw in messages:
            message = _FROM_MEMBER[kind].decode(raw)
            check_from_member(age_ns, message)
            check_holder(read.member, message)
            said.append((Duration(age_ns), message))
    except _UNREAD as error:
        raise UntrustedMember(f'member "{read.member}" sent an invalid message: {error}', read) from error
    return MemberEntry(read, tuple(said))


def scheduler_entry(written: bytes) -> SchedulerEntry:
    try:
        head, messages = _frame(written, ENTRY_BYTES_MAX)
        read = _SCHEDULER_HEADS.decode(head)
        _check(read.version)
        check_scheduler_head(read)
    except _UNREAD as error:
        raise Unintelligible(f"not an entry of a scheduler: {error}") from error
    said: list[tuple[Duration, FromScheduler]] = []
    try:
        for age_ns, kind, raw in messages:
            message = _FROM_SCHEDULER[kind].decode(raw)
            check_from_scheduler(age_ns, message)
            said.append((Duration(age_ns), message))
    except _UNREAD as error:
        raise UntrustedScheduler(
            f"the scheduler of epoch {read.epoch.number} sent an invalid message: {error}", read
        ) from error
    return SchedulerEntry(read, tuple(said))


def encoded_snapshot(snapshot: Snapshot) -> bytes:
    return _ENCODER.encode(snapshot)


def writable_snapshot(snapshot: Snapshot) -> bytes | None:
    """The encoded snapshot; None if a number in it is out of range, for example after a wrong report."""
    try:
        return encoded_snapshot(snapshot)
    except _UNWRITTEN:
        return None


def decoded_snapshot(written: bytes) -> Snapshot:
    if len(written) > SNAPSHOT_BYTES_MAX:
        raise Unintelligible(f"a snapshot of {len(written)} bytes; at most {SNAPSHOT_BYTES_MAX} are read")
    try:
        snapshot = _SNAPSHOTS.decode(written)
        _check(snapshot.version)
        check_snapshot(snapshot)
    except _UNREAD as error:
        raise Unintelligible(f"not a snapshot: {error}") from error
    return snapshot


def _frame(written: bytes, bytes_max: int) -> _Frame:
    if len(written) > bytes_max:
        raise Unintelligible(f"an entry of {len(written)} bytes; at most {bytes_max} are read")
    return _FRAMES.decode(written)


def _check(version: int) -> None:
    if abs(version - VERSION) > 1:
        raise Unintelligible(f"version {version} of the protocol; this process reads {VERSION - 1} to {VERSION + 1}")
