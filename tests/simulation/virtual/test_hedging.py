"""What if two simulated engines are asked at once, and when does it pay?"""

from dataclasses import replace
from random import Random

import pytest

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, RequestArrived
from headgate.model.caps import Caps
from headgate.model.engine_profile import PROFILES
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, EndpointId, Instant, RequestId
from headgate.simulation.virtual.scenario import Callers, Slow
from headgate.simulation.virtual.story import Story
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import INTERACTIVE, POOL, Seen, a_scenario, arrival, at, engine, run, seconds

ENDPOINTS = EndpointId("main/0"), EndpointId("main/1")


class AsksBoth:
    """A decider that asks both engines at once, and keeps whichever speaks first."""

    def handle(self, event: Event, now: Instant) -> list[Command]:
        match event:
            case RequestArrived(ticket):
                return [_dispatch(ticket.request_id, number) for number in (1, 2)]
            case FirstToken(request_id, number):
                return [Abort(request_id, 3 - number, ENDPOINTS[2 - number], "the other spoke first")]
            case AttemptEnded(request_id, _, AttemptEnding.COMPLETED):
                return [End(request_id, Outcome.COMPLETED, INTERACTIVE, 2, Duration(0), None, "")]
            case _:
                return []

    def next_wakeup(self) -> Instant | None:
        return None


def _dispatch(request_id: RequestId, number: int) -> Dispatch:
    limits = (seconds(60), seconds(60), seconds(60))
    where = (ENDPOINTS[number - 1], POOL, INTERACTIVE)
    return Dispatch(request_id, number, *where, Duration(0), *limits, Caps(), "", hedge=number == 2)


def both_asked(output: int, *, stream: bool = True) -> Seen:
    callers, engines = Callers(stream=stream), (engine(0), engine(1))
    scenario = a_scenario([arrival(0, output=output)], engines=engines, callers=callers)
    return run(replace(scenario, decider=AsksBoth))


@pytest.mark.parametrize("output", [1, 20])
@pytest.mark.parametrize("stream", [True, False])
def test_of_two_that_speak_at_the_same_instant_only_one_is_heard(output: int, stream: bool) -> None:
    seen = both_asked(output, stream=stream)

    [(spoken, _)] = seen.events(FirstToken)
    endings = {event.attempt: event.ending for event, _ in seen.events(AttemptEnded)}  # type: ignore[attr-defined]
    assert len(seen.events(AttemptEnded)) == 2
    assert sorted(endings.values()) == [AttemptEnding.ABORTED, AttemptEnding.COMPLETED]
    assert endings[spoken.attempt] is AttemptEnding.COMPLETED  # type: ignore[attr-defined]


def test_the_caller_gets_one_answer_and_the_story_tells_of_both_attempts() -> None:
    story = both_asked(20).stories[0]

    assert (story.outcome, story.attempts, story.output_tokens) == (Outcome.COMPLETED, 2, 20)
    assert story.prompt_tokens_computed > story.prompt_tokens
    assert story.output_tokens_computed >= 20


# Whether it pays


def traffic() -> list[Arrival]:
    """A minute at 20 requests a second, less than half of what four engines can do."""
    chance = Random("1 arrivals")
    arrivals: list[Arrival] = []
    now = 0.0
    while now < 60:
        now += chance.expovariate(20)
        arrivals.append(arrival(now, prompt=chance.randint(200, 3_000), output=chance.randint(20, 400)))
    return arrivals


def one_slow_engine(*, hedges: bool) -> list[Story]:
    """After 20 s one of four engines goes at a fifth of its speed."""
    profile = PROFILES["rtxpro6000-llama-8b"]
    engines = [engine(number, profile=profile, places=256) for number in range(4)]
    slow = Slow(ENDPOINTS[0], at(20), seconds(60), 200)
    return run(a_scenario(traffic(), engines=engines, faults=(slow,), hedges=hedges)).stories


def p99_ttft_ns(stories: list[Story]) -> int:
    waits = sorted(story.first_token_at - story.arrived_at for story in stories if story.first_token_at is not None)
    assert len(waits) == len(stories)
    return waits[len(waits) * 99 // 100]


def test_with_one_slow_engine_the_slowest_answers_begin_sooner_at_few_extra_attempts() -> None:
    alone, hedged = one_slow_engine(hedges=False), one_slow_engine(hedges=True)

    assert {story.outcome for story in (*alone, *hedged)} == {Outcome.COMPLETED}
    assert p99_ttft_ns(hedged) <= 0.85 * p99_ttft_ns(alone)
    assert sum(story.attempts for story in alone) == len(alone)
    assert len(hedged) < sum(story.attempts for story in hedged) <= 1.2 * len(hedged)
