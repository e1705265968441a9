"""What should have happened?

A host that drives a scheduler and keeps books of its own, in the plainest way: lists that are searched from end to
end, no heaps, no shelves, no turns. After each event it compares what the scheduler ordered with these books, and
checks the properties of the policy. Every check names the property that it stands for.
"""

from dataclasses import dataclass, field
from itertools import combinations

from headgate.core.admission.gate import Refusal, judge
from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointLeaving,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import FACES, Outcome, RetryAfter
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import (
    MINUTE,
    SECOND,
    Duration,
    EndpointId,
    Instant,
    PoolName,
    RequestId,
    TenantId,
    after,
)

FAILURES = (AttemptEnding.FAILED, AttemptEnding.SILENT)


@dataclass(eq=False)
class Engine:
    """An endpoint in our books. One that left and came again is another one."""

    id: EndpointId
    pool: PoolName
    limit: int
    last_heard: Instant
    quiet_since: Instant
    """When the present silence began to count."""
    leaving: bool = False
    state: EndpointState = EndpointState.WARMING
    failures: int = 0
    ejections: int = 0
    returns_at: Instant | None = None

    @property
    def live(self) -> bool:
        return self.state in (EndpointState.READY, EndpointState.TRIAL) and not self.leaving


@dataclass(eq=False)
class Asked:
    """A request in our books, from its arrival to its end."""

    ticket: Ticket
    service_class: ServiceClass
    pools: tuple[PoolName, ...]
    queued_since: Instant
    due: Instant
    queued: bool = True
    waited: int = 0
    attempts: int = 0
    first_token: bool = False
    avoid: Engine | None = None
    begin_by: Instant | None = None
    complete_by: Instant | None = None

    @property
    def deadline(self) -> Instant | None:
        """The nearest of the caller's deadlines that still count."""
        deadlines = [self.complete_by, None if self.first_token else self.begin_by]
        return min((each for each in deadlines if each is not None), default=None)

    def is_late(self, now: Instant) -> bool:
        return self.deadline is not None and self.deadline <= now


@dataclass(eq=False)
class Open:
    """An attempt in our books, from `Dispatch` to `AttemptEnded`."""

    request_id: RequestId
    number: int
    engine: Engine
    stream: bool
    streaming: bool = False
    """Whether it is streamed and its first token has come."""
    abort_ordered: bool = False


@dataclass
class Books:
    rules: Rules
    engines: dict[EndpointId, Engine] = field(default_factory=dict)
    asked: dict[RequestId, Asked] = field(default_factory=dict)
    open: dict[tuple[RequestId, int], Open] = field(default_factory=dict)
    arrived: int = 0
    ended: dict[RequestId, Outcome] = field(default_factory=dict)
    credit: dict[TenantId, int] = field(default_factory=dict)
    firsts: list[tuple[PoolName, Instant]] = field(default_factory=list)
    extras: list[tuple[PoolName, Instant]] = field(default_factory=list)
    lead: dict[tuple[int, PoolName, TenantId, TenantId], int] = field(default_factory=dict)
    """Per band, pool and pair of tenants that both wait there: by how many turns the first is ahead."""


class ModelHost:
    def __init__(self, policy: Policy, now: Instant) -> None:
        self.scheduler = Scheduler()
        self.now = now
        self.books = Books(Rules(Policy(), ""))
        self.tell(PolicyChanged(policy, "h0"))

    def tell(self, event: Event, later: Duration = Duration(0)) -> list[Command]:
        self.now = after(self.now, later)
        commands = self.scheduler.handle(event, self.now)
        Check(self.books, event, commands, self.now).run()
        self._compare_with_summary()
        self._check_wakeup()
        assert not self.scheduler._fleet.changed
        return commands

    def _compare_with_summary(self) -> None:
        books, summary = self.books, self.scheduler.summary()
        queued = [each for each in books.asked.values() if each.queued]
        # 1: arrived = queued + in flight + ended.
        assert books.arrived == len(books.asked) + len(books.ended)
        assert summary.requests == len(books.asked)
        assert sum(summary.queued.values()) == len(queued)
        for name, count in summary.queued.items():
            assert count == sum(each.service_class.name == name for each in queued)
        # 2: what is in flight at an endpoint is its open attempts, and each endpoint is in the state it should be.
        assert [each.id for each in summary.endpoints] == list(books.engines)
        for each in summary.endpoints:
            engine = books.engines[each.id]
            assert (each.pool, each.state, each.leaving) == (engine.pool, engine.state, engine.leaving)
            assert (each.in_flight, each.in_flight_max) == (in_flight(books, engine), engine.limit)

    def _check_wakeup(self) -> None:
        """The next wakeup is not later than anything that is due, and there is none where nothing is."""
        books, wakeup = self.books, self.scheduler.next_wakeup()
        due = [each.due for each in books.asked.values() if each.queued]
        due += [each.deadline for each in books.asked.values() if each.deadline is not None]
        due += [each.returns_at for each in books.engines.values() if each.returns_at is not None]
        stall = books.rules.policy.health.stall_ns_max
        due += [after(each.quiet_since, stall) for each in books.engines.values() if streams(books, each)]
        if not due:
            assert wakeup is None
        else:
            assert wakeup is not None
            assert wakeup <= min(due)


