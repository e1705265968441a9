"""What does a gateway do in a cell, and what does it remember so that nothing is lost when another part dies?

Theory of operation. A gateway owns its requests (`requests`) and asks one authority about them (`authority`). Which one
depends on its mode, and only this file knows the mode:

- *seeking*: it follows no scheduler that answers, and has not waited for one long enough. What comes in waits.
- *following*: a scheduler answers. What happens here is told to it, and its orders are carried out.
- *island*: no scheduler has answered for `island_after_ns`. The member decides by itself, over its share (`island`).

    seeking --an answer--> following --silence--> island --an answer to the island--> following
    seeking --silence--> island

Seeking and following have the same authority, the session with the scheduler (`remote`). When the member binds itself
to an epoch, returns from being an island, or is asked to, it begins a session: it reports all that it holds and then
tells the news. Entries of another epoch than the one it follows are not looked at; but all that it writes says whom it
follows, so the other finds out (`conversation`).

From the stamp that an entry gives back, and from how long it lay at the scheduler, follows how old a grant is at most.
One that may be older than it allows, or is for a request that has ended, is declined and never begun.

What is not ideal: a request whose acceptance was not acknowledged before its scheduler died is told to the next one as
an arrival, and may be refused by the policy.
"""

from dataclasses import replace

from headgate.core.commands import Abort, End
from headgate.core.engine_time import together
from headgate.core.events import (
    AttemptEnded,
    BudgetsTold,
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointProbed,
    EndpointReadied,
    EndpointUnreadied,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    Progressed,
    RequestWithdrawn,
)
from headgate.core.summary import Summary
from headgate.hosts.cell.member.authority import Authority, SettingNews
from headgate.hosts.cell.member.conversation import Conversation
from headgate.hosts.cell.member.held import Holdings
from headgate.hosts.cell.member.island import IslandAuthority
from headgate.hosts.cell.member.orders import ModeChanged, Order
from headgate.hosts.cell.member.remote import RemoteAuthority
from headgate.hosts.cell.member.requests import MemberRequests
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import (
    Covered,
    EndpointGone,
    EndpointTold,
    Epoch,
    FromScheduler,
    Granted,
    MemberEntry,
    MemberHead,
    SchedulerEntry,
    SchedulerHead,
    Share,
)
from headgate.hosts.cell.protocol.validation import MOMENT_MAX
from headgate.hosts.cell.protocol.views import Mode
from headgate.hosts.cell.timing import USUAL_BOUNDS, USUAL_TIMING, Bounds, Timing
from headgate.model.money import EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant, RequestId, seconds

_ALONE = Share(0, 1)
_GONE_NS = Duration(3_600 * SECOND)
"""One that has left has nothing to do."""
_INCARNATION_STEP = 1 << 20

MemberEvent = FirstToken | Progressed | AttemptEnded | RequestWithdrawn | FleetEvent | PolicyChanged | BudgetsTold


