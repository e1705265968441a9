"""Reference model for a scheduler that takes over from another.

The predecessor's reference state continues to be used. The successor receives the policy, the counters, the endpoints
and the gateways' reports on each attempt in flight and each queued request. From then on it is checked like any other
scheduler. It uses a different clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from headgate.core.admission.gate import Admitted, Rejection, check_policy
from headgate.core.commands import Command, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptReported,
    CountedUpTo,
    EndpointJoined,
    EndpointReady,
    Event,
    PolicyChanged,
    RequestArrived,
    RequestReported,
    RequestSettled,
)
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Duration, Instant, RequestId, after
from headgate.model.usage import Usage, UsageSource
from testing.scheduler_sizes import timer_instants
from tests.properties.books import Asked, Books, Engine, Open
from tests.properties.model_host import GROWN_BY, Check, ModelHost
from tests.properties.recorded_blame import record_blame


def retold(counters: Counters) -> Counters:
    """Serializes and deserializes the counters, as happens between processes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(counters), type=Counters)


@dataclass
class Known:
    """The gateways' view of the requests, and the part of it that the counters include."""

    tickets: dict[RequestId, tuple[Ticket, Instant]] = field(default_factory=dict)
    """Ticket and arrival time of every admitted request."""
    sent: dict[tuple[RequestId, int], tuple[Dispatch, Instant]] = field(default_factory=dict)
    usage: dict[RequestId, tuple[Usage | None, bool]] = field(default_factory=dict)
    """Usage of each request's last attempt, and whether its response was complete."""
    counted: dict[RequestId | tuple[RequestId, int], None] = field(default_factory=dict)
    """Arrivals and attempts that are included in the counters."""
    extras: int = 0
    """Number of extra attempts that are included in the counters."""
    told_at: Instant = Instant(0)
    tried: dict[RequestId, None] = field(default_factory=dict)
    ended: dict[RequestId, None] = field(default_factory=dict)
    """Requests that ended after the counters were reported. `tried`: requests with an attempt that ended since."""

    def see(self, event: Event, commands: list[Command], now: Instant) -> None:
        arriving = event.ticket.request_id if isinstance(event, RequestArrived) else None
        if isinstance(event, RequestArrived):
            self.tickets[event.ticket.request_id] = (event.ticket, now)
        elif isinstance(event, AttemptEnded):
            self.usage[event.request_id] = (event.usage, event.ending is AttemptEnding.COMPLETED)
            self.tried[event.request_id] = None
        for command in commands:
            if isinstance(command, Dispatch):
                self.sent[command.request_id, command.attempt] = (command, now)
            elif isinstance(command, End):
                if command.request_id == arriving:
                    del self.tickets[arriving]
                else:
                    self.ended[command.request_id] = None

    def tell_counters(self, host: ModelHost) -> Counters:
        """Reports the counters and marks everything that has happened so far as included in them."""
        self.counted = dict.fromkeys([*self.tickets, *self.sent])
        self.extras, self.told_at = len(host.books.extras), host.now
        self.tried, self.ended = {}, {}
        return retold(host.scheduler.counters(host.now))

    def shift(self, ahead: Duration) -> None:
        """Converts all times to another clock."""
        self.tickets = {name: (ticket, after(when, ahead)) for name, (ticket, when) in self.tickets.items()}
        self.sent = {name: (order, after(when, ahead)) for name, (order, when) in self.sent.items()}
        self.told_at = after(self.told_at, ahead)

    def counted_of(self, request_id: RequestId, attempt: int) -> CountedUpTo:
        if request_id not in self.counted:
            return CountedUpTo.NOTHING
        return CountedUpTo.SENT if (request_id, attempt) in self.counted else CountedUpTo.ARRIVAL

    # Reports

    def attempt(self, attempt: Open, host: ModelHost) -> AttemptReported:
        order, sent_at = self.sent[attempt.request_id, attempt.number]
        ticket, arrived_at = self.tickets[attempt.request_id]
        return AttemptReported(
            ticket,
            attempt.number,
            order.endpoint_id,
            Duration(host.now - sent_at),
            attempt.delivered,
            attempt.tokens,
            order.waited_ns,
            order.pool,
            order.service_class,
            order.caps,
            level=order.level,
            hedge=order.hedge,
            model=order.model,
            held_ns=order.held_ns,
            request_age_ns=Duration(host.now - arrived_at),
            request_ended=attempt.request_id not in host.books.asked,
            superseded=attempt.let_go,
            counted=self.counted_of(attempt.request_id, attempt.number),
        )

    def request(self, request: Asked, host: ModelHost) -> RequestReported:
        request_id, here = request.ticket.request_id, host.now - request.queued_since
        counted = self.counted_of(request_id, request.attempts)
        if counted is CountedUpTo.SENT and request_id in self.tried:
            # The attempt is included in the counters, but the permission for another one is not.
            counted = CountedUpTo.ARRIVAL
        return RequestReported(
            request.ticket,
            Duration(request.waited + here),
            request.attempts,
            age_ns=Duration(host.now - self.tickets[request_id][1]),
            held_ns=Duration(request.held + (here if request.is_held else 0)),
            failed_at=None if request.avoid is None else request.avoid.id,
            counted=counted,
        )

    def settled(self, host: ModelHost) -> Iterator[RequestSettled]:
        """Yields the requests that ended after the counters were reported, except for those with open attempts."""
        open_still = dict.fromkeys(request_id for request_id, _ in host.books.open)
        for request_id in self.ended:
            if request_id in open_still:
                continue
            ticket, arrived_at = self.tickets[request_id]
            orders = [order for (each, _), (order, _) in self.sent.items() if each == request_id]
            last = orders[-1] if orders else None
            usage, completed = self.usage.get(request_id, (None, False))
            yield RequestSettled(
                ticket,
                len(orders),
                pool=None if last is None else last.pool,
                service_class=None if last is None else last.service_class,
                usage=usage or (None if last is None else Usage(1, 1, 0, UsageSource.ESTIMATED)),
                completed=completed,
                model=None if last is None else last.model,
                counted=self.counted_of(request_id, len(orders)),
                age_ns=Duration(host.now - arrived_at),
            )


