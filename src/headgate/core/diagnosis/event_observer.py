"""Counts the scheduler's events and commands per pool.

Events are counted and then dropped. Only a few facts are kept about open requests. A request is counted in the first
pool of its model, and also in another pool if it is sent there. An attempt's measurements are counted in the attempt's
pool.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from headgate.core.commands import Command, Dispatch, End
from headgate.core.diagnosis.endpoint_stats import EndpointStats
from headgate.core.diagnosis.window_counts import RECENT_SECONDS, TENANTS_MAX, PoolHistory
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptsProgressed,
    EndpointJoined,
    EndpointMetricsReported,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import OptimizationGoal, Policy, Pool, ServiceClass
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
"""Maximum number of open requests that are tracked.

When it is reached, further requests are counted only on arrival.
"""
ENDPOINTS_MAX: Final = 4_096
DETAIL_CHARS_MAX: Final = 200
_ANSWER_WEIGHT: Final = 4
"""Work of an output token relative to a prompt token."""
_PS_PER_NS: Final = 1_000
_TTFT_LIMIT_DEFAULT_NS: Final = Duration(5 * SECOND)
_TTFT_LIMIT_NS_MIN: Final = Duration(SECOND)
_TTFT_LIMIT_TIMES: Final = 4
"""Time limit for the first token if the class has no target, as a multiple of the class's usual time."""
_NOT_SERVED: Final = {
    Outcome.QUEUE_FULL: "rejected",
    Outcome.DEADLINE_INFEASIBLE: "rejected",
    Outcome.SHED: "rejected",
    Outcome.RETRY_BUDGET_EXHAUSTED: "rejected",
    Outcome.QUEUE_TIMEOUT: "rejected",
    Outcome.DEADLINE_EXCEEDED: "rejected",
    Outcome.EVICTED: "rejected",
    Outcome.NO_ENDPOINTS: "missing",
    Outcome.ENGINE_ERROR: "failed",
    Outcome.ENGINE_TIMEOUT: "failed",
    Outcome.INTERNAL_ERROR: "failed",
}
LIMITED_NS: Final = Duration(RECENT_SECONDS * SECOND)
"""A rejected retry harms no caller if its tenant has exceeded its rate limit within this time."""
# Looked up once: in Python 3.11, access to a member through its enum takes as long as several function calls.
_COMPLETED: Final = AttemptEnding.COMPLETED
_FAILED: Final = AttemptEnding.FAILED
_TIMEOUT: Final = AttemptEnding.TIMEOUT
_ABORTED: Final = AttemptEnding.ABORTED
_GATEWAY: Final = Fault.GATEWAY
_REQUEST_COMPLETED: Final = Outcome.COMPLETED
_RATE_LIMITED: Final = Outcome.RATE_LIMITED
_RETRY_BUDGET_EXHAUSTED: Final = Outcome.RETRY_BUDGET_EXHAUSTED
_CANCELLED: Final = Outcome.CANCELLED

_CALLER_DEADLINE_OUTCOMES: Final = (Outcome.DEADLINE_INFEASIBLE, Outcome.DEADLINE_EXCEEDED)
"""Outcomes that a caller's own deadline can cause."""


class PoolStats:
    __slots__ = ("answer_tokens", "cold_start_ns", "history", "name", "scales", "speed", "unsent_reason")

    def __init__(self, pool: Pool) -> None:
        self.name, self.speed, self.cold_start_ns, self.scales = pool.name, pool.speed, pool.cold_start_ns, pool.scales
        self.history = PoolHistory()
        self.unsent_reason = ""
        """Latest reason why a gateway could not send an attempt."""
        self.answer_tokens = 128
        """Assumed response length, in tokens, for estimating the work that tenants request."""


@dataclass(slots=True)
class _OpenRequest:
    """An open request."""

    pool: PoolStats
    tenant: TenantId
    stream: bool
    arrived: Instant
    prompt_tokens: int
    is_retry: bool
    """Whether the caller declares the request to be a retry."""
    allowed_ns: Duration | None
    """Time that the caller's own deadline allows. None if the caller sets no deadline."""
    service_class: ClassName | None = None
    begun: bool = False
    judged: bool = False
    running: int = 0
    """Attempts that have been sent and have not ended."""


class _Attempt:
    __slots__ = ("begun_at", "endpoint", "prefill_ns", "reports_tokens", "request", "sent_at")

    def __init__(self, request: _OpenRequest, endpoint: EndpointStats, sent_at: Instant) -> None:
        self.request, self.endpoint, self.sent_at = request, endpoint, sent_at
        self.prefill_ns = request.pool.speed.prefill_ps(request.prompt_tokens) // _PS_PER_NS
        endpoint.pending_prefill_ns += self.prefill_ns
        self.begun_at: Instant | None = None
        self.reports_tokens = request.stream
        """Also true for a non-streaming response that the engine streams, after its first token."""