def in_flight(books: Books, engine: Engine) -> int:
    return sum(each.engine is engine for each in books.open.values())


def streams(books: Books, engine: Engine) -> int:
    """Those that have begun: before its first token an attempt may rightly be silent."""
    return sum(each.engine is engine and each.streaming for each in books.open.values())


def too_long(ticket: Ticket, service_class: ServiceClass) -> bool:
    """Whether the class cannot take a prompt of this length, with or without its oldest turns."""
    caps = service_class.caps
    length = min(ticket.prompt_bytes_kept, ticket.prompt_bytes) if caps.trims_prompt else ticket.prompt_bytes
    return caps.prompt_tokens is not None and length // 4 > caps.prompt_tokens


def warming(engine: Engine) -> bool:
    return engine.state is EndpointState.WARMING and not engine.leaving


def live(books: Books, pools: tuple[PoolName, ...]) -> list[Engine]:
    return [each for each in books.engines.values() if each.live and each.pool in pools]


def has_room(books: Books, engine: Engine) -> bool:
    limit = min(1, engine.limit) if engine.state is EndpointState.TRIAL else engine.limit
    return engine.live and in_flight(books, engine) < limit


def may_take(books: Books, engine: Engine, request: Asked) -> bool:
    """Whether the request may go to this endpoint, were there room."""
    if not engine.live or engine.pool not in request.pools:
        return False
    return engine is not request.avoid or live(books, request.pools) == [engine]


