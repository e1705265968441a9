"""Tests that the virtual host sends the scheduler the events that a live gateway would send."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptsProgressed,
    EndpointNotReady,
    EndpointReady,
    FirstToken,
    RequestArrived,
    TimerFired,
)
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.engine_profile import TINY
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from headgate.model.units import SECOND, EndpointId, Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineRequest, SequenceFinished
from headgate.simulation.engine.state import EngineState
from headgate.simulation.options import CallerBehaviour, Crash, Hang, Slowdown
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import SLOW, a_scenario, arrival, at, engine, run, seconds

ONE, TWO = EndpointId("main/0"), EndpointId("main/1")


def test_request_takes_as_long_as_its_engine() -> None:
    alone = SimulatedEngine(SLOW)
    alone.add(EngineRequest(RequestId("r"), 700, 20), at(1))
    [finished] = [each for each in alone.advance(at(100)) if isinstance(each, SequenceFinished)]

    seen = run(a_scenario([arrival(1, prompt=700, output=20)]))

    [story] = seen.stories
    assert (story.outcome, story.tries, story.attempts, story.waited_ns) == (Outcome.COMPLETED, 1, 1, 0)
    assert (story.first_token_at, story.ended_at) == (finished.first_token_at, finished.at)
    assert (story.prompt_tokens_computed, story.output_tokens, story.output_tokens_computed) == (700, 20, 20)
    assert story.engine_ps == finished.cost.worked_ps
    assert seen.ending is not None
    assert seen.ending.engines[0].worked_ps == story.engine_ps


def test_request_without_a_free_slot_waits_and_records_its_wait() -> None:
    seen = run(a_scenario([arrival(0), arrival(0)], engines=[engine(0, places=1)]))

    first, second = seen.stories
    assert second.waited_ns == first.ended_at
    assert second.first_token_at is not None
    assert second.first_token_at > first.ended_at


def test_request_arriving_as_another_ends_joins_the_next_step() -> None:
    alone = run(a_scenario([arrival(0, output=1)])).stories[0]

    seen = run(a_scenario([arrival(0, output=1), arrival(alone.ended_at / SECOND, output=1)]))

    assert seen.stories[1].ended_at == 2 * alone.ended_at


def test_client_disconnects_if_its_patience_runs_out_before_the_first_token() -> None:
    waits = [arrival(0, output=400), arrival(0.1, output=5)]

    seen = run(a_scenario(waits, engines=[engine(0, places=1)], callers=CallerBehaviour(client_timeout_ns=seconds(1))))

    left, stayed = seen.stories
    assert (left.number, left.outcome, left.ended_at, left.attempts) == (1, Outcome.CANCELLED, at(1.1), 0)
    assert (stayed.number, stayed.outcome) == (0, Outcome.COMPLETED)


@pytest.mark.parametrize(("names_length", "told"), [(False, None), (True, 7)])
def test_ticket_has_the_maximum_output_length_if_clients_set_it(*, names_length: bool, told: int | None) -> None:
    seen = run(a_scenario([arrival(0, output=7)], callers=CallerBehaviour(sends_max_tokens=names_length)))

    [(arrived, _)] = seen.events(RequestArrived)
    assert arrived.ticket.output_tokens_max == told  # type: ignore[attr-defined]
    assert seen.stories[0].output_tokens == 7


def test_cancelled_request_records_the_engine_time_spent_on_it() -> None:
    slow = replace(SLOW, prefill_token_ps=1_000_000_000)

    seen = run(
        a_scenario(
            [arrival(0, prompt=1500)],
            engines=[engine(0, profile=slow)],
            callers=CallerBehaviour(client_timeout_ns=seconds(1)),
        )
    )

    [left] = seen.stories
    assert (left.outcome, left.output_tokens, left.output_tokens_computed) == (Outcome.CANCELLED, 0, 0)
    # The second of three chunks is running. Its result is discarded.
    assert left.prompt_tokens_computed == 1024
    assert left.engine_ps == pytest.approx(1.034 * 10**12, rel=1e-4)
    assert seen.ending is not None
    assert seen.ending.engines[0].worked_ps > left.engine_ps
    assert [event.ending for event, _ in seen.events(AttemptEnded)] == [AttemptEnding.ABORTED]  # type: ignore[attr-defined]


def test_non_streaming_response_has_its_first_token_when_it_ends() -> None:
    seen = run(a_scenario([arrival(0, output=50)], callers=CallerBehaviour(stream=False)))

    [story] = seen.stories
    assert story.first_token_at == story.ended_at
    assert not seen.events(AttemptsProgressed)
    assert len(seen.events(FirstToken)) == 1


def test_streams_report_progress_and_final_usage() -> None:
    seen = run(a_scenario([arrival(0, output=200)]))

    reports = [report for event, _ in seen.events(AttemptsProgressed) for report in event.attempts]  # type: ignore[attr-defined]
    assert len(reports) == 8
    assert sum(each.tokens for each in reports) <= 200
    [ended] = [event for event, _ in seen.events(AttemptEnded)]
    assert ended.usage.output_tokens == 200  # type: ignore[attr-defined]


def test_class_cap_limits_output_tokens() -> None:
    seen = run(a_scenario([arrival(0, output=200)], caps=Caps(output_tokens=7)))

    assert seen.stories[0].output_tokens == 7


def test_prompt_larger_than_the_context_is_rejected_by_the_engine() -> None:
    seen = run(a_scenario([arrival(0, prompt=5_000)]))

    assert seen.stories[0].outcome is Outcome.ENGINE_REJECTED


def test_client_retries_rejected_requests() -> None:
    # The first request is running, the second is waiting, and the queue is full when the third arrives.
    seen = run(
        a_scenario(
            [arrival(0, output=300), arrival(0, output=1), arrival(0, output=1)],
            engines=[engine(0, places=1)],
            callers=CallerBehaviour(retries=2),
            queue_length_max=1,
        )
    )

    third = next(each for each in seen.stories if each.number == 2)
    assert third.tries > 1
    refused = [each for each in seen.commands(End) if each.outcome is Outcome.QUEUE_FULL]  # type: ignore[attr-defined]
    assert len(refused) == third.tries - (third.outcome is Outcome.COMPLETED)
    assert third.arrived_at == 0


def test_client_patience_includes_all_retries() -> None:
    seen = run(
        a_scenario(
            [arrival(0, output=400), arrival(0, output=400), arrival(0, output=1)],
            engines=[engine(0, places=1)],
            callers=CallerBehaviour(retries=9, client_timeout_ns=seconds(2)),
            queue_length_max=1,
        )
    )

    left = next(each for each in seen.stories if each.number == 2)
    assert (left.outcome, left.ended_at) == (Outcome.CANCELLED, at(2))


def test_crash_breaks_streams_without_an_unready_event() -> None:
    faults = (Crash(ONE, at(0.5), seconds(3)),)
    seen = run(a_scenario([arrival(0, output=200), arrival(10)], engines=[engine(0)], faults=faults))

    broken, later = seen.stories
    assert (broken.outcome, broken.ended_at) == (Outcome.ENGINE_ERROR, at(0.5))
    assert broken.first_token_at is not None
    assert 0 < broken.output_tokens < 200
    assert not seen.events(EndpointNotReady)
    assert [now for _, now in seen.events(EndpointReady)] == [at(0)]
    assert later.outcome is Outcome.COMPLETED
    assert seen.ending is not None
    assert seen.ending.engines[0].up_ns == seen.ending.at - 3 * SECOND


def test_request_without_a_first_token_is_retried_on_another_engine_if_its_engine_crashes() -> None:
    slow = replace(SLOW, prefill_token_ps=1_000_000_000)
    specs = [engine(0, profile=slow), engine(1)]

    seen = run(a_scenario([arrival(0, prompt=900)], engines=specs, faults=(Crash(ONE, at(0.5), seconds(60)),)))

    [story] = seen.stories
    assert (story.outcome, story.attempts, story.tries) == (Outcome.COMPLETED, 2, 1)
    assert [each.endpoint_id for each in seen.commands(Dispatch)] == [ONE, TWO]  # type: ignore[attr-defined]
    # The first engine was still in its first step.
    assert story.prompt_tokens_computed == 900


def test_attempt_on_a_crashed_engine_fails_and_the_request_is_retried() -> None:
    faults = (Crash(ONE, at(0.5), seconds(60)),)

    seen = run(a_scenario([arrival(1)], engines=[engine(0), engine(1)], faults=faults))

    [story] = seen.stories
    assert (story.outcome, story.attempts) == (Outcome.COMPLETED, 2)
    assert [(event.ending, event.detail) for event, _ in seen.events(AttemptEnded)] == [  # type: ignore[attr-defined]
        (AttemptEnding.FAILED, "connection refused"),
        (AttemptEnding.COMPLETED, ""),
    ]


def test_hanging_engine_is_ejected_and_readmitted() -> None:
    health = HealthRules(stall_ns_max=seconds(2), ejection_ns=seconds(5))
    seen = run(
        a_scenario([arrival(0, output=300), arrival(20)], faults=(Hang(ONE, at(1), seconds(10)),), health=health)
    )

    assert seen.stories[0].outcome is Outcome.ENGINE_TIMEOUT
    assert len(seen.commands(Eject)) == 1
    # The first readmission follows the endpoint's start, the second its trial.
    assert len(seen.commands(Readmit)) == 2
    assert seen.stories[1].outcome is Outcome.COMPLETED


def test_attempt_without_a_first_token_is_stopped_at_its_timeout() -> None:
    seen = run(a_scenario([arrival(0)], faults=(Hang(ONE, at(0), seconds(100)),), first_token_ns_max=seconds(3)))

    [story] = seen.stories
    assert (story.outcome, story.attempts) == (Outcome.ENGINE_TIMEOUT, 3)
    # The limit is checked four times per second, and each attempt starts a new wait.
    assert story.ended_at == at(3 * 3.25)


def test_slow_engine_delays_its_requests_and_recovers() -> None:
    usual = run(a_scenario([arrival(0, output=100)])).stories[0].ended_at

    slowed = (
        run(a_scenario([arrival(0, output=100)], faults=(Slowdown(ONE, at(0), seconds(1), 500),))).stories[0].ended_at
    )

    assert slowed == pytest.approx(usual + SECOND / 2, abs=1000)


def test_later_of_two_overlapping_slowdowns_continues_after_the_first_ends() -> None:
    faults = (Slowdown(ONE, at(0), seconds(2), 500), Slowdown(ONE, at(1), seconds(50), 100))
    one = (Slowdown(ONE, at(0), seconds(1), 500), Slowdown(ONE, at(1), seconds(50), 100))

    assert run(a_scenario([arrival(0, output=300)], faults=faults)).stories == (
        run(a_scenario([arrival(0, output=300)], faults=one)).stories
    )


def test_crash_ends_a_slowdown() -> None:
    faults = (
        Slowdown(ONE, at(0), seconds(50), 100),
        Crash(ONE, at(1), seconds(1)),
        Slowdown(ONE, at(3), seconds(100), 500),
    )
    late = (Slowdown(ONE, at(3), seconds(100), 500),)

    crashed = run(a_scenario([arrival(30, output=300)], faults=faults)).stories
    assert crashed == run(a_scenario([arrival(30, output=300)], faults=late)).stories


def test_class_cap_trims_prompts() -> None:
    seen = run(a_scenario([arrival(0, prompt=900)], caps=Caps(prompt_tokens=50, trim_prompt=True)))

    assert seen.stories[0].prompt_tokens_computed == 50


def test_cancelled_non_streaming_request_received_no_tokens() -> None:
    seen = run(
        a_scenario([arrival(0, output=400)], callers=CallerBehaviour(stream=False, client_timeout_ns=seconds(2)))
    )

    [story] = seen.stories
    assert (story.outcome, story.output_tokens) == (Outcome.CANCELLED, 0)
    assert story.output_tokens_computed > 100


@pytest.mark.parametrize("samples", [1, 40, 4_000])
def test_sampling_does_not_change_the_run(samples: int) -> None:
    """Steps of 10 ms and arrivals on the same grid produce many simultaneous events."""
    even = replace(SLOW, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0, attention_ps=0)
    many = [arrival(number // 3 / 100, output=1 + number % 17) for number in range(300)]
    specs = [engine(0, profile=even, places=3), engine(1, profile=even, places=3)]

    assert run(a_scenario(many, engines=specs), samples=samples).log == run(a_scenario(many, engines=specs)).log


def test_request_waits_for_an_engines_cold_start() -> None:
    seen = run(a_scenario([arrival(0)], engines=[engine(0, cold_start_ns=seconds(4.5))]))

    # The engine is probed after 0.5 s and then at doubling intervals. The probe at 7.5 s succeeds.
    assert seen.stories[0].waited_ns == at(7.5)


def test_prompts_with_a_common_prefix_share_cached_blocks() -> None:
    alike = [Arrival(at(when), 1200, 1, arrival(0).service_class, arrival(0).tenant, (7, 8, 9)) for when in (0, 1)]

    first, second = run(a_scenario(alike, engines=[engine(0, profile=replace(TINY, block_tokens=16))])).stories

    assert first.prompt_tokens_computed == 1200
    # All full blocks of 16 tokens are cached, except the part that must be computed for the first token.
    assert second.prompt_tokens_computed == 1200 - 74 * 16
    assert first.ended_at - first.arrived_at > second.ended_at - second.arrived_at


def test_samples_contain_queue_lengths_and_engine_state() -> None:
    many = [arrival(0, output=100) for _ in range(5)] + [arrival(2)]

    seen = run(a_scenario(many, engines=[engine(0, places=2)]), samples=20)

    assert len(seen.samples) >= 20
    assert seen.samples[0].queued == {"interactive": 3, "batch": 0}
    assert (seen.samples[0].endpoints[0].running, seen.samples[0].endpoints[0].waiting) == (2, 0)
    assert seen.samples[0].endpoints[0].kv_used_fraction > 0


def test_decider_with_a_scrape_hook_receives_engine_metrics() -> None:
    told: list[tuple[Instant, int]] = []

    class Looking:
        def __init__(self) -> None:
            scheduler = Scheduler()
            self.handle, self.next_wakeup = scheduler.handle, scheduler.next_wakeup

        def on_scrape(self, endpoint_id: EndpointId, state: EngineState, now: Instant) -> None:
            told.append((now, state.running))

    seen = run(replace(a_scenario([arrival(0.5, output=250)]), decider=Looking))

    assert told[:5] == [(at(0), 0), (at(0.15), 0), (at(0.3), 0), (at(0.45), 0), (at(0.6), 1)]
    assert [now for _, now in seen.events(TimerFired)][:2] == [at(0), at(0.15)]


def test_engine_work_covers_the_time_spent_on_requests() -> None:
    many = [arrival(number / 50, prompt=50 + 37 * (number % 20), output=1 + number % 90) for number in range(400)]
    seen = run(a_scenario(many, engines=[engine(0), engine(1)], callers=CallerBehaviour(client_timeout_ns=seconds(2))))

    assert {each.outcome for each in seen.stories} == {Outcome.COMPLETED, Outcome.CANCELLED}
    assert seen.ending is not None
    worked = sum(each.worked_ps for each in seen.ending.engines)
    spent = sum(each.engine_ps for each in seen.stories)
    assert 0.98 * worked < spent <= worked
