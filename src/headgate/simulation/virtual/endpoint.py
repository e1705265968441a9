"""A simulated engine as seen by a gateway: up or down, with its open attempts."""

from collections.abc import Iterator, Mapping
from random import Random

from headgate.core.commands import Abort, Dispatch
from headgate.model.caps import Caps
from headgate.model.engine_profile import EngineProfile
from headgate.model.ticket import Api
from headgate.model.units import ClassName, Duration, Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, SequenceCost, SequenceFinished
from headgate.simulation.engine.state import EngineState
from headgate.simulation.options import EngineSpec, RequestErrors, Slowdown
from headgate.simulation.virtual.callers import SimulatedCaller
from headgate.simulation.virtual.engine_calls import NO_WORK, CallRequest, CallTotals, EngineCalls
from headgate.simulation.virtual.run_observer import EndpointSample, EngineTotals, PoolAttempts
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS

_DOWN = EndpointSample(0, 0, 0.0, up=False)


def engine_request_id(command: Dispatch | Abort) -> RequestId:
    """Returns the engine's ID for an attempt. It includes the attempt number, because a cancelled attempt may overlap
    with the next one.
    """
    return RequestId(f"{command.request_id}/{command.attempt}")


class SimulatedAttempt:
    """An attempt in progress, as seen by the gateway."""

    __slots__ = (
        "caller",
        "dispatch",
        "engine_request_id",
        "first_token_seen",
        "last_token_at",
        "output_tokens",
        "prompt_tokens",
        "reported_tokens",
        "started_at",
        "stopped",
        "stream",
    )

    def __init__(self, dispatch: Dispatch, caller: SimulatedCaller, now: Instant) -> None:
        self.dispatch = dispatch
        self.caller = caller
        self.engine_request_id = engine_request_id(dispatch)
        self.stream = caller.stream
        self.prompt_tokens, self.output_tokens = _capped(caller, dispatch.caps)
        self.started_at = now
        self.last_token_at = now
        self.first_token_seen = False
        self.stopped = False
        """Whether the attempt has been stopped."""
        self.reported_tokens = 0
        """Tokens reported to the scheduler so far."""

    @property
    def superseded(self) -> bool:
        """Whether another of the request's attempts responded first.

        If so, the client receives nothing from this one.
        """
        return self.caller.has_first_token and not self.first_token_seen

    def record_work(self, spent: SequenceCost, generated: int, now: Instant) -> None:
        """Adds the attempt's time and work and the client's tokens to the request's trace."""
        story = self.caller.trace
        in_pool = story.attempts_by_pool.setdefault(self.dispatch.pool, PoolAttempts())
        in_pool.add(now - self.started_at, self.prompt_tokens, generated)
        story.prompt_tokens_computed += spent.prefilled_tokens
        story.output_tokens_computed += generated
        story.engine_ps += spent.worked_ps
        if self.first_token_seen:
            story.output_tokens = generated


class EngineLifetime:
    """An engine's time from its start to its end. A later engine in the same place has another one."""

    __slots__ = ("began_at", "ended", "endpoint", "probe_interval_ns")

    def __init__(self, endpoint: "VirtualEndpoint", began_at: Instant) -> None:
        self.endpoint = endpoint
        self.began_at = began_at
        self.ended = False
        self.probe_interval_ns = 0
        """Interval between the last two probes during the start."""


