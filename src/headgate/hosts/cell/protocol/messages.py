"""Messages between the members and the scheduler of a cell.

A *member* is a gateway process. The *scheduler* is the process that makes decisions for all members during an *epoch*.
They exchange entries. An entry carries any number of messages, numbered so that each is applied once and in order. It
also acknowledges received messages and carries timestamps from which the receiver computes the maximum age of the
entry.

A *session* is one sequence of numbered messages between one incarnation of a member and one scheduler. It starts with a
report of everything the member holds, so either side can start a new session at any time. A member numbers its messages
continuously across all sessions of its incarnation. A snapshot records the last of these serials that its counters
include.
"""

from typing import Final

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptReported,
    AttemptsProgressed,
    FirstToken,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
)
from headgate.model.endpoint import Endpoint
from headgate.model.message import message
from headgate.model.money import NanoUsd
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId

VERSION: Final = 4
"""Protocol version. Adjacent versions are compatible: new fields have a default, and fields are never moved.

`compatibility` lists the messages that earlier versions must not receive.
"""


@message
class Epoch:
    """Term of one scheduler.

    Members follow the highest number or, if numbers are equal, the epoch that they saw first.
    """

    number: int
    id: str


@message
class SnapshotId:
    """Id of a snapshot. As a point in time, it is the first snapshot that includes an event."""

    epoch: int
    number: int


# Messages from a member


@message
class NewRequest:
    """New request that no scheduler has decided on yet."""

    ticket: Ticket
    waited_ns: Duration = Duration(0)
    """Time from the request's arrival until this message was created."""


@message
class QueuedRequest:
    """Report of a queued request that a scheduler or an island has admitted."""

    report: RequestReported
    arrival_serial: int
    """Serial of the request's `NewRequest` message. 0 if an island admitted it."""


@message
class RunningAttempt:
    """Report of a running attempt."""

    report: AttemptReported
    arrival_serial: int
    dispatch_snapshot: SnapshotId | None
    """First snapshot that includes the dispatch. None if an island sent the attempt."""
    report_serial: int
    """Serial of the last message that reported this attempt. 0 if there is none."""
    end_serial: int = 0
    """Serial of the message that reported the request as ended. 0 if there is none."""
    cost: NanoUsd | None = NanoUsd(0)
    """Cost that the tenant pays. None if the tenant pays and the cost is unknown."""


@message
class SettledRequest:
    """Report of a finished request that no confirmed snapshot includes."""

    report: RequestSettled
    serial: int
    """Serial of the message that first reported the result. 0 if there is none."""
    arrival_serial: int
    dispatch_snapshot: SnapshotId | None
    end_serial: int = 0
    """Serial of the message that reported the request as ended, possibly before its last attempt ended.

    The cost depends on it.
    """


@message
class ReportDone:
    """End of the report. The messages after it are updates."""


@message
class FinishedAttempt:
    event: AttemptEnded
    request_over: bool
    """Whether the member has ended the request with this attempt."""


@message
class GrantDeclined:
    """A grant that the member did not start."""

    request_id: RequestId
    attempt: int
    request_over: bool
    """Whether the request is over. If false, it is still queued."""
    waited_ns: Duration = Duration(0)
    reason: str = ""


@message
class MemberLeaving:
    """The member holds no requests and is exiting."""


FromMember = (
    NewRequest
    | QueuedRequest
    | RunningAttempt
    | SettledRequest
    | ReportDone
    | FirstToken
    | AttemptsProgressed
    | FinishedAttempt
    | RequestWithdrawn
    | GrantDeclined
    | MemberLeaving
)


# Messages from the scheduler


@message
class Grant:
    dispatch: Dispatch
    start_within_ns: Duration
    dispatch_snapshot: SnapshotId


@message
class EndpointUpdate:
    """State of an endpoint, for members that may become islands."""

    endpoint: Endpoint
    ready: bool


@message
class EndpointRemoved:
    endpoint_id: EndpointId


@message
class Share:
    """Share of capacity and limits that a member may use as an island: number `rank` of `total` shares."""

    rank: int
    total: int


@message
class SnapshotCoverage:
    """A stored snapshot includes all of the member's messages up to this serial."""

    serial: int


@message
class CellVersion:
    """Lowest protocol version of the processes in the cell. Sent since version 4."""

    version: int


FromScheduler = Grant | Abort | End | EndpointUpdate | EndpointRemoved | Share | SnapshotCoverage | CellVersion


# Entries


@message
class Echo:
    """The receiver's timestamp, returned with how long the sender held it before creating the entry."""

    stamp: Instant
    held_ns: Duration


@message
class MemberHead:
    member: str
    incarnation: int
    """Number that increases with each start of the process, such as its start time."""
    followed_epoch: Epoch | None
    """Epoch that the member follows, or would follow."""
    island: bool
    session: int
    session_first_serial: int
    """First serial of the session."""
    oldest_kept_serial: int
    """Serial of the oldest message that the member still has. Earlier messages cannot be resent."""
    first_serial: int
    """Serial of the first message in this entry."""
    received_serial: int
    """Serial of the last scheduler message received in this session."""
    stamp: Instant
    echo: Echo | None
    """Echo of the last entry that the member accepted as an answer."""
    share: Share
    """Share that the member uses, or would use, as an island."""
    policy_hash: str = ""
    serves: bool = True
    """Whether the member accepts requests. If not, nothing is reserved for it."""
    version: int = VERSION
    staged_hash: str = ""
    """Hash of a policy that the member has read but not applied. Empty if there is none."""


@message
class MemberEntry:
    head: MemberHead
    messages: tuple[tuple[Duration, FromMember], ...] = ()
    """Messages, each with its age at the time of the entry's timestamp."""


@message
class SchedulerHead:
    epoch: Epoch
    incarnation: int
    """Incarnation of the member. 0 if unknown."""
    session: int
    """Session that this entry belongs to. 0 if there is none."""
    rejected_session: int
    """Last session that the scheduler has rejected. The member must start a new one. 0 if there is none."""
    first_serial: int
    received_serial: int
    """Serial of the last message received from the member."""
    stamp: Instant
    echo: Echo | None
    policy_hash: str = ""
    version: int = VERSION
    decided_serial: int | None = None
    """Serial up to which the scheduler has decided on arrivals.

    The member knows these decisions once it has received all messages up to the end of this entry. 0 if more messages
    or decisions follow. None if the scheduler does not report it.
    """


@message
class SchedulerEntry:
    head: SchedulerHead
    messages: tuple[tuple[Duration, FromScheduler], ...] = ()


# Data in the store


@message
class MemberEntryState:
    member: str
    incarnation: int
    covered_serial: int
    """Last of the member's serials that the counters include."""
    share: Share
    earlier_shares: tuple[Share, ...] = ()
    """Older shares that the member may still use."""


@message
class Snapshot:
    """A scheduler's counters, for its successor."""

    at: SnapshotId
    counters: Counters
    members: tuple[MemberEntryState, ...]
    policy_hash: str = ""
    version: int = VERSION


@message
class Lease:
    """The scheduler's lease, as stored."""

    epoch: Epoch
    expires_at: Instant
    """Expiry time by the store's clock."""
