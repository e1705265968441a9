"""Learning an endpoint's decode and prefill speed from progress reports."""

from random import Random

import pytest

from headgate.core.routing.speed_estimator import (
    ASSUMED_PERCENT_MAX,
    ASSUMED_PERCENT_MIN,
    CONVERGED_EQUATIONS_MIN,
    PERCENT_MAX,
    PERCENT_MIN,
    REPORTS_PER_EQUATION,
    SpeedEstimator,
)

MS = 1_000_000


def taught(
    learned: SpeedEstimator, *, decode: float, prefill: float, reports: int = 400 * REPORTS_PER_EQUATION, seed: int = 1
) -> SpeedEstimator:
    """Adds reports in which decode and prefill take `decode` and `prefill` times the expected time, with 10 % noise."""
    chance = Random(seed)
    for _ in range(reports):
        decode_ns, prefill_ns = chance.randint(50, 200) * MS, chance.choice((0, 0, 30, 90, 150)) * MS
        took = (decode * decode_ns + prefill * prefill_ns) * chance.uniform(0.9, 1.1)
        learned.observe(decode_ns=decode_ns, prefill_ns=prefill_ns, took_ns=round(took))
    return learned


@pytest.mark.parametrize(("decode", "prefill"), [(1.0, 1.0), (1.3, 0.7), (0.5, 2.0), (3.0, 1.0)])
def test_both_factors_are_learned_despite_noise(decode: float, prefill: float) -> None:
    learned = taught(SpeedEstimator(), decode=decode, prefill=prefill)

    assert learned.decode_percent == pytest.approx(100 * decode, rel=0.08)
    assert learned.prefill_percent == pytest.approx(100 * prefill, rel=0.15)


def test_changed_speed_is_learned_again() -> None:
    learned = taught(taught(SpeedEstimator(), decode=1.0, prefill=1.0), decode=2.0, prefill=0.5)

    assert learned.decode_percent == pytest.approx(200, rel=0.08)
    assert learned.prefill_percent == pytest.approx(50, rel=0.2)


def test_prefill_factor_is_unchanged_without_prompts() -> None:
    learned = taught(SpeedEstimator(), decode=1.5, prefill=2.0)
    before = learned.prefill_percent
    for _ in range(2_000 * REPORTS_PER_EQUATION):
        learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=150 * MS)

    assert learned.prefill_percent == pytest.approx(before, abs=6)
    assert learned.decode_percent == pytest.approx(150, abs=2)


@pytest.mark.parametrize(("factor", "bound"), [(1_000, PERCENT_MAX), (0.001, PERCENT_MIN)])
def test_factors_stay_within_bounds(factor: float, bound: int) -> None:
    learned = taught(SpeedEstimator(), decode=factor, prefill=factor)

    assert (learned.decode_percent, learned.prefill_percent) == (bound, bound)


def test_reports_without_decode_time_are_ignored() -> None:
    learned = SpeedEstimator()

    assert not any(learned.observe(decode_ns=0, prefill_ns=50, took_ns=100) for _ in range(3 * REPORTS_PER_EQUATION))
    assert (learned.decode_percent, learned.prefill_percent) == (100, 100)


def test_observe_returns_whether_percentage_changed() -> None:
    slow, right = SpeedEstimator(), SpeedEstimator()

    assert [slow.observe(decode_ns=100, prefill_ns=0, took_ns=300) for _ in range(REPORTS_PER_EQUATION)][-1]
    assert not any(right.observe(decode_ns=100, prefill_ns=0, took_ns=100) for _ in range(REPORTS_PER_EQUATION))


def test_single_stall_does_not_make_engine_look_slow() -> None:
    learned = taught(SpeedEstimator(), decode=1.0, prefill=1.0)
    learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=60_000 * MS)
    taught(learned, decode=1.0, prefill=1.0, reports=REPORTS_PER_EQUATION - 1)

    assert learned.decode_percent <= 125


def test_step_spanning_two_reports_does_not_look_like_slow_decoding() -> None:
    """The prompt is counted in the report in which the step ends, but both reports include part of its time."""
    learned = SpeedEstimator()
    for number in range(200 * REPORTS_PER_EQUATION):
        if number % 2:
            learned.observe(decode_ns=20 * MS, prefill_ns=400 * MS, took_ns=250 * MS)
        else:
            learned.observe(decode_ns=80 * MS, prefill_ns=0, took_ns=250 * MS)

    assert learned.decode_percent == pytest.approx(100, abs=5)
    assert learned.prefill_percent == pytest.approx(100, abs=5)


def test_prompt_spanning_several_reports_is_counted_when_it_is_finished() -> None:
    # Each prompt spans twelve reports and is counted in the last of them.
    learned = SpeedEstimator()
    for _ in range(300):
        for report in range(20):
            done, computing = report == 11, report < 11
            took_ns = (120 if report < 12 else 20) * MS
            learned.observe(
                decode_ns=20 * MS, prefill_ns=1_200 * MS if done else 0, took_ns=took_ns, prefill_pending=computing
            )

    assert learned.decode_percent == pytest.approx(100, abs=5)
    assert learned.prefill_percent == pytest.approx(100, abs=5)


