"""Requests to an engine and the times of its responses, measured or simulated.

Requests and response times are separate types, so that code that receives only requests cannot use measured times.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Duration, Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, SequenceFinished


@dataclass(frozen=True, slots=True)
class RunRequest:
    arrived_at: Instant
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TokenTimes:
    first_token_at: Instant
    last_token_at: Instant


def replay(
    profile: EngineProfile,
    requests: Sequence[RunRequest],
    *,
    count: int | None = None,
    overhead_ns: Duration = Duration(0),
) -> list[TokenTimes]:
    """Simulates one engine. Returns the responses to the first `count` demands, or to all of them. The other demands
    only add load. Each request reaches the engine's loop `overhead_ns` after it was sent.
    """
    wanted = len(requests) if count is None else count
    engine = SimulatedEngine(profile)
    answers: list[TokenTimes | None] = [None] * len(requests)
    missing = wanted

    def advance(until: Instant) -> None:
        nonlocal missing
        for each in engine.advance(until):
            if isinstance(each, SequenceFinished):
                number = int(each.request_id)
                answers[number] = TokenTimes(each.first_token_at, each.at)
                missing -= number < wanted

    for number, demand in enumerate(requests):
        arrived_at = Instant(demand.arrived_at + overhead_ns)
        advance(arrived_at)
        request = EngineRequest(RequestId(str(number)), demand.prompt_tokens, demand.output_tokens)
        engine.add(request, arrived_at)
    while missing:
        instant = engine.next_instant()
        assert instant is not None, "the engine is idle but has not answered all requests"
        advance(instant)
    return [each for each in answers[:wanted] if each is not None]
