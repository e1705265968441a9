"""One entry with each kind of message of the cell protocol, and their bytes as another version writes and reads them.

    PYTHONPATH=EARLIER/src:. python -m testing.cell_samples write > tests/hosts/cell/protocol/recorded/version_N.json
    PYTHONPATH=EARLIER/src:. python -m testing.cell_samples read < FILE

`write` prints the entries of the version in PYTHONPATH. `read` decodes such entries with that version, and prints them
as that version would write them again. Both run with an earlier version too, so this file uses only what both have.
"""

import base64
import json
import sys
from enum import Enum

from headgate.core.commands import Abort, End
from headgate.core.counters import Counters, LimitCounter
from headgate.core.events import (
    AttemptEnding,
    AttemptReported,
    CountedUpTo,
    FirstToken,
    RequestReported,
    RequestSettled,
    WithdrawalCause,
)
from headgate.hosts.cell.protocol import messages
from headgate.hosts.cell.protocol.codec import (
    decode_member_entry,
    decode_scheduler_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
)
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    Echo,
    EndpointRemoved,
    EndpointUpdate,
    Epoch,
    FinishedAttempt,
    FromMember,
    FromScheduler,
    Grant,
    GrantDeclined,
    MemberEntry,
    MemberEntryState,
    MemberHead,
    MemberLeaving,
    NewRequest,
    QueuedRequest,
    ReportDone,
    RunningAttempt,
    SchedulerEntry,
    SchedulerHead,
    SettledRequest,
    Share,
    Snapshot,
    SnapshotCoverage,
    SnapshotId,
)
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import ClassName, Duration, EndpointId, PoolName, RequestId, TenantId
from headgate.model.usage import UsageSource
from testing.builders import an_endpoint, arrived, at, client_disconnected, completed, dispatch, duration, progressed

TICKET = arrived("r1", first_token_within=2, key="k").ticket
FROM_MEMBER: tuple[FromMember, ...] = (
    NewRequest(TICKET, duration(1)),
    QueuedRequest(RequestReported(TICKET, duration(1), 1, failed_at=EndpointId("e1")), 3),
    RunningAttempt(
        AttemptReported(
            TICKET, 1, EndpointId("e1"), duration(1), True, 8, duration(2), PoolName("p"), ClassName("c"), Caps()
        ),
        3,
        SnapshotId(1, 2),
        4,
    ),
    SettledRequest(RequestSettled(TICKET, 1, usage=None), 7, 3, None),
    ReportDone(),
    FirstToken(RequestId("r1"), 1),
    progressed("r1", "r2"),
    FinishedAttempt(completed("r1", tokens=9), request_over=True),
    client_disconnected("r1"),
    GrantDeclined(RequestId("r1"), 1, False, duration(1), "late"),
    MemberLeaving(),
)
FROM_SCHEDULER: tuple[FromScheduler, ...] = (
    Grant(dispatch("r1"), duration(1), SnapshotId(1, 2)),
    Abort(RequestId("r1"), 1, EndpointId("e1"), "why"),
    End(RequestId("r1"), Outcome.QUEUE_TIMEOUT, ClassName("c"), 1, duration(1), None, "why"),
    EndpointUpdate(an_endpoint(), ready=True),
    EndpointRemoved(EndpointId("e1")),
    Share(1, 3),
    SnapshotCoverage(8),
    # Kinds that an earlier version does not have.
    *(kind(4) for kind in (getattr(messages, "CellVersion", None),) if kind is not None),
)
SNAPSHOT = Snapshot(
    SnapshotId(3, 4),
    Counters(limits=(LimitCounter(TenantId("acme"), 7, 0, duration(1)),)),
    (MemberEntryState("g1", 5, 6, Share(0, 1), (Share(1, 2),)),),
    "h",
)
ENUMERATIONS: tuple[type[Enum], ...] = (Outcome, AttemptEnding, WithdrawalCause, CountedUpTo, UsageSource, Api)
"""Enumerations whose values occur in messages."""


def a_member_entry(*sent: FromMember) -> MemberEntry:
    head = MemberHead("g1", 5, Epoch(1, "one"), False, 2, 3, 4, 5, 6, at(1), Echo(at(2), duration(1)), Share(0, 2), "h")
    return MemberEntry(head, tuple((Duration(number), each) for number, each in enumerate(sent)))


def a_scheduler_entry(*sent: FromScheduler) -> SchedulerEntry:
    head = SchedulerHead(Epoch(1, "one"), 5, 2, 1, 4, 6, at(1), None, "h")
    return SchedulerEntry(head, tuple((Duration(number), each) for number, each in enumerate(sent)))


def entries_to(version: int) -> dict[str, bytes]:
    """Encoded entries by kind, without the kinds that a process of this version does not know."""
    unknown: tuple[type, ...] = ()
    if version < VERSION:
        # An earlier version does not have this module.
        from headgate.hosts.cell.protocol.compatibility import KINDS_SINCE

        unknown = tuple(kind for kind, since in KINDS_SINCE.items() if since > version)
    entries = [a_member_entry(each) for each in FROM_MEMBER if not isinstance(each, unknown)]
    others = [a_scheduler_entry(each) for each in FROM_SCHEDULER if not isinstance(each, unknown)]
    written = {type(each.messages[0][1]).__name__: b"".join(encode_entry(each)) for each in (*entries, *others)}
    return written | {"Snapshot": encode_snapshot(SNAPSHOT)}


def rewritten(kind: str, written: bytes) -> bytes:
    """The entry as this version writes it after it has read it."""
    if kind == "Snapshot":
        return encode_snapshot(decode_snapshot(written))
    from_member = kind in {type(each).__name__ for each in FROM_MEMBER}
    return b"".join(encode_entry(decode_member_entry(written) if from_member else decode_scheduler_entry(written)))


def as_json(entries: dict[str, bytes]) -> str:
    said = {
        "version": VERSION,
        "values": {each.__name__: sorted(str(value.value) for value in each) for each in ENUMERATIONS},
        "entries": {kind: base64.b64encode(written).decode() for kind, written in entries.items()},
    }
    return json.dumps(said, indent=2)


def entries_of(text: str) -> dict[str, bytes]:
    return {kind: base64.b64decode(written) for kind, written in json.loads(text)["entries"].items()}


def main() -> None:
    if sys.argv[1] == "write":
        print(as_json(entries_to(VERSION)))
    else:
        print(as_json({kind: rewritten(kind, each) for kind, each in entries_of(sys.stdin.read()).items()}))


if __name__ == "__main__":
    main()
