"""What was asked of an engine, and when did it answer?

The two are kept apart, so that whoever is given demands alone cannot know a measured time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, Finished


@dataclass(frozen=True, slots=True)
class Demand:
    arrived_at: Instant
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    first_token_at: Instant
    last_token_at: Instant


def simulated(profile: EngineProfile, demands: Sequence[Demand], *, first: int | None = None) -> list[Answer]:
    """What one engine answers. Of the `first` demands only, if so told; the others are load all the same."""
    wanted = len(demands) if first is None else first
    engine = SimulatedEngine(profile)
    answers: list[Answer | None] = [None] * len(demands)
    missing = wanted

    def advance(until: Instant) -> None:
        nonlocal missing
        for each in engine.advance(until):
            if isinstance(each, Finished):
                number = int(each.request_id)
                answers[number] = Answer(each.first_token_at, each.at)
                missing -= number < wanted

    for number, demand in enumerate(demands):
        advance(demand.arrived_at)
        request = EngineRequest(RequestId(str(number)), demand.prompt_tokens, demand.output_tokens)
        engine.add(request, demand.arrived_at)
    while missing:
        instant = engine.next_instant()
        assert instant is not None, "an engine that is idle has answered everything"
        advance(instant)
    return [each for each in answers[:wanted] if each is not None]