class Successor(ModelHost):
    """Takes over from another host, with a clock that is `ahead` of the other host's.

    It starts from the counters that the other host reported last. With `exact`, nothing has happened since then and the
    policy is the same, so all counters must be equal.
    """

    def __init__(
        self, before: ModelHost, known: Known, counters: Counters, policy: Policy, ahead: Duration, *, exact: bool
    ) -> None:
        self.scheduler = record_blame(Scheduler())
        self.now = after(before.now, ahead)
        self.ordered: list[tuple[Event, list[Command]]] = []
        self.books = Books(Rules(Policy(), ""))
        self.books.ended = dict(before.books.ended)
        self.books.arrived = len(before.books.ended)
        self.report(PolicyChanged(policy, "h of the successor"))
        self.scheduler.restore(counters, self.now, snapshot_age_ns=Duration(before.now - known.told_at))
        self._go_on_with(before.books, known.extras, ahead, exact=exact)
        old = list(before.books.engines.values())
        for engine in old:
            if not engine.leaving:
                self.report(EndpointJoined(Endpoint(engine.id, engine.pool, engine.limit, engine.device, engine.zone)))
        for told in known.settled(before):
            self.report(told)
        for attempt in before.books.open.values():
            self.report(known.attempt(attempt, before))
        for request in sorted(before.books.queued, key=lambda each: known.tickets[each.ticket.request_id][1]):
            self.report(known.request(request, before))
        for engine in old:
            if engine.state is not EndpointState.WARMING:
                self.report(EndpointReady(engine.id))

    def report(self, event: Event) -> None:
        self.ordered.append((event, self.tell(event)))

    def _go_on_with(self, books: Books, extras: int, ahead: Duration, *, exact: bool) -> None:
        rules, own = self.books.rules, self.books
        own.predecessor, own.exact = books, exact
        own.firsts = [(pool, after(when, ahead)) for pool, when in books.firsts if pool in rules.pools]
        # Retries after the counters were reported are known, but not always the pool in which they were counted.
        own.extras = [(pool, after(when, ahead)) for pool, when in books.extras[:extras] if pool in rules.pools]
        own.credit = dict(self.scheduler._state.retry_budget._credit)
        own.floors = dict(self.scheduler._state.queue.min_shares._credit)
        if exact:
            # Counters of tenants and pools that are no longer in the policy are not transferred.
            assert own.credit == {name: earned for name, earned in books.credit.items() if name in rules.tenants}
            assert own.floors == {key: earned for key, earned in books.floors.items() if key[0] in rules.pools}
            own.lead, own.charged_most = dict(books.lead), dict(books.charged_most)
            own.in_flight_most = dict(books.in_flight_most)

    def _check(self, event: Event, commands: list[Command]) -> Check:
        return ReportCheck(self.scheduler, self.books, event, commands, self.now)


