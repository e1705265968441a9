"""How does a member leave its decisions to the scheduler that it follows?

It reports all that it holds when a session begins, and then the news. Nothing is decided at once: decisions arrive as
messages. While no epoch is bound, requests wait, and the report of the first session tells of them.
"""

from collections import deque
from dataclasses import replace

from headgate.core.events import Progressed
from headgate.core.rules import Rules
from headgate.core.summary import Summary
from headgate.hosts.cell.member.authority import Decision, RequestNews, SettingNews
from headgate.hosts.cell.member.conversation import Conversation
from headgate.hosts.cell.member.held import HeldRequest, Holdings
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.member.summary import summary_of
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.link import age_at_most
from headgate.hosts.cell.protocol.messages import (
    Arrived,
    Declined,
    Ended,
    FromScheduler,
    Leaves,
    ReportDone,
    SchedulerEntry,
    Share,
)
from headgate.model.money import EndpointTime
from headgate.model.units import Duration, Instant, after


class RemoteAuthority:
    alone = False

    def __init__(
        self,
        conversation: Conversation,
        holdings: Holdings,
        rules: MemberRules,
        endpoints: KnownEndpoints,
        *,
        share: Share,
    ) -> None:
        self._conversation = conversation
        self._holdings = holdings
        self._rules, self._endpoints = rules, endpoints
        self.share = share
        self._unanswered: deque[tuple[int, HeldRequest]] = deque()
        """Requests whose arrival was not judged, as far as the member knows, with its serial."""
        self._leaves: int | None = None
        """The serial of `Leaves`; 0 if no scheduler was there to hear it."""

    @property
    def serial(self) -> int:
        return self._conversation.outbound.next - 1

    # Requests

    def full(self) -> str | None:
        waiting = max(len(self._conversation.outbound), len(self._unanswered))
        window = self._conversation.bounds.window
        return f"the scheduler has yet to answer {waiting} of {window} messages" if waiting >= window else None

    def open(self, request: HeldRequest, now: Instant) -> list[Decision]:
        if self._conversation.bound is not None:
            self._tell_arrival(request, now)
        return []

    def handle(self, news: RequestNews, now: Instant) -> list[Decision]:
        talk = self._conversation
        if isinstance(news, Progressed):
            for each in news.attempts:
                if self._holdings.attempt(each.request_id, each.attempt) is not None:
                    talk.progressed(each, late=news.late)
            return []
        if isinstance(news, Ended):
            talk.forget_progress(news.event.request_id, news.event.attempt)
        if talk.bound is not None:
            talk.say(news, now)
        return []

    def decline(self, declined: Declined, now: Instant) -> list[Decision]:
        self._conversation.say(declined, now)
        return []

    def tell(self, news: SettingNews, now: Instant) -> list[Decision]:
        """The scheduler reads the policy and sees the endpoints itself."""
        return []

    def _tell_arrival(self, request: HeldRequest, now: Instant) -> None:
        waited_ns = Duration(now - request.opened_at)
        request.arrived = self._conversation.say(Arrived(request.ticket, waited_ns), now)
        self._unanswered.append((request.arrived, request))

    # Time

    def tick(self, now: Instant) -> list[Decision]:
        return []

    def next_wakeup(self) -> Instant:
        return after(self._conversation.heard_at, self._conversation.timing.island_after_ns)

    def is_lost(self, now: Instant) -> bool:
        return now >= self.next_wakeup()

    def yields_to(self, stamp: Instant) -> bool:
        return True

    # Sessions

    def suspend(self) -> None:
        """No scheduler hears the member any more."""
        self._conversation.drop()
        self._unanswered.clear()
        self._leaves = None

    def restart(self, now: Instant) -> None:
        """Begin a session with a report of everything that the member holds, the oldest first."""
        self._conversation.begin_session()
        self._unanswered.clear()
        self._report_ends(now)
        for request in self._holdings.requests.values():
            self._report_request(request, now)
        self._conversation.say(ReportDone(), now)
        if self._leaves is not None:
            self._leaves = self._conversation.say(Leaves(), now)

    def _report_ends(self, now: Instant) -> None:
        unsettled = self._holdings.unsettled
        for name, settled in unsettled.items():
            if not settled.serial:
                unsettled[name] = replace(settled, serial=self._conversation.outbound.next)
            self._conversation.say(unsettled[name], now)

    def _report_request(self, request: HeldRequest, now: Instant) -> None:
        talk = self._conversation
        for attempt in request.running.values():
            attempt.told, runs = talk.outbound.next, request.runs(attempt, now)
            talk.say(runs, now)
            if request.over and not request.ended:
                request.ended = attempt.told
        if request.running or request.over:
            return
        if request.accepted:
            talk.say(request.waits(now), now)
        else:
            self._tell_arrival(request, now)

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[tuple[Duration, FromScheduler]]:
        talk, head = self._conversation, entry.head
        assert head.echo is not None, "an entry without an echo says nothing of its age"
        if head.session != talk.session:
            if head.wanted >= talk.session:
                self.restart(now)
            return []
        age_ns = age_at_most(head.echo, now, drift_percent=talk.timing.drift_percent)
        new = talk.inbound.take(head.first, entry.messages)
        talk.urgent = talk.urgent or bool(new)
        talk.outbound.acknowledged(head.taken, now)
        if talk.inbound.taken >= head.first + len(entry.messages) - 1:
            # Otherwise a lost entry may have a refusal.
            self._judged(head.taken if head.judged is None else head.judged)
        return [(Duration(age_ns + lay_ns), message) for _, lay_ns, message in new]

    def _judged(self, serial: int) -> None:
        while self._unanswered and self._unanswered[0][0] <= serial:
            self._unanswered.popleft()[1].accepted = True

    # Leaving

    def leave(self, now: Instant) -> None:
        self._leaves = self._conversation.say(Leaves(), now) if self._conversation.bound is not None else 0

    @property
    def knows_of_leaving(self) -> bool:
        return self._leaves is not None and self._leaves < self._conversation.outbound.first

    # Observation

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        return ()

    def summary(self) -> Summary:
        rules = Rules(self._rules.policy, self._rules.hash)
        return summary_of(rules, self._holdings.requests.values(), self._endpoints.all())