class Member:
    def __init__(
        self,
        name: str,
        incarnation: int,
        now: Instant,
        *,
        timing: Timing = USUAL_TIMING,
        bounds: Bounds = USUAL_BOUNDS,
        share: Share = _ALONE,
        serves: bool = True,
    ) -> None:
        """`share` is what it takes by itself before a scheduler has said what its share is.

        A process that `serves` nobody holds no requests, and needs no share.
        """
        self.name = name
        self.incarnation = incarnation
        self.mode = Mode.SEEKING
        self.endpoints = KnownEndpoints()
        self.rules = MemberRules(now)
        self._serves = serves
        self._conversation = Conversation(now, timing=timing, bounds=bounds)
        self._holdings = Holdings(unsettled_max=bounds.unsettled)
        self._remote = RemoteAuthority(self._conversation, self._holdings, self.rules, self.endpoints, share=share)
        self._authority: Authority = self._remote
        self._requests = MemberRequests(self._holdings, self._authority, held_max=bounds.held)
        self._untaken: tuple[EndpointTime, ...] = ()
        """Endpoint times of the last island that were not asked for."""
        self._leaving = False
        self.nameless = False
        """Whether another process has taken this name. If so, this one sends and reads nothing and decides alone."""

    # What happens here

    def open(self, ticket: Ticket, now: Instant) -> list[Order]:
        """A request has come."""
        return self._requests.open(replace(ticket, gateway=self.name), now)

    def tell(self, event: MemberEvent, now: Instant) -> list[Order]:
        """Something has happened to a request of ours, to an endpoint, or to the rules."""
        match event:
            case FirstToken():
                return self._requests.first_token(event, now)
            case Progressed():
                return self._requests.progressed(event, now)
            case AttemptEnded():
                return self._requests.attempt_ended(event, now)
            case RequestWithdrawn():
                return self._requests.withdrawn(event, now)
            case PolicyChanged():
                self.rules.change(event)
                self._conversation.urgent = True
            case BudgetsTold():
                self.rules.budgets = event
            case (
                EndpointJoined()
                | EndpointReadied()
                | EndpointUnreadied()
                | EndpointMeasured()
                | EndpointProbed()
                | EndpointLeaving()
            ):
                self.endpoints.note(event)
        return self._pass_on(event, now)

    def _pass_on(self, news: SettingNews, now: Instant) -> list[Order]:
        return self._requests.perform(self._authority.tell(news, now), now)

    def tick(self, now: Instant) -> list[Order]:
        """Time has passed."""
        if self._authority.is_lost(now):
            return self._become_island(now)
        return self._requests.perform(self._authority.tick(now), now)

    def next_wakeup(self) -> Instant:
        """When `tick` and `outgoing` are to be called again, if nothing happens before."""
        if self.left:
            return self._conversation.long_after(_GONE_NS)
        return self._conversation.next_wakeup(self._authority.next_wakeup())

    def leave(self, now: Instant) -> None:
        """This process holds nothing any more and will not speak again, once this has been heard."""
        assert not self.held, f"{self.name} leaves with {self.held} requests; end them first"
        self._leaving = True
        self._authority.leave(now)

    @property
    def left(self) -> bool:
        """Whether that has been heard, or nobody is there to hear it."""
        return self._leaving and (self.nameless or self._authority.knows_of_leaving)

    # A change of rules

    def stage(self, policy_hash: str, now: Instant) -> list[Order]:
        """This process has read rules, and is ready to go by them when all are."""
        self._conversation.urgent = True
        agreed = self.rules.stage(policy_hash, now)
        return [*agreed, *(self.rules.agree() if self._authority.alone else ())]

    # Modes

    def _become_island(self, now: Instant) -> list[Order]:
        """No scheduler answers: the member decides by itself. What counts is reported when one does again."""
        silence, share = seconds(Duration(now - self._conversation.heard_at)), self.share
        self._remote.suspend()
        self._conversation.urgent = True
        island = IslandAuthority(share, now)
        changed = self._change(Mode.ISLAND, island, f"no scheduler for {silence}; share {share.rank + 1} of {share.of}")
        decisions = island.begin(self.rules, self.endpoints, self._holdings.requests.values(), now)
        return [changed, *self._requests.perform(decisions, now), *self.rules.agree()]

    def _answered(self, now: Instant) -> list[Order]:
        """A scheduler answers: it decides from here on about all that is held here."""
        match self.mode:
            case Mode.FOLLOWING:
                return []
            case Mode.SEEKING:
                return [self._follow()]
            case Mode.ISLAND:
                self._untaken = together(self.take_endpoint_times(now))
                changed = self._follow()
                self._remote.restart(now)
                if self._leaving:
                    self._remote.leave(now)
                return [changed]

    def _follow(self) -> ModeChanged:
        number = self.bound.number if self.bound is not None else 0
        return self._change(Mode.FOLLOWING, self._remote, f"the scheduler of epoch {number} answers")

    def _change(self, mode: Mode, authority: Authority, reason: str) -> ModeChanged:
        self.mode, self._authority = mode, authority
        self._requests.authority = authority
        return ModeChanged(mode, reason)

    # What the scheduler says

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[Order]:
        head = entry.head
        if self.nameless or not self._binds(head.epoch, now):
            return []
        out: list[Order] = [*self.rules.scheduler_applies(head.policy_hash)]
        if self.incarnation < head.incarnation < MOMENT_MAX - 2 * _INCARNATION_STEP:
            # The clock of this machine was put back between two lives of this process: this is the later one.
            self.incarnation = _incarnation_after(head.incarnation, self.incarnation)
            self._authority.restart(now)
        if head.incarnation != self.incarnation or head.echo is None:
            return out
        if self._conversation.is_answer(head, head.echo, now):
            if not self._authority.yields_to(head.echo.stamp):
                return out
            out += self._answered(now)
        for age_ns, message in self._authority.receive(entry, now):
            out += self._take_in(message, age_ns, now)
        return out

    def refuse(self, head: SchedulerHead | None, now: Instant) -> None:
        """Reject an invalid entry of the scheduler: begin a new session, or ignore the scheduler for a while.

        Without a head, an entry of this member cannot be encoded; the reaction is the same.
        """
        ours = head is None or (head.epoch == self.bound and head.incarnation == self.incarnation)
        if ours and (head is None or head.session == self._conversation.session):
            self._conversation.distrust(now)
            self._authority.restart(now)

    def _binds(self, epoch: Epoch, now: Instant) -> bool:
        """Whether this is the epoch that the member follows, from here on if it is a higher one."""
        if epoch == self.bound:
            return True
        if self._conversation.outranks(epoch):
            return False
        self._conversation.follow(epoch)
        self.rules.follow_another()
        self._authority.restart(now)
        return True

    def _take_in(self, message: FromScheduler, age_ns: Duration, now: Instant) -> list[Order]:
        match message:
            case Granted():
                return self._granted(message, age_ns, now)
            case Abort() | End():
                return self._requests.obey(message, None, now)
            case EndpointTold() | EndpointGone():
                self.endpoints.told(message)
            case Share():
                self._remote.share = message
            case Covered(serial):
                self._holdings.cover(serial)
        return []

    def _granted(self, granted: Granted, age_ns: Duration, now: Instant) -> list[Order]:
        why = self._requests.why_not(granted.order)
        if why is None and age_ns > granted.start_within_ns:
            why = f"the grant may be {seconds(age_ns)} old, of {seconds(granted.start_within_ns)} allowed"
        if why is None:
            return self._requests.obey(granted.order, granted.sent, now)
        return self._requests.decline(granted.order, why, now)

    # What is to be sent

    def outgoing(self, now: Instant) -> list[MemberEntry]:
        """Entries for the inbox; none where nothing is to be said yet."""
        taken = self._conversation.take(now)
        if self.left or self.nameless:
            return []
        return [MemberEntry(self._head(first, now), messages) for first, messages in taken]

    def _head(self, first: int, now: Instant) -> MemberHead:
        talk = self._conversation
        return MemberHead(
            self.name,
            self.incarnation,
            talk.bound,
            self._authority.alone,
            talk.session,
            talk.outbound.base,
            talk.outbound.first,
            first,
            talk.inbound.taken,
            now,
            talk.echo(now),
            self._authority.share,
            self.rules.hash,
            self._serves,
            staged=self.rules.staged,
        )

    # For those who look

    @property
    def bound(self) -> Epoch | None:
        """The epoch that is followed, or would be."""
        return self._conversation.bound

    @property
    def share(self) -> Share:
        """What a scheduler has said last that this member's share is."""
        return self._remote.share

    @property
    def island_share(self) -> Share | None:
        """The part of everything that this member decides about by itself; None where it does not."""
        return self._authority.share if self._authority.alone else None

    @property
    def held(self) -> int:
        """Requests that have not ended, and those that have with something of them under way."""
        return len(self._holdings.requests)

    @property
    def unsettled(self) -> int:
        return len(self._holdings.unsettled)

    def unsettled_ids(self) -> tuple[RequestId, ...]:
        return tuple(self._holdings.unsettled)

    @property
    def unacknowledged(self) -> int:
        return len(self._conversation.outbound)

    def unacknowledged_ns(self, now: Instant) -> Duration:
        """How long the scheduler has left the oldest of these without an answer."""
        return self._conversation.outbound.oldest_ns(now)

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How the endpoints have spent our part of their time, where we decide by ourselves."""
        untaken, self._untaken = self._untaken, ()
        return untaken + self._authority.take_endpoint_times(now)

    def summary(self) -> Summary:
        return self._authority.summary()


def _incarnation_after(latest: int, own: int) -> int:
    """A later incarnation, with the low bits of the process's own.

    So two processes that have the name of a third one do not choose the same.
    """
    return (latest // _INCARNATION_STEP + 1) * _INCARNATION_STEP + own % _INCARNATION_STEP
