"""Authority of a member that follows a scheduler.

A session starts with a report of everything the member holds, followed by updates. Decisions arrive later as messages.
Until the member follows an epoch, requests wait. They are included in the report of the first session.
"""

from collections import deque

from headgate.core.events import AttemptsProgressed
from headgate.core.rules import Rules
from headgate.core.summary import Summary
from headgate.hosts.cell.member.authority import Decision, RequestUpdate, SettingsUpdate
from headgate.hosts.cell.member.held_requests import HeldAttempt, HeldRequest, HeldRequests
from headgate.hosts.cell.member.pending_progress import pop_progress
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.member.scheduler_connection import SchedulerConnection
from headgate.hosts.cell.member.summary import summary_of
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.link import max_age
from headgate.hosts.cell.protocol.messages import (
    FromScheduler,
    GrantDeclined,
    MemberLeaving,
    NewRequest,
    ReportDone,
    SchedulerEntry,
    Share,
)
from headgate.model.money import EndpointTime
from headgate.model.units import Duration, Instant, after


class RemoteAuthority:
    is_island = False

    def __init__(
        self,
        conversation: SchedulerConnection,
        holdings: HeldRequests,
        rules: MemberRules,
        endpoints: KnownEndpoints,
        *,
        share: Share,
    ) -> None:
        self._connection = conversation
        self._held = holdings
        self._rules, self._endpoints = rules, endpoints
        self.share = share
        self._undecided: deque[tuple[int, HeldRequest]] = deque()
        """Requests without a known admission decision, with the serials of their arrivals."""
        self._leave_serial: int | None = None
        """Serial of `MemberLeaving`. 0 if there was no scheduler to receive it."""

    @property
    def serial(self) -> int:
        return self._connection.outbound.next_serial - 1

    # Requests

    def open_rejection(self) -> str | None:
        waiting = max(len(self._connection.outbound), len(self._undecided))
        window = self._connection.bounds.unacknowledged_max
        return f"the scheduler has not acknowledged {waiting} messages (limit {window})" if waiting >= window else None

    def open(self, request: HeldRequest, now: Instant) -> list[Decision]:
        if self._connection.followed_epoch is not None:
            self._send_arrival(request, now)
        return []

    def handle(self, update: RequestUpdate, now: Instant) -> list[Decision]:
        if isinstance(update, AttemptsProgressed):
            self._connection.progress.note_added()
        elif self._connection.followed_epoch is not None:
            self._connection.send(update, now)
        return []

    def report_last_progress(self, attempt: HeldAttempt, now: Instant) -> None:
        if self._connection.followed_epoch is not None and (report := pop_progress(attempt)) is not None:
            self._connection.send(report, now)

    def decline(self, declined: GrantDeclined, now: Instant) -> list[Decision]:
        self._connection.send(declined, now)
        return []

    def update_settings(self, update: SettingsUpdate, now: Instant) -> list[Decision]:
        """Does nothing, because the scheduler reads the policy and probes the endpoints itself."""
        return []

    def _send_arrival(self, request: HeldRequest, now: Instant) -> None:
        waited_ns = Duration(now - request.opened_at)
        request.arrival_serial = self._connection.send(NewRequest(request.ticket, waited_ns), now)
        self._undecided.append((request.arrival_serial, request))

    # Time

    def tick(self, now: Instant) -> list[Decision]:
        return []

    def next_wakeup(self) -> Instant:
        return after(self._connection.answered_at, self._connection.timing.island_after_ns)

    def is_lost(self, now: Instant) -> bool:
        return now >= self.next_wakeup()

    def yields_to(self, stamp: Instant) -> bool:
        return True

    # Sessions

    def suspend(self) -> None:
        """Ends the session, because no scheduler answers."""
        self._connection.drop_unacknowledged()
        self._undecided.clear()
        self._leave_serial = None

    def restart_session(self, now: Instant) -> None:
        """Starts a session with a report of everything the member holds, oldest first."""
        self._connection.begin_session()
        self._undecided.clear()
        self._report_ends(now)
        for request in self._held.requests.values():
            self._report_request(request, now)
        self._connection.send(ReportDone(), now)
        if self._leave_serial is not None:
            self._leave_serial = self._connection.send(MemberLeaving(), now)

    def _report_ends(self, now: Instant) -> None:
        for unsettled in self._held.unsettled.values():
            if not unsettled.serial:
                unsettled.serial = self._connection.outbound.next_serial
            self._connection.send(unsettled.report(), now)

    def _report_request(self, request: HeldRequest, now: Instant) -> None:
        talk = self._connection
        for attempt in request.running.values():
            attempt.report_serial, runs = talk.outbound.next_serial, request.running_report(attempt, now)
            talk.send(runs, now)
            if request.over and not request.end_serial:
                request.end_serial = attempt.report_serial
        if request.running or request.over:
            return
        if request.admitted:
            talk.send(request.queued_report(now), now)
        else:
            self._send_arrival(request, now)

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[tuple[Duration, FromScheduler]]:
        talk, head = self._connection, entry.head
        assert head.echo is not None, "the age of an entry without an echo is unknown"
        if head.session != talk.session:
            if head.rejected_session >= talk.session:
                self.restart_session(now)
            return []
        age_ns = max_age(head.echo, now, drift_percent=talk.timing.drift_percent)
        new = talk.inbound.accept(head.first_serial, entry.messages)
        if new:
            talk.send_within(talk.timing.ack_ns, now)
        talk.outbound.acknowledge(head.received_serial, now)
        if talk.inbound.last_received >= head.first_serial + len(entry.messages) - 1:
            # Otherwise, a lost entry might have contained a rejection.
            self._mark_decided(head.received_serial if head.decided_serial is None else head.decided_serial)
        return [(Duration(age_ns + lay_ns), message) for _, lay_ns, message in new]

    def _mark_decided(self, serial: int) -> None:
        while self._undecided and self._undecided[0][0] <= serial:
            self._undecided.popleft()[1].admitted = True

    # Leaving

    def leave(self, now: Instant) -> None:
        self._leave_serial = (
            self._connection.send(MemberLeaving(), now) if self._connection.followed_epoch is not None else 0
        )

    @property
    def leave_acknowledged(self) -> bool:
        return self._leave_serial is not None and self._leave_serial < self._connection.outbound.first

    # Status

    def collect_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        return ()

    def summary(self) -> Summary:
        rules = Rules(self._rules.policy, self._rules.hash)
        return summary_of(rules, self._held.requests.values(), self._endpoints.updates())
