"""Tests that excess requests are rejected on arrival at three times the load that `in_flight_max` can serve.

An engine with 16 slots and about 3.3 s per request serves about five requests per second. Fifteen arrive per second.
"""

import random

import pytest

from headgate.model.outcome import Outcome
from headgate.model.units import SECOND
from headgate.simulation.virtual.run_observer import RequestTrace
from tests.simulation.virtual.scenes import SLOW, a_scenario, arrival, engine, run

PLACES, RATE, SPAN_S = 16, 15, 120
START_S = 8
"""End of the learning phase, in seconds. Until then requests expire, because wait times cannot be predicted yet."""
TOKENS = 330


def overloaded(lengths: list[int], **settings: object) -> list[RequestTrace]:
    """Runs the simulation and returns the result of each request."""
    arrivals = [arrival(number / RATE, output=tokens) for number, tokens in enumerate(lengths)]
    engines = [engine(0, profile=SLOW, places=PLACES)]
    return run(a_scenario(arrivals, engines=engines, **settings)).stories


@pytest.mark.parametrize("varied", [False, True], ids=["equal response lengths", "varied response lengths"])
@pytest.mark.parametrize("settings", [{"ttft_ns": 2 * SECOND}, {}], ids=["TTFT target of 2 s", "maximum queue wait"])
def test_excess_requests_are_rejected_on_arrival(varied: bool, settings: dict[str, object]) -> None:
    draw = random.Random(7)
    count = RATE * SPAN_S
    lengths = [draw.randint(1, 2 * TOKENS) for _ in range(count)] if varied else [TOKENS] * count
    stories = overloaded(lengths, **settings)
    refused = [
        each for each in stories if each.outcome is not Outcome.COMPLETED and each.arrived_at >= START_S * SECOND
    ]
    on_arrival = [each for each in refused if each.outcome is Outcome.DEADLINE_INFEASIBLE]
    ended = [
        each
        for each in stories
        if each.outcome is Outcome.COMPLETED and START_S * SECOND <= each.ended_at < SPAN_S * SECOND
    ]

    assert len(on_arrival) >= 0.95 * len(refused)
    # The engine is fully utilised: it generates about as many tokens as possible in this time.
    assert sum(each.output_tokens for each in ended) >= 0.95 * (SPAN_S - START_S) * PLACES / 3.3 * TOKENS
