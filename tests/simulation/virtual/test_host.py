"""Does the virtual host bring the scheduler what a live gateway would?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, Eject, End, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointReadied,
    EndpointUnreadied,
    FirstToken,
    Progressed,
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
from headgate.simulation.engine.sequence import EngineRequest, Finished
from headgate.simulation.engine.state import EngineState
from headgate.simulation.virtual.scenario import Callers, Crash, Hang, Slow
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import SLOW, a_scenario, arrival, at, engine, run, seconds

ONE, TWO = EndpointId("main/0"), EndpointId("main/1")


def test_a_request_takes_as_long_as_its_engine_takes() -> None:
    alone = SimulatedEngine(SLOW)
    alone.add(EngineRequest(RequestId("r"), 700, 20), at(1))
    [finished] = [each for each in alone.advance(at(100)) if isinstance(each, Finished)]

    seen = run(a_scenario([arrival(1, prompt=700, output=20)]))

    [story] = seen.stories
    assert (story.outcome, story.tries, story.attempts, story.waited_ns) == (Outcome.COMPLETED, 1, 1, 0)
    assert (story.first_token_at, story.ended_at) == (finished.first_token_at, finished.at)
    assert (story.prompt_tokens_computed, story.output_tokens, story.output_tokens_computed) == (700, 20, 20)
    assert story.engine_ps == finished.spent.worked_ps
    assert seen.ending is not None
    assert seen.ending.engines[0].worked_ps == story.engine_ps


def test_what_has_no_place_waits_and_its_wait_is_told() -> None:
    seen = run(a_scenario([arrival(0), arrival(0)], engines=[engine(0, places=1)]))

    first, second = seen.stories
    assert second.waited_ns == first.ended_at
    assert second.first_token_at is not None
    assert second.first_token_at > first.ended_at


def test_a_request_that_arrives_as_another_ends_is_in_the_next_step() -> None:
    alone = run(a_scenario([arrival(0, output=1)])).stories[0]

    seen = run(a_scenario([arrival(0, output=1), arrival(alone.ended_at / SECOND, output=1)]))

    assert seen.stories[1].ended_at == 2 * alone.ended_at


def test_a_caller_whose_patience_ends_before_the_first_token_leaves_and_frees_the_engine() -> None:
    waits = [arrival(0, output=400), arrival(0.1, output=5)]

    seen = run(a_scenario(waits, engines=[engine(0, places=1)], callers=Callers(leave_ns=seconds(1))))

    left, stayed = seen.stories
    assert (left.number, left.outcome, left.ended_at, left.attempts) == (1, Outcome.CANCELLED, at(1.1), 0)
    assert (stayed.number, stayed.outcome) == (0, Outcome.COMPLETED)


@pytest.mark.parametrize(("names_length", "told"), [(False, None), (True, 7)])
def test_a_gateway_is_told_how_long_an_answer_may_be_where_callers_say_it(
    *, names_length: bool, told: int | None
) -> None:
    seen = run(a_scenario([arrival(0, output=7)], callers=Callers(names_length=names_length)))

    [(arrived, _)] = seen.events(RequestArrived)
    assert arrived.ticket.output_tokens_max == told  # type: ignore[attr-defined]
    assert seen.stories[0].output_tokens == 7


def test_who_leaves_while_an_engine_computes_is_told_what_was_spent_on_it() -> None:
    slow = replace(SLOW, prefill_token_ps=1_000_000_000)

    seen = run(
        a_scenario([arrival(0, prompt=1500)], engines=[engine(0, profile=slow)], callers=Callers(leave_ns=seconds(1)))
    )

    [left] = seen.stories
    assert (left.outcome, left.output_tokens, left.output_tokens_computed) == (Outcome.CANCELLED, 0, 0)
    # The second of three chunks is under way, and will be computed for nothing.
    assert left.prompt_tokens_computed == 1024
    assert left.engine_ps == pytest.approx(1.034 * 10**12, rel=1e-4)
    assert seen.ending is not None
    assert seen.ending.engines[0].worked_ps > left.engine_ps
    assert [event.ending for event, _ in seen.events(AttemptEnded)] == [AttemptEnding.ABORTED]  # type: ignore[attr-defined]


def test_a_whole_answer_has_its_first_token_with_its_last() -> None:
    seen = run(a_scenario([arrival(0, output=50)], callers=Callers(stream=False)))

    [story] = seen.stories
    assert story.first_token_at == story.ended_at
    assert not seen.events(Progressed)
    assert len(seen.events(FirstToken)) == 1


def test_streams_tell_their_progress_and_then_their_end() -> None:
    seen = run(a_scenario([arrival(0, output=200)]))

    reports = [report for event, _ in seen.events(Progressed) for report in event.attempts]  # type: ignore[attr-defined]
    assert len(reports) == 8
    assert sum(each.tokens for each in reports) <= 200
    [ended] = [event for event, _ in seen.events(AttemptEnded)]
    assert ended.usage.output_tokens == 200  # type: ignore[attr-defined]


def test_a_class_caps_what_engines_generate() -> None:
    seen = run(a_scenario([arrival(0, output=200)], caps=Caps(output_tokens=7)))

    assert seen.stories[0].output_tokens == 7


def test_what_no_engine_can_hold_is_refused_by_the_engine() -> None:
    seen = run(a_scenario([arrival(0, prompt=5_000)]))

    assert seen.stories[0].outcome is Outcome.ENGINE_REFUSED


def test_a_caller_tries_again_as_the_official_client_does() -> None:
    # One runs, one waits, the third finds no place in the queue.
    seen = run(
        a_scenario(
            [arrival(0, output=300), arrival(0, output=1), arrival(0, output=1)],
            engines=[engine(0, places=1)],
            callers=Callers(retries=2),
            queue_length_max=1,
        )
    )

    third = next(each for each in seen.stories if each.number == 2)
    assert third.tries > 1
    refused = [each for each in seen.commands(End) if each.outcome is Outcome.QUEUE_FULL]  # type: ignore[attr-defined]
    assert len(refused) == third.tries - (third.outcome is Outcome.COMPLETED)
    assert third.arrived_at == 0


def test_patience_counts_over_all_tries() -> None:
    seen = run(
        a_scenario(
            [arrival(0, output=400), arrival(0, output=400), arrival(0, output=1)],
            engines=[engine(0, places=1)],
            callers=Callers(retries=9, leave_ns=seconds(2)),
            queue_length_max=1,
        )
    )

    left = next(each for each in seen.stories if each.number == 2)
    assert (left.outcome, left.ended_at) == (Outcome.CANCELLED, at(2))


def test_an_engine_that_crashes_breaks_its_streams_and_nobody_says_that_it_is_gone() -> None:
    faults = (Crash(ONE, at(0.5), seconds(3)),)
    seen = run(a_scenario([arrival(0, output=200), arrival(10)], engines=[engine(0)], faults=faults))

    broken, later = seen.stories
    assert (broken.outcome, broken.ended_at) == (Outcome.ENGINE_FAILED, at(0.5))
    assert broken.first_token_at is not None
    assert 0 < broken.output_tokens < 200
    assert not seen.events(EndpointUnreadied)
    assert [now for _, now in seen.events(EndpointReadied)] == [at(0)]
    assert later.outcome is Outcome.COMPLETED
    assert seen.ending is not None
    assert seen.ending.engines[0].up_ns == seen.ending.at - 3 * SECOND


def test_what_had_no_first_token_when_its_engine_crashed_goes_to_another() -> None:
    slow = replace(SLOW, prefill_token_ps=1_000_000_000)
    specs = [engine(0, profile=slow), engine(1)]

    seen = run(a_scenario([arrival(0, prompt=900)], engines=specs, faults=(Crash(ONE, at(0.5), seconds(60)),)))

    [story] = seen.stories
    assert (story.outcome, story.attempts, story.tries) == (Outcome.COMPLETED, 2, 1)
    assert [each.endpoint_id for each in seen.commands(Dispatch)] == [ONE, TWO]  # type: ignore[attr-defined]
    # The first engine was still in its first step.
    assert story.prompt_tokens_computed == 900


def test_attempts_at_an_engine_that_is_gone_fail_and_eject_it() -> None:
    faults = (Crash(ONE, at(0.5), seconds(60)),)

    seen = run(a_scenario([arrival(1)], engines=[engine(0), engine(1)], faults=faults))

    [story] = seen.stories
    assert (story.outcome, story.attempts) == (Outcome.COMPLETED, 2)
    assert [(event.ending, event.detail) for event, _ in seen.events(AttemptEnded)] == [  # type: ignore[attr-defined]
        (AttemptEnding.FAILED, "connection refused"),
        (AttemptEnding.COMPLETED, ""),
    ]


def test_a_hanging_engine_is_ejected_for_its_silence_and_comes_back() -> None:
    health = HealthRules(stall_ns_max=seconds(2), eject_ns=seconds(5))
    seen = run(
        a_scenario([arrival(0, output=300), arrival(20)], faults=(Hang(ONE, at(1), seconds(10)),), health=health)
    )

    assert seen.stories[0].outcome is Outcome.ENGINE_SILENT
    assert len(seen.commands(Eject)) == 1
    # Once for its start, once for its trial.
    assert len(seen.commands(Readmit)) == 2
    assert seen.stories[1].outcome is Outcome.COMPLETED


def test_an_attempt_that_never_begins_is_stopped_at_its_limit() -> None:
    seen = run(a_scenario([arrival(0)], faults=(Hang(ONE, at(0), seconds(100)),), first_token_ns_max=seconds(3)))

    [story] = seen.stories
    assert (story.outcome, story.attempts) == (Outcome.ENGINE_SILENT, 3)
    # The limit is looked at four times a second, and each attempt waits anew.
    assert story.ended_at == at(3 * 3.25)


def test_a_slow_engine_takes_its_time_and_recovers() -> None:
    usual = run(a_scenario([arrival(0, output=100)])).stories[0].ended_at

    slowed = run(a_scenario([arrival(0, output=100)], faults=(Slow(ONE, at(0), seconds(1), 500),))).stories[0].ended_at

    assert slowed == pytest.approx(usual + SECOND / 2, abs=1000)


def test_the_later_of_two_slow_stretches_goes_on_when_the_first_ends() -> None:
    faults = (Slow(ONE, at(0), seconds(2), 500), Slow(ONE, at(1), seconds(50), 100))
    one = (Slow(ONE, at(0), seconds(1), 500), Slow(ONE, at(1), seconds(50), 100))

    assert run(a_scenario([arrival(0, output=300)], faults=faults)).stories == (
        run(a_scenario([arrival(0, output=300)], faults=one)).stories
    )


def test_a_new_engine_is_not_as_slow_as_the_one_that_crashed() -> None:
    faults = (Slow(ONE, at(0), seconds(50), 100), Crash(ONE, at(1), seconds(1)), Slow(ONE, at(3), seconds(100), 500))
    late = (Slow(ONE, at(3), seconds(100), 500),)

    crashed = run(a_scenario([arrival(30, output=300)], faults=faults)).stories
    assert crashed == run(a_scenario([arrival(30, output=300)], faults=late)).stories


def test_a_class_may_shorten_prompts() -> None:
    seen = run(a_scenario([arrival(0, prompt=900)], caps=Caps(prompt_tokens=50, trims_prompt=True)))

    assert seen.stories[0].prompt_tokens_computed == 50


def test_who_leaves_before_a_whole_answer_got_nothing() -> None:
    seen = run(a_scenario([arrival(0, output=400)], callers=Callers(stream=False, leave_ns=seconds(2))))

    [story] = seen.stories
    assert (story.outcome, story.output_tokens) == (Outcome.CANCELLED, 0)
    assert story.output_tokens_computed > 100


@pytest.mark.parametrize("samples", [1, 40, 4_000])
def test_looking_changes_nothing(samples: int) -> None:
    """Steps of ten milliseconds and arrivals on the same grid: much happens at one instant."""
    even = replace(SLOW, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0, attention_ps=0)
    many = [arrival(number // 3 / 100, output=1 + number % 17) for number in range(300)]
    specs = [engine(0, profile=even, places=3), engine(1, profile=even, places=3)]

    assert run(a_scenario(many, engines=specs), samples=samples).log == run(a_scenario(many, engines=specs)).log


def test_an_engine_that_starts_cold_is_waited_for() -> None:
    seen = run(a_scenario([arrival(0)], engines=[engine(0, cold_start_ns=seconds(4.5))]))

    # It is looked at after half a second, and each time twice as much later: the one at 7.5 s finds it.
    assert seen.stories[0].waited_ns == at(7.5)


def test_prompts_that_begin_alike_share_what_an_engine_has_computed() -> None:
    alike = [Arrival(at(when), 1200, 1, arrival(0).service_class, arrival(0).tenant, (7, 8, 9)) for when in (0, 1)]

    first, second = run(a_scenario(alike, engines=[engine(0, profile=replace(TINY, block_tokens=16))])).stories

    assert first.prompt_tokens_computed == 1200
    # All full blocks of 16 but what must be computed for the first token.
    assert second.prompt_tokens_computed == 1200 - 74 * 16
    assert first.ended_at - first.arrived_at > second.ended_at - second.arrived_at


def test_samples_show_who_waits_and_what_engines_hold() -> None:
    many = [arrival(0, output=100) for _ in range(5)] + [arrival(2)]

    seen = run(a_scenario(many, engines=[engine(0, places=2)]), samples=20)

    assert len(seen.samples) >= 20
    assert seen.samples[0].queued == {"interactive": 3, "batch": 0}
    assert (seen.samples[0].endpoints[0].running, seen.samples[0].endpoints[0].waiting) == (2, 0)
    assert seen.samples[0].endpoints[0].kv_used_fraction > 0


def test_a_decider_that_wants_to_is_told_what_engines_say_of_themselves() -> None:
    told: list[tuple[Instant, int]] = []

    class Looking(Scheduler):
        def scraped(self, endpoint_id: EndpointId, state: EngineState, now: Instant) -> None:
            told.append((now, state.running))

    seen = run(replace(a_scenario([arrival(0.5, output=250)]), decider=Looking))

    assert told[:5] == [(at(0), 0), (at(0.15), 0), (at(0.3), 0), (at(0.45), 0), (at(0.6), 1)]
    assert [now for _, now in seen.events(TimerFired)][:2] == [at(0), at(0.15)]


def test_engines_account_for_all_that_was_spent_on_requests() -> None:
    many = [arrival(number / 50, prompt=50 + 37 * (number % 20), output=1 + number % 90) for number in range(400)]
    seen = run(a_scenario(many, engines=[engine(0), engine(1)], callers=Callers(leave_ns=seconds(2))))

    assert {each.outcome for each in seen.stories} == {Outcome.COMPLETED, Outcome.CANCELLED}
    assert seen.ending is not None
    worked = sum(each.worked_ps for each in seen.ending.engines)
    spent = sum(each.engine_ps for each in seen.stories)
    assert 0.98 * worked < spent <= worked
