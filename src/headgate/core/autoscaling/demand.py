"""Measures demand: the engine time that arriving requests need in each pool.

`DemandObserver` can observe the scheduler in any host. A request adds its predicted engine time on arrival if it is
served, queued or rejected for lack of capacity. Requests rejected because of a tenant limit or a caller's error are
excluded. Retries and hedges count as additional work. Declared client retries that are rejected again are excluded.

A request that is sent immediately is counted in its pool. A queued or rejected request could go to any of its pools, so
its work is divided among them in proportion to their endpoints, or assigned to the first pool if none has endpoints. If
none of the pools is ready, only those that can start an endpoint on demand count, if there are any. A request served by
another model's pools, or by overflow pools, is counted both there and in its own pools.

Response lengths and cached prompt tokens are learned from engine reports, as in the scheduler. Engine time is computed
from the pool's declared speed, corrected by the learned speed of its endpoints.

Attainment is counted as well: the streaming requests of classes with a time-to-first-token or e2e target, the other
requests of classes with an e2e target, and how many of them missed it or were rejected for lack of capacity. Requests
that were held for a cold start or needed another attempt are excluded, because more endpoints would not have helped
them.

If the result is used only for observation, the caller may sample: it can skip some requests and give others a higher
weight.
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.admission.gate import Admitted, check_policy
from headgate.core.autoscaling.attainment import Attainment, Pools
from headgate.core.autoscaling.autoscaler import PPM, ScalingMetrics
from headgate.core.commands import Command, Dispatch, End, Hold
from headgate.core.cost import MEAN_BATCH, cost_ns
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.core.prediction import Predictions
from headgate.core.routing.model_tiers import pools_for_size
from headgate.core.rules import Rules
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.caps import Caps
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Duration, Instant, ModelName, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource

CAPACITY_OUTCOMES: Final = (
    Outcome.QUEUE_FULL,
    Outcome.DEADLINE_INFEASIBLE,
    Outcome.SHED,
    Outcome.QUEUE_TIMEOUT,
    Outcome.NO_ENDPOINTS,
)
"""Outcomes of requests that would have been served if there had been more endpoints."""
# Looked up once: in Python 3.11, access to a member through its enum takes as long as several function calls.
_COMPLETED: Final = AttemptEnding.COMPLETED
_ENGINE: Final = UsageSource.ENGINE

MISSED_TARGET_OUTCOMES: Final = (Outcome.QUEUE_FULL, Outcome.DEADLINE_INFEASIBLE, Outcome.SHED, Outcome.QUEUE_TIMEOUT)
"""Outcomes that count as missed targets: those of `CAPACITY_OUTCOMES` that occur while the pool has endpoints."""
REQUESTS_MAX: Final = 262_144
"""Maximum number of open requests that are tracked in order to learn from them and count their further attempts."""
_TOKENS_REMEMBERED: Final = 100_000_000
_READY: Final = (EndpointState.READY, EndpointState.TRIAL)


class _Work:
    """Requested engine time."""

    __slots__ = ("decode_ns", "prefill_ns")

    def __init__(self) -> None:
        self.prefill_ns = self.decode_ns = 0


class _CacheHits:
    """Share of prompt tokens that the engines of a pool had in their prefix caches."""

    __slots__ = ("cached_tokens", "tokens")

    def __init__(self) -> None:
        self.cached_tokens = self.tokens = 0

    def learn(self, usage: Usage) -> None:
        self.tokens += usage.prompt_tokens
        self.cached_tokens += min(usage.cached_tokens, usage.prompt_tokens)
        if self.tokens > _TOKENS_REMEMBERED:
            self.tokens //= 2
            self.cached_tokens //= 2

    def of(self, prompt_tokens: int) -> int:
        return prompt_tokens * self.cached_tokens // self.tokens if self.tokens else 0


class _OpenRequest:
    """An open request."""

    __slots__ = ("answers", "arrived_at", "model", "output_limit", "pool", "target_ns", "ticket", "unjudged", "weight")

    def __init__(self, ticket: Ticket, weight: int, now: Instant) -> None:
        self.ticket = ticket
        self.arrived_at = now
        self.unjudged = True
        """Whether the first token or, without streaming, the response has yet to be compared with the target."""
        self.target_ns: Duration | None = None
        """Target of the class that the request was sent with."""
        self.weight = weight
        """Number of requests that this one represents."""
        self.model = ticket.model
        """Model whose pools serve the request."""
        self.pool = PoolName("")
        """Pool of the last attempt. Empty until the request is first sent."""
        self.answers = 1
        self.output_limit: int | None = None
        """Maximum tokens per completion. None if unlimited."""


class _PoolEndpoints:
    """Endpoints of one pool."""

    __slots__ = ("decode_percent", "draining", "kv_tokens", "live", "places", "prefill_percent", "ready", "used")

    def __init__(self) -> None:
        self.ready = self.live = self.draining = 0
        self.kv_tokens = self.used = self.places = 0
        self.decode_percent = self.prefill_percent = 0
        """Sums over the ready endpoints."""

    def add(self, endpoint: EndpointSummary) -> None:
        if endpoint.leaving:
            self.draining += 1
            return
        self.kv_tokens += endpoint.kv_tokens
        self.used += endpoint.in_flight
        if endpoint.state in _READY:
            self.ready += 1
            self.decode_percent += endpoint.decode_percent
            self.prefill_percent += endpoint.prefill_percent
        if endpoint.state is not EndpointState.EJECTED:
            self.live += 1
            self.places += endpoint.in_flight_max

    @property
    def warming(self) -> int:
        return self.live - self.ready

    @property
    def places_each(self) -> int | None:
        return self.places // self.live if self.live else None

    def corrected_ns(self, work: _Work) -> int:
        """Returns the engine time at the learned speed, or at the declared speed if no endpoint is ready."""
        if not self.ready:
            return work.prefill_ns + work.decode_ns
        slower = work.prefill_ns * self.prefill_percent + work.decode_ns * self.decode_percent
        return slower // (100 * self.ready)


_NO_ENDPOINTS: Final = _PoolEndpoints()


class DemandObserver:
    def __init__(self) -> None:
        self._rules = Rules(Policy(), "")
        self._predictions = Predictions()
        self._open: dict[RequestId, _OpenRequest] = {}
        self._sent: dict[PoolName, _Work] = {}
        self._unsent: dict[Pools, _Work] = {}
        """Work of queued and rejected requests, by the pools that could serve them."""
        self._attainment = Attainment()
        self._cached: dict[PoolName, _CacheHits] = {}
        self._batch: dict[PoolName, int] = {}
        """Number of sequences that share the fixed cost of a step, at most the slots of an endpoint."""
        self._since: Instant | None = None
        """Start of the current period."""
        self._weight = 1
        """Weight of the request that is being counted."""

    # Events

    def observe(self, event: Event, commands: Sequence[Command], now: Instant, *, weight: int = 1) -> None:
        """Observes one event. An arriving request counts `weight` times. A request with weight 0 is skipped."""
        if self._since is None:
            self._since = now
        # Check the most frequent relevant events first.
        if isinstance(event, RequestArrived):
            if weight:
                self._weight = weight
                self._arrived(event.ticket, commands, now)
        elif isinstance(event, AttemptEnded):
            self._attempt_ended(event, now)
        elif isinstance(event, FirstToken):
            self._first_token(event.request_id, now)
        elif isinstance(event, EndpointJoined):
            self._batch[event.endpoint.pool] = min(MEAN_BATCH, max(1, event.endpoint.in_flight_max))
        elif isinstance(event, PolicyChanged):
            self._change_policy(event.policy, event.hash)
        for command in commands:
            if isinstance(command, Dispatch):
                self._dispatched(command)
            elif isinstance(command, End):
                self._ended(command)
            elif isinstance(command, Hold) and (found := self._open.get(command.request_id)) is not None:
                found.unjudged = False

    def _arrived(self, ticket: Ticket, commands: Sequence[Command], now: Instant) -> None:
        if ticket.mirror_route:
            # Copies use only idle capacity, so they need no endpoints of their own.
            return
        request_id = ticket.request_id
        for command in commands:
            if isinstance(command, Dispatch):
                if command.request_id == request_id:
                    self._remember(ticket, now)
                    self._count_sent(ticket, command)
                    return
            elif isinstance(command, End) and command.request_id == request_id:
                if command.outcome in CAPACITY_OUTCOMES and not ticket.client_retries:
                    self._count_unsent(ticket)
                    self._count_rejected(ticket, command)
                return
        self._remember(ticket, now)
        self._count_unsent(ticket)

    def _remember(self, ticket: Ticket, now: Instant) -> None:
        if len(self._open) < REQUESTS_MAX:
            self._open[ticket.request_id] = _OpenRequest(ticket, self._weight, now)

    def _dispatched(self, command: Dispatch) -> None:
        found = self._open.get(command.request_id)
        if found is None:
            return
        if command.attempt > 1:
            found.unjudged = False
            self._weight = found.weight
            self._count(found.ticket, command.pool, command.caps, command.model)
        found.pool, found.model = command.pool, command.model or found.ticket.model
        found.target_ns = self._class_target_ns(command.service_class, found.ticket)
        found.answers = found.ticket.answers(command.caps.n)
        found.output_limit = found.ticket.output_limit(command.caps.output_tokens)

    def _first_token(self, request_id: RequestId, now: Instant) -> None:
        found = self._open.get(request_id)
        if found is not None and found.unjudged and found.ticket.stream:
            self._judge(found, now)

    def _judge(self, found: _OpenRequest, now: Instant) -> None:
        found.unjudged = False
        if found.target_ns is not None:
            in_time = now - found.arrived_at <= found.target_ns
            self._attainment.first_token(found.pool, found.weight, in_time=in_time)

    def _ended(self, command: End) -> None:
        found = self._open.pop(command.request_id, None)
        if found is not None and found.unjudged and not found.pool:
            self._weight = found.weight
            self._count_rejected(found.ticket, command)

    def _attempt_ended(self, event: AttemptEnded, now: Instant) -> None:
        """Learns from the usage that the engine reported."""
        if event.first_token:
            self._first_token(event.request_id, now)
        usage, found = event.usage, self._open.get(event.request_id)
        if found is None or event.ending is not _COMPLETED:
            return
        if found.unjudged and not found.ticket.stream:
            self._judge(found, now)
        if usage is None:
            return
        if usage.source is _ENGINE:
            ticket, answers, most = found.ticket, found.answers, found.output_limit
            self._predictions.learn(ticket, found.model, usage, answers=answers, output_limit=most)
            if (cached := self._cached.get(found.pool)) is None:
                cached = self._cached[found.pool] = _CacheHits()
            cached.learn(usage)

    def _change_policy(self, policy: Policy, policy_hash: str) -> None:
        self._rules = Rules(policy, policy_hash)
        self._cached = {pool: each for pool, each in self._cached.items() if pool in self._rules.pools}

    # Work

    def _count_sent(self, ticket: Ticket, command: Dispatch) -> None:
        self._count(ticket, command.pool, command.caps, command.model)
        if command.model is not None or (self._rules.overflow_pools and self._overflowed(ticket, command.pool)):
            self._count_unsent(ticket)

    def _overflowed(self, ticket: Ticket, pool: PoolName) -> bool:
        """Returns whether the request went to an overflow pool, because its own pools lack capacity."""
        model = self._rules.models.get(ticket.model)
        return model is not None and model.overflow is not None and pool in model.overflow.pools

    def _count(self, ticket: Ticket, pool: PoolName, caps: Caps, model: ModelName | None) -> None:
        if (work := self._sent.get(pool)) is None:
            work = self._sent[pool] = _Work()
        self._add(work, pool, *self._tokens(ticket, caps, model or ticket.model), ticket.prompts)

    def _count_unsent(self, ticket: Ticket) -> None:
        verdict = check_policy(ticket, self._rules)
        if not isinstance(verdict, Admitted):
            return
        prompt_tokens, output_tokens = self._tokens(ticket, verdict.service_class.caps, verdict.model)
        pools = pools_for_size(
            verdict.pools, self._rules.pools, prompt_tokens=prompt_tokens, output_tokens=output_tokens
        )
        if (work := self._unsent.get(pools)) is None:
            work = self._unsent[pools] = _Work()
        self._add(work, pools[0], prompt_tokens, output_tokens, ticket.prompts)

    def _count_rejected(self, ticket: Ticket, command: End) -> None:
        """Counts a request that could have been served in time with more capacity."""
        if (
            command.outcome not in MISSED_TARGET_OUTCOMES
            or self._class_target_ns(command.service_class, ticket) is None
        ):
            return
        if isinstance(verdict := check_policy(ticket, self._rules), Admitted):
            self._attainment.reject(verdict.pools, self._weight)

    def _class_target_ns(self, name: ClassName | None, ticket: Ticket) -> Duration | None:
        """Returns the target of a request in this class. Only an e2e target applies without streaming."""
        service_class = None if name is None else self._rules.classes.get(name)
        if service_class is None:
            return None
        return service_class.latency_target_ns if ticket.stream else service_class.e2e_ns

    def _add(self, work: _Work, pool: PoolName, prompt_tokens: int, output_tokens: int, prompts: int) -> None:
        speed, cached = self._rules.speed(pool), self._cached.get(pool)
        held = cached.of(prompt_tokens) if cached is not None else 0
        batch = self._batch.get(pool, MEAN_BATCH)
        prefill_ns = speed.prefill_ps(prompt_tokens, cached=held, prompts=prompts) // 1_000
        whole_ns = cost_ns(speed, prompt_tokens, output_tokens, cached=held, batch=batch, prompts=prompts)
        work.prefill_ns += self._weight * prefill_ns
        work.decode_ns += self._weight * (whole_ns - prefill_ns)

    def _tokens(self, ticket: Ticket, caps: Caps, model: ModelName) -> tuple[int, int]:
        """Returns the prompt tokens and the mean total output tokens over all completions."""
        mean, _ = self._predictions.output_tokens(ticket, model)
        if caps.output_tokens is not None and caps.output_tokens < mean:
            mean = caps.output_tokens
        if ticket.output_tokens_max is not None and ticket.output_tokens_max < mean:
            mean = ticket.output_tokens_max
        return self._predictions.prompt_tokens(ticket, model), mean * ticket.answers(caps.n)

    # Results

    def collect(self, summary: Summary, now: Instant) -> tuple[ScalingMetrics, ...]:
        """Returns the measurements of every pool since the last call and resets the counts."""
        there = _endpoints_by_pool(summary)
        self._batch = {pool: min(MEAN_BATCH, each.places_each or 1) for pool, each in there.items()}
        passed_ns = 0 if self._since is None else now - self._since
        figures = self._metrics(summary, there, passed_ns)
        if passed_ns > 0:
            self._since = now
            self._sent.clear()
            self._unsent.clear()
            self._attainment.clear()
        return figures

    def peek(self, summary: Summary, now: Instant, period_ns: Duration) -> tuple[ScalingMetrics, ...]:
        """Returns the measurements between two periods without resetting the counts.

        Demand is averaged over a full period. If it were averaged over the short time since the last period, a single
        request would look like a burst.
        """
        passed_ns = 0 if self._since is None else now - self._since
        return self._metrics(summary, _endpoints_by_pool(summary), max(period_ns, passed_ns))

    def _metrics(
        self, summary: Summary, there: dict[PoolName, _PoolEndpoints], passed_ns: int
    ) -> tuple[ScalingMetrics, ...]:
        work_ns = self._demand_ns(there)
        backlog, judged, rejected = self._backlog(summary, there), self._attainment, self._rejected(there)
        return tuple(
            _metrics(
                pool.name,
                PPM * work_ns.get(pool.name, 0) // passed_ns if passed_ns > 0 else 0,
                backlog.get(pool.name, []),
                pool.kv_tokens,
                there.get(pool.name, _NO_ENDPOINTS),
            )._replace(
                judged=judged.judged.get(pool.name, 0) + rejected.get(pool.name, 0),
                missed=judged.missed.get(pool.name, 0) + rejected.get(pool.name, 0),
            )
            for pool in self._rules.policy.pools
        )

    def _rejected(self, there: dict[PoolName, _PoolEndpoints]) -> dict[PoolName, int]:
        rejected: dict[PoolName, int] = {}
        for pools, requests in self._attainment.rejected.items():
            for pool, part in self._split_by_endpoints(pools, requests, there):
                rejected[pool] = rejected.get(pool, 0) + part
        return rejected

    def _demand_ns(self, there: dict[PoolName, _PoolEndpoints]) -> dict[PoolName, int]:
        asked: dict[PoolName, int] = {}
        for pool, work in self._sent.items():
            asked[pool] = there.get(pool, _NO_ENDPOINTS).corrected_ns(work)
        for pools, work in self._unsent.items():
            for pool, part_ns in self._split_by_endpoints(
                pools, there.get(pools[0], _NO_ENDPOINTS).corrected_ns(work), there
            ):
                asked[pool] = asked.get(pool, 0) + part_ns
        return asked

    def _backlog(
        self, summary: Summary, there: dict[PoolName, _PoolEndpoints]
    ) -> dict[PoolName, list[tuple[int, Duration]]]:
        """Returns the queued work of each pool with its time-to-first-token target."""
        backlog: dict[PoolName, list[tuple[int, Duration]]] = {}
        held = [name for _, name in summary.held]
        for each in summary.waiting_work:
            targets = [
                _target_ns(known)
                for known in self._rules.policy.classes
                if known.band == each.band and (summary.queued.get(known.name) or known.name in held)
            ]
            for pool, part_ns in self._split_by_endpoints(each.pools, each.work_ns, there) if targets else ():
                backlog.setdefault(pool, []).append((part_ns, min(targets)))
        return backlog

    def _split_by_endpoints(
        self, pools: Pools, work_ns: int, there: dict[PoolName, _PoolEndpoints]
    ) -> list[tuple[PoolName, int]]:
        """Divides work among pools in proportion to their endpoints. The first pool gets the remainder."""
        if not any(there.get(pool, _NO_ENDPOINTS).ready for pool in pools):
            # If no pool is ready, only pools that can start an endpoint on demand will serve the work.
            pools = tuple(pool for pool in pools if self._rules.scales_to_zero(pool)) or pools
        counts = [there.get(pool, _NO_ENDPOINTS).live for pool in pools]
        total = sum(counts)
        parts = [work_ns * count // total if total else 0 for count in counts]
        parts[0] += work_ns - sum(parts)
        return list(zip(pools, parts, strict=True))


def _target_ns(service_class: ServiceClass) -> Duration:
    """Returns the stricter of the TTFT and e2e targets, or the maximum queue wait if the class has no target."""
    target_ns = service_class.latency_target_ns
    return max(Duration(1), service_class.queue_wait_ns_max if target_ns is None else target_ns)


def _endpoints_by_pool(summary: Summary) -> dict[PoolName, _PoolEndpoints]:
    there: dict[PoolName, _PoolEndpoints] = {}
    for endpoint in summary.endpoints:
        there.setdefault(endpoint.pool, _PoolEndpoints()).add(endpoint)
    return there


def _metrics(
    pool: PoolName,
    demand_ppm: int,
    backlog: list[tuple[int, Duration]],
    kv_tokens_each: int | None,
    there: _PoolEndpoints,
) -> ScalingMetrics:
    """Combines the measurements of a pool. Queued work with a looser target is scaled down to the strictest target."""
    strictest_ns = min((target_ns for _, target_ns in backlog), default=None)
    backlog_ns = 0
    if strictest_ns is not None:
        for work_ns, target_ns in backlog:
            backlog_ns += work_ns * strictest_ns // target_ns
    return ScalingMetrics(
        pool,
        demand_ppm,
        backlog_ns,
        strictest_ns,
        there.kv_tokens,
        kv_tokens_each,
        there.ready,
        there.warming,
        there.draining,
        places_used=there.used,
        places_each=there.places_each,
    )
