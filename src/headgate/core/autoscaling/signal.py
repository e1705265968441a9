"""How much engine time is asked of each pool?

An observer of the scheduler, in whichever host it runs. What arrives is counted when it arrives, by the engine time it
is predicted to take, whether it is served, waits, or is refused because there was no room for it; what a limit of its
tenant or a mistake of its caller keeps out is not. An attempt after the first, and one beside another, is more work. A
caller who says that it tries again, and is refused again, asks for nothing more than before.

Who is sent at once counts where it is sent. Whoever waits or is refused may go to any of its pools: its work is shared
among them by how many endpoints each has, and is the first one's where none has any. Where none of them is ready, only
those count that are given an endpoint when they are asked for, if there are such. A request that is served by the pools
of another model counts there, and where it wanted to go as well.

Lengths are learned as the scheduler learns them, from what engines say; so is how much of a prompt they held already.
The time follows from the speed that was declared of the pool, corrected by what was learned of its endpoints.

Attainment is counted beside demand: streams of classes with a target for the first token, and those of them that missed
it or were rejected for lack of capacity. Requests that were held for a start, or that needed another attempt, are not
counted: more endpoints would not have helped them.

Where nothing is decided by it an estimate will do: whoever observes may pass over some requests and let others count
for several.
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.admission.gate import Admitted, judge
from headgate.core.autoscaling.attainment import Attainment, Pools
from headgate.core.autoscaling.autoscaler import PPM, Figures
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
from headgate.core.routing.rungs import meant
from headgate.core.rules import Rules
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.caps import Caps
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Duration, Instant, ModelName, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource

NO_ROOM: Final = (Outcome.QUEUE_FULL, Outcome.UNREACHABLE, Outcome.SHED, Outcome.EXPIRED, Outcome.NO_ENDPOINTS)
"""How those are refused who would be served if there were more endpoints."""
NO_CAPACITY: Final = (Outcome.QUEUE_FULL, Outcome.UNREACHABLE, Outcome.SHED, Outcome.EXPIRED)
"""Outcomes that count as missed targets: those of `NO_ROOM` while the pool has endpoints."""
REQUESTS_MAX: Final = 262_144
"""So many open requests are remembered, to learn from them and to count further attempts."""
_TOKENS_REMEMBERED: Final = 100_000_000
_READY: Final = (EndpointState.READY, EndpointState.TRIAL)


class _Work:
    """Engine time that was asked for."""

    __slots__ = ("decode_ns", "prefill_ns")

    def __init__(self) -> None:
        self.prefill_ns = self.decode_ns = 0


class _Cached:
    """How much of the prompts the engines of a pool held already."""

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


class _Open:
    """A request that has not ended."""

    __slots__ = ("answers", "arrived_at", "model", "output_most", "pool", "ticket", "ttft_ns", "unjudged", "weight")

    def __init__(self, ticket: Ticket, weight: int, now: Instant) -> None:
        self.ticket = ticket
        self.arrived_at = now
        self.unjudged = ticket.stream
        """Whether its first token is still to be compared with a target."""
        self.ttft_ns: Duration | None = None
        """The target of the class in which it was sent."""
        self.weight = weight
        """For how many requests it counts."""
        self.model = ticket.model
        """Whose pools serve it."""
        self.pool = PoolName("")
        """Where it was sent last; empty while it waits for the first time."""
        self.answers = 1
        self.output_most: int | None = None
        """The largest number of tokens of each answer."""


class _There:
    """What is there of a pool."""

    __slots__ = ("decode_percent", "draining", "kv_tokens", "live", "places", "prefill_percent", "ready", "used")

    def __init__(self) -> None:
        self.ready = self.live = self.draining = 0
        self.kv_tokens = self.used = self.places = 0
        self.decode_percent = self.prefill_percent = 0
        """Of those that are ready, all added up."""

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
        """As long as it takes here; as was said of the pool where nothing is ready."""
        if not self.ready:
            return work.prefill_ns + work.decode_ns
        slower = work.prefill_ns * self.prefill_percent + work.decode_ns * self.decode_percent
        return slower // (100 * self.ready)


_NOTHING: Final = _There()


class Demand:
    def __init__(self) -> None:
        self._rules = Rules(Policy(), "")
        self._predictions = Predictions()
        self._open: dict[RequestId, _Open] = {}
        self._sent: dict[PoolName, _Work] = {}
        self._unsent: dict[Pools, _Work] = {}
        """Of those who wait or were refused, by the pools that could serve them."""
        self._attainment = Attainment()
        self._cached: dict[PoolName, _Cached] = {}
        self._batch: dict[PoolName, int] = {}
        """Among how many the fixed cost of a step is shared: no more than an endpoint takes at once."""
        self._since: Instant | None = None
        """From when on this was counted."""
        self._weight = 1
        """For how many requests the one counts that is being counted."""

    # What happens

    def saw(self, event: Event, commands: Sequence[Command], now: Instant, *, weight: int = 1) -> None:
        """A request that arrives counts for so many; with 0 it is passed over."""
        if self._since is None:
            self._since = now
        # The two that are frequent and matter come first; of the rest most are over after this.
        if isinstance(event, RequestArrived):
            if weight:
                self._weight = weight
                self._arrived(event.ticket, commands, now)
        elif isinstance(event, AttemptEnded):
            self._attempt_ended(event)
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
        request_id = ticket.request_id
        for command in commands:
            if isinstance(command, Dispatch):
                if command.request_id == request_id:
                    self._remember(ticket, now)
                    self._count_sent(ticket, command)
                    return
            elif isinstance(command, End) and command.request_id == request_id:
                if command.outcome in NO_ROOM and not ticket.client_retries:
                    self._count_unsent(ticket)
                    self._count_rejected(ticket, command)
                return
        self._remember(ticket, now)
        self._count_unsent(ticket)

    def _remember(self, ticket: Ticket, now: Instant) -> None:
        if len(self._open) < REQUESTS_MAX:
            self._open[ticket.request_id] = _Open(ticket, self._weight, now)

    def _dispatched(self, command: Dispatch) -> None:
        found = self._open.get(command.request_id)
        if found is None:
            return
        if command.attempt > 1:
            found.unjudged = False
            self._weight = found.weight
            self._count(found.ticket, command.pool, command.caps, command.model)
        found.pool, found.model = command.pool, command.model or found.ticket.model
        found.ttft_ns = self._ttft_ns(command.service_class)
        found.answers = found.ticket.answers(command.caps.n)
        found.output_most = found.ticket.output_most(command.caps.output_tokens)

    def _first_token(self, request_id: RequestId, now: Instant) -> None:
        found = self._open.get(request_id)
        if found is None or not found.unjudged:
            return
        found.unjudged = False
        if found.ttft_ns is not None:
            in_time = now - found.arrived_at <= found.ttft_ns
            self._attainment.first_token(found.pool, found.weight, in_time=in_time)

    def _ended(self, command: End) -> None:
        found = self._open.pop(command.request_id, None)
        if found is not None and found.unjudged and not found.pool:
            self._weight = found.weight
            self._count_rejected(found.ticket, command)

    def _attempt_ended(self, event: AttemptEnded) -> None:
        """Learns from what an engine says that an answer has come to."""
        usage, found = event.usage, self._open.get(event.request_id)
        if found is None or usage is None or event.ending is not AttemptEnding.COMPLETED:
            return
        if usage.source is UsageSource.ENGINE:
            ticket, answers, most = found.ticket, found.answers, found.output_most
            self._predictions.learn(ticket, found.model, usage, answers=answers, output_most=most)
            if (cached := self._cached.get(found.pool)) is None:
                cached = self._cached[found.pool] = _Cached()
            cached.learn(usage)

    def _change_policy(self, policy: Policy, policy_hash: str) -> None:
        self._rules = Rules(policy, policy_hash)
        self._cached = {pool: each for pool, each in self._cached.items() if pool in self._rules.pools}

    # What it takes

    def _count_sent(self, ticket: Ticket, command: Dispatch) -> None:
        self._count(ticket, command.pool, command.caps, command.model)
        if command.model is not None:
            self._count_unsent(ticket)

    def _count(self, ticket: Ticket, pool: PoolName, caps: Caps, model: ModelName | None) -> None:
        if (work := self._sent.get(pool)) is None:
            work = self._sent[pool] = _Work()
        self._add(work, pool, *self._tokens(ticket, caps, model or ticket.model), ticket.prompts)

    def _count_unsent(self, ticket: Ticket) -> None:
        verdict = judge(ticket, self._rules)
        if not isinstance(verdict, Admitted):
            return
        prompt_tokens, output_tokens = self._tokens(ticket, verdict.service_class.caps, verdict.model)
        pools = meant(verdict.pools, self._rules.pools, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        if (work := self._unsent.get(pools)) is None:
            work = self._unsent[pools] = _Work()
        self._add(work, pools[0], prompt_tokens, output_tokens, ticket.prompts)

    def _count_rejected(self, ticket: Ticket, command: End) -> None:
        """A request that more capacity would have served in time."""
        if command.outcome not in NO_CAPACITY or not ticket.stream or self._ttft_ns(command.service_class) is None:
            return
        if isinstance(verdict := judge(ticket, self._rules), Admitted):
            self._attainment.reject(verdict.pools, self._weight)

    def _ttft_ns(self, name: ClassName | None) -> Duration | None:
        service_class = None if name is None else self._rules.classes.get(name)
        return None if service_class is None else service_class.ttft_ns

    def _add(self, work: _Work, pool: PoolName, prompt_tokens: int, output_tokens: int, prompts: int) -> None:
        speed, cached = self._rules.speed(pool), self._cached.get(pool)
        held = cached.of(prompt_tokens) if cached is not None else 0
        batch = self._batch.get(pool, MEAN_BATCH)
        prefill_ns = speed.prefill_ps(prompt_tokens, cached=held, prompts=prompts) // 1_000
        whole_ns = cost_ns(speed, prompt_tokens, output_tokens, cached=held, batch=batch, prompts=prompts)
        work.prefill_ns += self._weight * prefill_ns
        work.decode_ns += self._weight * (whole_ns - prefill_ns)

    def _tokens(self, ticket: Ticket, caps: Caps, model: ModelName) -> tuple[int, int]:
        """Of the prompt, and of all answers together on the mean."""
        mean, _ = self._predictions.output_tokens(ticket, model)
        if caps.output_tokens is not None and caps.output_tokens < mean:
            mean = caps.output_tokens
        if ticket.output_tokens_max is not None and ticket.output_tokens_max < mean:
            mean = ticket.output_tokens_max
        return self._predictions.prompt_tokens(ticket, model), mean * ticket.answers(caps.n)

    # What it comes to

    def figures(self, summary: Summary, now: Instant) -> tuple[Figures, ...]:
        """Of every pool of the policy, since this was asked last. What was counted is forgotten with it."""
        there = _there(summary)
        self._batch = {pool: min(MEAN_BATCH, each.places_each or 1) for pool, each in there.items()}
        passed_ns = 0 if self._since is None else now - self._since
        figures = self._figures(summary, there, passed_ns)
        if passed_ns > 0:
            self._since = now
            self._sent.clear()
            self._unsent.clear()
            self._attainment.clear()
        return figures

    def glance(self, summary: Summary, now: Instant, period_ns: Duration) -> tuple[Figures, ...]:
        """The same between two periods: nothing is forgotten, and what was asked so far counts as that of a whole one.

        By the little time that has passed, a single request would look like a crowd.
        """
        passed_ns = 0 if self._since is None else now - self._since
        return self._figures(summary, _there(summary), max(period_ns, passed_ns))

    def _figures(self, summary: Summary, there: dict[PoolName, _There], passed_ns: int) -> tuple[Figures, ...]:
        work_ns = self._asked_ns(there)
        backlog, judged, rejected = self._backlog(summary, there), self._attainment, self._rejected(there)
        return tuple(
            _figures(
                pool.name,
                PPM * work_ns.get(pool.name, 0) // passed_ns if passed_ns > 0 else 0,
                backlog.get(pool.name, []),
                pool.kv_tokens,
                there.get(pool.name, _NOTHING),
            )._replace(
                judged=judged.judged.get(pool.name, 0) + rejected.get(pool.name, 0),
                missed=judged.missed.get(pool.name, 0) + rejected.get(pool.name, 0),
            )
            for pool in self._rules.policy.pools
        )

    def _rejected(self, there: dict[PoolName, _There]) -> dict[PoolName, int]:
        rejected: dict[PoolName, int] = {}
        for pools, requests in self._attainment.rejected.items():
            for pool, part in self._shared(pools, requests, there):
                rejected[pool] = rejected.get(pool, 0) + part
        return rejected

    def _asked_ns(self, there: dict[PoolName, _There]) -> dict[PoolName, int]:
        asked: dict[PoolName, int] = {}
        for pool, work in self._sent.items():
            asked[pool] = there.get(pool, _NOTHING).corrected_ns(work)
        for pools, work in self._unsent.items():
            for pool, part_ns in self._shared(pools, there.get(pools[0], _NOTHING).corrected_ns(work), there):
                asked[pool] = asked.get(pool, 0) + part_ns
        return asked

    def _backlog(self, summary: Summary, there: dict[PoolName, _There]) -> dict[PoolName, list[tuple[int, Duration]]]:
        """What waits at each pool, and within which time it should begin."""
        backlog: dict[PoolName, list[tuple[int, Duration]]] = {}
        held = [name for _, name in summary.held]
        for each in summary.waiting:
            targets = [
                _target_ns(known)
                for known in self._rules.policy.classes
                if known.band == each.band and (summary.queued.get(known.name) or known.name in held)
            ]
            for pool, part_ns in self._shared(each.pools, each.work_ns, there) if targets else ():
                backlog.setdefault(pool, []).append((part_ns, min(targets)))
        return backlog

    def _shared(self, pools: Pools, work_ns: int, there: dict[PoolName, _There]) -> list[tuple[PoolName, int]]:
        """By how many endpoints each has; the first has what is left over."""
        if not any(there.get(pool, _NOTHING).ready for pool in pools):
            # Of those that serve nobody only one that can be started will.
            pools = tuple(pool for pool in pools if self._rules.may_be_empty(pool)) or pools
        counts = [there.get(pool, _NOTHING).live for pool in pools]
        total = sum(counts)
        parts = [work_ns * count // total if total else 0 for count in counts]
        parts[0] += work_ns - sum(parts)
        return list(zip(pools, parts, strict=True))


def _target_ns(service_class: ServiceClass) -> Duration:
    """Within which time those of the class should begin; as long as they may wait, where it promises nothing."""
    return max(Duration(1), service_class.queue_wait_ns_max if service_class.ttft_ns is None else service_class.ttft_ns)


def _there(summary: Summary) -> dict[PoolName, _There]:
    there: dict[PoolName, _There] = {}
    for endpoint in summary.endpoints:
        there.setdefault(endpoint.pool, _There()).add(endpoint)
    return there


def _figures(
    pool: PoolName, demand_ppm: int, backlog: list[tuple[int, Duration]], kv_tokens_each: int | None, there: _There
) -> Figures:
    """What may wait longer counts for less: as much as weighs the same at the strictest target."""
    strictest_ns = min((target_ns for _, target_ns in backlog), default=None)
    backlog_ns = 0
    if strictest_ns is not None:
        for work_ns, target_ns in backlog:
            backlog_ns += work_ns * strictest_ns // target_ns
    return Figures(
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