_Key = RequestId | tuple[RequestId, int]
"""Key of an attempt. First attempts use the bare request id, because lookups for progress reports are frequent and
faster that way."""


def _key(request_id: RequestId, attempt: int) -> _Key:
    return request_id if attempt == 1 else (request_id, attempt)


class EventObserver:
    __slots__ = (
        "_attempts",
        "_endpoints_max",
        "_handlers",
        "_homes",
        "_limited",
        "_open",
        "_open_max",
        "classes",
        "endpoints",
        "pools",
    )

    def __init__(self, *, open_max: int = OPEN_MAX, endpoints_max: int = ENDPOINTS_MAX) -> None:
        self._open_max = open_max
        self._endpoints_max = endpoints_max
        self.pools: dict[PoolName, PoolStats] = {}
        self.classes: dict[ClassName, ServiceClass] = {}
        self.endpoints: dict[EndpointId, EndpointStats] = {}
        self._homes: dict[ModelName, PoolStats] = {}
        self._limited: dict[TenantId, Instant] = {}
        """Tenants that have exceeded a rate limit, and when they last did so, most recent last."""
        self._open: dict[RequestId, _OpenRequest] = {}
        self._attempts: dict[_Key, _Attempt] = {}
        self._handlers = cast(
            "dict[type, Callable[[Event, Instant], None]]",
            {
                RequestArrived: self._arrived,
                AttemptsProgressed: self._progressed,
                FirstToken: self._first_token,
                AttemptEnded: self._ended,
                EndpointMetricsReported: self._measured,
                EndpointJoined: self._joined,
                EndpointReady: self._readied,
                PolicyChanged: self._policy_changed,
            },
        )

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        tell = self._handlers.get(type(event))
        if tell is not None:
            tell(event, now)
        for command in commands:
            if type(command) is Dispatch:
                self._dispatched(command, now)
            elif type(command) is End:
                self._request_ended(command, now)

    def drop_departed(self, present: Sequence[EndpointId]) -> None:
        """Drops endpoints that have left."""
        if len(present) < len(self.endpoints):
            here = dict.fromkeys(present)
            self.endpoints = {name: each for name, each in self.endpoints.items() if name in here}

    # ------------------------------------------------------------------------------------------------------ requests

    def _arrived(self, event: RequestArrived, now: Instant) -> None:
        ticket = event.ticket
        if (pool := self._homes.get(ticket.model)) is None or ticket.mirror_route:
            return
        request = _OpenRequest(
            pool,
            ticket.tenant,
            ticket.stream,
            now,
            ticket.prompt_bytes // BYTES_PER_TOKEN,
            ticket.client_retries > 0,
            ticket.completion_ns_left if ticket.first_token_ns_left is None else ticket.first_token_ns_left,
        )
        _count_arrival(request, pool)
        if len(self._open) < self._open_max:
            self._open[ticket.request_id] = request

    def _dispatched(self, dispatch: Dispatch, now: Instant) -> None:
        request = self._open.get(dispatch.request_id)
        if request is None:
            return
        request.service_class = dispatch.service_class
        pool = self.pools.get(dispatch.pool, request.pool)
        if pool is not request.pool:
            request.pool = pool
            if dispatch.attempt == 1:
                _count_arrival(request, pool)
        seen = pool.history.current
        seen.sent += 1
        if dispatch.attempt == 1:
            seen.lengths_of(dispatch.service_class).asked += 1
        seen.waited_ns += dispatch.waited_ns
        endpoint = self.endpoints.get(dispatch.endpoint_id)
        if endpoint is None:
            if len(self.endpoints) >= self._endpoints_max:
                return
            endpoint = self.endpoints[dispatch.endpoint_id] = EndpointStats(dispatch.endpoint_id, dispatch.pool, now)
        if request.stream:
            endpoint.record_sent(now)
        request.running += 1
        self._attempts[_key(dispatch.request_id, dispatch.attempt)] = _Attempt(request, endpoint, now)

    def _first_token(self, event: FirstToken, now: Instant) -> None:
        attempt = self._attempts.get(_key(event.request_id, event.attempt))
        if attempt is not None and attempt.begun_at is None:
            self._begin(attempt, now, delivered=event.delivered)

    def _begin(self, attempt: _Attempt, now: Instant, *, delivered: bool) -> None:
        attempt.begun_at = now
        request, endpoint = attempt.request, attempt.endpoint
        endpoint.last_progress_at = now
        endpoint.prompt_tokens += request.prompt_tokens
        endpoint.pending_prefill_ns -= attempt.prefill_ns
        if not (request.stream or delivered):
            attempt.reports_tokens = True
            endpoint.record_sent(now)
        if not attempt.reports_tokens:
            return
        endpoint.decoding += 1
        endpoint.decoding_tokens += request.prompt_tokens
        if not request.stream:
            return
        seen = request.pool.history.current
        seen.begun += 1
        seen.prefill_ns += now - attempt.sent_at
        if request.begun or request.service_class is None:
            return
        request.begun = True
        took = now - request.arrived
        seen.record_ttft(request.service_class, took)
        patience = self._ttft_limit_ns(request)
        if patience is not None and not _has_only_e2e(self.classes[request.service_class]):
            request.judged = True
            seen.judged += 1
            if took > patience:
                seen.late += 1
                seen.count_bad(request.service_class, request.tenant)

    def _ttft_limit_ns(self, request: _OpenRequest) -> Duration | None:
        """Returns the time limit for the first token, or None if the class is not latency-sensitive."""
        service_class = self.classes.get(cast("ClassName", request.service_class))
        return None if service_class is None else _time_limit_ns(service_class, request.pool)

    def _progressed(self, event: AttemptsProgressed, now: Instant) -> None:
        attempts = self._attempts
        for each in event.attempts:
            number, name = each.attempt, each.request_id
            attempt = attempts.get(name if number == 1 else (name, number))
            if attempt is not None:
                endpoint = attempt.endpoint
                endpoint.tokens += each.tokens
                endpoint.last_progress_at = now

    def _ended(self, event: AttemptEnded, now: Instant) -> None:
        attempt = self._attempts.pop(_key(event.request_id, event.attempt), None)
        if attempt is None:
            return
        if event.first_token and attempt.begun_at is None:
            self._begin(attempt, now, delivered=True)
        request, endpoint = attempt.request, attempt.endpoint
        request.running -= 1
        if attempt.begun_at is None:
            endpoint.pending_prefill_ns -= attempt.prefill_ns
        if attempt.reports_tokens:
            endpoint.open_streams -= 1
            if attempt.begun_at is not None:
                endpoint.decoding -= 1
                endpoint.decoding_tokens -= request.prompt_tokens
        seen = request.pool.history.current
        if event.ending is _COMPLETED:
            endpoint.last_progress_at = now
            endpoint.failures = 0
            self._completed(event, attempt, now)
        elif event.ending in (_FAILED, _TIMEOUT):
            if event.fault is not _GATEWAY:
                endpoint.record_failure(now, silently=event.ending is _TIMEOUT)
            seen.attempts_failed += 1
            if event.fault is _GATEWAY:
                seen.attempts_unsent += 1
                request.pool.unsent_reason = event.detail[:DETAIL_CHARS_MAX]
        elif event.ending is _ABORTED and not request.running and event.request_id in self._open:
            # The request is still open after its only attempt was aborted, so its endpoint had stalled.
            seen.attempts_stalled += 1

    def _completed(self, event: AttemptEnded, attempt: _Attempt, now: Instant) -> None:
        usage, request = event.usage, attempt.request
        if usage is None or request.service_class is None:
            return
        seen = request.pool.history.current
        seen.asked_tokens += usage.prompt_tokens
        seen.cached_tokens += usage.cached_tokens
        lengths, tokens = seen.lengths_of(request.service_class), usage.output_tokens
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
                seen.count_bad(request.service_class, request.tenant)

    def _request_ended(self, end: End, now: Instant) -> None:
        request = self._open.pop(end.request_id, None)
        if request is None:
            return
        seen = request.pool.history.current
        if end.service_class is not None:
            lengths = seen.lengths_of(end.service_class)
            lengths.asked += end.attempts == 0
            for bill in end.bills:
                lengths.cost += bill.nano_usd
        if end.outcome is _REQUEST_COMPLETED:
            if not request.judged:
                _judge_response(request, self.classes, now)
            return
        if end.outcome is _RATE_LIMITED:
            self._rate_limited(request, now)
            return
        if end.outcome is _RETRY_BUDGET_EXHAUSTED and self._is_limited(request.tenant, now):
            return
        if (how := _NOT_SERVED.get(end.outcome)) is None:
            if end.outcome is not _CANCELLED:
                return
            how = "rejected" if self._cancelled_after_limit(request, end, now) else "gave_up"
        elif end.outcome in _CALLER_DEADLINE_OUTCOMES and self._deadline_too_strict(request, end):
            how = "gave_up"
        setattr(seen, how, getattr(seen, how) + 1)
        if how == "gave_up":
            return
        seen.count_bad(end.service_class, request.tenant)

    def _rate_limited(self, request: _OpenRequest, now: Instant) -> None:
        """Work that exceeds its tenant's rate limit never reaches the pool."""
        limited = self._limited
        limited.pop(request.tenant, None)
        limited[request.tenant] = now
        if len(limited) > TENANTS_MAX:
            del limited[next(iter(limited))]
        if not request.is_retry:
            seen = request.pool.history.current
            seen.tenants.remove(request.tenant, 1)
            seen.tenants_work.remove(request.tenant, _work(request, request.pool))

    def _is_limited(self, tenant: TenantId, now: Instant) -> bool:
        last = self._limited.get(tenant)
        return last is not None and now - last <= LIMITED_NS

    def _cancelled_after_limit(self, request: _OpenRequest, end: End, now: Instant) -> bool:
        """Returns whether the caller cancelled after waiting longer than the limit for the first token."""
        if request.begun or not request.stream:
            return False
        request.service_class = end.service_class
        patience = self._ttft_limit_ns(request)
        return patience is not None and now - request.arrived > patience

    def _deadline_too_strict(self, request: _OpenRequest, end: End) -> bool:
        """Returns whether the caller's own deadline is stricter than the limit. If so, the pool is not at fault."""
        if request.allowed_ns is None:
            return False
        request.service_class = end.service_class
        patience = self._ttft_limit_ns(request)
        return patience is None or request.allowed_ns < patience

    # ----------------------------------------------------------------------------------------- endpoints and policy

    def _joined(self, event: EndpointJoined, now: Instant) -> None:
        endpoint = event.endpoint
        if endpoint.id not in self.endpoints and len(self.endpoints) < self._endpoints_max:
            self.endpoints[endpoint.id] = EndpointStats(endpoint.id, endpoint.pool, now)

    def _readied(self, event: EndpointReady, now: Instant) -> None:
        endpoint = self.endpoints.get(event.endpoint_id)
        if endpoint is not None and endpoint.readied_at is None:
            endpoint.readied_at = now

    def _measured(self, event: EndpointMetricsReported, now: Instant) -> None:
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
            seen = known.get(pool.name) or PoolStats(pool)
            seen.speed, seen.cold_start_ns, seen.scales = pool.speed, pool.cold_start_ns, pool.scales
            self.pools[pool.name] = seen
        self._homes = _homes(policy, self.pools)


