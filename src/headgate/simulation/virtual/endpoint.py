"""What does a gateway meet at the other end of its connections? One simulated engine, up or down, and what it holds."""

from random import Random

from headgate.core.commands import Abort, Dispatch
from headgate.model.caps import Caps
from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, Spent
from headgate.simulation.engine.state import EngineState
from headgate.simulation.virtual.crowd import Caller
from headgate.simulation.virtual.scenario import EngineSpec, Fail, Slow
from headgate.simulation.virtual.story import EndpointSample, EngineAccount
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS, Arrival

_DOWN = EndpointSample(0, 0, 0.0, up=False)


def engine_id(order: Dispatch | Abort) -> RequestId:
    """What an engine calls an attempt: one that it has been told to stop may still be there when the next comes."""
    return RequestId(f"{order.request_id}/{order.attempt}")


class OpenAttempt:
    """One attempt under way, as the relay sees it."""

    __slots__ = (
        "caller",
        "dispatch",
        "engine_id",
        "first_seen",
        "heard_at",
        "output_tokens",
        "over",
        "prompt_tokens",
        "reported",
        "started_at",
        "stream",
    )

    def __init__(self, dispatch: Dispatch, caller: Caller, now: Instant) -> None:
        self.dispatch = dispatch
        self.caller = caller
        self.engine_id = engine_id(dispatch)
        self.stream = caller.manners.stream
        self.prompt_tokens, self.output_tokens = _capped(caller.arrival, dispatch.caps)
        self.started_at = now
        self.heard_at = now
        self.first_seen = False
        self.over = False
        """Whether it was stopped."""
        self.reported = 0
        """Tokens of which the scheduler was told."""

    @property
    def outspoken(self) -> bool:
        """Whether another attempt of its request was the first to answer: nothing of this one reaches the caller."""
        return self.caller.began and not self.first_seen

    def close(self, spent: Spent, generated: int) -> None:
        """Notes in the caller's story what was done, and what of it the caller got."""
        story = self.caller.story
        story.prompt_tokens_computed += spent.prefilled_tokens
        story.output_tokens_computed += generated
        story.engine_ps += spent.worked_ps
        if self.first_seen:
            story.output_tokens = generated


class VirtualEndpoint:
    def __init__(self, spec: EngineSpec, rank: int) -> None:
        self.spec = spec
        self.rank = rank
        """Its number in the scenario."""
        self.engine = SimulatedEngine(spec.profile)
        self.attempts: dict[RequestId, OpenAttempt] = {}
        """By the engine's own name for each."""
        self.up = False
        self.pause_ns = 0
        """Between the last two looks at it while it starts."""
        self.slowed_by: Slow | None = None
        """The last fault that made this engine slow."""
        self.fails_by: Fail | None = None
        """The last fault that made this engine answer with errors."""
        self._chance = Random(f"{spec.id} fails")
        self.due: Instant | None = None
        """When something happens next, as far as has been asked."""
        self._up_since = Instant(0)
        self._up_ns = 0
        self._before: list[EngineState] = []
        """How the engines that crashed stood then; what they did counts."""

    def fits(self, attempt: OpenAttempt) -> bool:
        tokens = attempt.prompt_tokens + attempt.output_tokens
        return tokens <= self.spec.profile.context_tokens and self.spec.profile.fits(tokens)

    def fails(self, now: Instant) -> bool:
        """Whether what is asked of it now is answered with an error."""
        fault = self.fails_by
        if fault is None or now >= fault.at + fault.lasts_ns:
            return False
        return self._chance.randrange(100) < fault.percent

    def take(self, attempt: OpenAttempt, now: Instant) -> None:
        self.attempts[attempt.engine_id] = attempt
        names = attempt.caller.arrival.prefix
        prefix = _names(names, attempt.prompt_tokens, self.spec.profile) if names else ()
        request = EngineRequest(attempt.engine_id, attempt.prompt_tokens, attempt.output_tokens, prefix)
        self.engine.add(request, now)

    def release(self, attempt: OpenAttempt, now: Instant, *, crashes: bool) -> None:
        """Stops an attempt. The engine is at this instant."""
        del self.attempts[attempt.engine_id]
        attempt.over = True
        spent = self.engine.spent(attempt.engine_id, step_ends=not crashes)
        generated = self.engine.generated(attempt.engine_id)
        assert spent is not None, f"{attempt.engine_id} is not at its engine"
        assert generated is not None
        attempt.close(spent, generated)
        self.engine.cancel(attempt.engine_id, now)

    def start(self, now: Instant) -> None:
        self.up = True
        self._up_since = now

    def crash(self, now: Instant) -> None:
        """All that it holds is lost; who held a connection is told by the host."""
        self._up_ns += now - self._up_since
        self.up = False
        self._before.append(self.engine.state())
        self.engine = SimulatedEngine(self.spec.profile)
        self.due = self.slowed_by = None

    def finish_step(self) -> None:
        """Nobody is there any more, but the engine ends its step."""
        if self.up and (due := self.engine.next_instant()) is not None:
            self.engine.advance(due)

    def sample(self) -> EndpointSample:
        if not self.up:
            return _DOWN
        state = self.engine.state()
        return EndpointSample(state.running, state.waiting, state.kv_used_fraction)

    def account(self, now: Instant) -> EngineAccount:
        states = (*self._before, self.engine.state())
        return EngineAccount(
            self.spec.id,
            self.spec.pool,
            self.spec.profile.name,
            up_ns=self._up_ns + (now - self._up_since if self.up else 0),
            worked_ps=sum(each.worked_ps for each in states),
            steps=sum(each.steps for each in states),
            prompt_tokens=sum(each.prompt_tokens for each in states),
            generated_tokens=sum(each.generated_tokens for each in states),
            prefix_queried_tokens=sum(each.prefix_queried_tokens for each in states),
            prefix_hit_tokens=sum(each.prefix_hit_tokens for each in states),
            preemptions=sum(each.preemptions for each in states),
        )


def _capped(arrival: Arrival, caps: Caps) -> tuple[int, int]:
    """What is asked of the engine: a class may shorten prompts and answers."""
    prompt_tokens, output_tokens = arrival.prompt_tokens, arrival.output_tokens
    if caps.trims_prompt and caps.prompt_tokens is not None:
        prompt_tokens = min(prompt_tokens, caps.prompt_tokens)
    if caps.output_tokens is not None:
        output_tokens = min(output_tokens, caps.output_tokens)
    return prompt_tokens, output_tokens


def _names(prefix: tuple[int, ...], prompt_tokens: int, profile: EngineProfile) -> tuple[int, ...]:
    """The names of an engine's own blocks, of which several make one of a trace's."""
    parts, rest = divmod(PREFIX_BLOCK_TOKENS, profile.block_tokens)
    assert rest == 0, f"blocks of {profile.block_tokens} tokens do not make up {PREFIX_BLOCK_TOKENS}"
    names = prefix if parts == 1 else tuple(name * parts + part for name in prefix for part in range(parts))
    return names[: prompt_tokens // profile.block_tokens]
