"""Host that checks every scheduler decision against a reference state.

After each event it compares the scheduler's commands with the expected ones and checks the properties of the policy. A
number at the start of a comment or docstring identifies the property.
"""

from dataclasses import dataclass

from headgate.core.admission.gate import Admitted, Rejection, check_policy, fallback_for
from headgate.core.commands import Abort, Command, Dispatch, Eject, End, Hold, Readmit
from headgate.core.cost import cost_ns
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptsProgressed,
    EndpointJoined,
    EndpointLeaving,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    Event,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.hedging import SAMPLES_MIN, TtftHistogram
from headgate.core.queues.fair_queue import charge
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointState
from headgate.model.fault import FaultOrigin
from headgate.model.limits import Limits
from headgate.model.outcome import HTTP_REPLIES, Outcome, RetryAfter
from headgate.model.policy import Policy, ServiceClass
from headgate.model.tenant import levels_of, tenant_table
from headgate.model.ticket import Ticket
from headgate.model.units import (
    MINUTE,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    Instant,
    PoolName,
    RequestId,
    TenantId,
    after,
)
from headgate.model.usage import Usage, UsageSource
from testing.scheduler_sizes import timer_instants
from tests.properties.books import PROBE_NS, SERVING, Asked, Books, Engine, Open, Prediction
from tests.properties.recorded_blame import record_blame, recorded

FAILURES = (AttemptEnding.FAILED, AttemptEnding.TIMEOUT)
GOOD = (AttemptEnding.COMPLETED, AttemptEnding.REJECTED)
GROWN_BY = 64
"""Number of tokens beyond the prediction after which charges are corrected. As many are reserved ahead in the KV cache.
"""


