"""`classes.NAME.e2e`: targets for complete responses."""

import pytest

from headgate.config.effective import effective_settings
from headgate.config.summary import summary_lines
from headgate.model.units import MILLISECOND, SECOND, ClassName
from tests.config.builders import problems_of, settings_of, small_with_classes, warnings_of


def test_target_is_parsed_and_shown() -> None:
    settings = settings_of(small_with_classes("ranking: {priority_band: 0, e2e: 300ms}"))

    assert settings.policy.classes[0].e2e_ns == 300 * MILLISECOND
    assert any(line.startswith("class ranking") and ", e2e 300ms" in line for line in summary_lines(settings))
    assert effective_settings(settings)["classes.ranking.e2e"].text == "300ms"


@pytest.mark.parametrize("setting", ["", ", e2e: unlimited"])
def test_class_has_no_target_by_default(setting: str) -> None:
    settings = settings_of(small_with_classes(f"ranking: {{priority_band: 0{setting}}}"))

    assert settings.policy.classes[0].e2e_ns is None
    assert effective_settings(settings)["classes.ranking.e2e"].text == "unlimited"


def test_batch_wait_is_limited_by_the_stricter_target() -> None:
    classes = ("a: {priority_band: 0, ttft: 1s, e2e: 2s}", "b: {priority_band: 0, e2e: 2s}", "c: {priority_band: 0}")

    assert settings_of(small_with_classes(*classes)).latency_targets_ns == {"a": SECOND, "b": 2 * SECOND}


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (
            "ttft: 2s, e2e: 1s",
            "9: classes.ranking.ttft: 2s is longer than e2e 1s and has no effect; lower ttft, or raise e2e",
        ),
        (
            "attempt_timeout: 1s, e2e: 2s",
            "9: classes.ranking.e2e: 2s is longer than attempt_timeout 1s, after which attempts are aborted; lower e2e",
        ),
    ],
)
def test_target_that_contradicts_another_setting_causes_a_warning(targets: str, said: str) -> None:
    assert warnings_of(small_with_classes(f"ranking: {{priority_band: 0, {targets}}}")) == [said]


def test_objective_for_the_duration_uses_the_target() -> None:
    text = "ranking: {{priority_band: 0, e2e: 300ms{}}}"
    ranking = ClassName("ranking")

    found = settings_of(small_with_classes(text.format(", objectives: {duration_percent: 95}"))).objectives[ranking]
    assert (found.duration_ns, found.duration_ppm) == (300 * MILLISECOND, 950_000)
    counted = settings_of(small_with_classes(text.format(""))).objectives[ranking]
    assert (counted.duration_ns, counted.duration_ppm) == (300 * MILLISECOND, None)
    own = settings_of(small_with_classes(text.format(", objectives: {duration: 1s, duration_percent: 95}")))
    assert own.objectives[ranking].duration_ns == SECOND


def test_objective_for_the_duration_needs_a_limit_without_a_target() -> None:
    classes = small_with_classes("ranking: {priority_band: 0, objectives: {duration_percent: 95}}")

    assert problems_of(classes) == [
        "9: classes.ranking.objectives: needs both duration and duration_percent, or neither"
    ]
