"""Tests for the scoring, incidents and traffic of `incidents_live`."""

from random import Random

from bench.incidents_live.healthy import HEALTHY
from bench.incidents_live.incidents import INCIDENTS
from bench.incidents_live.score import Sample, Score, figures_of, misses_thresholds, score_run
from bench.incidents_live.traffic import Callers, body_of
from headgate.model.verdict import Incident


def samples(told: str, first_s: int = -2) -> list[Sample]:
    """One sample per second for each letter: h is healthy, d is engine_down, o is overload, - is no response."""
    names = {"h": "healthy", "d": "engine_down", "o": "overload", "-": "no answer"}
    return [Sample(first_s + number, names[each], "") for number, each in enumerate(told)]


def judged(told: str, *, ended_s: float = 6.0) -> Score:
    return score_run("x", ("engine_down",), samples(told), ended_s=ended_s)


def test_judge_counts_no_wrong_seconds_if_all_verdicts_are_correct() -> None:
    one = judged("hhhhddddddhh")

    assert (one.seconds, one.first_right_s, one.wrong_s, one.healthy_s) == (6, 2, 0, 0)
    assert (one.cleared_s, one.alarms) == (1, 0)


def test_judge_counts_healthy_and_wrong_seconds() -> None:
    one = judged("hhodhh-dhhhh")

    assert (one.first_right_s, one.wrong_s, one.healthy_s, one.cleared_s) == (1, 1, 2, 0)
    assert one.told == ("overload", "engine_down", "healthy", "no answer")


def test_judge_returns_none_for_events_that_never_happen() -> None:
    assert judged("hhddddddddd").cleared_s is None
    assert judged("hhhhhhhhhh").first_right_s is None


def test_judge_counts_each_false_alarm_once() -> None:
    assert judged("odhddddd").alarms == 1
    healthy = score_run("healthy", (), samples("hoohdh"), ended_s=0)
    assert (healthy.alarms, healthy.told, healthy.healthy_run_s) == (2, ("overload", "engine_down"), 5)


def test_figures_use_full_time_for_events_that_never_happen() -> None:
    figures = figures_of([judged("hhddddddhh"), judged("hhhhhhhhdd")], 45.0)

    assert (figures["incidents"], figures["first_right_s_worst"], figures["cleared_s_worst"]) == (2, 6.0, 45.0)
    assert misses_thresholds(figures)
    assert not misses_thresholds(figures_of([judged("hhddddddhh")], 45.0))
    assert figures_of([], 45.0)["incidents"] == 0


def test_figures_count_false_alarms_per_healthy_shape() -> None:
    runs = [
        score_run("healthy-steady", (), samples("h" * 61), ended_s=0),
        score_run("healthy-bursts", (), samples("hoohdh"), ended_s=0),
        judged("hhddddddhh"),
    ]
    figures = figures_of(runs, 45.0)

    assert figures["false_alarms_by_shape"] == {"healthy-steady": 0, "healthy-bursts": 2}
    assert figures["healthy_minutes"] == 1.1
    assert misses_thresholds(figures)


def test_incidents_expect_existing_verdicts() -> None:
    known = {each.value for each in Incident}

    assert all(each.right and set(each.right) <= known for each in INCIDENTS.values())
    assert not any(each.right for each in HEALTHY.values())


def test_request_body_uses_callers_lengths() -> None:
    callers, chance = Callers("", 1.0, prompt_tokens=100, output_tokens=20), Random(0)
    plain = body_of(callers, chance)
    callers.spread, callers.stream, callers.shared_tokens = 0.8, False, 50
    mixed = [body_of(callers, chance) for _ in range(50)]
    callers.path = "/v1/embeddings"

    assert (len(plain["messages"][0]["content"]), plain["max_tokens"], plain["stream"]) == (400, 20, True)
    assert len({each["max_tokens"] for each in mixed}) > 10
    assert all(each["messages"][0]["content"].startswith("y" * 200) and not each["stream"] for each in mixed)
    assert set(body_of(callers, chance)) == {"model", "input"}
