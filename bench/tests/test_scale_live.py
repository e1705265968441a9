"""Are the figures of scale-live what it says they are?"""

from collections.abc import Iterator

from bench.scale_live import BASE_S, TTFT_S, Answered, Plan, Seen, figures_of, missed, recovery_s
from headgate.loadtest.endings import Ending

PLAN = Plan(cold_start_s=20, burst=3, seed=0)


def burst(*, misses_until_s: float, every_s: float = 0.1) -> Iterator[Answered]:
    """A request at every step of the burst; those that were due before this moment of it missed their target."""
    for number in range(int(60 / every_s)):
        at_s = number * every_s
        ttft_s = 2 * TTFT_S if at_s < misses_until_s else TTFT_S / 2
        yield Answered(BASE_S + at_s, ttft_s, Ending.COMPLETED)


def test_recovery_is_from_when_on_99_of_100_are_in_time() -> None:
    found = recovery_s(list(burst(misses_until_s=25)))

    assert found is not None
    assert 24.5 < found < 25


def test_one_miss_in_a_hundred_is_no_relapse_and_two_are() -> None:
    answers = list(burst(misses_until_s=0))
    late = [Answered(BASE_S + 50 + number, None, Ending.REFUSED) for number in range(20)]

    assert recovery_s([*answers, late[0]]) == 0
    relapsed = recovery_s([*answers, *late])
    assert relapsed is None or relapsed > 50


def test_a_burst_that_is_never_mastered_has_no_recovery() -> None:
    assert recovery_s(list(burst(misses_until_s=60))) is None


def test_the_same_seed_gives_the_same_moments_and_the_burst_has_thrice_as_many() -> None:
    moments = list(PLAN.moments())
    calm = sum(each < BASE_S for each in moments) / BASE_S
    busy = sum(BASE_S <= each < PLAN.burst_ends_s for each in moments) / 60

    assert moments == list(PLAN.moments())
    assert 2 < busy / calm < 4


def test_what_is_missed_is_said() -> None:
    before = [Answered(1.0, 0.1, Ending.COMPLETED), Answered(2.0, 0.1, Ending.BROKEN)]
    answers = [*before, *burst(misses_until_s=40)]
    seen = [Seen(1.0, 1, 1), Seen(38.0, 3, 3), Seen(200.0, 3, 3)]

    figures = figures_of(PLAN, answers, seen)

    assert (figures.scaled_up_s, figures.severed, figures.endpoints_last) == (23.0, 1, 3)
    assert [sentence.split(",")[0] for sentence in missed(figures, PLAN)] == [
        "missed: p99 of first tokens is to be in time again within 30 s",
        "missed: 1 answers were severed",
        "missed: nothing of what the burst called for was given back",
    ]