class VirtualEndpoint:
    def __init__(self, spec: EngineSpec, rank: int, targets_ns: Mapping[ClassName, Duration]) -> None:
        """`targets_ns` is the latency target of each class that has one."""
        self.spec = spec
        self.rank = rank
        """Position in the scenario."""
        self.engine = SimulatedEngine(spec.profile)
        self._targets_ns = targets_ns
        self._call_totals = CallTotals()
        self._calls = self._new_calls()
        self.attempts: dict[RequestId, SimulatedAttempt] = {}
        """Open attempts, by engine ID."""
        self.up = False
        self.leaving = False
        """Whether the engine is to stop when its last request has ended."""
        self.lifetime: EngineLifetime | None = None
        """Lifetime of the engine. None while there is none."""
        self.slowdown: Slowdown | None = None
        """Most recent fault that slowed this engine down."""
        self.error_fault: RequestErrors | None = None
        """Most recent fault that made this engine return errors."""
        self._rng = Random(f"{spec.id} fails")
        self.next_event_at: Instant | None = None
        """The engine's next instant, as of the last query."""
        self._up_since = Instant(0)
        self._up_ns = 0
        self._paid_ns = 0
        """Lifetimes of earlier engines."""
        self._past_states: list[EngineState] = []
        """Final states of crashed and stopped engines, which are included in the totals."""

    @property
    def exists(self) -> bool:
        return self.lifetime is not None

    @property
    def is_drained(self) -> bool:
        return self.leaving and not self.attempts

    def fits(self, attempt: SimulatedAttempt) -> bool:
        tokens = attempt.prompt_tokens + attempt.output_tokens
        return tokens <= self.spec.profile.context_tokens and self.spec.profile.fits(tokens)

    def draws_error(self, now: Instant) -> bool:
        """Decides at random whether a request sent now gets an error."""
        fault = self.error_fault
        if fault is None or now >= fault.at + fault.duration_ns:
            return False
        return self._rng.randrange(100) < fault.percent

    def start_attempt(self, attempt: SimulatedAttempt, now: Instant) -> None:
        self.attempts[attempt.engine_request_id] = attempt
        names = attempt.caller.arrival.prefix
        prefix = _block_hashes(names, attempt.prompt_tokens, self.spec.profile) if names else ()
        request = EngineRequest(attempt.engine_request_id, attempt.prompt_tokens, attempt.output_tokens, prefix)
        if self._calls is None:
            self.engine.add(request, now)
            return
        arrival = attempt.caller.arrival
        call_request = CallRequest(
            engine_request=request,
            tenant=arrival.tenant,
            service_class=arrival.service_class,
            can_share=attempt.caller.api is Api.EMBEDDINGS and attempt.dispatch.attempt == 1,
        )
        self._calls.add(call_request, now)

    def enter_due(self, now: Instant) -> None:
        """Lets the requests whose calls have been accepted enter the engine, which must have been advanced to `now`."""
        if self._calls is not None:
            for request in self._calls.entering(now):
                self.engine.add(request, now)

    def next_instant(self) -> Instant | None:
        """Returns when the engine or its API server does something next."""
        moments = (self.engine.next_instant(), None if self._calls is None else self._calls.next_instant())
        return min((each for each in moments if each is not None), default=None)

    def pop_complete(self, finished: SequenceFinished) -> Iterator[tuple[SimulatedAttempt, SequenceFinished]]:
        """Yields the attempts that are complete once the engine has finished this sequence."""
        results = [finished] if self._calls is None else self._calls.finish(finished)
        for each in results:
            yield self.attempts.pop(each.request_id), each

    def stop_attempt(self, attempt: SimulatedAttempt, now: Instant, *, crashes: bool) -> None:
        """Stops an attempt. The engine must have been advanced to `now`."""
        del self.attempts[attempt.engine_request_id]
        attempt.stopped = True
        cancels: tuple[RequestId, ...] = (attempt.engine_request_id,)
        if self._calls is not None:
            removed = self._calls.remove(attempt.engine_request_id)
            cancels = removed.cancels
            if removed.computed is not None:
                attempt.record_work(removed.computed.cost, removed.computed.output_tokens, now)
            elif not removed.entered:
                attempt.record_work(NO_WORK, 0, now)
            else:
                self._record_unfinished(attempt, now, crashes=crashes)
        else:
            self._record_unfinished(attempt, now, crashes=crashes)
        for each in cancels:
            self.engine.cancel(each, now)

    def _record_unfinished(self, attempt: SimulatedAttempt, now: Instant, *, crashes: bool) -> None:
        spent = self.engine.cost_of(attempt.engine_request_id, step_finishes=not crashes)
        generated = self.engine.generated_tokens(attempt.engine_request_id)
        assert spent is not None, f"{attempt.engine_request_id} is unknown to its engine"
        assert generated is not None
        attempt.record_work(spent, generated, now)

    def _new_calls(self) -> EngineCalls | None:
        """Returns None if every request enters the engine alone and immediately."""
        spec = self.spec
        if spec.batching is None and not spec.call_ns:
            return None
        return EngineCalls(spec.batching, self._targets_ns, spec.call_ns, self._call_totals)

    def begin(self, now: Instant) -> EngineLifetime:
        """Begins to start an engine. From now on, an hourly price applies."""
        self.lifetime = EngineLifetime(self, now)
        return self.lifetime

    def start(self, now: Instant) -> None:
        self.up = True
        self._up_since = now

    def crash(self, now: Instant) -> None:
        """Discards the engine's state. The host ends the open attempts."""
        self._up_ns += now - self._up_since
        self.up = False
        self._past_states.append(self.engine.state())
        self.engine = SimulatedEngine(self.spec.profile)
        self._calls = self._new_calls()
        self.next_event_at = self.slowdown = None

    def stop(self, now: Instant) -> None:
        """Ends the engine's lifetime. It must have no attempts."""
        assert self.lifetime is not None
        if self.up:
            self.crash(now)
        self._paid_ns += now - self.lifetime.began_at
        self.lifetime.ended, self.lifetime, self.leaving, self.error_fault = True, None, False, None

    def finish_step(self) -> None:
        """Completes the engine's current step at the end of the run."""
        if self.up and (due := self.engine.next_instant()) is not None:
            self.engine.advance(due)

    def sample(self) -> EndpointSample:
        if not self.up:
            return _DOWN
        state = self.engine.state()
        return EndpointSample(state.running, state.waiting, state.kv_used_fraction)

    def totals(self, now: Instant) -> EngineTotals:
        states = (*self._past_states, self.engine.state())
        return EngineTotals(
            self.spec.id,
            self.spec.pool,
            self.spec.profile.name,
            up_ns=self._up_ns + (now - self._up_since if self.up else 0),
            paid_ns=self._paid_ns + (0 if self.lifetime is None else now - self.lifetime.began_at),
            worked_ps=sum(each.worked_ps for each in states),
            steps=sum(each.steps for each in states),
            prompt_tokens=sum(each.prompt_tokens for each in states),
            generated_tokens=sum(each.generated_tokens for each in states),
            prefix_queried_tokens=sum(each.prefix_queried_tokens for each in states),
            prefix_hit_tokens=sum(each.prefix_hit_tokens for each in states),
            preemptions=sum(each.preemptions for each in states),
            calls=self._call_totals.calls,
            batched_requests=self._call_totals.requests,
            batch_wait_ns=self._call_totals.batch_wait_ns,
        )


def _capped(caller: SimulatedCaller, caps: Caps) -> tuple[int, int]:
    """Returns the prompt and output sizes after applying the class's caps."""
    arrival = caller.arrival
    prompt_tokens, output_tokens = arrival.prompt_tokens, 0 if caller.generates_nothing else arrival.output_tokens
    if caps.trim_prompt and caps.prompt_tokens is not None:
        prompt_tokens = min(prompt_tokens, caps.prompt_tokens)
    if caps.output_tokens is not None:
        output_tokens = min(output_tokens, caps.output_tokens)
    return prompt_tokens, output_tokens


def _block_hashes(prefix: tuple[int, ...], prompt_tokens: int, profile: EngineProfile) -> tuple[int, ...]:
    """Returns the names of the engine's blocks. Several of them make up one block in a trace."""
    parts, rest = divmod(PREFIX_BLOCK_TOKENS, profile.block_tokens)
    assert rest == 0, f"the block size of {profile.block_tokens} tokens does not divide {PREFIX_BLOCK_TOKENS}"
    names = prefix if parts == 1 else tuple(name * parts + part for name in prefix for part in range(parts))
    return names[: prompt_tokens // profile.block_tokens]
