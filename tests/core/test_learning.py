"""Is an endpoint's speed found from what its streams report?"""

from random import Random

import pytest

from headgate.core.routing.learning import (
    ASSUMED_PERCENT_MAX,
    ASSUMED_PERCENT_MIN,
    PERCENT_MAX,
    PERCENT_MIN,
    REPORTS,
    SETTLED_FROM,
    Learned,
)

MS = 1_000_000


def taught(learned: Learned, *, decode: float, prefill: float, reports: int = 400 * REPORTS, seed: int = 1) -> Learned:
    """As if decoding and prompts took so many times what is said, with a tenth of noise."""
    chance = Random(seed)
    for _ in range(reports):
        decode_ns, prefill_ns = chance.randint(50, 200) * MS, chance.choice((0, 0, 30, 90, 150)) * MS
        took = (decode * decode_ns + prefill * prefill_ns) * chance.uniform(0.9, 1.1)
        learned.observe(decode_ns=decode_ns, prefill_ns=prefill_ns, took_ns=round(took))
    return learned


@pytest.mark.parametrize(("decode", "prefill"), [(1.0, 1.0), (1.3, 0.7), (0.5, 2.0), (3.0, 1.0)])
def test_both_factors_are_found_under_noise(decode: float, prefill: float) -> None:
    learned = taught(Learned(), decode=decode, prefill=prefill)

    assert learned.decode_percent == pytest.approx(100 * decode, rel=0.08)
    assert learned.prefill_percent == pytest.approx(100 * prefill, rel=0.15)


def test_what_changes_is_learned_anew() -> None:
    learned = taught(taught(Learned(), decode=1.0, prefill=1.0), decode=2.0, prefill=0.5)

    assert learned.decode_percent == pytest.approx(200, rel=0.08)
    assert learned.prefill_percent == pytest.approx(50, rel=0.2)


def test_without_prompts_their_factor_stays_as_it_was() -> None:
    learned = taught(Learned(), decode=1.5, prefill=2.0)
    before = learned.prefill_percent
    for _ in range(2_000 * REPORTS):
        learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=150 * MS)

    assert learned.prefill_percent == pytest.approx(before, abs=6)
    assert learned.decode_percent == pytest.approx(150, abs=2)


@pytest.mark.parametrize(("factor", "bound"), [(1_000, PERCENT_MAX), (0.001, PERCENT_MIN)])
def test_no_report_drives_a_factor_beyond_its_bounds(factor: float, bound: int) -> None:
    learned = taught(Learned(), decode=factor, prefill=factor)

    assert (learned.decode_percent, learned.prefill_percent) == (bound, bound)


def test_reports_of_nothing_teach_nothing() -> None:
    learned = Learned()

    assert not any(learned.observe(decode_ns=0, prefill_ns=50, took_ns=100) for _ in range(3 * REPORTS))
    assert (learned.decode_percent, learned.prefill_percent) == (100, 100)


def test_a_change_of_a_percent_is_told() -> None:
    slow, right = Learned(), Learned()

    assert [slow.observe(decode_ns=100, prefill_ns=0, took_ns=300) for _ in range(REPORTS)][-1]
    assert not any(right.observe(decode_ns=100, prefill_ns=0, took_ns=100) for _ in range(REPORTS))


def test_an_engine_that_stood_still_once_is_not_taken_for_a_slow_one() -> None:
    learned = taught(Learned(), decode=1.0, prefill=1.0)
    learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=60_000 * MS)
    taught(learned, decode=1.0, prefill=1.0, reports=REPORTS - 1)

    assert learned.decode_percent <= 125


def test_a_step_that_straddles_two_reports_is_not_taken_for_slow_decoding() -> None:
    """Its prompt is told with the report in which it ends, its time with both."""
    learned = Learned()
    for number in range(200 * REPORTS):
        if number % 2:
            learned.observe(decode_ns=20 * MS, prefill_ns=400 * MS, took_ns=250 * MS)
        else:
            learned.observe(decode_ns=80 * MS, prefill_ns=0, took_ns=250 * MS)

    assert learned.decode_percent == pytest.approx(100, abs=5)
    assert learned.prefill_percent == pytest.approx(100, abs=5)


def test_a_prompt_over_several_reports_is_held_against_neither_until_it_is_done() -> None:
    # Each prompt takes as long as twelve reports, and is counted with the last of them.
    learned = Learned()
    for _ in range(300):
        for report in range(20):
            done, computing = report == 11, report < 11
            took_ns = (120 if report < 12 else 20) * MS
            learned.observe(
                decode_ns=20 * MS, prefill_ns=1_200 * MS if done else 0, took_ns=took_ns, half_done=computing
            )

    assert learned.decode_percent == pytest.approx(100, abs=5)
    assert learned.prefill_percent == pytest.approx(100, abs=5)