class ReportCheck(Check):
    """Checks one event, which may report a request or attempt that started under another scheduler."""

    def happen(self) -> None:
        match self.event:
            case RequestReported():
                self.request_reported(self.event)
            case AttemptReported():
                self.attempt_reported(self.event)
            case RequestSettled(ticket):
                assert ticket.request_id not in self.books.asked
                self.read_budget()
            case EndpointJoined(endpoint):
                unknown = endpoint.id not in self.books.engines
                super().happen()
                if unknown:
                    self.recall(self.books.engines[endpoint.id])
            case _:
                super().happen()

    def recall(self, engine: Engine) -> None:
        """The number of consecutive ejections is known from the counters."""
        before = self.books.predecessor
        assert before is not None
        engine.ejections = self.scheduler._state.fleet.endpoints[engine.id].ejections
        # An endpoint that has left and rejoined is a new one.
        known = before.engines.pop(engine.id, None)
        assert known is None or not self.books.exact or engine.ejections == known.ejections

    def read_budget(self) -> None:
        """Reports may be counted too high but never too low. If the counters are exact, reports add nothing."""
        credit = dict(self.scheduler._state.retry_budget._credit)
        assert credit == self.books.credit or not self.books.exact
        self.books.credit = credit

    # Queued requests

    def request_reported(self, told: RequestReported) -> None:
        books, ticket = self.books, told.ticket
        books.arrived += 1
        self.read_budget()
        verdict = check_policy(books.rules.without_unknown_names(ticket), books.rules)
        if isinstance(verdict, Rejection):
            self.end_told(told, verdict.outcome)
            return
        assert told.age_ns is not None
        request = self.reported(ticket, verdict, told.age_ns, told.held_ns)
        request.waited, request.held, request.attempts = told.waited_ns, told.held_ns, told.attempts
        request.queued_since = self.now
        if told.failed_at is not None:
            request.avoid = books.engines.get(told.failed_at)
        books.asked[ticket.request_id] = request
        if request.is_late(self.now):
            self.end(request, Outcome.DEADLINE_EXCEEDED)
            return
        warming = any(each.warming and each.pool in request.pools for each in books.engines.values())
        if (told.held_ns or not warming) and (pool := books.start_awaited(request)) is not None:
            request.hold, request.is_held = pool, True
            self.holds.append((ticket.request_id, pool))
        request.expires = books.last_moment(request, self.now)
        if request.expires <= self.now and not request.is_held:
            self.end(request, Outcome.QUEUE_TIMEOUT)

    def end_told(self, told: RequestReported, expected: Outcome) -> None:
        order = self.ends.pop(told.ticket.request_id)
        assert order.outcome is expected
        assert (order.attempts, order.waited_ns, order.held_ns) == (told.attempts, told.waited_ns, told.held_ns)
        self.check_retry_after(order)
        self.books.ended[order.request_id] = order.outcome

    def reported(self, ticket: Ticket, admitted: Admitted, age_ns: Duration, held_ns: Duration) -> Asked:
        """Deadlines and targets are measured from when the request arrived at the previous scheduler."""
        now, self.now = self.now, Instant(self.now - age_ns)
        request = self.asked(ticket, admitted)
        self.now = now
        if request.promised is not None:
            request.promised = after(request.promised, held_ns)
        return request

    # Attempts in flight

    def attempt_reported(self, told: AttemptReported) -> None:
        books, ticket = self.books, told.ticket
        self.read_budget()
        engine = books.engines.get(told.endpoint_id)
        if engine is None:
            engine = Engine(told.endpoint_id, told.pool, 0, self.now, self.now, leaving=True)
            books.engines[told.endpoint_id] = engine
            self.recall(engine)
        request = books.asked.get(ticket.request_id)
        if request is None:
            request = self.running(told)
            if not told.request_ended and not told.superseded:
                books.arrived += 1
                books.asked[ticket.request_id] = request
        # A superseded attempt also counts as one of the request's attempts.
        request.attempts = max(request.attempts, told.attempt)
        self.open_again(told, request, engine)
        if not told.request_ended and not told.superseded:
            self.goes_on(told, request)

    def running(self, told: AttemptReported) -> Asked:
        """The request keeps the class, pools and model it was dispatched with, as far as they still exist."""
        rules, age_ns = self.books.rules, told.request_age_ns
        verdict = check_policy(rules.without_unknown_names(told.ticket), rules)
        admitted = None if isinstance(verdict, Rejection) else verdict
        service_class = rules.classes.get(told.service_class)
        if service_class is None and admitted is not None:
            service_class = admitted.service_class
        if service_class is None:
            last = max((each.band for each in rules.policy.classes), default=0)
            service_class = ServiceClass(ClassName(told.service_class), last)
        service_class = replace(service_class, caps=told.caps)
        pools = admitted.pools if admitted is not None and told.pool in admitted.pools else (told.pool,)
        assert age_ns is not None
        request = self.reported(
            told.ticket, Admitted(service_class, pools, told.model or told.ticket.model), age_ns, told.held_ns
        )
        request.fell_back = told.model is not None and not told.level
        request.queued, request.waited, request.held = False, told.waited_ns, told.held_ns
        return request

    def open_again(self, told: AttemptReported, request: Asked, engine: Engine) -> None:
        predicted, request_id = request.predicted, told.ticket.request_id
        record = self.scheduler._state.attempts.by_number[request_id, told.attempt]
        longer = told.tokens >= predicted.output_tokens + GROWN_BY
        # A response with tokens has started, even if the client does not stream it.
        began = told.first_token or told.tokens > 0
        attempt = Open(
            request_id,
            told.attempt,
            engine,
            told.ticket.stream or told.tokens > 0,
            request.service_class.name,
            request.service_class.band,
            request.account,
            prompt_tokens=predicted.prompt_tokens,
            cached_tokens=record.reservation.cached_tokens,
            kv_tokens=predicted.prompt_tokens + predicted.output_tokens_most,
            charged=self.charged_before(told, record.charged),
            tokens_charged=told.tokens if longer else predicted.output_tokens,
            heard_at=self.now if began else Instant(self.now - told.age_ns),
            places=told.ticket.prompts,
            tokens=told.tokens,
            let_go=told.superseded,
            began=began,
            computed=began,
            delivered=told.first_token,
            left_with=record.usage_at_cancel,
        )
        lacking = attempt.prompt_tokens + attempt.tokens - attempt.kv_tokens
        attempt.kv_tokens += lacking + GROWN_BY if lacking > 0 else 0
        if not attempt.stream and not attempt.began:
            attempt.prefilled_at = timer_instants(self.scheduler._state.attempts.prefill_timers).get(request_id)
            attempt.computed = attempt.prefilled_at is None
        if attempt.stream and attempt.began:
            if not self.books.streams(engine):
                engine.quiet_since = self.now
            attempt.streaming = True
        attempt.charged_most = attempt.charged
        self.books.open[request_id, told.attempt] = attempt
        most = self.books.charged_most
        most[attempt.turns] = max(most.get(attempt.turns, 0), attempt.charged)

    def charged_before(self, told: AttemptReported, charged: int) -> int:
        """Returns the attempt's actual charge, if known."""
        before = self.books.predecessor
        assert before is not None
        return before.open[told.ticket.request_id, told.attempt].charged if self.books.exact else charged

    def goes_on(self, told: AttemptReported, request: Asked) -> None:
        attempt = self.books.open[told.ticket.request_id, told.attempt]
        if told.first_token and not request.first_token:
            self.speaks(request, attempt)
            request.first_token = True
        elif request.first_token:
            # The abort command was lost.
            attempt.let_go = True
            self.aborts.append((attempt.request_id, attempt.number))
        if request.is_late(self.now):
            self.abort_all(request)
            self.end(request, Outcome.DEADLINE_EXCEEDED)
