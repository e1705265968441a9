"""Which requests go to both sides, and how heavy are they for four engines?

Seeded random arrivals of prompts and answers of mixed lengths, the same list for life and for the simulator. Load 1 is
what the engines complete while somebody always waits: one engine that always holds as many requests as it has places
says how long the list keeps it busy, and the arrivals are spread over that time, divided by the engines and the load.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from headgate.loadtest.senders import Sizes
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.model.units import SECOND, ClassName, Duration, Instant, RequestId, TenantId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, Finished
from headgate.simulation.workload.arrival import Arrival

ROLE_TOKENS = 2
"""A chat names the speaker and ends a line before each message: five bytes, so two tokens more than the prompt.

The lengths of arrivals are those that the engine counts, with what the chat adds.
"""
CLASS = ClassName("only")
TENANT = TenantId("laptop")

_PROMPT, _OUTPUT = Sizes(2_000, 6_000), Sizes(40, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Slow engines with few places each leave the processor idle and make requests wait at the gateway.

    Prompts take tenths of a second, and every third request waits for as long and longer, so that the milliseconds of
    three processes weigh little beside them.
    """

    requests: int = 300
    load: float = 0.8
    engines: int = 4
    in_flight_max: int = 2
    profile: EngineProfile = RTXPRO6000_LLAMA_8B
    prompt: Sizes = _PROMPT
    output: Sizes = _OUTPUT
    seed: int = 3

    def asked(self) -> tuple[Arrival, ...]:
        """In the order of time, the first at once."""
        when, size = Random(f"{self.seed} when"), Random(f"{self.seed} size")
        sizes = [(self.prompt.draw(size) + ROLE_TOKENS, self.output.draw(size)) for _ in range(self.requests)]
        moments = [0.0]
        while len(moments) < self.requests:
            moments.append(moments[-1] + when.expovariate(1.0))
        busy_ns = busy(self.profile, sizes, at_once=self.in_flight_max)
        grain_ns = busy_ns / self.engines / self.load / moments[-1]
        return tuple(
            Arrival(Instant(round(moment * grain_ns)), prompt, output, CLASS, TENANT)
            for moment, (prompt, output) in zip(moments, sizes, strict=True)
        )


def busy(profile: EngineProfile, sizes: list[tuple[int, int]], *, at_once: int) -> Duration:
    """How long one engine needs for all of these if it always holds so many of them."""
    engine, now = SimulatedEngine(profile), Instant(0)
    left = deque(EngineRequest(RequestId(str(number)), prompt, output) for number, (prompt, output) in enumerate(sizes))
    for _ in range(min(at_once, len(left))):
        engine.add(left.popleft(), now)
    while (instant := engine.next_instant()) is not None:
        now = instant
        ended = sum(isinstance(each, Finished) for each in engine.advance(until=now))
        for _ in range(min(ended, len(left))):
            engine.add(left.popleft(), now)
    return Duration(now)


def write_trace(file: Path, asked: Sequence[Arrival]) -> None:
    """As `headgate loadtest --trace` reads it."""
    lines = [
        f"{each.at / SECOND:.9f},{each.prompt_tokens - ROLE_TOKENS},{each.output_tokens},"
        f"{each.service_class},{each.tenant}"
        for each in asked
    ]
    file.write_text("\n".join(["at_s,prompt_tokens,output_tokens,class,tenant", *lines, ""]))