def observe_busy_engine(learned: SpeedEstimator, *, prompt_ms: int, factor: float, late_every: int = 0) -> None:
    """Reports twenty minutes from an engine that starts the next prompt as soon as the previous one is finished.

    Ten streams get a token per step. The share of decode time changes every minute, because otherwise decode and
    prefill time could not be separated.
    """
    chance, streams, decode_ms = Random(1), 10, 20
    size_ms = left_ms = prompt_ms
    now_ms = reported_ms = tokens = prefilled_ms = reports = 0
    while now_ms < 1_200_000:
        chunk = min((50, 400)[now_ms // 60_000 % 2], left_ms)
        now_ms, tokens, left_ms = now_ms + chunk + decode_ms, tokens + 1, left_ms - chunk
        if not left_ms:
            prefilled_ms += size_ms
            size_ms = left_ms = chance.randint(prompt_ms * 7 // 10, prompt_ms * 13 // 10)
        if now_ms - reported_ms >= 250:
            reports += 1
            learned.observe(
                decode_ns=streams * tokens * decode_ms * MS,
                prefill_ns=streams * prefilled_ms * MS,
                took_ns=round(factor * streams * (now_ms - reported_ms) * MS),
                prefill_pending=True,
                late=bool(late_every) and reports % late_every == 0,
            )
            reported_ms, tokens, prefilled_ms = now_ms, 0, 0


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("prompt_ms", [300, 1_000, 2_000, 8_000])
def test_speed_is_learned_for_engine_that_is_always_computing_prompts(prompt_ms: int, factor: float) -> None:
    learned = SpeedEstimator(assumed=True)
    observe_busy_engine(learned, prompt_ms=prompt_ms, factor=factor)

    assert learned.converged
    assert learned.decode_percent == pytest.approx(100 * factor, rel=0.1)
    assert learned.prefill_percent == pytest.approx(100 * factor, rel=0.1)


def test_late_reports_do_not_stop_learning_on_busy_engine() -> None:
    learned = SpeedEstimator(assumed=True)
    observe_busy_engine(learned, prompt_ms=1_000, factor=2.0, late_every=4)

    assert learned.converged
    assert learned.decode_percent == pytest.approx(200, rel=0.1)


def test_tokens_missing_from_late_report_are_counted_in_next_report() -> None:
    learned = SpeedEstimator()
    for number in range(100 * REPORTS_PER_EQUATION):
        match number % 4:
            case 2:
                learned.observe(decode_ns=20 * MS, prefill_ns=0, took_ns=500 * MS, late=True)
            case 3:
                learned.observe(decode_ns=280 * MS, prefill_ns=0, took_ns=100 * MS, late=True)
            case _:
                learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=200 * MS)

    assert learned.decode_percent == pytest.approx(200, abs=5)


def test_nothing_is_learned_if_most_reports_are_late() -> None:
    learned = SpeedEstimator()
    for number in range(100 * REPORTS_PER_EQUATION):
        late = number % 3 != 0
        learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=900 * MS, late=late)

    assert (learned.decode_percent, learned.prefill_percent) == (100, 100)


# Guessed speed


@pytest.mark.parametrize("factor", [0.07, 0.3, 1.0, 5.0, 20.0, 60.0])
def test_speed_is_learned_from_any_guess_within_sixty_equations(factor: float) -> None:
    learned = taught(SpeedEstimator(assumed=True), decode=factor, prefill=factor, reports=60 * REPORTS_PER_EQUATION)

    assert learned.converged
    assert learned.decode_percent == pytest.approx(100 * factor, rel=0.25)


@pytest.mark.parametrize(("factor", "bound"), [(10_000, ASSUMED_PERCENT_MAX), (0.001, ASSUMED_PERCENT_MIN)])
def test_factors_for_guessed_speed_stay_within_wider_bounds(factor: float, bound: int) -> None:
    learned = taught(SpeedEstimator(assumed=True), decode=factor, prefill=factor)

    assert (learned.decode_percent, learned.prefill_percent) == (bound, bound)


def test_engine_faster_than_lower_bound_never_settles() -> None:
    learned = taught(SpeedEstimator(assumed=True), decode=1.0, prefill=1.0)
    assert learned.converged
    taught(learned, decode=0.001, prefill=0.001, reports=200 * REPORTS_PER_EQUATION)
    successor = SpeedEstimator(assumed=True)
    successor.restore(*learned.counters())

    assert not learned.converged
    assert not successor.converged


def test_single_stall_does_not_make_engine_with_guessed_speed_look_slow() -> None:
    learned = taught(SpeedEstimator(assumed=True), decode=1.0, prefill=1.0)
    learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=60_000 * MS)
    taught(learned, decode=1.0, prefill=1.0, reports=REPORTS_PER_EQUATION - 1)

    assert learned.decode_percent <= 125


def test_speed_settles_after_minimum_number_of_equations_if_estimate_is_close() -> None:
    near, far = SpeedEstimator(assumed=True), SpeedEstimator(assumed=True)
    taught(near, decode=1.0, prefill=1.0, reports=(CONVERGED_EQUATIONS_MIN + 2) * REPORTS_PER_EQUATION)
    taught(far, decode=95.0, prefill=95.0, reports=4 * REPORTS_PER_EQUATION)

    assert near.converged
    assert not far.converged
    assert not taught(
        SpeedEstimator(), decode=1.0, prefill=1.0, reports=(CONVERGED_EQUATIONS_MIN - 1) * REPORTS_PER_EQUATION
    ).converged


def test_restore_preserves_settled_state() -> None:
    learned = taught(SpeedEstimator(assumed=True), decode=8.0, prefill=8.0)
    successor, fresh = SpeedEstimator(assumed=True), SpeedEstimator(assumed=True)
    successor.restore(*learned.counters())
    fresh.restore(*SpeedEstimator().counters())

    assert (successor.converged, successor.decode_percent) == (True, learned.decode_percent)
    assert not fresh.converged
