"""State of one member, as known to the cell's scheduler.

There is one record per incarnation of a member. It contains the current session, the messages sent and acknowledged,
how much of the member's history the counters include, and the member's requests in the assignment table.
"""

from collections import deque
from collections.abc import Iterator

from headgate.hosts.cell.protocol.link import Inbound, Outbound, Stamps
from headgate.hosts.cell.protocol.messages import FromMember, FromScheduler, MemberHead, Share
from headgate.hosts.cell.protocol.shares import places_of
from headgate.hosts.cell.protocol.validation import SHARES_MAX
from headgate.hosts.cell.protocol.views import MemberPresence, MemberView
from headgate.hosts.cell.timing import Timing
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId, after

MemberMessage = tuple[int, Instant, FromMember]
"""Message from a member: its serial, its latest possible creation time by our clock, and its content."""


class AssignedRequest:
    """One of a member's requests, and its running attempts."""

    __slots__ = ("arrived_at", "attempts", "ended_by_member", "over", "peer", "ticket")

    def __init__(self, ticket: Ticket, peer: "Peer", known_at: Instant) -> None:
        self.ticket = ticket
        self.peer = peer
        self.attempts: dict[int, AttemptPlacement] = {}
        self.arrived_at = known_at
        """Arrival time at the member, by our clock."""
        self.over = False
        """Whether the request is over, so that no member would carry out a command for it."""
        self.ended_by_member = False
        """Whether the member has ended the request but has not yet received the bills."""


class AttemptPlacement:
    """Endpoint of an attempt, and the time by which the attempt must have started if it runs at all."""

    __slots__ = ("endpoint_id", "since", "started")

    def __init__(self, endpoint_id: EndpointId, since: Instant, *, begun: bool = False) -> None:
        self.endpoint_id = endpoint_id
        self.since = since
        self.started = begun
        """Whether the member has reported that the attempt has started."""


