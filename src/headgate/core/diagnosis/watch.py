"""What do the scheduler's events and commands tell of each pool?

Each event is counted and forgotten; of requests that are under way a few facts are kept. Requests count where their
model is at home: at the first of the pools that may serve them; and if they are sent to another, there too. What is
measured of attempts counts where they were.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from headgate.core.commands import Command, Dispatch, End
from headgate.core.diagnosis.endpoint_seen import EndpointSeen
from headgate.core.diagnosis.seconds_seen import LATE_SECONDS, TENANTS_MAX, History
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointMeasured,
    EndpointReadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
)
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, Pool, Promise, ServiceClass
from headgate.model.units import (
    BYTES_PER_TOKEN,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
)

OPEN_MAX: Final = 200_000
"""Requests that are followed at once; of more than these only what is decided at their arrival is counted."""
ENDPOINTS_MAX: Final = 4_096
DETAIL_CHARS_MAX: Final = 200
_ANSWER_WEIGHT: Final = 4
"""A token of an answer is about as much work as so many of a prompt."""
_PS_PER_NS: Final = 1_000
_PATIENCE_UNKNOWN_NS: Final = Duration(5 * SECOND)
_PATIENCE_LEAST_NS: Final = Duration(SECOND)
_PATIENCE_TIMES: Final = 4
"""Where no target is set, a first token is late that takes so many times what is usual for its class."""
_NOT_SERVED: Final = {
    Outcome.QUEUE_FULL: "refused",
    Outcome.UNREACHABLE: "refused",
    Outcome.SHED: "refused",
    Outcome.RETRY_REFUSED: "refused",
    Outcome.EXPIRED: "refused",
    Outcome.TOO_LATE: "refused",
    Outcome.EVICTED: "refused",
    Outcome.NO_ENDPOINTS: "missing",
    Outcome.ENGINE_FAILED: "failed",
    Outcome.ENGINE_SILENT: "failed",
    Outcome.GATEWAY_FAILED: "failed",
}
LIMITED_NS: Final = Duration(LATE_SECONDS * SECOND)
"""A rejected retry harms no caller if its tenant has exceeded its rate limit within this time."""
_BY_THE_CALLER: Final = (Outcome.UNREACHABLE, Outcome.TOO_LATE)
"""What a caller may bring about by a deadline of its own."""


class PoolSeen:
    __slots__ = ("answer_tokens", "cold_start_ns", "history", "name", "speed", "unsent_why")

    def __init__(self, pool: Pool) -> None:
        self.name, self.speed, self.cold_start_ns = pool.name, pool.speed, pool.cold_start_ns
        self.history = History()
        self.unsent_why = ""
        """The reason why a gateway last could not send an attempt."""
        self.answer_tokens = 128
        """What an answer is reckoned to have, for the work that tenants ask for."""


@dataclass(slots=True)
class _Open:
    """A request under way."""

    pool: PoolSeen
    tenant: TenantId
    stream: bool
    arrived: Instant
    prompt_tokens: int
    again: bool
    """Whether its caller says it has asked before."""
    allowed_ns: Duration | None
    """What its caller allows, by a deadline of its own."""
    service_class: ClassName | None = None
    begun: bool = False
    judged: bool = False
    running: int = 0
    """Attempts that have been sent and have not ended."""


class _Attempt:
    __slots__ = ("begun_at", "endpoint", "of", "prefill_ns", "reports_tokens", "sent_at")

    def __init__(self, of: _Open, endpoint: EndpointSeen, sent_at: Instant) -> None:
        self.of, self.endpoint, self.sent_at = of, endpoint, sent_at
        self.prefill_ns = of.pool.speed.prefill_ps(of.prompt_tokens) // _PS_PER_NS
        endpoint.unbegun_ns += self.prefill_ns
        self.begun_at: Instant | None = None
        self.reports_tokens = of.stream
        """True also for an answer that the engine streams and the caller gets whole, once its first token has come."""


_Key = RequestId | tuple[RequestId, int]
"""Of an attempt. Most are the first, and there are many rows of progress: their names alone are found faster."""


def _key(request_id: RequestId, attempt: int) -> _Key:
    return request_id if attempt == 1 else (request_id, attempt)


class Watch:
    __slots__ = (
        "_attempts",
        "_endpoints_max",
        "_homes",
        "_limited",
        "_open",
        "_open_max",
        "_tell",
        "classes",
        "endpoints",
        "pools",
    )

    def __init__(self, *, open_max: int = OPEN_MAX, endpoints_max: int = ENDPOINTS_MAX) -> None:
        self._open_max = open_max
        self._endpoints_max = endpoints_max
        self.pools: dict[PoolName, PoolSeen] = {}
        self.classes: dict[ClassName, ServiceClass] = {}
        self.endpoints: dict[EndpointId, EndpointSeen] = {}
        self._homes: dict[ModelName, PoolSeen] = {}
        self._limited: dict[TenantId, Instant] = {}
        """The tenants that have exceeded a rate limit, and when they last did; the most recent is the last."""
        self._open: dict[RequestId, _Open] = {}
        self._attempts: dict[_Key, _Attempt] = {}
        self._tell = cast(
            "dict[type, Callable[[Event, Instant], None]]",
            {
                RequestArrived: self._arrived,
                Progressed: self._progressed,
                FirstToken: self._began,
                AttemptEnded: self._ended,
                EndpointMeasured: self._measured,
                EndpointJoined: self._joined,
                EndpointReadied: self._readied,
                PolicyChanged: self._policy_changed,
            },
        )

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        tell = self._tell.get(type(event))
        if tell is not None:
            tell(event, now)
        for command in commands:
            if type(command) is Dispatch:
                self._sent(command, now)
            elif type(command) is End:
                self._over(command, now)

    def keep_endpoints(self, present: Sequence[EndpointId]) -> None:
        """The others have left."""
        if len(present) < len(self.endpoints):
            here = dict.fromkeys(present)
            self.endpoints = {name: each for name, each in self.endpoints.items() if name in here}

    # ------------------------------------------------------------------------------------------------------ requests

    def _arrived(self, event: RequestArrived, now: Instant) -> None:
        ticket = event.ticket
        pool = self._homes.get(ticket.model)
        if pool is None:
            return
        request = _Open(
            pool,
            ticket.tenant,
            ticket.stream,
            now,
            ticket.prompt_bytes // BYTES_PER_TOKEN,
            ticket.client_retries > 0,
            ticket.completion_ns_left if ticket.first_token_ns_left is None else ticket.first_token_ns_left,
        )
        _asked(request, pool)
        if len(self._open) < self._open_max:
            self._open[ticket.request_id] = request

    def _sent(self, dispatch: Dispatch, now: Instant) -> None:
        request = self._open.get(dispatch.request_id)
        if request is None:
            return
        request.service_class = dispatch.service_class
        pool = self.pools.get(dispatch.pool, request.pool)
        if pool is not request.pool:
            request.pool = pool
            if dispatch.attempt == 1:
                _asked(request, pool)
        seen = pool.history.now
        seen.sent += 1
        if dispatch.attempt == 1:
            seen.of(dispatch.service_class).asked += 1
        seen.waited_ns += dispatch.waited_ns
        endpoint = self.endpoints.get(dispatch.endpoint_id)
        if endpoint is None:
            if len(self.endpoints) >= self._endpoints_max:
                return
            endpoint = self.endpoints[dispatch.endpoint_id] = EndpointSeen(dispatch.endpoint_id, dispatch.pool, now)
        if request.stream:
            endpoint.sent(now)
        request.running += 1
        self._attempts[_key(dispatch.request_id, dispatch.attempt)] = _Attempt(request, endpoint, now)

    def _began(self, event: FirstToken, now: Instant) -> None:
        attempt = self._attempts.get(_key(event.request_id, event.attempt))
        if attempt is None or attempt.begun_at is not None:
            return
        attempt.begun_at = now
        request, endpoint = attempt.of, attempt.endpoint
        endpoint.heard_at = now
        endpoint.prompt_tokens += request.prompt_tokens
        endpoint.unbegun_ns -= attempt.prefill_ns
        if not (request.stream or event.delivered):
            attempt.reports_tokens = True
            endpoint.sent(now)
        if not attempt.reports_tokens:
            return
        endpoint.decoding += 1
        endpoint.decoding_tokens += request.prompt_tokens
        if not request.stream:
            return
        seen = request.pool.history.now
        seen.begun += 1
        seen.prefill_ns += now - attempt.sent_at
        if request.begun or request.service_class is None:
            return
        request.begun = True
        took = now - request.arrived
        seen.took(request.service_class, took)
        patience = self._patience_ns(request)
        if patience is not None:
            request.judged = True
            seen.judged += 1
            if took > patience:
                seen.late += 1
                seen.bad_one(request.service_class, request.tenant)

    def _patience_ns(self, request: _Open) -> Duration | None:
        """By when its first token should be there; None where nobody hurries."""
        service_class = self.classes.get(cast("ClassName", request.service_class))
        if service_class is None:
            return None
        if service_class.ttft_ns is not None:
            return service_class.ttft_ns
        if service_class.promise is not Promise.LATENCY:
            return None
        count, total_ns = request.pool.history.usual.ttft_by.get(service_class.name, (0, 0))
        if not count:
            return _PATIENCE_UNKNOWN_NS
        return Duration(max(_PATIENCE_LEAST_NS, _PATIENCE_TIMES * total_ns // count))

    def _progressed(self, event: Progressed, now: Instant) -> None:
        attempts = self._attempts
        for each in event.attempts:
            number, name = each.attempt, each.request_id
            attempt = attempts.get(name if number == 1 else (name, number))
            if attempt is not None:
                endpoint = attempt.endpoint
                endpoint.tokens += each.tokens
                endpoint.heard_at = now

    def _ended(self, event: AttemptEnded, now: Instant) -> None:
        attempt = self._attempts.pop(_key(event.request_id, event.attempt), None)
        if attempt is None:
            return
        request, endpoint = attempt.of, attempt.endpoint
        request.running -= 1
        if attempt.begun_at is None:
            endpoint.unbegun_ns -= attempt.prefill_ns
        if attempt.reports_tokens:
            endpoint.open -= 1
            if attempt.begun_at is not None:
                endpoint.decoding -= 1
                endpoint.decoding_tokens -= request.prompt_tokens
        seen = request.pool.history.now
        if event.ending is AttemptEnding.COMPLETED:
            endpoint.heard_at = now
            endpoint.failures = 0
            self._completed(event, attempt, now)
        elif event.ending in (AttemptEnding.FAILED, AttemptEnding.SILENT):
            if event.fault is not Fault.GATEWAY:
                endpoint.failed(now, silently=event.ending is AttemptEnding.SILENT)
            seen.attempts_failed += 1
            if event.fault is Fault.GATEWAY:
                seen.attempts_unsent += 1
                request.pool.unsent_why = event.detail[:DETAIL_CHARS_MAX]
        elif event.ending is AttemptEnding.ABORTED and not request.running and event.request_id in self._open:
            # The request outlives the abort of its only attempt: its endpoint stalled.
            seen.attempts_stalled += 1

    def _completed(self, event: AttemptEnded, attempt: _Attempt, now: Instant) -> None:
        usage, request = event.usage, attempt.of
        if usage is None or request.service_class is None:
            return
        seen = request.pool.history.now
        seen.asked_tokens += usage.prompt_tokens
        seen.cached_tokens += usage.cached_tokens
        lengths, tokens = seen.of(request.service_class), usage.output_tokens
        lengths.count += 1
        lengths.tokens += tokens
        lengths.squares += tokens * tokens
        service_class = self.classes.get(request.service_class)
        if service_class is None or service_class.tpot_ns is None or attempt.begun_at is None or not request.stream:
            return
        if usage.output_tokens > 1:
            seen.paced += 1
            if now - attempt.begun_at > service_class.tpot_ns * (usage.output_tokens - 1):
                seen.slow += 1
                seen.bad_one(request.service_class, request.tenant)

    def _over(self, end: End, now: Instant) -> None:
        request = self._open.pop(end.request_id, None)
        if request is None:
            return
        how, seen = _NOT_SERVED.get(end.outcome), request.pool.history.now
        if end.service_class is not None:
            lengths = seen.of(end.service_class)
            lengths.asked += end.attempts == 0
            for bill in end.bills:
                lengths.cost += bill.input + bill.output + bill.overhead
        if end.outcome is Outcome.COMPLETED:
            seen.unjudged += not request.judged
            return
        if end.outcome is Outcome.RATE_LIMITED:
            self._rate_limited(request, now)
            return
        if end.outcome is Outcome.RETRY_REFUSED and self._is_limited(request.tenant, now):
            return
        if how is None:
            if end.outcome is not Outcome.CANCELLED:
                return
            how = "refused" if self._left_in_vain(request, end, now) else "gave_up"
        elif end.outcome in _BY_THE_CALLER and self._asks_too_much(request, end):
            how = "gave_up"
        setattr(seen, how, getattr(seen, how) + 1)
        if how == "gave_up":
            return
        seen.bad_one(end.service_class, request.tenant)

    def _rate_limited(self, request: _Open, now: Instant) -> None:
        """The pool is not asked for work that exceeds its tenant's rate limit."""
        limited = self._limited
        limited.pop(request.tenant, None)
        limited[request.tenant] = now
        if len(limited) > TENANTS_MAX:
            del limited[next(iter(limited))]
        if not request.again:
            seen = request.pool.history.now
            seen.tenants.remove(request.tenant, 1)
            seen.tenants_work.remove(request.tenant, _work(request, request.pool))

    def _is_limited(self, tenant: TenantId, now: Instant) -> bool:
        last = self._limited.get(tenant)
        return last is not None and now - last <= LIMITED_NS

    def _left_in_vain(self, request: _Open, end: End, now: Instant) -> bool:
        """Who leaves after having waited for longer than was promised did not leave by chance."""
        if request.begun or not request.stream:
            return False
        request.service_class = end.service_class
        patience = self._patience_ns(request)
        return patience is not None and now - request.arrived > patience

    def _asks_too_much(self, request: _Open, end: End) -> bool:
        """Whether its own deadline is stricter than what anybody promised: what comes of that is not the pool's."""
        if request.allowed_ns is None:
            return False
        request.service_class = end.service_class
        patience = self._patience_ns(request)
        return patience is None or request.allowed_ns < patience

    # ----------------------------------------------------------------------------------------- endpoints and policy

    def _joined(self, event: EndpointJoined, now: Instant) -> None:
        endpoint = event.endpoint
        if endpoint.id not in self.endpoints and len(self.endpoints) < self._endpoints_max:
            self.endpoints[endpoint.id] = EndpointSeen(endpoint.id, endpoint.pool, now)

    def _readied(self, event: EndpointReadied, now: Instant) -> None:
        endpoint = self.endpoints.get(event.endpoint_id)
        if endpoint is not None and endpoint.readied_at is None:
            endpoint.readied_at = now

    def _measured(self, event: EndpointMeasured, now: Instant) -> None:
        del now
        endpoint = self.endpoints.get(event.endpoint_id)
        if endpoint is not None:
            endpoint.running, endpoint.waiting = event.running, event.waiting
            endpoint.kv_percent = event.kv_percent

    def _policy_changed(self, event: PolicyChanged, now: Instant) -> None:
        del now
        policy = event.policy
        self.classes = {each.name: each for each in policy.classes}
        known, self.pools = self.pools, {}
        for pool in policy.pools:
            seen = known.get(pool.name) or PoolSeen(pool)
            seen.speed, seen.cold_start_ns = pool.speed, pool.cold_start_ns
            self.pools[pool.name] = seen
        self._homes = _homes(policy, self.pools)


def _asked(request: _Open, pool: PoolSeen) -> None:
    seen, tokens = pool.history.now, request.prompt_tokens
    seen.arrivals += 1
    seen.prompt_tokens += tokens
    seen.prompt_squares += tokens * tokens
    if request.again:
        seen.retries += 1
    else:
        seen.tenants.add(request.tenant, 1)
        seen.tenants_work.add(request.tenant, _work(request, pool))


def _work(request: _Open, pool: PoolSeen) -> int:
    return request.prompt_tokens + _ANSWER_WEIGHT * pool.answer_tokens


def _homes(policy: Policy, pools: dict[PoolName, PoolSeen]) -> dict[ModelName, PoolSeen]:
    return {
        model.name: pools[home]
        for model in policy.models
        if (home := next((each for each in model.pools if each in pools), None)) is not None
    }