def observe_busy_engine(learned: Learned, *, prompt_ms: int, factor: float, late_every: int = 0) -> None:
    """Twenty minutes of an engine that begins the next prompt as soon as one is done. Ten streams get a token per step.

    The share of decoding changes every minute; otherwise its time could not be told from that of prompts.
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
                half_done=True,
                late=bool(late_every) and reports % late_every == 0,
            )
            reported_ms, tokens, prefilled_ms = now_ms, 0, 0


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("prompt_ms", [300, 1_000, 2_000, 8_000])
def test_speed_is_learned_at_an_engine_that_always_computes_a_prompt(prompt_ms: int, factor: float) -> None:
    learned = Learned(assumed=True)
    observe_busy_engine(learned, prompt_ms=prompt_ms, factor=factor)

    assert learned.settled
    assert learned.decode_percent == pytest.approx(100 * factor, rel=0.1)
    assert learned.prefill_percent == pytest.approx(100 * factor, rel=0.1)


def test_late_reports_do_not_stop_the_learning_at_a_busy_engine() -> None:
    learned = Learned(assumed=True)
    observe_busy_engine(learned, prompt_ms=1_000, factor=2.0, late_every=4)

    assert learned.settled
    assert learned.decode_percent == pytest.approx(200, rel=0.1)


def test_tokens_that_a_late_report_lacks_are_counted_with_those_of_the_next() -> None:
    learned = Learned()
    for number in range(100 * REPORTS):
        match number % 4:
            case 2:
                learned.observe(decode_ns=20 * MS, prefill_ns=0, took_ns=500 * MS, late=True)
            case 3:
                learned.observe(decode_ns=280 * MS, prefill_ns=0, took_ns=100 * MS, late=True)
            case _:
                learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=200 * MS)

    assert learned.decode_percent == pytest.approx(200, abs=5)


def test_nothing_is_learned_if_most_reports_are_late() -> None:
    learned = Learned()
    for number in range(100 * REPORTS):
        late = number % 3 != 0
        learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=900 * MS, late=late)

    assert (learned.decode_percent, learned.prefill_percent) == (100, 100)


# From a guess


@pytest.mark.parametrize("factor", [0.07, 0.3, 1.0, 5.0, 20.0, 60.0])
def test_speed_is_learned_from_any_guess_within_sixty_equations(factor: float) -> None:
    learned = taught(Learned(assumed=True), decode=factor, prefill=factor, reports=60 * REPORTS)

    assert learned.settled
    assert learned.decode_percent == pytest.approx(100 * factor, rel=0.25)


@pytest.mark.parametrize(("factor", "bound"), [(10_000, ASSUMED_PERCENT_MAX), (0.001, ASSUMED_PERCENT_MIN)])
def test_guess_has_bounds_as_well(factor: float, bound: int) -> None:
    learned = taught(Learned(assumed=True), decode=factor, prefill=factor)

    assert (learned.decode_percent, learned.prefill_percent) == (bound, bound)


def test_engine_that_is_faster_than_the_bound_never_settles() -> None:
    learned = taught(Learned(assumed=True), decode=1.0, prefill=1.0)
    assert learned.settled
    taught(learned, decode=0.001, prefill=0.001, reports=200 * REPORTS)
    successor = Learned(assumed=True)
    successor.restore(*learned.counters())

    assert not learned.settled
    assert not successor.settled


def test_stall_of_a_guessed_engine_is_an_outlier() -> None:
    learned = taught(Learned(assumed=True), decode=1.0, prefill=1.0)
    learned.observe(decode_ns=100 * MS, prefill_ns=0, took_ns=60_000 * MS)
    taught(learned, decode=1.0, prefill=1.0, reports=REPORTS - 1)

    assert learned.decode_percent <= 125


def test_speed_settles_after_so_many_equations_and_not_while_it_is_far_off() -> None:
    near, far = Learned(assumed=True), Learned(assumed=True)
    taught(near, decode=1.0, prefill=1.0, reports=(SETTLED_FROM + 2) * REPORTS)
    taught(far, decode=95.0, prefill=95.0, reports=4 * REPORTS)

    assert near.settled
    assert not far.settled
    assert not taught(Learned(), decode=1.0, prefill=1.0, reports=(SETTLED_FROM - 1) * REPORTS).settled


def test_successor_knows_that_the_speed_is_settled() -> None:
    learned = taught(Learned(assumed=True), decode=8.0, prefill=8.0)
    successor, fresh = Learned(assumed=True), Learned(assumed=True)
    successor.restore(*learned.counters())
    fresh.restore(*Learned().counters())

    assert (successor.settled, successor.decode_percent) == (True, learned.decode_percent)
    assert not fresh.settled
