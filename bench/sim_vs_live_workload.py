"""Requests for both sides, scaled to the capacity of four engines.

Arrivals are random with a fixed seed, with prompts and responses of mixed lengths, and are the same for the live
gateway and the simulator. Load 1 is the rate at which engines with a backlog complete requests. To find it, one engine
whose slots are always taken processes the list. The arrivals are spread over the time it needs, divided by the number
of engines and the load.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from headgate.loadtest.senders import TokenRange
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.model.units import SECOND, ClassName, Duration, Instant, RequestId, TenantId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, SequenceFinished
from headgate.simulation.workload.arrival import Arrival

ROLE_TOKENS = 2
"""Tokens that a chat adds to the prompt: the role and a line break before each message, five bytes or two tokens.

The lengths of arrivals are those the engine counts, including these tokens.
"""
CLASS = ClassName("only")
TENANT = TenantId("laptop")

_PROMPT, _OUTPUT = TokenRange(2_000, 6_000), TokenRange(40, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Slow engines with few slots, which leave the CPU idle and make requests queue in the gateway.

    Prompts take tenths of a second, and every third request waits at least as long, so the milliseconds that three
    processes add matter little.
    """

    requests: int = 300
    load: float = 0.8
    engines: int = 4
    in_flight_max: int = 2
    profile: EngineProfile = RTXPRO6000_LLAMA_8B
    prompt: TokenRange = _PROMPT
    output: TokenRange = _OUTPUT
    seed: int = 3

    def arrivals(self) -> tuple[Arrival, ...]:
        """Return the requests in order of arrival, the first at 0."""
        when, size = Random(f"{self.seed} when"), Random(f"{self.seed} size")
        sizes = [(self.prompt.draw(size) + ROLE_TOKENS, self.output.draw(size)) for _ in range(self.requests)]
        moments = [0.0]
        while len(moments) < self.requests:
            moments.append(moments[-1] + when.expovariate(1.0))
        busy_ns = busy_duration(self.profile, sizes, at_once=self.in_flight_max)
        grain_ns = busy_ns / self.engines / self.load / moments[-1]
        return tuple(
            Arrival(Instant(round(moment * grain_ns)), prompt, output, CLASS, TENANT)
            for moment, (prompt, output) in zip(moments, sizes, strict=True)
        )


def busy_duration(profile: EngineProfile, sizes: list[tuple[int, int]], *, at_once: int) -> Duration:
    """Return how long one engine needs for all of these requests if it always has this many in flight."""
    engine, now = SimulatedEngine(profile), Instant(0)
    left = deque(EngineRequest(RequestId(str(number)), prompt, output) for number, (prompt, output) in enumerate(sizes))
    for _ in range(min(at_once, len(left))):
        engine.add(left.popleft(), now)
    while (instant := engine.next_instant()) is not None:
        now = instant
        ended = sum(isinstance(each, SequenceFinished) for each in engine.advance(until=now))
        for _ in range(min(ended, len(left))):
            engine.add(left.popleft(), now)
    return Duration(now)


def write_trace(file: Path, asked: Sequence[Arrival]) -> None:
    """Write the requests in the format of `headgate loadtest --trace`."""
    lines = [
        f"{each.at / SECOND:.9f},{each.prompt_tokens - ROLE_TOKENS},{each.output_tokens},"
        f"{each.service_class},{each.tenant}"
        for each in asked
    ]
    file.write_text("\n".join(["at_s,prompt_tokens,output_tokens,class,tenant", *lines, ""]))
