"""A calibration sweep recovers an engine's parameters and stays within its time and the engine's limits."""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from headgate.model.engine_profile import H200_LLAMA_8B, TINY, EngineProfile
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.planning.accuracy import relative_errors
from headgate.planning.bursts import Burst, MeasuredBurst, SweepPhase, SweepResult
from headgate.planning.calibration import PARAMETERS, CalibrationError
from headgate.planning.engine_replay import RunRequest, TokenTimes, replay
from headgate.planning.sweep import SHARES, SweepOptions, sweep

OVERHEAD_NS = Duration(900_000)
SLOW = EngineProfile(
    name="slow",
    step_ps=40_000_000_000,
    prefill_token_ps=400_000_000,
    decode_sequence_ps=3_000_000_000,
    kv_token_ps=2_000_000,
    attention_ps=150_000,
    chunk_tokens=512,
    sequences_max=16,
    kv_blocks=2_048,
    context_tokens=4_096,
)
LARGE = replace(H200_LLAMA_8B, context_tokens=16_384)
TRUE = {
    "slow": (SLOW, 90.0),
    "large": (LARGE, 15.0),
    "asynchronous": (replace(SLOW, async_scheduling=True, chunk_tokens=1_024), 90.0),
}


def measured_by(true: EngineProfile, burst: Burst, *, noise: Random | None = None) -> MeasuredBurst:
    """The burst's responses from an engine with this profile, in virtual time. With noise, responses come late."""

    def late() -> int:
        return 0 if noise is None else round(noise.expovariate(1) * 3 * MILLISECOND)

    times = [
        TokenTimes(Instant(each.first_token_at + late()), Instant(each.last_token_at + 20 * MILLISECOND * bool(noise)))
        for each in replay(true, burst.requests, overhead_ns=OVERHEAD_NS)
    ]
    return MeasuredBurst(burst.requests, tuple(times))


def run_sweep(
    true: EngineProfile, options: SweepOptions, *, noise: Random | None = None
) -> tuple[list[Burst], SweepResult]:
    steps, bursts = sweep(options), list[Burst]()
    burst = next(steps)
    try:
        while True:
            bursts.append(burst)
            burst = steps.send(measured_by(true, burst, noise=noise))
    except StopIteration as end:
        return bursts, end.value


def options_for(true: EngineProfile, seconds: float, *, known: bool) -> SweepOptions:
    unknown = replace(true, **dict.fromkeys(PARAMETERS, 1))
    if not known:
        unknown = replace(unknown, chunk_tokens=2_048, async_scheduling=False)
    return SweepOptions(limits=unknown, seconds=seconds, concurrency_max=16, chunk_known=known, async_known=known)


@cache
def sweep_of(name: str) -> tuple[list[Burst], SweepResult]:
    true, seconds = TRUE[name]
    return run_sweep(true, options_for(true, seconds, known=name != "asynchronous"))


@cache
def noisy_sweep() -> SweepResult:
    return run_sweep(SLOW, options_for(SLOW, 90.0, known=True), noise=Random(4))[1]


def worst_error(result: SweepResult) -> float:
    errors = relative_errors(result.measured_stats, result.predicted_stats)
    return max(abs(each) for each in errors.values())


@pytest.mark.parametrize("name", TRUE)
def test_sweep_recovers_the_profile_and_predicts_an_unseen_load(name: str) -> None:
    true, result = TRUE[name][0], sweep_of(name)[1]

    profile = result.calibration.profile
    fitted = {each: getattr(profile, each) for each in PARAMETERS}
    assert fitted == {each: pytest.approx(getattr(true, each), rel=0.03) for each in PARAMETERS}
    assert (profile.chunk_tokens, profile.async_scheduling) == (true.chunk_tokens, true.async_scheduling)
    assert result.calibration.overhead_ns == pytest.approx(OVERHEAD_NS, rel=0.1)
    # A rounded parameter can move a request to another step.
    assert worst_error(result) < 0.05


