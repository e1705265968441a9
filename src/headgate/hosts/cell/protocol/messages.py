"""What do members and the scheduler of a cell say to each other?

A *member* is a gateway process, a *scheduler* the one process that decides for all of them under an *epoch*. Both talk
in entries. An entry carries any number of messages, numbered so that each is taken in once and in order, what the
sender has taken in of the other's, and stamps by which the other can tell how old it is at most.

A *session* is one run of numbered messages between one life of a member and one scheduler. It begins with the member's
report of all that it holds, so whoever has no part in the past of a session can take part in a new one. A member
numbers its messages through over all sessions of its life: a snapshot of the scheduler's counters says up to which of
these serials it knows the member's story.
"""

from typing import Final

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptReported,
    FirstToken,
    Progressed,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
)
from headgate.model.endpoint import Endpoint
from headgate.model.message import message
from headgate.model.money import NanoUsd
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId

VERSION: Final = 1
"""Of what is said here. Those one version apart understand each other: fields are added with a default, never moved."""


@message
class Epoch:
    """Whose orders count: the higher number's, and of two with one number the one that was heard first."""

    number: int
    id: str


@message
class Snapshots:
    """A moment between the snapshots of one scheduler: the first that knows what happened then."""

    epoch: int
    number: int


# From a member


@message
class Arrived:
    """A request has come that no scheduler has answered for yet."""

    ticket: Ticket
    waited_ns: Duration = Duration(0)
    """Since it came, up to when this was said."""


@message
class Waits:
    """A request that a scheduler or an island has let in is here and waits."""

    report: RequestReported
    arrived: int
    """The serial of its `Arrived`; 0 where it was let in without a scheduler."""


@message
class Runs:
    """An attempt is under way here."""

    report: AttemptReported
    arrived: int
    sent: Snapshots | None
    """None where an island sent it."""
    told: int
    """The serial with which it was reported last; 0 if it never was."""
    ended: int = 0
    """Of a request that has ended: the serial that told of it; 0 if none did."""
    cost: NanoUsd | None = NanoUsd(0)
    """And what its tenant pays; None where it does and nobody has told how much."""


@message
class Settled:
    """A request has ended here, and no snapshot that was confirmed to us knows of it."""

    report: RequestSettled
    serial: int
    """Of the message that told of it first; 0 if none did."""
    arrived: int
    sent: Snapshots | None
    ended: int = 0
    """The serial that told of the end of the request, maybe before its last attempt had ended: what it costs follows
    from that."""


@message
class ReportDone:
    """That is all that this member holds. What follows is news."""


@message
class Ended:
    event: AttemptEnded
    over: bool
    """Whether its request has ended with it, by the member's own word."""


@message
class Declined:
    """A grant was not begun."""

    request_id: RequestId
    attempt: int
    over: bool
    """Whether the member has no such request any more. Otherwise it still waits."""
    waited_ns: Duration = Duration(0)
    reason: str = ""


@message
class Leaves:
    """This member holds nothing and will not speak again."""


FromMember = (
    Arrived
    | Waits
    | Runs
    | Settled
    | ReportDone
    | FirstToken
    | Progressed
    | Ended
    | RequestWithdrawn
    | Declined
    | Leaves
)


# From the scheduler


@message
class Granted:
    order: Dispatch
    start_within_ns: Duration
    sent: Snapshots


@message
class EndpointTold:
    """What the scheduler knows of an endpoint, for the member that may have to decide by itself."""

    endpoint: Endpoint
    ready: bool


@message
class EndpointGone:
    endpoint_id: EndpointId


@message
class Share:
    """Which part of everything is this member's when it decides by itself: the one with this number, of so many."""

    rank: int
    of: int


@message
class Covered:
    """A snapshot that was written knows all of this member's messages up to this serial."""

    serial: int


FromScheduler = Granted | Abort | End | EndpointTold | EndpointGone | Share | Covered


# Entries


@message
class Echo:
    """A stamp of the one to whom this goes, and how long it lay here: the entry was made so long after the stamp."""

    stamp: Instant
    held_ns: Duration


@message
class MemberHead:
    member: str
    incarnation: int
    """A higher one each time the process starts, such as the moment at which it does."""
    bound: Epoch | None
    """The scheduler that it follows, or would."""
    island: bool
    session: int
    base: int
    """The serial with which the session begins."""
    kept: int
    """The serial of the first message that it still has: none before it can come again."""
    first: int
    """The serial of the first message in here."""
    taken: int
    """Of the scheduler's messages in this session, the last that was taken in."""
    stamp: Instant
    echo: Echo | None
    """Of the last entry that the member took for a sign of life."""
    share: Share
    """What it takes, or would take, by itself."""
    policy_hash: str = ""
    serves: bool = True
    """Whether requests come to it; if not, nothing needs to be kept for it."""
    version: int = VERSION
    staged: str = ""
    """Which rules it has read and is ready to go by; empty where these are the ones that it goes by."""


@message
class MemberEntry:
    head: MemberHead
    messages: tuple[tuple[Duration, FromMember], ...] = ()
    """Each with its age at the moment of the stamp."""


@message
class SchedulerHead:
    epoch: Epoch
    incarnation: int
    """Of the member, as far as it is known; 0 where it is not."""
    session: int
    """The session that this belongs to; 0 where there is none."""
    wanted: int
    """The last session that cannot go on: the member is to begin another. 0 where there is none such."""
    first: int
    taken: int
    """The serial of the last message of the member's that was taken in."""
    stamp: Instant
    echo: Echo | None
    policy_hash: str = ""
    version: int = VERSION
    judged: int | None = None
    """The serial up to which the scheduler has decided on arrivals. The member knows these decisions once it has all
    messages up to the end of this entry. 0 if more messages or decisions follow, None if it is not told."""


@message
class SchedulerEntry:
    head: SchedulerHead
    messages: tuple[tuple[Duration, FromScheduler], ...] = ()


# What is kept in the store


@message
class MemberNoted:
    member: str
    incarnation: int
    covered: int
    """The last of its serials that the counters know."""
    share: Share
    earlier: tuple[Share, ...] = ()
    """Older shares that it may still use instead."""


@message
class Snapshot:
    """What a scheduler has counted, for whoever comes after it."""

    at: Snapshots
    counters: Counters
    members: tuple[MemberNoted, ...]
    policy_hash: str = ""
    version: int = VERSION


@message
class Lease:
    """Who is the scheduler, as the store has it."""

    epoch: Epoch
    expires: Instant
    """By the store's clock."""
