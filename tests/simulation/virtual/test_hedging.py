"""Tests for hedged requests in the simulator and for how much they help."""

from dataclasses import replace
from random import Random

import pytest

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, Event, FirstToken, RequestArrived
from headgate.model.caps import Caps
from headgate.model.engine_profile import PROFILES
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, EndpointId, Instant, RequestId
from headgate.simulation.options import CallerBehaviour, Slowdown
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import INTERACTIVE, POOL, Seen, a_scenario, arrival, at, engine, run, seconds

ENDPOINTS = EndpointId("main/0"), EndpointId("main/1")


class AsksBoth:
    """Decider that sends each request to both engines and keeps the attempt that responds first."""

    def handle(self, event: Event, now: Instant) -> list[Command]:
        match event:
            case RequestArrived(ticket):
                return [_dispatch(ticket.request_id, number) for number in (1, 2)]
            case FirstToken(request_id, number):
                return [Abort(request_id, 3 - number, ENDPOINTS[2 - number], "the other attempt responded first")]
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
    callers, engines = CallerBehaviour(stream=stream), (engine(0), engine(1))
    scenario = a_scenario([arrival(0, output=output)], engines=engines, callers=callers)
    return run(replace(scenario, decider=AsksBoth))


@pytest.mark.parametrize("output", [1, 20])
@pytest.mark.parametrize("stream", [True, False])
def test_only_one_of_two_simultaneous_attempts_reports_a_first_token(output: int, stream: bool) -> None:
    seen = both_asked(output, stream=stream)

    [(spoken, _)] = seen.events(FirstToken)
    endings = {event.attempt: event.ending for event, _ in seen.events(AttemptEnded)}  # type: ignore[attr-defined]
    assert len(seen.events(AttemptEnded)) == 2
    assert sorted(endings.values()) == [AttemptEnding.ABORTED, AttemptEnding.COMPLETED]
    assert endings[spoken.attempt] is AttemptEnding.COMPLETED  # type: ignore[attr-defined]


def test_hedged_request_has_one_response_but_costs_both_attempts() -> None:
    story = both_asked(20).stories[0]

    assert (story.outcome, story.attempts, story.output_tokens) == (Outcome.COMPLETED, 2, 20)
    assert story.prompt_tokens_computed > story.prompt_tokens
    assert story.output_tokens_computed >= 20


# Benefit of hedging


def traffic() -> list[Arrival]:
    """One minute of traffic at 20 requests per second, less than half the capacity of four engines."""
    chance = Random("1 arrivals")
    arrivals: list[Arrival] = []
    now = 0.0
    while now < 60:
        now += chance.expovariate(20)
        arrivals.append(arrival(now, prompt=chance.randint(200, 3_000), output=chance.randint(20, 400)))
    return arrivals


def one_slow_engine(*, hedges: bool) -> list[RequestTrace]:
    """Runs four engines, one of which drops to a fifth of its speed after 20 s."""
    profile = PROFILES["rtxpro6000-llama-8b"]
    engines = [engine(number, profile=profile, places=256) for number in range(4)]
    slow = Slowdown(ENDPOINTS[0], at(20), seconds(60), 200)
    return run(a_scenario(traffic(), engines=engines, faults=(slow,), hedging=hedges)).stories


def p99_ttft_ns(stories: list[RequestTrace]) -> int:
    waits = sorted(story.first_token_at - story.arrived_at for story in stories if story.first_token_at is not None)
    assert len(waits) == len(stories)
    return waits[len(waits) * 99 // 100]


def test_hedging_lowers_p99_ttft_with_one_slow_engine() -> None:
    alone, hedged = one_slow_engine(hedges=False), one_slow_engine(hedges=True)

    assert {story.outcome for story in (*alone, *hedged)} == {Outcome.COMPLETED}
    assert p99_ttft_ns(hedged) <= 0.85 * p99_ttft_ns(alone)
    assert sum(story.attempts for story in alone) == len(alone)
    assert len(hedged) < sum(story.attempts for story in hedged) <= 1.2 * len(hedged)