class ModelHost:
    def __init__(self, policy: Policy, now: Instant) -> None:
        self.scheduler = record_blame(Scheduler())
        self.now = now
        self.books = Books(Rules(Policy(), ""))
        self.tell(PolicyChanged(policy, "h0"))

    def tell(self, event: Event, later: Duration = Duration(0)) -> list[Command]:
        self.now = after(self.now, later)
        recorded(self.scheduler).forget_verdicts()
        commands = self.scheduler.handle(event, self.now)
        self._read_what_is_learned()
        self._check(event, commands).run()
        self._compare_with_summary()
        self._compare_with_fleet()
        self._check_wakeup()
        # A hedge is sent after all queued requests have been considered, and does not free a slot.
        assert not self.scheduler._state.fleet.dispatchable or any(
            isinstance(each, Dispatch) and each.hedge for each in commands
        )
        return commands

    def _check(self, event: Event, commands: list[Command]) -> "Check":
        return Check(self.scheduler, self.books, event, commands, self.now)

    def know_first_tokens(self, service_class: str, *pools: str) -> None:
        """Makes the typical time to the first token known, as if enough responses had started before."""
        for pool in pools:
            known = TtftHistogram()
            self.scheduler._state.hedging._first_tokens[ClassName(service_class), PoolName(pool)] = known
            for _ in range(SAMPLES_MIN):
                known.learn(Duration(SECOND // 8))

    def _read_what_is_learned(self) -> None:
        self.books.held = self.scheduler._state.queue.min_shares.limited_bands
        self.books.turnovers = {name: pool.turnover for name, pool in self.scheduler._state.fleet.pools.items()}
        for each in self.scheduler._state.fleet.endpoints.values():
            if (engine := self.books.engines.get(each.id)) is not None:
                engine.decode_percent = each.speed_estimator.decode_percent
                engine.prefill_percent = each.speed_estimator.prefill_percent

    def _compare_with_summary(self) -> None:
        books, summary = self.books, self.scheduler.summary()
        # 1: arrived = queued + in flight + ended.
        assert books.arrived == len(books.asked) + len(books.ended)
        assert summary.requests == len(books.asked)
        assert sum(summary.queued.values()) + sum(summary.held.values()) == len(books.queued)
        for name, count in summary.queued.items():
            assert count == sum(each.service_class.name == name and each.hold is None for each in books.queued)
        for where, count in summary.held.items():
            assert count == sum((each.hold, each.service_class.name) == where for each in books.queued) > 0
        # Each endpoint has the expected state, and its in-flight requests match its open attempts.
        assert [each.id for each in summary.endpoints] == list(books.engines)
        for each in summary.endpoints:
            engine = books.engines[each.id]
            assert (each.pool, each.state, each.leaving) == (engine.pool, engine.state, engine.leaving)
            assert (each.in_flight, each.in_flight_max) == (
                sum(open_.places for open_ in books.at(engine)),
                engine.limit,
            )

    def _compare_with_fleet(self) -> None:
        """2: the reservations on an endpoint are those of its open attempts. An idle endpoint has none."""
        for each in self.scheduler._state.fleet.endpoints.values():
            engine = self.books.engines[each.id]
            attempts = self.books.at(engine)
            assert each.kv_reserved == sum(attempt.kv_tokens for attempt in attempts)
            assert each.kv_used == sum(attempt.prompt_tokens + attempt.tokens for attempt in attempts)
            assert each.pending_tokens == sum(attempt.pending_tokens for attempt in attempts)
            assert (each.streams, each.itl_ns) == (self.books.streams(engine), engine.itl_ns)
            assert (each.foreign, each.kv_foreign) == (engine.foreign, engine.kv_foreign)
            assert (each.skipped_as_stale, each.limit_percent) == (engine.passed_over, engine.limit_percent)
            assert each.slow_start_percent == engine.grown_percent
            assert each.sequence_limit.learned == engine.sequences
            assert (each.heap_entry is not None) == self.books.has_headroom(engine)

    def _check_wakeup(self) -> None:
        """The next wakeup is not later than the earliest due time. If nothing is due, there is no wakeup."""
        books, wakeup = self.books, self.scheduler.next_wakeup()
        due = [each.expires for each in books.queued]
        due += [each.deadline for each in books.asked.values() if each.deadline is not None]
        due += [each.returns_at for each in books.engines.values() if each.returns_at is not None]
        due += [each.must_be_heard_at for each in books.engines.values() if each.must_be_heard_at is not None]
        due += [each.trial_ends_at for each in books.engines.values() if each.trial_ends_at is not None]
        due += [each.silent_at for each in books.engines.values() if each.silent_at is not None]
        due += [each.grows_at for each in books.engines.values() if each.grows_at is not None]
        stall = books.rules.policy.health.stall_ns_max
        due += [after(each.quiet_since, stall) for each in books.engines.values() if books.streams(each)]
        due += [each.prefilled_at for each in books.open.values() if each.prefilled_at is not None]
        due += timer_instants(self.scheduler._state.hedging.silence_timers).values()
        # The pressure measurement has its own interval. It stops when no class is degraded.
        tick = self.scheduler._state.overload.tick_at
        due += [] if tick is None else [tick]
        if due:
            assert wakeup is not None
            assert wakeup <= min(due)
        else:
            assert wakeup is None


@dataclass(frozen=True)
class Fleet:
    """The part of the fleet needed to find a fallback."""

    books: Books

    def live_count(self, pools: tuple[PoolName, ...]) -> int:
        return len(self.books.live(pools))


def too_long(ticket: Ticket, service_class: ServiceClass) -> bool:
    """Returns whether the prompt is too long for the class, even after trimming if the class allows it."""
    caps = service_class.caps
    length = min(ticket.untrimmable_bytes, ticket.prompt_bytes) if caps.trim_prompt else ticket.prompt_bytes
    return caps.prompt_tokens is not None and length // 4 > caps.prompt_tokens


class Check:
    """Checks one event and its commands, and updates the reference state."""

    def __init__(self, scheduler: Scheduler, books: Books, event: Event, commands: list[Command], now: Instant) -> None:
        self.scheduler = scheduler
        self.books = books
        self.event = event
        self.commands = commands
        self.now = now
        self.ends = {each.request_id: each for each in commands if isinstance(each, End)}
        self.fleet_orders: list[tuple[type, EndpointId]] = []
        self.aborts: list[tuple[RequestId, int]] = []
        self.holds: list[tuple[RequestId, PoolName]] = []
        self.ejected_until: dict[EndpointId, Instant] = {}

    def run(self) -> None:
        ordered = [each.request_id for each in self.commands if isinstance(each, End)]
        assert len(ordered) == len(set(ordered)), "a request ended twice in one command list"
        self.expire()
        self.miss_deadlines()
        self.compute_prompts()
        self.happen()
        self.watch()
        self.release()
        self.compare_orders()
        for command in self.commands:
            if isinstance(command, Dispatch):
                self.dispatch(command)
        self.check_turns()
        self.check_nothing_waits_beside_room()
        for request in self.books.asked.values():
            # Expiry: no request stays queued longer than its class allows.
            assert not request.queued or request.expires > self.now or request.queued_since == self.now
            # Deadlines: no request outlives its client's deadline.
            assert not request.is_late(self.now)

    # The event

    def expire(self) -> None:
        expired = [each for each in self.books.queued if each.expires <= self.now]
        for request in expired:
            # Whichever comes first, the class's queue limit or the client's deadline, determines the outcome.
            if request.deadline is None or request.expires < request.deadline:
                expected = Outcome.QUEUE_TIMEOUT if self.books.live(request.pools) else Outcome.NO_ENDPOINTS
                self.end(request, expected)

    def miss_deadlines(self) -> None:
        for request in [each for each in self.books.asked.values() if each.is_late(self.now)]:
            if request.queued or not self.tells_end_of(request):
                self.abort_all(request)
                self.end(request, Outcome.DEADLINE_EXCEEDED)

    def compute_prompts(self) -> None:
        """Prompts of non-streaming responses count as computed once they should have been."""
        for attempt in self.books.open.values():
            if attempt.prefilled_at is not None and attempt.prefilled_at <= self.now:
                attempt.prefilled_at = None
                attempt.computed = True

    def tells_end_of(self, request: Asked) -> bool:
        """Returns whether the event ends one of this request's attempts, possibly with the complete response."""
        if not isinstance(self.event, AttemptEnded):
            return False
        return (self.event.request_id, self.event.attempt) in [
            (each.request_id, each.number) for each in self.under_way(request)
        ]

    def happen(self) -> None:
        match self.event:
            case RequestArrived(ticket):
                self.arrive(ticket)
            case FirstToken(request_id, number):
                self.first_token(request_id, number)
            case AttemptsProgressed():
                self.progress(self.event)
            case AttemptEnded():
                self.attempt_ended(self.event)
            case RequestWithdrawn(request_id, cause):
                self.withdraw(request_id, cause)
            case TimerFired():
                pass
            case PolicyChanged(policy, policy_hash):
                self.change_policy(policy, policy_hash)
            case _:
                self.fleet(self.event)

    # Arrival

    def arrive(self, ticket: Ticket) -> None:
        books = self.books
        books.arrived += 1
        verdict = check_policy(ticket, books.rules)
        if isinstance(verdict, Rejection):
            return self.end_unknown(ticket, verdict.outcome)
        assert not too_long(ticket, verdict.service_class)
        request = self.asked(ticket, verdict)
        if request.is_late(self.now):
            return self.end_unknown(ticket, Outcome.DEADLINE_EXCEEDED)
        if self.is_duplicate(ticket):
            return self.end_unknown(ticket, Outcome.DUPLICATE_REQUEST)
        if (answer := self.ends.get(ticket.request_id)) is None:
            self.admit(request)
            return None
        right = self.is_refused_rightly(request, answer.outcome)
        if not right and (other := self.instead(request)) is not None:
            # The request fell back to another model and was rejected there.
            self.move(request, other)
            right = self.is_refused_rightly(request, answer.outcome)
        assert right, f"unexpected outcome {answer.outcome}"
        return self.end_unknown(ticket, answer.outcome)

    def asked(self, ticket: Ticket, admitted: Admitted) -> Asked:
        rules = self.books.rules
        prompt_tokens = self.scheduler._state.predictions.prompt_tokens(ticket, admitted.model)
        request = Asked(
            ticket,
            admitted.service_class,
            admitted.pools,
            admitted.model,
            rules.account(ticket.tenant),
            self.books.arrived,
            self.now,
            Prediction(prompt_tokens, 0),
        )
        if ticket.first_token_ns_left is not None:
            request.begin_by = after(self.now, ticket.first_token_ns_left)
        if ticket.completion_ns_left is not None:
            request.complete_by = after(self.now, ticket.completion_ns_left)
        if ticket.stream and admitted.service_class.ttft_ns is not None:
            request.target = request.promised = after(self.now, admitted.service_class.ttft_ns)
        self.move(request, admitted)
        return request

    def move(self, request: Asked, admitted: Admitted) -> None:
        """Assigns a class and pools to a request and predicts its cost. The scheduler provides the level."""
        request.service_class, request.pools = admitted.service_class, admitted.pools
        request.model, request.fell_back = admitted.model, admitted.model != request.ticket.model
        request.account = self.books.rules.account(request.ticket.tenant)
        record = self.scheduler._state.requests.by_id.get(request.ticket.request_id)
        if record is not None and record.level:
            request.service_class, request.pools, request.model = record.service_class, record.pools, record.model
        request.predicted.cached_tokens = 0 if record is None else record.cached_tokens
        predictions = self.scheduler._state.predictions
        request.predicted.prompt_tokens = predictions.prompt_tokens(request.ticket, request.model)
        self.books.measure(request, *predictions.output_tokens(request.ticket, request.model))

    def admit(self, request: Asked) -> None:
        books, ticket = self.books, request.ticket
        if not books.live(request.pools):
            self.fall_back(request)
        if books.live(request.pools) or not self.hold(request):
            room = self.fits_somewhere(request) or self.may_be_held_somewhere(request)
            assert room or not self.queue_is_full(request), "the queue is longer than its limits"
            assert not self.waits_too_long(request), "admitted although it cannot be served in time"
            assert self.is_expected(request.pools), "admitted although no endpoint is expected"
        for tenant, limits in self.limits_of(ticket.tenant):
            assert limits.concurrency is None or self.open_requests(tenant) < limits.concurrency
        if ticket.client_retries:
            self.spend(ticket.tenant, books.rules.policy.retry.cost)
        request.expires = books.last_moment(request, self.now)
        books.asked[ticket.request_id] = request

    def is_expected(self, pools: tuple[PoolName, ...]) -> bool:
        """Returns whether any endpoint in these pools is available, warming up, or ejected but not unresponsive."""
        engines = [each for each in self.books.engines.values() if each.pool in pools and not each.leaving]
        ejected = [each for each in engines if each.state is EndpointState.EJECTED]
        return any(each not in ejected or not each.unresponsive(self.now) for each in engines)

    def fall_back(self, request: Asked) -> None:
        """Moves a request without available endpoints to a fallback, as an extra attempt, or leaves it to wait."""
        record = self.scheduler._state.requests.by_id[request.ticket.request_id]
        if record.fell_back:
            other = self.instead(request)
            assert other is not None
            assert record.model == other.model
            self.check_extra_attempt(other.pools[0])
            self.move(request, other)

    def hold(self, request: Asked) -> bool:
        """Returns whether a request without available endpoints is held. Holds have their own limit."""
        if (pool := self.books.start_awaited(request)) is None:
            return False
        assert not self.books.hold_is_full(pool), "more requests are held than allowed"
        request.hold, request.is_held = pool, True
        self.holds.append((request.ticket.request_id, pool))
        return True

    def release(self) -> None:
        """Releases held requests once an endpoint in their pools is available."""
        for request in self.books.queued:
            if request.is_held and self.books.live(request.pools):
                request.held_no_longer(self.now)
                request.expires = self.books.last_moment(request, self.now)

    def instead(self, request: Asked) -> Admitted | None:
        """Returns a request's fallback if no endpoint in its own pools is available."""
        if self.books.live(request.pools):
            return None
        service_class = self.books.rules.classes[request.service_class.name]
        return fallback_for(request.ticket, service_class, Fleet(self.books), self.books.rules, self.now)  # type: ignore[arg-type]

    def is_refused_rightly(self, request: Asked, outcome: Outcome) -> bool:
        books, policy, ticket = self.books, self.books.rules.policy, request.ticket
        match outcome:
            case Outcome.NO_ENDPOINTS:
                of_pools = [each for each in books.engines.values() if each.pool in request.pools]
                if (pool := books.start_awaited(request)) is not None:
                    return books.hold_is_full(pool) and not books.live(request.pools)
                return not any(each.live or each.warming for each in of_pools)
            case Outcome.RATE_LIMITED | Outcome.REQUEST_TOO_LARGE:
                return bool(self.limits_of(ticket.tenant))
            case Outcome.SHED:
                return policy.degradation.enabled or policy.shedding.enabled
            case Outcome.QUEUE_FULL:
                return self.queue_is_full(request) and not self.fits_somewhere(request)
            case Outcome.DEADLINE_INFEASIBLE:
                # The request's prefix cache hits, and therefore its cost, are not known afterwards.
                return bool(ticket.prefix_hashes) or self.waits_too_long(request)
            case Outcome.RETRY_BUDGET_EXHAUSTED:
                return ticket.client_retries > 0 and self.credit(ticket.tenant) < policy.retry.cost
            case _:
                return False

    def is_duplicate(self, ticket: Ticket) -> bool:
        """Returns whether the tenant has an open request with the same idempotency key."""
        keys = [(each.ticket.tenant, each.ticket.idempotency_key) for each in self.books.asked.values()]
        return ticket.idempotency_key is not None and (ticket.tenant, ticket.idempotency_key) in keys

    def queue_is_full(self, request: Asked) -> bool:
        service_class, tenant = request.service_class, request.ticket.tenant
        queued = [each for each in self.books.queued if each.hold is None]
        held = [each for each in queued if each.service_class.name == service_class.name]
        own = [each for each in held if each.ticket.tenant == tenant]
        return len(held) >= service_class.queue_length_max or len(own) >= service_class.queue_length_per_tenant_max

    def fits_somewhere(self, request: Asked) -> bool:
        return any(self.books.fits(each, request) for each in self.books.engines.values())

    def may_be_held_somewhere(self, request: Asked) -> bool:
        """Returns whether the uncached remainder of a long prompt may be short enough to bypass the long lane."""
        engines = self.books.engines.values()
        return (
            bool(request.ticket.prefix_hashes)
            and request.long
            and any(self.books.fits_beside(e, request) for e in engines)
        )

    def waits_too_long(self, request: Asked) -> bool:
        certainty = self.books.rules.policy.admission.predicted_wait_percent_max
        if certainty is None:
            return False
        allowed = self.books.last_moment(request, self.now) - self.now
        return self.books.waits_longer(request, than=certainty * allowed // 100, now=self.now)

    def limits_of(self, tenant: TenantId) -> list[tuple[TenantId, Limits]]:
        """Returns the limits along the tenant's path."""
        steps = tenant.split("/")
        path = [TenantId("/".join(steps[: depth + 1])) for depth in range(len(steps))]
        known = self.books.rules.tenants
        return [(each, known[each].limits) for each in path if each in known and known[each].limits != Limits()]

    def open_requests(self, tenant: TenantId) -> int:
        """Returns the number of open requests from the tenant and all tenants below it."""
        return sum(f"{each.ticket.tenant}/".startswith(f"{tenant}/") for each in self.books.asked.values())

    # During an attempt

    def under_way(self, request: Asked) -> list[Open]:
        """Returns the request's open attempts, excluding superseded ones."""
        if request.queued:
            return []
        open_attempts = self.books.open.values()
        return [each for each in open_attempts if each.request_id == request.ticket.request_id and not each.let_go]

    def abort_all(self, request: Asked) -> None:
        self.aborts += [(each.request_id, each.number) for each in self.under_way(request)]

    def speaks(self, request: Asked, attempt: Open) -> None:
        """9: at most one of two attempts wins. The other is superseded."""
        for other in self.under_way(request):
            if other is not attempt:
                other.let_go = True
                self.aborts.append((other.request_id, other.number))

    def first_token(self, request_id: RequestId, number: int) -> None:
        if (attempt := self.books.open.get((request_id, number))) is None:
            return
        self.success(attempt.engine)
        request = self.books.asked.get(request_id)
        if request is not None and not attempt.let_go and not request.first_token:
            self.speaks(request, attempt)
            request.first_token = True
            self.count_after_all()
        attempt.delivered = True
        if not attempt.began:
            attempt.began, attempt.computed, attempt.heard_at = True, True, self.now
        if attempt.stream and not attempt.streaming:
            if not self.books.streams(attempt.engine):
                attempt.engine.quiet_since = self.now
            attempt.streaming = True

    def progress(self, event: AttemptsProgressed) -> None:
        reports: dict[EndpointId, list[tuple[int, int]]] = {}
        for report in event.attempts:
            if (attempt := self.books.open.get((report.request_id, report.attempt))) is None:
                continue
            self.hear(attempt.engine)
            reports.setdefault(attempt.engine.id, []).append((report.tokens, self.now - attempt.heard_at))
            attempt.tokens, attempt.heard_at = attempt.tokens + report.tokens, self.now
            lacking = attempt.prompt_tokens + attempt.tokens - attempt.kv_tokens
            if lacking > 0:
                attempt.kv_tokens += lacking + GROWN_BY
            if attempt.tokens >= attempt.tokens_charged + GROWN_BY:
                attempt.tokens_charged = attempt.tokens
                self.charge(attempt, attempt.prompt_tokens, attempt.tokens, attempt.cached_tokens)
        for endpoint_id, heard in reports.items():
            if tokens := sum(each for each, _ in heard):
                self.books.engines[endpoint_id].itl_ns = sum(took for count, took in heard if count) // tokens

    def withdraw(self, request_id: RequestId, cause: WithdrawalCause) -> None:
        if (request := self.books.asked.get(request_id)) is None:
            return
        if cause is WithdrawalCause.CLIENT_DISCONNECTED:
            expected = Outcome.CANCELLED
        else:
            expected = Outcome.DRAINING if request.queued else Outcome.EVICTED
        self.abort_all(request)
        self.end(request, expected)

    # End of an attempt

    def attempt_ended(self, event: AttemptEnded) -> None:
        if event.first_token:
            self.first_token(event.request_id, event.attempt)
        if (attempt := self.books.open.get((event.request_id, event.attempt))) is None:
            return
        engine = attempt.engine
        if not attempt.let_go:
            if event.ending is AttemptEnding.COMPLETED:
                self.success(engine)
                self.count_after_all()
            elif event.ending in FAILURES:
                self.count_failure(engine)
        self.settle(attempt, event.ending, event.usage)
        request = self.books.asked.get(event.request_id)
        if request is not None and not attempt.let_go:
            self.answer_ended(request, attempt, event.ending)
        del self.books.open[event.request_id, event.attempt]
        if not self.books.streams(engine) and attempt.streaming:
            engine.itl_ns = 0
        self.forget_if_gone(engine)

    def settle(self, attempt: Open, ending: AttemptEnding, usage: Usage | None) -> None:
        if usage is not None and usage.source is UsageSource.ENGINE:
            cached_tokens = min(usage.cached_tokens, usage.prompt_tokens)
            self.charge(attempt, usage.prompt_tokens, usage.output_tokens, cached_tokens)
        elif attempt.left_with is not None:
            prompt_tokens, cached_tokens, output_tokens = attempt.left_with
            self.charge(attempt, prompt_tokens, max(output_tokens, attempt.tokens), cached_tokens)
        elif ending is AttemptEnding.COMPLETED:
            self.charge(attempt, attempt.prompt_tokens, attempt.tokens or attempt.tokens_charged, attempt.cached_tokens)
        elif attempt.began:
            self.charge(attempt, attempt.prompt_tokens, attempt.tokens, attempt.cached_tokens)
        else:
            self.charge(attempt, 0, attempt.tokens, 0)

    def charge(self, attempt: Open, prompt_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        speed = self.books.rules.speed(attempt.engine.pool)
        cost = cost_ns(speed, prompt_tokens, output_tokens, cached=cached_tokens, prompts=attempt.places)
        weighted = charge(cost, self.books.rules.weight(attempt.account))
        self.books.charge_attempt(attempt, 0 if attempt.let_go else weighted)

    def answer_ended(self, request: Asked, attempt: Open, ending: AttemptEnding) -> None:
        rules = self.books.rules.policy.retry
        answer = self.ends.get(request.ticket.request_id)
        others = [each for each in self.under_way(request) if each is not attempt]
        if ending in GOOD:
            self.speaks(request, attempt)
            self.end(request, Outcome.COMPLETED if ending is AttemptEnding.COMPLETED else Outcome.ENGINE_REJECTED)
        elif others:
            if request.is_late(self.now):
                self.aborts += [(each.request_id, each.number) for each in others]
                self.end(request, Outcome.DEADLINE_EXCEEDED)
        elif answer is not None:
            honest = Outcome.ENGINE_ERROR if ending is AttemptEnding.FAILED else Outcome.ENGINE_TIMEOUT
            late = request.is_late(self.now)
            assert late == (answer.outcome is Outcome.DEADLINE_EXCEEDED)
            convicted = recorded(self.scheduler).origin is FaultOrigin.REQUEST
            if not late and convicted and not request.first_token:
                # A response that hits its timeout once is attributed to the request, but the request is not
                # quarantined.
                silent = (Outcome.QUARANTINED, Outcome.ENGINE_TIMEOUT)
                assert answer.outcome in ((Outcome.QUARANTINED,) if ending is AttemptEnding.FAILED else silent)
            elif not late and (request.first_token or request.attempts >= rules.attempts_max):
                assert answer.outcome is honest
            self.end(request, answer.outcome)
        else:
            self.retry(request, attempt, silent=ending is not AttemptEnding.FAILED)

    def retry(self, request: Asked, attempt: Open, *, silent: bool) -> None:
        rules = self.books.rules.policy.retry
        assert not request.first_token, "retried after the first token"
        assert not request.is_late(self.now), "retried after the deadline"
        assert request.attempts < rules.attempts_max
        verdict = self.judge_again(request)
        pool = attempt.engine.pool if attempt.engine.pool in verdict.pools else verdict.pools[0]
        self.check_extra_attempt(pool)
        self.spend(request.ticket.tenant, rules.timeout_cost if silent else rules.cost)
        self.move(request, verdict)
        pool = None if self.books.live(request.pools) else self.books.start_awaited(request)
        request.hold = None
        if pool is not None and not self.books.hold_is_full(pool):
            self.hold(request)
        request.queued, request.avoid, request.queued_since = True, attempt.engine, self.now
        request.expires = self.books.last_moment(request, self.now)

    def judge_again(self, request: Asked) -> Admitted:
        """Returns the request's own pools, or a fallback if none of them has an available endpoint."""
        ticket, books = self.books.rules.without_unknown_names(request.ticket), self.books
        verdict = check_policy(ticket, books.rules)
        assert not isinstance(verdict, Rejection)
        assert not too_long(request.ticket, verdict.service_class)
        if books.live(books.meant(verdict.pools, request)):
            return verdict
        return fallback_for(ticket, verdict.service_class, Fleet(books), books.rules, self.now) or verdict  # type: ignore[arg-type]

    # Policy and fleet

    def change_policy(self, policy: Policy, policy_hash: str) -> None:
        books, before = self.books, self.books.rules
        changes = tenant_table(policy.tenants).by_id.changes_since(before.tenants)
        if only_tenants := policy.differs_only_in_tenants(before.policy):
            books.rules = Rules(policy, policy_hash)
        else:
            books.change_rules(policy, policy_hash)
        books.credit = {each.id: books.credit[each.id] for each in policy.tenants if each.id in books.credit}
        pools = [each.name for each in policy.pools]
        books.firsts = [(pool, when) for pool, when in books.firsts if pool in pools]
        books.extras = [(pool, when) for pool, when in books.extras if pool in pools]
        for engine in () if only_tenants else books.engines.values():
            engine.quiet_since = engine.last_heard
        for request in books.queued:
            if only_tenants and not any(level in changes for level in levels_of(request.ticket.tenant)):
                continue
            ticket = books.rules.without_unknown_names(request.ticket)
            verdict = check_policy(ticket, books.rules)
            if request.fell_back and isinstance(verdict, Admitted):
                verdict = self.judge_again(request)
            if isinstance(verdict, Rejection):
                self.end(request, verdict.outcome)
            elif (answer := self.ends.get(request.ticket.request_id)) is not None:
                # The request had fallen back, and neither its own pools nor others can serve it.
                assert request.fell_back
                assert answer.outcome is Outcome.NO_ENDPOINTS
                self.end(request, answer.outcome)
            else:
                self.move(request, verdict)
                request.hold = None if request.hold is None else books.start_awaited(request)
                if request.is_held and request.hold is None:
                    request.held_no_longer(self.now)

    def fleet(self, event: FleetEvent) -> None:
        if isinstance(event, EndpointJoined):
            new = event.endpoint
            engine = self.books.engines.setdefault(
                new.id, Engine(new.id, new.pool, new.in_flight_max, self.now, self.now)
            )
            engine.limit, engine.device, engine.zone = new.in_flight_max, new.device, new.zone
            engine.leaving = False
        elif (known := self.books.engines.get(event.endpoint_id)) is not None:
            self.engine_changes(known, event)

    def engine_changes(self, known: Engine, event: FleetEvent) -> None:
        match event:
            case EndpointLeaving():
                was_live, known.leaving = known.live, True
                self.call_back(known, was_live)
                self.forget_if_gone(known)
            case EndpointNotReady():
                was_live, known.state, known.returns_at = known.live, EndpointState.WARMING, None
                known.grown_percent, known.grows_at = 100, None
                known.probe_passes, known.must_be_heard_at, known.trial_ends_at = False, None, None
                self.call_back(known, was_live)
                known.talks = known.silent = known.passed_over = False
                known.limit_percent, known.foreign, known.kv_foreign, known.silent_at = 100, 0, 0, None
                known.queued, known.sequences = [], None
                self.judge_silence(known.pool)
            case EndpointMetricsReported():
                self.measured(known, event)
            case EndpointProbed():
                self.probed(known, fails=event.trouble is not None)
            case EndpointReady() if known.state is EndpointState.WARMING:
                known.failures = 0
                known.probe_fails = False
                known.state = EndpointState.TRIAL if known.ejections else EndpointState.READY
                self.begin(known)
                if known.state is EndpointState.READY:
                    self.fleet_orders.append((Readmit, known.id))
            case _:
                pass

    def probed(self, engine: Engine, *, fails: bool) -> None:
        """If a probe fails, the endpoint is ejected unless it shows activity within ten seconds. A passing probe ends
        the ejection.
        """
        if fails and not engine.probe_fails:
            engine.probe_failed_at = self.now
            engine.must_be_heard_at = after(self.now, PROBE_NS) if engine.state in SERVING else None
        engine.probe_fails, engine.probe_passes = fails, not fails
        if fails:
            return
        engine.must_be_heard_at = None
        if engine.state in (EndpointState.EJECTED, EndpointState.TRIAL):
            engine.state, engine.returns_at = EndpointState.TRIAL, None
            engine.trial_ends_at = after(self.now, PROBE_NS)

    def measured(self, engine: Engine, said: EndpointMetricsReported) -> None:
        """Load that an engine reports beyond the requests sent to it is foreign, apart from a small tolerance."""
        attempts, kv_tokens = self.books.at(engine), self.books.rules.endpoint_settings(engine.pool).kv_tokens
        engine.foreign = max(0, said.running + said.waiting - sum(each.places for each in attempts) - 2)
        engine.report(said)
        engine.kv_foreign = 0
        if said.kv_percent is not None and kv_tokens is not None:
            used = sum(each.prompt_tokens + each.tokens for each in attempts)
            engine.kv_foreign = max(0, (said.kv_percent - 5) * kv_tokens // 100 - used)
        engine.talks, engine.silent = True, False
        engine.silent_at = after(self.now, self.books.rules.policy.routing.metrics_stale_ns)
        self.judge_silence(engine.pool)

    def judge_silence(self, pool: PoolName) -> None:
        """Skips endpoints with stale metrics while others report. If most are stale, all get a lower limit."""
        talkers = [each for each in self.books.engines.values() if each.pool == pool and each.talks]
        silent = [each for each in talkers if each.silent]
        mostly = 2 * len(silent) > len(talkers)
        for each in talkers:
            each.passed_over = each.silent and not mostly
            each.limit_percent = 80 if each.silent and mostly else 100

    # Health, according to the policy

    def hear(self, engine: Engine) -> None:
        engine.last_heard = engine.quiet_since = self.now

    def success(self, engine: Engine) -> None:
        self.hear(engine)
        engine.failures = 0
        if engine.state is EndpointState.TRIAL:
            engine.state, engine.ejections, engine.trial_ends_at = EndpointState.READY, 0, None
            self.fleet_orders.append((Readmit, engine.id))

    def begin(self, engine: Engine) -> None:
        """Starts an endpoint slowly if another has been ready for long enough."""
        long_enough = self.books.rules.policy.health.slow_start_ns
        engine.ready_at = self.now
        others = [each for each in self.carrying(engine.pool) if each is not engine]
        if long_enough and any(self.now - each.ready_at >= long_enough for each in others):
            engine.grown_percent, engine.grows_at = 20, after(self.now, Duration(max(1, long_enough // 5)))

    def carrying(self, pool: PoolName) -> list[Engine]:
        """Returns the ready endpoints that have completed their slow start."""
        ready = [each for each in self.books.live((pool,)) if each.state is EndpointState.READY]
        return [each for each in ready if each.grown_percent == 100]

    def count_failure(self, engine: Engine) -> None:
        """Counts a failure only if the endpoint caused it. Reverts the count if the request is blamed for it later."""
        verdict = recorded(self.scheduler)
        if verdict.origin is FaultOrigin.ENDPOINT:
            self.failure(engine)
        elif verdict.taken_back is not None and (other := self.books.engines.get(verdict.taken_back)) is not None:
            other.failures = max(0, other.failures - 1)

    def count_after_all(self) -> None:
        """Counts failures that were attributed to a tenant or a model if another endpoint serves the request."""
        for endpoint in recorded(self.scheduler).counted_after_all:
            engine = self.books.engines.get(endpoint.id)
            is_there = self.scheduler._state.fleet.endpoints.get(endpoint.id) is endpoint
            if is_there and engine is not None and engine.state in SERVING:
                self.failure(engine)

    def failure(self, engine: Engine) -> None:
        engine.failures += 1
        often = engine.failures >= self.books.rules.policy.health.consecutive_failures_max
        if engine.state is EndpointState.TRIAL or (engine.state is EndpointState.READY and often):
            self.eject(engine)

    def eject(self, engine: Engine) -> None:
        """Ejects the endpoint, and the rest of its zone if most of the zone is ejected.

        The zone is ejected only if the endpoint was ready, and only in pools that other zones serve.
        """
        was_trusted = engine.state is EndpointState.READY
        self.eject_one(engine)
        zone = [each for each in self.books.engines.values() if each.zone == engine.zone and not each.leaving]
        ejected = [each for each in zone if each.state is EndpointState.EJECTED]
        judged = len(ejected) + len([each for each in zone if each.live])
        percent = self.books.rules.policy.health.zone_ejection_percent
        if engine.zone and was_trusted and len(ejected) >= max(2, judged * percent / 100):
            trusted = [each for each in self.books.engines.values() if each.live and each.state is EndpointState.READY]
            elsewhere = [each.pool for each in trusted if each.zone != engine.zone]
            for each in zone:
                if each.live and each.pool in elsewhere:
                    self.eject_one(each)

    def eject_one(self, engine: Engine) -> None:
        rules = self.books.rules.policy.health
        length = min(rules.ejection_ns * 2**engine.ejections, rules.ejection_ns_max)
        engine.ejections, engine.failures = engine.ejections + 1, 0
        was_live, engine.state = engine.live, EndpointState.EJECTED
        engine.must_be_heard_at = engine.trial_ends_at = None
        length = min(length, PROBE_NS) if engine.probe_passes else length
        engine.returns_at = self.ejected_until[engine.id] = after(self.now, Duration(length))
        self.fleet_orders.append((Eject, engine.id))
        self.call_back(engine, was_live)

    def call_back(self, engine: Engine, was_live: bool) -> None:
        """Shortens ejections to the initial ejection time if a pool has lost its last available endpoint.

        The ejections of unresponsive endpoints are not shortened.
        Ends slow starts if the pool has lost its last endpoint at full capacity.
        """
        if not was_live or engine.live:
            return
        if self.books.live((engine.pool,)):
            if not self.carrying(engine.pool):
                for each in self.books.engines.values():
                    if each.pool == engine.pool:
                        each.grown_percent, each.grows_at = 100, None
            return
        soon = after(self.now, self.books.rules.policy.health.ejection_ns)
        for each in self.books.engines.values():
            if each.pool == engine.pool and each.returns_at is not None and not each.unresponsive(self.now):
                each.returns_at = min(each.returns_at, soon)

    def forget_if_gone(self, engine: Engine) -> None:
        if engine.leaving and not self.books.at(engine):
            del self.books.engines[engine.id]
            self.judge_silence(engine.pool)

    def watch(self) -> None:
        for engine in self.books.engines.values():
            if engine.grows_at is not None and engine.grows_at <= self.now:
                engine.grown_percent += 20
                step = self.books.rules.policy.health.slow_start_ns // 5
                done = engine.grown_percent >= 100
                engine.grows_at = None if done else after(self.now, Duration(max(1, step)))
            if engine.silent_at is not None and engine.silent_at <= self.now:
                engine.silent, engine.silent_at = True, None
                self.judge_silence(engine.pool)
            if engine.returns_at is not None and engine.returns_at <= self.now:
                engine.state, engine.returns_at = EndpointState.TRIAL, None
                engine.trial_ends_at = after(self.now, PROBE_NS) if engine.probe_passes else None
                engine.must_be_heard_at = after(self.now, PROBE_NS) if engine.probe_fails else None
        self.end_unused_trials()
        self.eject_unresponsive()
        stall = self.books.rules.policy.health.stall_ns_max
        for engine in self.books.engines.values():
            if self.books.streams(engine) and self.now - engine.quiet_since >= stall:
                engine.quiet_since = self.now
                if engine.state in SERVING:
                    self.eject(engine)
                for attempt in self.books.at(engine):
                    if attempt.stream and not attempt.let_go and attempt.request_id in self.books.asked:
                        self.aborts.append((attempt.request_id, attempt.number))

    def end_unused_trials(self) -> None:
        """Readmits endpoints whose probe passes and whose trial received no request. The next failure ejects them."""
        for engine in self.books.engines.values():
            if engine.trial_ends_at is None or engine.trial_ends_at > self.now:
                continue
            engine.trial_ends_at = None
            if engine.probe_passes and self.books.at(engine):
                engine.trial_ends_at = after(self.now, PROBE_NS)
            elif engine.probe_passes:
                engine.state = EndpointState.READY
                engine.failures = self.books.rules.policy.health.consecutive_failures_max - 1
                self.fleet_orders.append((Readmit, engine.id))

    def eject_unresponsive(self) -> None:
        """Ejects endpoints whose probe is failing and that have shown no activity. Their zones are not affected."""
        for engine in sorted(self.books.engines.values(), key=lambda each: each.id):
            if engine.must_be_heard_at is None or engine.must_be_heard_at > self.now:
                continue
            if engine.unresponsive(self.now):
                self.eject_one(engine)
            else:
                engine.must_be_heard_at = after(engine.last_sign, PROBE_NS)

    # Commands

    def compare_orders(self) -> None:
        """Every command is expected. No command refers to a request or attempt that has ended or never existed."""
        assert not self.ends, f"ended without cause: {self.ends}"
        ejections = [each for each in self.commands if isinstance(each, Eject | Readmit)]
        assert sorted((type(each).__name__, each.endpoint_id) for each in ejections) == sorted(
            (kind.__name__, name) for kind, name in self.fleet_orders
        )
        for each in ejections:
            if isinstance(each, Eject):
                # Another ejection at the same time may have left no endpoint available and shortened this ejection.
                known = self.books.engines.get(each.endpoint_id)
                assert each.until <= self.ejected_until[each.endpoint_id]
                assert known is None or (known.returns_at is not None and known.returns_at <= each.until)
        aborts = [each for each in self.commands if isinstance(each, Abort)]
        assert sorted((each.request_id, each.attempt) for each in aborts) == sorted(self.aborts)
        assert [(each.request_id, each.pool) for each in self.commands if isinstance(each, Hold)] == self.holds
        for each in aborts:
            attempt = self.books.open[each.request_id, each.attempt]
            assert attempt.engine.id == each.endpoint_id
            attempt.abort_ordered = True

    def dispatch(self, order: Dispatch) -> None:
        request = self.books.asked[order.request_id]
        engine = self.books.engines[order.endpoint_id]
        if order.hedge:
            self.check_hedge(request, engine)
        self.check_place(order, request, engine)
        if not order.hedge:
            assert request.queued, "dispatched twice"
            assert not request.is_held, "dispatched while held"
            self.check_bands(request, engine.pool)
            self.check_order_of_tenant(request, engine.pool)
            self.books.forget_those_who_passed(request.service_class.band, engine.pool)
            request.queued = False
            request.waited += self.now - request.queued_since
        request.attempts += 1
        assert (order.attempt, order.waited_ns, order.held_ns) == (request.attempts, request.waited, request.held)
        assert order.caps == request.service_class.caps
        if request.attempts == 1 and not request.fell_back:
            self.count_first(request, engine.pool)
        self.open(order, request, engine)
        if not order.hedge:
            self.books.count_served(engine.pool, request.service_class.band, request.predicted.cost_ns)

    def open(self, order: Dispatch, request: Asked, engine: Engine) -> None:
        predicted = request.predicted
        record = self.scheduler._state.attempts.by_number[order.request_id, order.attempt]
        attempt = Open(
            order.request_id,
            order.attempt,
            engine,
            request.ticket.stream,
            request.service_class.name,
            request.service_class.band,
            request.account,
            prompt_tokens=predicted.prompt_tokens,
            cached_tokens=record.reservation.cached_tokens,
            kv_tokens=predicted.prompt_tokens + predicted.output_tokens_most,
            charged=0,
            tokens_charged=predicted.output_tokens,
            heard_at=self.now,
            places=request.ticket.prompts,
        )
        if not attempt.stream:
            attempt.prefilled_at = timer_instants(self.scheduler._state.attempts.prefill_timers).get(order.request_id)
            attempt.computed = attempt.prefilled_at is None
        self.books.open[order.request_id, order.attempt] = attempt
        self.charge(attempt, predicted.prompt_tokens, predicted.output_tokens, attempt.cached_tokens)

    def check_place(self, order: Dispatch, request: Asked, engine: Engine) -> None:
        """2: the request fits on the endpoint, which has the lowest cost in its pool."""
        books = self.books
        assert books.may_use(engine, request)
        assert books.fits_beside(engine, request)
        assert (order.pool, order.service_class) == (engine.pool, request.service_class.name)
        cached_tokens = self.scheduler._state.attempts.by_number[
            order.request_id, order.attempt
        ].reservation.cached_tokens
        others = [each for each in books.live((engine.pool,)) if books.fits(each, request)]
        if not cached_tokens:
            assert engine in others
            assert books.load_ns(engine) == min(books.load_ns(each) for each in others), "not the least loaded endpoint"
        elif others:
            least = min(others, key=books.load_ns)
            alike = [each for each in others if books.load_ns(each) == books.load_ns(least)]
            longest = max(self.seconds(each, request, 0) for each in alike)
            assert self.seconds(engine, request, cached_tokens) <= longest, "another endpoint would start sooner"
        else:
            # The long lane is full, but the uncached remainder of the prompt is short.
            assert request.long
            assert request.predicted.prompt_tokens - cached_tokens < books.rules.policy.headroom.long_prompt_tokens

    def seconds(self, engine: Engine, request: Asked, cached_tokens: int) -> int:
        """Returns the endpoint's load plus the time the prompt takes there, in nanoseconds."""
        prefill_ps = self.books.rules.speed(engine.pool).prefill_ps(
            request.predicted.prompt_tokens, cached=cached_tokens
        )
        return self.books.load_ns(engine) + engine.prefill_percent * prefill_ps // 100_000

    def check_hedge(self, request: Asked, engine: Engine) -> None:
        """9: a hedge goes to another endpoint, only before the first token, and within the budgets."""
        rules = self.books.rules.policy.retry
        assert request.service_class.hedging
        assert not request.first_token
        assert request.attempts < rules.attempts_max
        [silent] = self.under_way(request)
        assert silent.engine is not engine
        request.avoid = silent.engine
        self.check_extra_attempt(engine.pool)
        self.spend(request.ticket.tenant, rules.cost)

    def check_bands(self, request: Asked, pool: PoolName) -> None:
        """No request in a band is sent if a request in a band ahead of it fits."""
        band = request.service_class.band
        for other in self.books.heads():
            if self.books.goes_before(pool, other.service_class.band, band):
                assert not self.books.fits_at(pool, other), "another band is ahead"

    def check_order_of_tenant(self, request: Asked, pool: PoolName) -> None:
        """A tenant's requests are sent in the order of their targets, as far as they fit."""
        assert request in self.books.heads()
        for other in self.books.heads():
            alike = (other.account, other.service_class.band) == (request.account, request.service_class.band)
            if alike and other.precedence < request.precedence:
                assert not self.books.fits_at(pool, other), "another request of the tenant is ahead"

    def check_nothing_waits_beside_room(self) -> None:
        """3: no endpoint has room while the first request in a queue fits there but waits, except in degraded bands."""
        heads = self.books.heads()
        for engine in self.books.engines.values():
            if self.books.has_headroom(engine):
                for request in heads:
                    band, pool = request.service_class.band, engine.pool
                    if band not in self.books.held.get(pool, ()) or self.books.is_due(pool, band):
                        assert not self.books.fits(engine, request), "waits although an endpoint has room"

    def check_turns(self) -> None:
        """4: two tenants that both keep waiting for a pool are served in proportion to their weights."""
        self.books.keep_pairs_that_wait()
        for key, lead in self.books.lead.items():
            assert abs(lead) <= self.books.lead_max(key), f"unfair turns: {key} differ by {lead}"

    # Endings

    def end(self, request: Asked, expected: Outcome) -> None:
        """1: each request ends exactly once, with the expected outcome and `retry_after`."""
        order = self.ends.pop(request.ticket.request_id)
        assert order.outcome is expected
        if request.queued:
            request.waited += self.now - request.queued_since
            request.held += self.now - request.queued_since if request.is_held else 0
        assert (order.attempts, order.waited_ns, order.held_ns) == (request.attempts, request.waited, request.held)
        assert order.service_class is not None
        self.check_retry_after(order)
        for attempt in self.under_way(request):
            self.check_left(attempt, expected)
        del self.books.asked[order.request_id]
        self.books.ended[order.request_id] = order.outcome

    def check_left(self, attempt: Open, outcome: Outcome) -> None:
        """A cancelled or late request is still charged for its prompt and the tokens delivered.

        The charge for the prompt is its predicted tokens, or more if the rate shared by all tenants predicts more.
        """
        record = self.scheduler._state.attempts.get(attempt.request_id, attempt.number)
        if record is None or record.usage_at_cancel is None:
            return
        assert outcome in (Outcome.CANCELLED, Outcome.DEADLINE_EXCEEDED)
        prompt_tokens, cached_tokens, output_tokens = attempt.left_with = record.usage_at_cancel
        by_rates = self.scheduler._state.predictions.prompt_tokens_if_cancelled(record.ticket, record.model)
        assert prompt_tokens == max(attempt.prompt_tokens, by_rates)
        assert cached_tokens == attempt.cached_tokens * prompt_tokens // attempt.prompt_tokens
        assert output_tokens == attempt.tokens if attempt.stream else output_tokens >= attempt.tokens

    def end_unknown(self, ticket: Ticket, expected: Outcome) -> None:
        order = self.ends.pop(ticket.request_id)
        assert order.outcome is expected
        assert (order.attempts, order.waited_ns, order.held_ns) == (0, 0, 0)
        self.check_retry_after(order)
        self.books.ended[order.request_id] = order.outcome

    def check_retry_after(self, order: End) -> None:
        match HTTP_REPLIES[order.outcome].retry_after:
            case RetryAfter.COMPUTED:
                assert order.retry_after_ns is not None
                longest = 60 * MINUTE if order.outcome is Outcome.RATE_LIMITED else MINUTE
                assert SECOND <= order.retry_after_ns <= longest
            case RetryAfter.ONE_SECOND:
                assert order.retry_after_ns == SECOND
            case RetryAfter.ABSENT:
                assert order.retry_after_ns is None

    # Budgets

    def credit(self, tenant: TenantId) -> int:
        return self.books.credit.get(tenant, self.books.rules.policy.retry.credit_burst)

    def spend(self, tenant: TenantId, cost: int) -> None:
        self.books.credit[tenant] = self.credit(tenant) - cost
        assert self.books.credit[tenant] >= 0, "the tenant's retry budget does not cover the retry"

    def count_first(self, request: Asked, pool: PoolName) -> None:
        self.books.firsts.append((pool, self.now))
        if not request.ticket.client_retries:
            rules, tenant = self.books.rules.policy.retry, request.ticket.tenant
            self.books.credit[tenant] = min(rules.credit_burst, self.credit(tenant) + rules.credit_per_first_attempt)

    def check_extra_attempt(self, pool: PoolName) -> None:
        """9: extra attempts are at most a fifth of the first attempts in the last ten seconds, or the fixed minimum."""
        rules = self.books.rules.policy.retry
        self.books.extras.append((pool, self.now))
        since = self.now - rules.pool_budget_window_ns
        extras = [name for name, when in self.books.extras if when > since]
        firsts = [name for name, when in self.books.firsts if when > since]
        of_pool, all_firsts_of_pool = extras.count(pool), firsts.count(pool)
        assert of_pool <= rules.pool_retries_min or 100 * of_pool <= rules.pool_budget_percent * all_firsts_of_pool