class Check:
    """One event, what was ordered, and what that does to the books."""

    def __init__(self, books: Books, event: Event, commands: list[Command], now: Instant) -> None:
        self.books = books
        self.event = event
        self.commands = commands
        self.now = now
        self.ends = {each.request_id: each for each in commands if isinstance(each, End)}
        self.fleet_orders: list[tuple[type, EndpointId]] = []
        self.aborts: list[tuple[RequestId, int]] = []

    def run(self) -> None:
        ordered = [each.request_id for each in self.commands if isinstance(each, End)]
        assert len(ordered) == len(set(ordered)), "a request ended twice in one answer"
        self.expire()
        self.miss_deadlines()
        self.happen()
        self.watch()
        self.compare_orders()
        for command in self.commands:
            if isinstance(command, Dispatch):
                self.dispatch(command)
        self.check_turns()
        self.check_nothing_waits_beside_room()
        for request in self.books.asked.values():
            # Expiry: nothing is queued for longer than its class allows.
            assert not request.queued or request.due > self.now or request.queued_since == self.now
            # Deadlines: nothing outlives what its caller allows, wherever it is.
            assert not request.is_late(self.now)

    # The event

    def expire(self) -> None:
        expired = [each for each in self.books.asked.values() if each.queued and each.due <= self.now]
        for request in expired:
            # Whichever of the class's patience and the caller's deadline was over first says how it ends.
            if request.deadline is None or request.due < request.deadline:
                expected = Outcome.EXPIRED if live(self.books, request.pools) else Outcome.NO_ENDPOINTS
                self.end(request, expected)

    def miss_deadlines(self) -> None:
        for request in [each for each in self.books.asked.values() if each.is_late(self.now)]:
            if request.queued:
                self.end(request, Outcome.TOO_LATE)
            elif not self.tells_end_of(request):
                self.aborts.append((request.ticket.request_id, request.attempts))
                self.end(request, Outcome.TOO_LATE)

    def tells_end_of(self, request: Asked) -> bool:
        """Whether the event says that the attempt of this request is over, maybe with its whole answer delivered."""
        told = (self.event.request_id, self.event.attempt) if isinstance(self.event, AttemptEnded) else None
        return told == (request.ticket.request_id, request.attempts)

    def happen(self) -> None:
        match self.event:
            case RequestArrived(ticket):
                self.arrive(ticket)
            case FirstToken(request_id, number):
                self.first_token(request_id, number)
            case Progressed(reports):
                for report in reports:
                    if (attempt := self.books.open.get((report.request_id, report.attempt))) is not None:
                        self.hear(attempt.engine)
            case AttemptEnded(request_id, number, ending):
                self.attempt_ended(request_id, number, ending)
            case RequestWithdrawn(request_id, cause):
                self.withdraw(request_id, cause)
            case TimerFired():
                pass
            case PolicyChanged(policy, policy_hash):
                self.change_policy(policy, policy_hash)
            case _:
                self.fleet(self.event)

    def arrive(self, ticket: Ticket) -> None:
        self.books.arrived += 1
        verdict = judge(ticket, self.books.rules)
        if isinstance(verdict, Refusal):
            return self.end_unknown(ticket, verdict.outcome)
        service_class, pools = verdict.service_class, verdict.pools
        assert not too_long(ticket, service_class)
        due = after(self.now, service_class.queue_wait_ns_max)
        request = Asked(ticket, service_class, pools, self.now, due)
        if ticket.first_token_ns_left is not None:
            request.begin_by = after(self.now, ticket.first_token_ns_left)
        if ticket.completion_ns_left is not None:
            request.complete_by = after(self.now, ticket.completion_ns_left)
        if request.is_late(self.now):
            return self.end_unknown(ticket, Outcome.TOO_LATE)
        if self.is_duplicate(ticket):
            return self.end_unknown(ticket, Outcome.DUPLICATE)
        room = any(has_room(self.books, each) for each in live(self.books, pools))
        held = [
            each for each in self.books.asked.values() if each.queued and each.service_class.name == service_class.name
        ]
        own = [each for each in held if each.ticket.tenant == ticket.tenant]
        full = len(held) >= service_class.queue_length_max or len(own) >= service_class.queue_length_per_tenant_max
        if (answer := self.ends.get(ticket.request_id)) is None:
            assert room or not full, "the queue is longer than its bounds"
            self.books.asked[ticket.request_id] = request
            if ticket.client_retries:
                self.spend(ticket.tenant, self.books.rules.policy.retry.cost)
            return None
        match answer.outcome:
            case Outcome.NO_ENDPOINTS:
                assert not live(self.books, pools)
                assert not any(each.pool in pools and warming(each) for each in self.books.engines.values())
            case Outcome.QUEUE_FULL:
                assert full
                assert not room, "refused although it need not have waited"
            case _:
                assert answer.outcome is Outcome.RETRY_REFUSED
                assert ticket.client_retries
                assert self.credit(ticket.tenant) < self.books.rules.policy.retry.cost
        return self.end_unknown(ticket, answer.outcome)

    def is_duplicate(self, ticket: Ticket) -> bool:
        """Whether its tenant has a request with the same key open."""
        keys = [(each.ticket.tenant, each.ticket.idempotency_key) for each in self.books.asked.values()]
        return ticket.idempotency_key is not None and (ticket.tenant, ticket.idempotency_key) in keys

    def first_token(self, request_id: RequestId, number: int) -> None:
        if (attempt := self.books.open.get((request_id, number))) is None:
            return
        self.success(attempt.engine)
        attempt.streaming = attempt.stream
        if request_id in self.books.asked:
            self.books.asked[request_id].first_token = True

    def attempt_ended(self, request_id: RequestId, number: int, ending: AttemptEnding) -> None:
        if (attempt := self.books.open.get((request_id, number))) is None:
            return
        engine = attempt.engine
        if ending in (AttemptEnding.COMPLETED, AttemptEnding.REFUSED):
            self.success(engine)
        elif ending in FAILURES:
            self.failure(engine)
        del self.books.open[request_id, number]
        self.forget_if_gone(engine)
        if (request := self.books.asked.get(request_id)) is not None:
            self.answer_ended(request, engine, ending)

    def answer_ended(self, request: Asked, engine: Engine, ending: AttemptEnding) -> None:
        rules = self.books.rules.policy.retry
        answer = self.ends.get(request.ticket.request_id)
        if ending is AttemptEnding.COMPLETED:
            self.end(request, Outcome.COMPLETED)
        elif ending is AttemptEnding.REFUSED:
            self.end(request, Outcome.ENGINE_REFUSED)
        elif answer is not None:
            honest = Outcome.ENGINE_FAILED if ending is AttemptEnding.FAILED else Outcome.ENGINE_SILENT
            late = request.is_late(self.now)
            assert late == (answer.outcome is Outcome.TOO_LATE)
            if not late and (request.first_token or request.attempts >= rules.attempts_max):
                assert answer.outcome is honest
            self.end(request, answer.outcome)
        else:
            assert not request.first_token, "retried after its first token"
            assert not request.is_late(self.now), "retried after its deadline"
            assert request.attempts < rules.attempts_max
            self.check_extra_attempt(engine.pool)
            silent = ending is not AttemptEnding.FAILED
            self.spend(request.ticket.tenant, rules.cost_after_silence if silent else rules.cost)
            self.requeue(request, engine)

    def requeue(self, request: Asked, engine: Engine) -> None:
        verdict = judge(self.books.rules.without_gone_class(request.ticket), self.books.rules)
        assert not isinstance(verdict, Refusal)
        assert not too_long(request.ticket, verdict.service_class)
        request.service_class, request.pools = verdict.service_class, verdict.pools
        request.queued, request.avoid, request.queued_since = True, engine, self.now
        patience = max(0, request.service_class.queue_wait_ns_max - request.waited)
        request.due = after(self.now, Duration(patience))

    def withdraw(self, request_id: RequestId, cause: WithdrawalCause) -> None:
        if (request := self.books.asked.get(request_id)) is None:
            return
        if cause is WithdrawalCause.CLIENT_LEFT:
            expected = Outcome.CANCELLED
        else:
            expected = Outcome.DRAINING if request.queued else Outcome.EVICTED
        if not request.queued:
            self.aborts.append((request_id, request.attempts))
        self.end(request, expected)

    def change_policy(self, policy: Policy, policy_hash: str) -> None:
        books = self.books
        books.rules = Rules(policy, policy_hash)
        books.credit = {each.id: books.credit[each.id] for each in policy.tenants if each.id in books.credit}
        pools = [each.name for each in policy.pools]
        books.firsts = [(pool, when) for pool, when in books.firsts if pool in pools]
        books.extras = [(pool, when) for pool, when in books.extras if pool in pools]
        books.lead = {}
        for engine in books.engines.values():
            engine.quiet_since = engine.last_heard
        for request in [each for each in books.asked.values() if each.queued]:
            verdict = judge(books.rules.without_gone_class(request.ticket), books.rules)
            if isinstance(verdict, Refusal):
                self.end(request, verdict.outcome)
            else:
                request.service_class, request.pools = verdict.service_class, verdict.pools

    def fleet(self, event: EndpointJoined | EndpointReadied | EndpointUnreadied | EndpointLeaving) -> None:
        if isinstance(event, EndpointJoined):
            new = event.endpoint
            engine = self.books.engines.setdefault(
                new.id, Engine(new.id, new.pool, new.in_flight_max, self.now, self.now)
            )
            engine.limit, engine.leaving = new.in_flight_max, False
        elif (known := self.books.engines.get(event.endpoint_id)) is None:
            return
        elif isinstance(event, EndpointLeaving):
            known.leaving = True
            self.forget_if_gone(known)
        elif isinstance(event, EndpointUnreadied):
            known.state, known.returns_at = EndpointState.WARMING, None
        elif known.state is EndpointState.WARMING:
            known.failures = 0
            known.state = EndpointState.TRIAL if known.ejections else EndpointState.READY
            if known.state is EndpointState.READY:
                self.fleet_orders.append((Readmit, known.id))

    # Health, as told by the policy

    def hear(self, engine: Engine) -> None:
        engine.last_heard = engine.quiet_since = self.now

    def success(self, engine: Engine) -> None:
        self.hear(engine)
        engine.failures = 0
        if engine.state is EndpointState.TRIAL:
            engine.state, engine.ejections = EndpointState.READY, 0
            self.fleet_orders.append((Readmit, engine.id))

    def failure(self, engine: Engine) -> None:
        engine.failures += 1
        often = engine.failures >= self.books.rules.policy.health.failures_max
        if engine.state is EndpointState.TRIAL or (engine.state is EndpointState.READY and often):
            self.eject(engine)

    def eject(self, engine: Engine) -> None:
        rules = self.books.rules.policy.health
        length = min(rules.eject_ns * 2**engine.ejections, rules.eject_ns_max)
        engine.ejections, engine.failures = engine.ejections + 1, 0
        engine.state, engine.returns_at = EndpointState.EJECTED, after(self.now, Duration(length))
        self.fleet_orders.append((Eject, engine.id))

    def forget_if_gone(self, engine: Engine) -> None:
        if engine.leaving and not in_flight(self.books, engine):
            del self.books.engines[engine.id]

    def watch(self) -> None:
        for engine in self.books.engines.values():
            if engine.returns_at is not None and engine.returns_at <= self.now:
                engine.state, engine.returns_at = EndpointState.TRIAL, None
        stall = self.books.rules.policy.health.stall_ns_max
        for engine in self.books.engines.values():
            if streams(self.books, engine) and self.now - engine.quiet_since >= stall:
                engine.quiet_since = self.now
                if engine.state in (EndpointState.READY, EndpointState.TRIAL):
                    self.eject(engine)
                for attempt in self.books.open.values():
                    if attempt.engine is engine and attempt.stream and attempt.request_id in self.books.asked:
                        self.aborts.append((attempt.request_id, attempt.number))

    # What was ordered

    def compare_orders(self) -> None:
        """Nothing is ordered but what the books expect: no command for what has ended, none for what never was."""
        assert not self.ends, f"ended without a cause: {self.ends}"
        ejections = [each for each in self.commands if isinstance(each, Eject | Readmit)]
        assert sorted((type(each).__name__, each.endpoint_id) for each in ejections) == sorted(
            (kind.__name__, name) for kind, name in self.fleet_orders
        )
        for each in ejections:
            if isinstance(each, Eject) and each.endpoint_id in self.books.engines:
                assert each.until == self.books.engines[each.endpoint_id].returns_at
        aborts = [each for each in self.commands if isinstance(each, Abort)]
        assert sorted((each.request_id, each.attempt) for each in aborts) == sorted(self.aborts)
        for each in aborts:
            attempt = self.books.open[each.request_id, each.attempt]
            assert attempt.engine.id == each.endpoint_id
            attempt.abort_ordered = True

    def dispatch(self, order: Dispatch) -> None:
        request = self.books.asked[order.request_id]
        assert request.queued, "sent twice"
        engine = self.books.engines[order.endpoint_id]
        self.check_place(order, request, engine)
        self.check_bands(request, engine)
        request.queued = False
        request.waited += self.now - request.queued_since
        request.attempts += 1
        assert (order.attempt, order.waited_ns) == (request.attempts, request.waited)
        assert order.caps == request.service_class.caps
        if request.attempts == 1:
            self.count_first(request, engine.pool)
        attempt = Open(order.request_id, order.attempt, engine, request.ticket.stream)
        self.books.open[order.request_id, order.attempt] = attempt
        self.count_turn(request, engine.pool)

    def check_place(self, order: Dispatch, request: Asked, engine: Engine) -> None:
        """2: within the limit, and no endpoint gets work while ejected, warming, leaving or busy with its trial."""
        assert may_take(self.books, engine, request)
        assert has_room(self.books, engine)
        assert (order.pool, order.service_class) == (engine.pool, request.service_class.name)
        load = in_flight(self.books, engine)
        pools = request.pools if request.avoid is None else (engine.pool,)
        for other in live(self.books, pools):
            if has_room(self.books, other) and may_take(self.books, other, request):
                assert load <= in_flight(self.books, other), "not the least loaded"

    def check_bands(self, request: Asked, engine: Engine) -> None:
        """Nothing of a lower band is sent where something of a higher one could go."""
        for other in self.books.asked.values():
            if other.queued and other.service_class.band < request.service_class.band:
                assert not may_take(self.books, engine, other)

    def check_nothing_waits_beside_room(self) -> None:
        """3: no endpoint has room while a request that could go there waits."""
        for engine in self.books.engines.values():
            if has_room(self.books, engine):
                for request in self.books.asked.values():
                    assert not request.queued or not may_take(self.books, engine, request)

    # Endings

    def end(self, request: Asked, expected: Outcome) -> None:
        """1: each request ends exactly once, as it should, and the answer says when to come again."""
        order = self.ends.pop(request.ticket.request_id)
        assert order.outcome is expected
        if request.queued:
            request.waited += self.now - request.queued_since
        assert (order.attempts, order.waited_ns) == (request.attempts, request.waited)
        assert order.service_class is not None
        self.check_retry_after(order)
        del self.books.asked[order.request_id]
        self.books.ended[order.request_id] = order.outcome

    def end_unknown(self, ticket: Ticket, expected: Outcome) -> None:
        order = self.ends.pop(ticket.request_id)
        assert order.outcome is expected
        assert (order.attempts, order.waited_ns) == (0, 0)
        self.check_retry_after(order)
        self.books.ended[order.request_id] = order.outcome

    def check_retry_after(self, order: End) -> None:
        match FACES[order.outcome].retry_after:
            case RetryAfter.COMPUTED:
                assert order.retry_after_ns is not None
                assert SECOND <= order.retry_after_ns <= MINUTE
            case RetryAfter.ONE_SECOND:
                assert order.retry_after_ns == SECOND
            case RetryAfter.ABSENT:
                assert order.retry_after_ns is None

    # Budgets

    def credit(self, tenant: TenantId) -> int:
        return self.books.credit.get(tenant, self.books.rules.policy.retry.credit_burst)

    def spend(self, tenant: TenantId, cost: int) -> None:
        self.books.credit[tenant] = self.credit(tenant) - cost
        assert self.books.credit[tenant] >= 0, "a retry that its tenant could not pay for"

    def count_first(self, request: Asked, pool: PoolName) -> None:
        self.books.firsts.append((pool, self.now))
        if not request.ticket.client_retries:
            rules, tenant = self.books.rules.policy.retry, request.ticket.tenant
            self.books.credit[tenant] = min(rules.credit_burst, self.credit(tenant) + rules.credit_per_first_attempt)

    def check_extra_attempt(self, pool: PoolName) -> None:
        """9: extra attempts stay within a fifth of the first attempts of the last ten seconds, or a few."""
        rules = self.books.rules.policy.retry
        self.books.extras.append((pool, self.now))
        since = self.now - rules.pool_window_ns
        extras = [name for name, when in self.books.extras if when > since]
        firsts = [name for name, when in self.books.firsts if when > since]
        of_pool, all_firsts_of_pool = extras.count(pool), firsts.count(pool)
        assert of_pool <= rules.pool_extra_min or 100 * of_pool <= rules.pool_percent * all_firsts_of_pool

    # Turns

    def count_turn(self, request: Asked, pool: PoolName) -> None:
        band, tenant = request.service_class.band, request.ticket.tenant
        for key in self.books.lead:
            if key[:2] == (band, pool):
                self.books.lead[key] += (key[2] == tenant) - (key[3] == tenant)

    def check_turns(self) -> None:
        """6: two tenants that both keep waiting at a pool differ by at most one turn there, whenever they came.

        Only those count that have something waiting which any endpoint of the pool could take.
        """
        waiting: dict[tuple[int, PoolName], dict[TenantId, None]] = {}
        for request in self.books.asked.values():
            if request.queued and request.avoid is None:
                for pool in request.pools:
                    waiting.setdefault((request.service_class.band, pool), {})[request.ticket.tenant] = None
        steady = {
            (band, pool, *pair)
            for (band, pool), tenants in waiting.items()
            for pair in combinations(sorted(tenants), 2)
        }
        self.books.lead = {key: self.books.lead.get(key, 0) for key in steady}
        for key, lead in self.books.lead.items():
            assert abs(lead) <= 1, f"turns are unfair: {key} by {lead}"
