"""Encoding and decoding of entries.

An entry consists of a head and messages, encoded as MessagePack. Each message has its age and the name of its type.
Fields are keyed by name; a reader ignores unknown fields and uses the default for missing ones. Adjacent versions can
therefore read each other's entries, provided that the newer one sends no messages that the older one does not know
(`compatibility`). Entries from other versions are skipped.

The size of an entry is limited. A larger entry is split before it is sent and rejected when it is read. `validation`
checks decoded entries; an invalid entry raises an exception that identifies its sender.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, get_args

import msgspec

from headgate.hosts.cell.protocol.compatibility import is_readable
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
    InvalidMessage,
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

_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError, InvalidMessage)

_ENCODE_ERRORS: Final = (msgspec.MsgspecError, OverflowError, TypeError, ValueError, RecursionError)

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


class UnreadableEntry(Exception):
    """The bytes are not an entry that this version can read."""


class UnencodableEntry(Exception):
    """The entry cannot be encoded: a number is out of range, a text is not Unicode, or one message is too large."""


class InvalidMemberEntry(UnreadableEntry):
    """Entry from a member, with a valid head and an invalid message."""

    def __init__(self, what: str, head: MemberHead) -> None:
        super().__init__(what)
        self.head = head


class InvalidSchedulerEntry(UnreadableEntry):
    """Entry from a scheduler, with a valid head and an invalid message."""

    def __init__(self, what: str, head: SchedulerHead) -> None:
        super().__init__(what)
        self.head = head


def encode_entry(entry: MemberEntry | SchedulerEntry, *, bytes_max: int = ENTRY_BYTES_MAX) -> Iterator[bytes]:
    """Encodes an entry, split into several if it is too large. Raises `UnencodableEntry` for an invalid message."""
    messages = [(age_ns, type(each).__name__, each) for age_ns, each in entry.messages]
    try:
        written = _ENCODER.encode((entry.head, messages))
    except _ENCODE_ERRORS as error:
        raise UnencodableEntry(f"{type(error).__name__}: {error}") from error
    if len(written) <= bytes_max:
        yield written
        return
    half = len(entry.messages) // 2
    if not half:
        raise UnencodableEntry(f"a single message has {len(written)} bytes; the limit of an entry is {bytes_max}")
    yield from encode_entry(_slice(entry, 0, half), bytes_max=bytes_max)
    yield from encode_entry(_slice(entry, half, len(entry.messages)), bytes_max=bytes_max)


def _slice(entry: MemberEntry | SchedulerEntry, start: int, end: int) -> MemberEntry | SchedulerEntry:
    if isinstance(entry, MemberEntry):
        return MemberEntry(replace(entry.head, first_serial=entry.head.first_serial + start), entry.messages[start:end])
    head = replace(entry.head, first_serial=entry.head.first_serial + start)
    if end < len(entry.messages):
        # The following messages may contain decisions.
        head = replace(head, decided_serial=0)
    return SchedulerEntry(head, entry.messages[start:end])


def decode_member_entry(data: bytes, *, bytes_max: int = ENTRY_BYTES_MAX, version: int = VERSION) -> MemberEntry:
    """Decodes an entry as a process of this version does."""
    try:
        head, messages = _decode_frame(data, bytes_max)
        read = _MEMBER_HEADS.decode(head)
        _check_version(read.version, version)
        check_member_head(read)
    except _DECODE_ERRORS as error:
        raise UnreadableEntry(f"invalid member entry: {error}") from error
    said: list[tuple[Duration, FromMember]] = []
    try:
        for age_ns, kind, raw in messages:
            message = _FROM_MEMBER[kind].decode(raw)
            _check_kind(message, version)
            check_from_member(age_ns, message)
            check_holder(read.member, message)
            said.append((Duration(age_ns), message))
    except _DECODE_ERRORS as error:
        raise InvalidMemberEntry(f'member "{read.member}" sent an invalid message: {error}', read) from error
    return MemberEntry(read, tuple(said))


def decode_scheduler_entry(data: bytes, *, version: int = VERSION) -> SchedulerEntry:
    """Decodes an entry as a process of this version does."""
    try:
        head, messages = _decode_frame(data, ENTRY_BYTES_MAX)
        read = _SCHEDULER_HEADS.decode(head)
        _check_version(read.version, version)
        check_scheduler_head(read)
    except _DECODE_ERRORS as error:
        raise UnreadableEntry(f"invalid scheduler entry: {error}") from error
    said: list[tuple[Duration, FromScheduler]] = []
    try:
        for age_ns, kind, raw in messages:
            message = _FROM_SCHEDULER[kind].decode(raw)
            _check_kind(message, version)
            check_from_scheduler(age_ns, message)
            said.append((Duration(age_ns), message))
    except _DECODE_ERRORS as error:
        raise InvalidSchedulerEntry(
            f"the scheduler of epoch {read.epoch.number} sent an invalid message: {error}", read
        ) from error
    return SchedulerEntry(read, tuple(said))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return _ENCODER.encode(snapshot)


def try_encode_snapshot(snapshot: Snapshot) -> bytes | None:
    """Encodes a snapshot. Returns None if a number in it is out of range, for example after a wrong report."""
    try:
        return encode_snapshot(snapshot)
    except _ENCODE_ERRORS:
        return None


def decode_snapshot(written: bytes, *, version: int = VERSION) -> Snapshot:
    if len(written) > SNAPSHOT_BYTES_MAX:
        raise UnreadableEntry(f"the snapshot has {len(written)} bytes; the limit is {SNAPSHOT_BYTES_MAX}")
    try:
        snapshot = _SNAPSHOTS.decode(written)
        _check_version(snapshot.version, version)
        check_snapshot(snapshot)
    except _DECODE_ERRORS as error:
        raise UnreadableEntry(f"invalid snapshot: {error}") from error
    return snapshot


def _decode_frame(written: bytes, bytes_max: int) -> _Frame:
    if len(written) > bytes_max:
        raise UnreadableEntry(f"the entry has {len(written)} bytes; the limit is {bytes_max}")
    return _FRAMES.decode(written)


def _check_version(version: int, own: int) -> None:
    if abs(version - own) > 1:
        raise UnreadableEntry(f"protocol version {version}; this process supports {own - 1} to {own + 1}")


def _check_kind(message: FromMember | FromScheduler, version: int) -> None:
    if not is_readable(message, version):
        raise InvalidMessage(f"{type(message).__name__} is unknown in protocol version {version}")
