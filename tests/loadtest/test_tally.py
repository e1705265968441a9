"""Tests for load test statistics against values computed by hand."""

import pytest

from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.loadtest.tally import CODES_MAX, LoadTestTally, LoadTestTargets, merge

MS = 1_000_000


def a_story(ending: LoadTestOutcome = LoadTestOutcome.COMPLETED, **fields: object) -> LoadTestRequest:
    story = LoadTestRequest(
        number=0, sender=0, prompt_tokens_requested=10, output_tokens_requested=4, scheduled_ns=100 * MS
    )
    story.outcome, story.end_ns = ending, 100 * MS
    for name, value in fields.items():
        setattr(story, name, value)
    return story


def a_tally(*stories: LoadTestRequest, targets: LoadTestTargets | None = None) -> LoadTestTally:
    tally = LoadTestTally()
    for story in stories:
        tally.add(story, targets or LoadTestTargets())
    return tally


def test_latencies_are_measured_from_the_scheduled_time() -> None:
    story = a_story(started_ns=150 * MS, sent_ns=160 * MS, first_token_ns=300 * MS, end_ns=500 * MS, output_tokens=5)

    assert (story.ttft_ns, story.e2e_ns, story.tpot_ns) == (200 * MS, 400 * MS, 50 * MS)


def test_time_per_token_requires_two_tokens() -> None:
    assert a_story(first_token_ns=300 * MS, end_ns=300 * MS, output_tokens=1).tpot_ns is None


def test_endings_codes_and_tokens_are_counted() -> None:
    tally = a_tally(
        a_story(first_token_ns=110 * MS, end_ns=120 * MS, prompt_tokens=7, output_tokens=3, usage_reported=True),
        a_story(LoadTestOutcome.HTTP_ERROR, code="slow_down", retries=2, retry_codes=("slow_down", "http_500")),
        a_story(LoadTestOutcome.HTTP_ERROR, code="slow_down"),
        a_story(LoadTestOutcome.INTERRUPTED, code="no_done", prompt_tokens=7, output_tokens=2),
        a_story(LoadTestOutcome.ABANDONED),
    )

    assert (tally.offered, tally.good, tally.retries) == (5, 1, 2)
    assert tally.outcomes == {
        LoadTestOutcome.COMPLETED: 1,
        LoadTestOutcome.HTTP_ERROR: 2,
        LoadTestOutcome.INTERRUPTED: 1,
        LoadTestOutcome.ABANDONED: 1,
    }
    assert tally.codes == {LoadTestOutcome.HTTP_ERROR: {"slow_down": 2}, LoadTestOutcome.INTERRUPTED: {"no_done": 1}}
    assert tally.retried_for == {"slow_down": 1, "http_500": 1}
    assert (tally.prompt_tokens, tally.output_tokens, tally.without_usage) == (14, 5, 0)
    assert (list(tally.ttft_ns), list(tally.tpot_ns), list(tally.e2e_ns)) == ([10 * MS], [5 * MS], [20 * MS])


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        (LoadTestTargets(), True),
        (LoadTestTargets(ttft_ns=200 * MS, tpot_ns=50 * MS, e2e_ns=400 * MS), True),
        (LoadTestTargets(ttft_ns=200 * MS - 1), False),
        (LoadTestTargets(tpot_ns=50 * MS - 1), False),
        (LoadTestTargets(e2e_ns=400 * MS - 1), False),
    ],
)
def test_request_is_good_if_it_meets_every_target(targets: LoadTestTargets, good: bool) -> None:
    story = a_story(first_token_ns=300 * MS, end_ns=500 * MS, output_tokens=5)

    assert a_tally(story, targets=targets).good == good


def test_incomplete_request_is_never_good() -> None:
    assert (
        a_tally(
            a_story(LoadTestOutcome.INTERRUPTED),
            a_story(LoadTestOutcome.HTTP_ERROR),
            a_story(LoadTestOutcome.UNFINISHED),
        ).good
        == 0
    )


def test_merged_tallies_equal_a_single_tally() -> None:
    one = a_story(first_token_ns=110 * MS, end_ns=120 * MS, output_tokens=3)
    two = a_story(LoadTestOutcome.HTTP_ERROR, code="slow_down", retries=1, retry_codes=("http_500",))

    assert merge([a_tally(one), a_tally(two)]) == a_tally(one, two)


def test_codes_beyond_the_limit_are_counted_as_other() -> None:
    tally = a_tally(*(a_story(LoadTestOutcome.HTTP_ERROR, code=f"c{number}") for number in range(CODES_MAX + 9)))

    assert len(tally.codes[LoadTestOutcome.HTTP_ERROR]) == CODES_MAX + 1
    assert tally.codes[LoadTestOutcome.HTTP_ERROR]["other"] == 9
