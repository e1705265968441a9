"""What does the scheduler of a cell know of one member?

One record for each life of a member: the session that runs with it, what it was told and has acknowledged, how far its
story is known, and which of its requests are in the scheduler's book.
"""

from collections import deque
from collections.abc import Iterator

from headgate.hosts.cell.protocol.link import Inbound, Outbound, Stamps
from headgate.hosts.cell.protocol.messages import FromMember, FromScheduler, MemberHead, Share
from headgate.hosts.cell.protocol.shares import places_of
from headgate.hosts.cell.protocol.validation import SHARES_MAX
from headgate.hosts.cell.protocol.views import Standing
from headgate.hosts.cell.timing import Timing
from headgate.model.ticket import Ticket
from headgate.model.units import EndpointId, Instant, RequestId, after

Said = tuple[int, Instant, FromMember]
"""A message of a member: its serial, and when it was said by our clock, at the latest."""


class Booked:
    """One request of a member, and what of it is under way."""

    __slots__ = ("attempts", "ended_there", "known_at", "over", "peer", "ticket")

    def __init__(self, ticket: Ticket, peer: "Peer", known_at: Instant) -> None:
        self.ticket = ticket
        self.peer = peer
        self.attempts: dict[int, Place] = {}
        self.known_at = known_at
        """When it came to its member, by our clock."""
        self.over = False
        """Whether nobody is there any more who would carry out an order for it."""
        self.ended_there = False
        """Whether its member has ended it by its own word, and is yet to hear what it cost."""


class Place:
    """Where an attempt is, and since when it must be there if it is to be there at all."""

    __slots__ = ("begun", "endpoint_id", "since")

    def __init__(self, endpoint_id: EndpointId, since: Instant, *, begun: bool = False) -> None:
        self.endpoint_id = endpoint_id
        self.since = since
        self.begun = begun
        """Whether the member has said that it has begun."""


