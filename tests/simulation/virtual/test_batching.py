"""Tests for batched embedding requests in a simulation."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.model.engine_profile import TINY
from headgate.model.outcome import Outcome
from headgate.model.policy import BatchRules
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, Duration
from headgate.simulation.options import CallerBehaviour, Crash, EngineSpec
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.text_report import render_text
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import EngineTotals
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import Seen, a_scenario, arrival, at, engine, run, seconds

RULES = BatchRules(batch_size_max=8, delay_ns_max=Duration(20 * MILLISECOND), calls_max=1)


def embedding(when: float, *, prompt: int = 20) -> Arrival:
    return replace(arrival(when, prompt=prompt, output=0), api=Api.EMBEDDINGS, stream=False)


def batched(rules: BatchRules | None = RULES, *, call_ms: int = 10) -> EngineSpec:
    return engine(0, profile=TINY, places=64, batching=rules, call_ns=Duration(call_ms * MILLISECOND))


def scene(arrivals: Sequence[Arrival], spec: EngineSpec, **fields: object) -> Scenario:
    return a_scenario(arrivals, engines=[spec], **fields)  # type: ignore[arg-type]


def totals(seen: Seen) -> EngineTotals:
    assert seen.ending is not None
    [found] = seen.ending.engines
    return found


def latencies_ms(seen: Seen) -> list[float]:
    assert {each.outcome for each in seen.stories} == {Outcome.COMPLETED}
    return sorted((each.ended_at - each.arrived_at) / MILLISECOND for each in seen.stories)


def test_request_to_an_idle_engine_is_sent_alone_and_takes_the_time_of_its_call() -> None:
    seen = run(scene([embedding(0.1), embedding(1.1)], batched()))

    assert totals(seen).calls == 2
    assert all(10 < each < 15 for each in latencies_ms(seen))


def test_requests_that_arrive_during_a_call_share_the_next_one() -> None:
    seen = run(scene([embedding(0.1 + number / 1_000) for number in range(6)], batched()))

    assert (totals(seen).calls, totals(seen).batched_requests) == (2, 6)
    assert latencies_ms(seen)[-1] < 25


def test_call_ends_when_its_longest_request_has_been_computed() -> None:
    slow = replace(TINY, prefill_token_ps=1_000_000_000, chunk_tokens=64)
    spec = replace(batched(), profile=slow)
    short, long = embedding(0.1, prompt=10), embedding(0.1, prompt=100)

    seen = run(scene([short, long], spec))

    assert totals(seen).calls == 1
    assert len(set(latencies_ms(seen))) == 1


def test_server_handles_one_call_at_a_time() -> None:
    seen = run(scene([embedding(0.1) for _ in range(5)], batched(None)))

    assert totals(seen).calls == 5
    assert latencies_ms(seen) == pytest.approx([10, 20, 30, 40, 50], abs=5)


def test_batching_serves_load_that_single_calls_cannot() -> None:
    def slowest_ms(rules: BatchRules | None) -> float:
        many = [embedding(number / 300) for number in range(300)]
        return max(latencies_ms(run(scene(many, batched(rules)))))

    assert slowest_ms(RULES) < 100
    assert slowest_ms(None) > 1_000


def test_other_apis_are_not_batched() -> None:
    chats = [arrival(0.1, output=1) for _ in range(4)]

    assert totals(run(scene(chats, batched()))).calls == 4


def test_cancelled_requests_leave_the_queue_and_the_call() -> None:
    # The first call takes 100 ms. All callers disconnect after 50 ms: during the call, or in the batch queue.
    impatient = CallerBehaviour(client_timeout_ns=seconds(0.05), stream=False)
    arrivals = [embedding(0.1), embedding(0.11), embedding(0.12), embedding(1.0)]

    seen = run(scene(arrivals, batched(call_ms=100), callers=impatient))

    assert [each.outcome for each in seen.stories] == [Outcome.CANCELLED] * 4
    assert totals(seen).worked_ps == 0


@pytest.mark.parametrize("call_ms", [1, 100])
def test_engine_computes_a_cancelled_request_whose_call_others_wait_for(call_ms: int) -> None:
    slow = replace(TINY, prefill_token_ps=1_000_000_000, chunk_tokens=64)
    impatient = CallerBehaviour(client_timeout_ns=seconds(0.05), stream=False)
    left, stays = embedding(0.1, prompt=60), replace(embedding(0.1, prompt=60), service_class="batch")

    seen = run(scene([left, stays], replace(batched(call_ms=call_ms), profile=slow), callers=impatient))

    outcomes = {each.service_class: each.outcome for each in seen.stories}
    assert outcomes == {"interactive": Outcome.CANCELLED, "batch": Outcome.COMPLETED}
    assert totals(seen).prompt_tokens == 120


def test_embeddings_of_a_trace_with_output_tokens_generate_nothing() -> None:
    impatient = CallerBehaviour(client_timeout_ns=seconds(0.05))
    traced = [replace(embedding(0.1, prompt=60), output_tokens=40, stream=True) for _ in range(2)]
    slow = replace(TINY, prefill_token_ps=1_000_000_000, chunk_tokens=64)

    seen = run(
        scene(
            [traced[0], replace(traced[1], service_class="batch")], replace(batched(), profile=slow), callers=impatient
        )
    )

    assert {each.outcome for each in seen.stories} == {Outcome.CANCELLED, Outcome.COMPLETED}
    assert totals(seen).generated_tokens == 0


def test_crash_fails_queued_requests_and_their_retries_are_sent_alone() -> None:
    arrivals = [embedding(0.1 + number / 1_000) for number in range(4)]
    crash = Crash(engine(0).id, at(0.105), seconds(0.2))

    seen = run(scene(arrivals, batched(), faults=(crash,)))

    assert [each.outcome for each in seen.stories] == [Outcome.COMPLETED] * 4
    assert totals(seen).batched_requests > 4


def test_report_shows_calls_and_batch_waits() -> None:
    scenario = scene([embedding(0.1 + number / 1_000) for number in range(6)], batched())
    report = SimulationReport(scenario)
    VirtualHost(scenario, report).run()

    [shown] = json.loads(json.dumps(json_report(report)))["engines"]
    assert (shown["calls"], shown["requests_per_call"]) == (2, 3.0)
    assert 0 < shown["batch_wait_mean_ms"] < 20
    assert "main: 2 calls, 3 requests per call, mean batch wait " in render_text(report, 100)
