"""Does the simulated engine behave as a real one did, request by request?

The record of a vLLM run on a GPU, found through HEADGATE_DATA, is played into the loop with the profile's own
parameters. Where the data is not at hand the test is skipped, but never in CI.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from headgate.model.units import SECOND, Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.profile import PROFILES
from headgate.simulation.engine.sequence import EngineRequest, Finished

RUN = "RTXPRO6000_Llama-3.1-8B"
PROFILE = replace(PROFILES["rtxpro6000-llama-8b"], sequences_max=128)
ERROR_MAX = 0.02


@pytest.fixture
def requests() -> list[dict]:
    folder = os.environ.get("HEADGATE_DATA")
    if folder is None and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA does not name a folder with recorded runs")
    assert folder is not None, "CI must name the folder with recorded runs in HEADGATE_DATA"
    lines = (Path(folder) / "vllm_runs" / f"{RUN}.requests.jsonl").read_text().splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda each: each["arrival_time"])


def test_a_dense_run_is_met_within_two_percent(requests: list[dict]) -> None:
    errors = [
        abs(ours / theirs - 1)
        for told, made in zip(measured(requests), simulated(requests), strict=True)
        for theirs, ours in zip(five(told), five(made), strict=True)
    ]

    assert len(errors) == 15
    print(f"mean error over 15 figures: {mean(errors):.2%}")
    assert mean(errors) < ERROR_MAX


def measured(requests: list[dict]) -> tuple[list[float], list[float], list[float]]:
    """Time to first token, per further token, and to the end, as vLLM recorded them."""
    # Arrivals and tokens were stamped by different clocks; the quickest to be queued tells how far they are apart.
    apart = min(each["queued_ts"] - each["arrival_time"] for each in requests)
    first = [each["first_token_ts"] - each["arrival_time"] - apart for each in requests]
    end = [each["last_token_ts"] - each["arrival_time"] - apart for each in requests]
    return first, per_token(requests, first, end), end


def simulated(requests: list[dict]) -> tuple[list[float], list[float], list[float]]:
    engine, finished = SimulatedEngine(PROFILE), dict[str, Finished]()

    def advance(until: Instant) -> None:
        finished.update({each.request_id: each for each in engine.advance(until) if isinstance(each, Finished)})

    for each in requests:
        now = Instant(SECOND + round((each["arrival_time"] - requests[0]["arrival_time"]) * SECOND))
        advance(now)
        engine.add(EngineRequest(RequestId(each["request_id"]), each["input_toks"], each["output_toks"]), now)
    while (instant := engine.next_instant()) is not None:
        advance(instant)
    ended = [finished[each["request_id"]] for each in requests]
    first = [(each.first_token_at - each.arrived_at) / SECOND for each in ended]
    end = [(each.at - each.arrived_at) / SECOND for each in ended]
    return first, per_token(requests, first, end), end


def per_token(requests: list[dict], first: list[float], end: list[float]) -> list[float]:
    return [
        (end[number] - first[number]) / (each["output_toks"] - 1)
        for number, each in enumerate(requests)
        if each["output_toks"] > 1
    ]


def five(values: list[float]) -> list[float]:
    ordered = sorted(values)

    def at(share: float) -> float:
        below, part = divmod(share * (len(ordered) - 1), 1)
        return ordered[int(below)] + part * (ordered[min(int(below) + 1, len(ordered) - 1)] - ordered[int(below)])

    return [mean(values), at(0.5), at(0.9), at(0.95), at(0.99)]