def test_bursts_stay_within_the_time_and_the_limits() -> None:
    (true, seconds), (bursts, _) = TRUE["slow"], sweep_of("slow")

    used = Counter[SweepPhase]()
    for burst in bursts:
        used[burst.phase] += measured_by(true, burst).end
        assert max(each.prompt_tokens + each.output_tokens for each in burst.requests) <= true.context_tokens
        assert len(burst.requests) <= 16 or burst.phase in (SweepPhase.MIXED, SweepPhase.UNSEEN)
    assert list(used) == list(SweepPhase)
    used[SweepPhase.UNSEEN] //= 2
    # Until the first fits, durations are only roughly known, and the last responses of a mixed load come after it.
    assert all(used[phase] < 1.25 * share * seconds * SECOND for phase, share in SHARES.items())


def test_phases_take_turns_so_that_a_slow_minute_affects_all_of_them() -> None:
    bursts, _ = sweep_of("slow")

    phases = [burst.phase for burst in bursts]
    assert phases[:7] == [SweepPhase.PROMPTS, *[SweepPhase.PROMPTS, SweepPhase.CONCURRENCY, SweepPhase.CONTEXTS] * 2]
    assert phases[-3:] == [SweepPhase.UNSEEN, SweepPhase.MIXED, SweepPhase.UNSEEN]


def test_unseen_load_is_sent_twice_to_show_how_much_latencies_vary() -> None:
    bursts, result = sweep_of("slow")

    assert bursts[-1] == bursts[-3]
    assert len(result.unseen_requests) == 2 * len(bursts[-1].requests)
    # In virtual time, repeating a load repeats its latencies.
    assert set(result.repeat_errors.values()) == {0.0}


def test_repeat_errors_compare_the_two_unseen_loads() -> None:
    assert 0 < max(abs(each) for each in noisy_sweep().repeat_errors.values()) < 0.1


def test_late_responses_of_a_busy_machine_hardly_change_the_profile() -> None:
    found = noisy_sweep().calibration.profile

    fitted = {each: getattr(found, each) for each in PARAMETERS}
    assert fitted == {each: pytest.approx(getattr(SLOW, each), rel=0.1) for each in PARAMETERS}


def test_short_requests_count_even_if_the_speed_of_the_engine_varies() -> None:
    speeds = Random(7)
    steps = sweep(options_for(SLOW, 90.0, known=True))
    burst = next(steps)
    while True:
        by = speeds.lognormvariate(0, 0.25)
        true = replace(SLOW, **{each: round(getattr(SLOW, each) * by) for each in PARAMETERS})
        try:
            burst = steps.send(measured_by(true, burst))
        except StopIteration as end:
            result: SweepResult = end.value
            break

    short = [RunRequest(Instant(0), 32, 8)]
    [true_times] = replay(SLOW, short, overhead_ns=OVERHEAD_NS)
    [found_times] = replay(result.calibration.profile, short, overhead_ns=result.calibration.overhead_ns)
    assert found_times.first_token_at == pytest.approx(true_times.first_token_at, rel=0.2)
    assert found_times.last_token_at == pytest.approx(true_times.last_token_at, rel=0.2)
    assert result.calibration.overhead_ns < 10 * MILLISECOND


def test_sweep_is_deterministic() -> None:
    assert run_sweep(SLOW, options_for(SLOW, 90.0, known=True)) == sweep_of("slow")


def test_too_little_time_is_reported_with_the_time_needed() -> None:
    with pytest.raises(CalibrationError, match=r"only \d+ requests fit into the 2 s .*; raise --seconds to \d+"):
        run_sweep(SLOW, options_for(SLOW, 10.0, known=True))


def test_engine_that_runs_one_sequence_is_measured_with_single_requests() -> None:
    alone = replace(TINY, sequences_max=1)
    bursts, result = run_sweep(alone, replace(options_for(alone, 30.0, known=True), concurrency_max=8))

    assert {len(each.requests) for each in bursts[:-3]} == {1}
    # Such an engine does not show how a step's time is divided between the step itself and its only sequence.
    assert worst_error(result) < 0.05