class Peer:
    def __init__(self, name: str, incarnation: int, now: Instant, *, timing: Timing) -> None:
        self.name = name
        self.incarnation = incarnation
        self.serves = True
        self.policy_hash = self.staged = ""
        self.standing = Standing.EXPECTED
        self.since = now
        """When it was heard last, or lost from sight."""
        self.requests: dict[RequestId, Booked] = {}
        self.known = 0
        """The serial up to which the scheduler's counters know its story."""
        self.told_covered = 0
        self.rank: int | None = None
        self.shares: deque[tuple[int, Share]] = deque()
        """What it was told that its share is, with the numbers of the messages: the last that it has acknowledged,
        and what came after."""
        self.dealt: Share | None = None
        """A new share that it has not been told yet, because no snapshot in the store has it."""
        self.report: list[Said] = []
        self.reported = False
        """Whether its report is whole."""
        self.adopted = False
        """Whether it has been put into the book."""
        self.backlog: list[Said] = []
        """What it has told between the two."""
        self.session = 0
        self.wanted = 0
        """The last session that cannot go on."""
        self.inbound: Inbound[FromMember] = Inbound(1)
        self.outbound: Outbound[FromScheduler] = Outbound(1, resend_ns=timing.resend_ns)
        self.stamps = Stamps()
        self._echoed: Instant | None = None
        """The last of our own stamps that it has given back: it has heard us since."""
        self.said_at = Instant(now - timing.beat_ns)
        self.urgent = True
        """Whether something is to be said before the next beat."""
        self._timing = timing
        self.refusals, self.refused_at = 0, now
        """Number of reports rejected in a row, and when the last one was."""
        self._fenced_until: Instant | None = None

    # What it says

    def heard(self, head: MemberHead, now: Instant, *, ours: bool) -> bool:
        """Takes in what every entry says; whether it is the latest.

        Only one who follows us gives back our stamps. That an island has heard us says nothing of when it was none.
        """
        latest = self.stamps.stamp is None or head.stamp >= self.stamps.stamp
        self.stamps.heard(head.stamp, now)
        self.since, self.serves = now, head.serves
        known = len(self.shares) >= SHARES_MAX or any(share == head.share for _, share in self.shares)
        if head.serves and latest and not known:
            # A scheduler before us may have told it another that it has not heard of.
            self.shares.appendleft((0, head.share))
        if ours and not head.island and head.echo is not None:
            self._echoed = head.echo.stamp if self._echoed is None else max(self._echoed, head.echo.stamp)
        if latest:
            self.policy_hash, self.staged = head.policy_hash, head.staged
        return latest

    def begin_session_if_new(self, head: MemberHead) -> None:
        if head.session <= self.session:
            return
        self.session = head.session
        self.inbound = Inbound(head.base)
        self.report, self.backlog = [], []
        self.reported = self.adopted = False
        self.told_covered = 0
        self._say_nothing()

    def drop_session(self) -> None:
        """Discards the messages of this session and asks the member to begin a new one."""
        self.wanted = max(self.wanted, self.session)
        self.report, self.backlog = [], []
        self.reported = False
        self._say_nothing()

    def _say_nothing(self) -> None:
        """What was not acknowledged never will be; nor does anybody know which share it has heard of last."""
        self.outbound = Outbound(1, resend_ns=self._timing.resend_ns)
        self.shares = deque((0, share) for _, share in self.shares)
        self.urgent = True

    def acknowledged(self, number: int, now: Instant) -> None:
        self.outbound.acknowledged(number, now)
        while len(self.shares) > 1 and any(0 < each <= number for each, _ in tuple(self.shares)[1:]):
            self.shares.popleft()

    # Whether it is there

    @property
    def talks(self) -> bool:
        """Whether it carries out orders: what it has is known, and it answers."""
        return self.standing is Standing.PRESENT and self.adopted

    def is_here(self, now: Instant) -> bool:
        """Whether it has reported, and has shown that it hears us: before that it may be an island any moment."""
        return self.reported and self.alone_from() > now

    def alone_from(self) -> Instant:
        """When it may have waited for us long enough to be an island, by its own clock."""
        if self._echoed is None:
            return Instant(0)
        return after(self._echoed, self._timing.at_least(self._timing.island_after_ns))

    def lose_sight(self, now: Instant) -> None:
        self.standing, self.since, self.wanted = Standing.ABSENT, now, self.session
        self._say_nothing()

    def lost(self, now: Instant) -> bool:
        return now - self.since >= self._timing.lost_ns

    # Fencing

    def fence(self, until: Instant) -> None:
        self._fenced_until = until

    def fenced(self, now: Instant) -> bool:
        if self._fenced_until is not None and now >= self._fenced_until:
            self._fenced_until = None
        return self._fenced_until is not None

    # What it has, and may take

    def places(self) -> Iterator[Place]:
        for booked in self.requests.values():
            yield from booked.attempts.values()

    def told_share(self) -> Share | None:
        return self.shares[-1][1] if self.shares else None

    def all_shares(self) -> tuple[Share, ...]:
        """Every share that it may have, including one that was dealt and not told yet; the newest comes last."""
        told = [share for _, share in self.shares]
        latest_first = dict.fromkeys(reversed(told if self.dealt is None else [*told, self.dealt]))
        return tuple(reversed(latest_first))

    def places_kept(self, endpoint_id: EndpointId, places: int) -> int:
        """What it may take of an endpoint by itself, beyond what it has there."""
        own = max((places_of(share, endpoint_id, places) for _, share in self.shares), default=0)
        has = len([place for place in self.places() if place.endpoint_id == endpoint_id])
        return max(0, own - has)

    # What is said to it

    def due(self) -> Instant:
        """When something is to be sent to it."""
        if self.urgent or self.outbound.unsent:
            return self.said_at
        due, again = after(self.said_at, self._timing.beat_ns), self.outbound.resend_at()
        return due if again is None else min(due, again)