def _count_arrival(request: _OpenRequest, pool: PoolStats) -> None:
    seen, tokens = pool.history.current, request.prompt_tokens
    seen.arrivals += 1
    seen.prompt_tokens += tokens
    seen.prompt_squares += tokens * tokens
    if request.is_retry:
        seen.retries += 1
    else:
        seen.count_request(request.tenant, _work(request, pool))


def _work(request: _OpenRequest, pool: PoolStats) -> int:
    return request.prompt_tokens + _ANSWER_WEIGHT * pool.answer_tokens


def _homes(policy: Policy, pools: dict[PoolName, PoolStats]) -> dict[ModelName, PoolStats]:
    return {
        model.name: pools[home]
        for model in policy.models
        if (home := next((each for each in model.all_pools if each in pools), None)) is not None
    }


def _time_limit_ns(service_class: ServiceClass, pool: PoolStats) -> Duration | None:
    """Returns the time limit for the first token or, if the class has only an e2e target, for the response."""
    if service_class.ttft_ns is not None:
        return service_class.ttft_ns
    if service_class.e2e_ns is not None:
        return service_class.e2e_ns
    if service_class.optimize_for is not OptimizationGoal.LATENCY:
        return None
    count, total_ns = pool.history.baseline.ttft_by.get(service_class.name, (0, 0))
    if not count:
        return _TTFT_LIMIT_DEFAULT_NS
    return Duration(max(_TTFT_LIMIT_NS_MIN, _TTFT_LIMIT_TIMES * total_ns // count))


def _has_only_e2e(service_class: ServiceClass) -> bool:
    return service_class.ttft_ns is None and service_class.e2e_ns is not None


def _judge_response(request: _OpenRequest, classes: Mapping[ClassName, ServiceClass], now: Instant) -> None:
    """Compares a complete response with the e2e target of its class."""
    seen, name = request.pool.history.current, request.service_class
    service_class = None if name is None else classes.get(name)
    if service_class is None or service_class.e2e_ns is None:
        seen.unjudged += 1
        return
    seen.judged += 1
    if now - request.arrived > service_class.e2e_ns:
        seen.late += 1
        seen.count_bad(name, request.tenant)
