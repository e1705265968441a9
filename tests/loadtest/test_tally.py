"""Are the figures what one computes by hand?"""

import pytest

from headgate.loadtest.endings import Ending, Story
from headgate.loadtest.tally import CODES_MAX, Tally, Targets, merge

MS = 1_000_000


def a_story(ending: Ending = Ending.COMPLETED, **fields: object) -> Story:
    story = Story(number=0, sender=0, prompt_tokens_asked=10, output_tokens_asked=4, scheduled_ns=100 * MS)
    story.ending, story.end_ns = ending, 100 * MS
    for name, value in fields.items():
        setattr(story, name, value)
    return story


def a_tally(*stories: Story, targets: Targets | None = None) -> Tally:
    tally = Tally()
    for story in stories:
        tally.add(story, targets or Targets())
    return tally


def test_latencies_count_from_the_scheduled_moment() -> None:
    story = a_story(begun_ns=150 * MS, sent_ns=160 * MS, first_token_ns=300 * MS, end_ns=500 * MS, output_tokens=5)

    assert (story.ttft_ns, story.e2e_ns, story.tpot_ns) == (200 * MS, 400 * MS, 50 * MS)


def test_time_per_token_needs_two_tokens() -> None:
    assert a_story(first_token_ns=300 * MS, end_ns=300 * MS, output_tokens=1).tpot_ns is None


def test_endings_codes_and_tokens_are_counted() -> None:
    tally = a_tally(
        a_story(first_token_ns=110 * MS, end_ns=120 * MS, prompt_tokens=7, output_tokens=3, tokens_told=True),
        a_story(Ending.REFUSED, code="slow_down", retries=2, retried_for=("slow_down", "http_500")),
        a_story(Ending.REFUSED, code="slow_down"),
        a_story(Ending.BROKEN, code="no_done", prompt_tokens=7, output_tokens=2),
        a_story(Ending.ABANDONED),
    )

    assert (tally.offered, tally.good, tally.retries) == (5, 1, 2)
    assert tally.endings == {Ending.COMPLETED: 1, Ending.REFUSED: 2, Ending.BROKEN: 1, Ending.ABANDONED: 1}
    assert tally.codes == {Ending.REFUSED: {"slow_down": 2}, Ending.BROKEN: {"no_done": 1}}
    assert tally.retried_for == {"slow_down": 1, "http_500": 1}
    assert (tally.prompt_tokens, tally.output_tokens, tally.tokens_untold) == (14, 5, 0)
    assert (list(tally.ttft_ns), list(tally.tpot_ns), list(tally.e2e_ns)) == ([10 * MS], [5 * MS], [20 * MS])


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        (Targets(), True),
        (Targets(ttft_ns=200 * MS, tpot_ns=50 * MS, e2e_ns=400 * MS), True),
        (Targets(ttft_ns=200 * MS - 1), False),
        (Targets(tpot_ns=50 * MS - 1), False),
        (Targets(e2e_ns=400 * MS - 1), False),
    ],
)
def test_a_good_request_meets_every_target(targets: Targets, good: bool) -> None:
    story = a_story(first_token_ns=300 * MS, end_ns=500 * MS, output_tokens=5)

    assert a_tally(story, targets=targets).good == good


def test_what_was_not_completed_is_never_good() -> None:
    assert a_tally(a_story(Ending.BROKEN), a_story(Ending.REFUSED), a_story(Ending.UNFINISHED)).good == 0


def test_tallies_add_up() -> None:
    one = a_story(first_token_ns=110 * MS, end_ns=120 * MS, output_tokens=3)
    two = a_story(Ending.REFUSED, code="slow_down", retries=1, retried_for=("http_500",))

    assert merge([a_tally(one), a_tally(two)]) == a_tally(one, two)


def test_codes_have_a_bound() -> None:
    tally = a_tally(*(a_story(Ending.REFUSED, code=f"c{number}") for number in range(CODES_MAX + 9)))

    assert len(tally.codes[Ending.REFUSED]) == CODES_MAX + 1
    assert tally.codes[Ending.REFUSED]["other"] == 9