class Peer:
    def __init__(self, name: str, incarnation: int, now: Instant, *, timing: Timing) -> None:
        self.name = name
        self.incarnation = incarnation
        self.serves = True
        self.version = 0
        """Protocol version of the member's process. 0 until its first entry."""
        self.sent_version = 0
        """Lowest version in the cell that was last sent in this session. 0 if none was sent."""
        self.policy_hash = self.staged_hash = ""
        self.policy_since = now
        """When this scheduler first saw the member with its policy."""
        self.presence = MemberPresence.EXPECTED
        self.presence_since = now
        """Time of the last message, or time at which the member became absent."""
        self.requests: dict[RequestId, AssignedRequest] = {}
        self.counted_serial = 0
        """Last of the member's serials that the scheduler's counters include."""
        self.sent_coverage = 0
        self.rank: int | None = None
        self.shares: deque[tuple[int, Share]] = deque()
        """Shares sent to the member with their message numbers: the last acknowledged share and all later ones."""
        self.unsent_share: Share | None = None
        """New share that has not been sent, because no snapshot in the store includes it."""
        self.report: list[MemberMessage] = []
        self.reported = False
        """Whether the report is complete."""
        self.adopting = False
        """Whether the report is being adopted. Later messages wait in the backlog."""
        self.adopted = False
        """Whether the report has been adopted into the assignment table."""
        self.backlog: deque[MemberMessage] = deque()
        """Messages received after the report and before its adoption."""
        self.session = 0
        self.rejected_session = 0
        """Last session that was rejected."""
        self.inbound: Inbound[FromMember] = Inbound(1)
        self.outbound: Outbound[FromScheduler] = Outbound(1, resend_ns=timing.resend_ns)
        self.stamps = Stamps()
        self._last_echo: Instant | None = None
        """Latest of our timestamps that the member has returned, which proves that it received that entry."""
        self._sent_at = Instant(now - timing.heartbeat_ns)
        self.urgent = True
        """Whether an entry must be sent immediately."""
        self._due_at: Instant | None = None
        """Time by which an entry must be sent, before the next heartbeat. None if nothing is waiting."""
        self._timing = timing
        self.rejections, self.rejected_at = 0, now
        """Number of consecutive rejected reports, and the time of the last one."""
        self._fenced_until: Instant | None = None

    # Messages from the member

    def record_head(self, head: MemberHead, now: Instant, *, follows_us: bool) -> bool:
        """Applies the head of an entry. Returns whether the entry is the latest.

        Only members that follow us return our timestamps. A timestamp from an island does not show when it became an
        island.
        """
        latest = self.stamps.stamp is None or head.stamp >= self.stamps.stamp
        self.stamps.record(head.stamp, now)
        self.presence_since, self.serves, self.version = now, head.serves, head.version
        known = len(self.shares) >= SHARES_MAX or any(share == head.share for _, share in self.shares)
        if head.serves and latest and not known:
            # An earlier scheduler may have sent the member a share that we do not know.
            self.shares.appendleft((0, head.share))
        if follows_us and not head.island and head.echo is not None:
            self._last_echo = head.echo.stamp if self._last_echo is None else max(self._last_echo, head.echo.stamp)
        if latest:
            if head.policy_hash != self.policy_hash:
                self.policy_since = now
            self.policy_hash, self.staged_hash = head.policy_hash, head.staged_hash
        return latest

    def begin_session_if_new(self, head: MemberHead) -> None:
        if head.session <= self.session:
            return
        self.session = head.session
        self.inbound = Inbound(head.session_first_serial)
        self.report, self.backlog = [], deque()
        self.reported = self.adopting = self.adopted = False
        self.sent_coverage = self.sent_version = 0
        self._reset_outbound()

    def drop_session(self) -> None:
        """Discards the messages of this session and asks the member to start a new one."""
        self.rejected_session = max(self.rejected_session, self.session)
        self.report, self.backlog = [], deque()
        self.reported = self.adopting = False
        self._reset_outbound()

    def _reset_outbound(self) -> None:
        """Drops unacknowledged messages. After that, it is unknown which shares the member has received."""
        self.outbound = Outbound(1, resend_ns=self._timing.resend_ns)
        self.shares = deque((0, share) for _, share in self.shares)
        self.urgent = True

    def acknowledge(self, number: int, now: Instant) -> None:
        self.outbound.acknowledge(number, now)
        while len(self.shares) > 1 and any(0 < each <= number for each, _ in tuple(self.shares)[1:]):
            self.shares.popleft()

    # Presence

    @property
    def is_connected(self) -> bool:
        """Whether the member carries out commands: its report is known and it is present."""
        return self.presence is MemberPresence.PRESENT and (self.adopted or self.adopting)

    def is_synced(self, now: Instant) -> bool:
        """Returns whether the member has reported and receives our messages. Otherwise it may become an island."""
        return self.reported and self.island_at() > now

    def island_at(self) -> Instant:
        """Returns the earliest time at which the member may have become an island by its own clock."""
        if self._last_echo is None:
            return Instant(0)
        return after(self._last_echo, self._timing.min_elapsed(self._timing.island_after_ns))

    def mark_absent(self, now: Instant) -> None:
        self.presence, self.presence_since, self.rejected_session = MemberPresence.ABSENT, now, self.session
        self._reset_outbound()

    def is_lost(self, now: Instant) -> bool:
        return now - self.presence_since >= self._timing.lost_after_ns

    # Fencing

    def fence(self, until: Instant) -> None:
        self._fenced_until = until

    def is_fenced(self, now: Instant) -> bool:
        if self._fenced_until is not None and now >= self._fenced_until:
            self._fenced_until = None
        return self._fenced_until is not None

    # Attempts and shares

    def places(self) -> Iterator[AttemptPlacement]:
        for booked in self.requests.values():
            yield from booked.attempts.values()

    def sent_share(self) -> Share | None:
        return self.shares[-1][1] if self.shares else None

    def all_shares(self) -> tuple[Share, ...]:
        """Returns every share that the member may use, including an unsent one, newest last."""
        told = [share for _, share in self.shares]
        latest_first = dict.fromkeys(reversed(told if self.unsent_share is None else [*told, self.unsent_share]))
        return tuple(reversed(latest_first))

    def attempts_by_endpoint(self) -> dict[EndpointId, int]:
        counts: dict[EndpointId, int] = {}
        for place in self.places():
            counts[place.endpoint_id] = counts.get(place.endpoint_id, 0) + 1
        return counts

    def reserved_places(self, engine: str, places: int, *, has: int) -> int:
        """Returns the number of slots that the member may use as an island beyond the `has` slots it already uses."""
        own = max((places_of(share, engine, places) for _, share in self.shares), default=0)
        return max(0, own - has)

    # Status and outgoing messages

    def view(self) -> MemberView:
        return MemberView(
            self.presence,
            self.policy_hash,
            self.staged_hash,
            self.incarnation,
            self.version,
            self.policy_since,
            serves=self.serves,
        )

    def next_send_at(self) -> Instant:
        """Returns the time for the next entry."""
        if self.urgent:
            return self._sent_at
        soonest = after(self._sent_at, self._timing.heartbeat_ns)
        for moment in (self._due_at, self.outbound.resend_at()):
            if moment is not None and moment < soonest:
                soonest = moment
        return soonest

    def send_within(self, delay_ns: Duration, now: Instant) -> None:
        """Sends an entry after this time at the latest. Until then, messages are collected for the same entry."""
        if self._due_at is None:
            self._due_at = after(now, delay_ns)

    def note_sent(self, now: Instant) -> None:
        self.urgent, self._sent_at, self._due_at = False, now, None
