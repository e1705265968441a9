"""Tracing, records, stage budgets and objectives."""

import pytest

from headgate.config.summary import summary_data, summary_lines
from headgate.model.money import NanoUsd
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions
from tests.config.builders import problems_of, settings_of, small_with, small_with_classes, warnings_of

CELL = "cell: {store: 'redis://cache', member_count: 2}"


def tracing_of(text: str) -> TracingOptions:
    found = settings_of(small_with(f"tracing: {text}"), {"KEY": "geheim"}).tracing
    assert found is not None
    return found


def test_tracing_and_records_are_off_by_default() -> None:
    settings = settings_of(small_with())

    assert (settings.tracing, settings.records, settings.stage_budgets, settings.objectives) == (None, None, {}, {})


def test_tracing_has_defaults() -> None:
    assert tracing_of("{endpoint: 'http://collector:4318'}") == TracingOptions(
        endpoint="http://collector:4318/v1/traces",
        headers={},
        sample_ppm=100_000,
        slowest_ppm=10_000,
        traces_per_second_max=200,
        semantic_conventions="gen_ai",
    )


@pytest.mark.parametrize(
    ("written", "posted_to"),
    [
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c", "https://c/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_collector_url_gets_the_default_path(written: str, posted_to: str) -> None:
    assert tracing_of(f"{{endpoint: '{written}'}}").endpoint == posted_to


@pytest.mark.parametrize(
    ("tracing", "said"),
    [
        ("{}", "missing; "),
        ("{endpoint: 'geheim:4318'}", "is not a valid collector URL; write it as http://HOST:4318"),
        ("{endpoint: 'ftp://geheim'}", "is not a valid collector URL"),
        ("{endpoint: 'http://'}", "is not a valid collector URL"),
        ("{endpoint: 'http://[geheim'}", "is not a valid collector URL"),
        ("{endpoint: 'http://c:geheim'}", "is not a valid collector URL"),
        ("{endpoint: 'http://c?geheim'}", "is not a valid collector URL"),
        ("{endpoint: 'http://c/ge heim'}", "is not a valid collector URL"),
        ("{endpoint: 'http://u:geheim@c'}", "has credentials; use tracing.headers instead"),
        ("{endpoint: 'http://c', headers: {'a b': geheim}}", "has an invalid header; use letters, digits and -"),
        ("{endpoint: 'http://c', headers: {a: \"ge\\nheim\"}}", "has an invalid header"),
        ("{endpoint: 'http://c', headers: {a: gehéim}}", "has an invalid header"),
        ("{endpoint: 'http://c', semantic_conventions: genai}", '"genai" is not a valid value; did you mean "gen_ai"?'),
        (
            "{endpoint: 'http://c', semantic_conventions: x}",
            '"x" is not a valid value; available: gen_ai, gen_ai_1_36, plain',
        ),
        ("{endpoint: 'http://c', sample_percent: 101}", "sample_percent"),
    ],
)
def test_invalid_tracing_is_reported_without_secrets(tracing: str, said: str) -> None:
    [problem] = problems_of(small_with(f"tracing: {tracing}"))

    assert said in problem
    assert "heim" not in problem


def test_collector_headers_are_treated_as_secrets() -> None:
    text = small_with("tracing: {endpoint: 'http://c/pfad', headers: {authorization: 'Bearer ${KEY}'}}")
    one, other = settings_of(text, {"KEY": "geheim"}), settings_of(text, {"KEY": "anders"})

    assert one.tracing is not None
    assert one.tracing.headers == {"authorization": "Bearer geheim"}
    assert one.hash != other.hash
    told = [repr(one), *summary_lines(one), str(summary_data(one))]
    assert not [each for each in told if "geheim" in each]
    assert not [each for each in told[1:] if "pfad" in each]


def test_records_have_defaults() -> None:
    settings = settings_of(small_with("records: {directory: /var/lib/headgate/records}"))

    assert settings.records == RecordsOptions("/var/lib/headgate/records", Duration(24 * 3_600 * SECOND), 1 << 30)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ("{}", "missing; "),
        ("{directory: records}", "must be an absolute path; start it with /"),
        ("{directory: /r, bytes_max: 1MiB}", "bytes_max"),
        ("{directory: /r, retention: 0s}", "retention"),
    ],
)
def test_invalid_records_setting_is_reported(records: str, said: str) -> None:
    [problem] = problems_of(small_with(f"records: {records}"))

    assert said in problem


def test_only_configured_stages_have_budgets() -> None:
    settings = settings_of(small_with_classes("interactive: {stage_budget: {queue: 200ms, prefill: 1s}}", "long: {}"))

    assert settings.stage_budgets == {
        "interactive": {Stage.QUEUE: 200 * MILLISECOND, Stage.PREFILL: SECOND},
    }


def test_stage_budgets_above_ttft_cause_a_warning() -> None:
    def warned(*stages: str) -> list[str]:
        return warnings_of(small_with_classes(f"interactive: {{ttft: 1s, stage_budget: {{{', '.join(stages)}}}}}"))

    allowed = "the stages before the first token add up to 1100ms, but ttft is 1s"
    assert warned("queue: 500ms", "prefill: 600ms", "decode: 1s") == [
        f"9: classes.interactive.stage_budget: {allowed}; shorten some, or raise ttft"
    ]
    assert warned("queue: 500ms", "prefill: 500ms", "decode: 9s") == []
    assert warnings_of(small_with_classes("interactive: {ttft: unlimited, stage_budget: {prefill: 9h}}")) == []


def test_objectives_are_parsed() -> None:
    settings = settings_of(
        small_with_classes(
            "interactive: {ttft: 1s, objectives: {ttft_percent: 99.5, duration: 30s, duration_percent: 99, "
            "availability_percent: 99.9, cost_per_1k_tokens: 0.002}}",
            "long: {}",
        )
    )

    assert settings.objectives == {
        "interactive": Objectives(995_000, Duration(30 * SECOND), 990_000, 999_000, NanoUsd(2_000_000))
    }


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        ("{ttft_percent: 99}, ttft: unlimited", "requires a ttft target; set the class's ttft"),
        ("{duration: 1s}", "needs both duration and duration_percent, or neither"),
        ("{duration_percent: 99}", "needs both duration and duration_percent"),
        ("{availability_percent: 100}", "availability_percent"),
    ],
)
def test_invalid_objectives_are_reported(objectives: str, said: str) -> None:
    [problem] = problems_of(small_with_classes(f"interactive: {{objectives: {objectives}}}"))

    assert said in problem


def test_observability_settings_change_the_hash() -> None:
    others = [
        small_with(),
        small_with("tracing: {endpoint: 'http://c'}"),
        small_with("tracing: {endpoint: 'http://d'}"),
        small_with("tracing: {endpoint: 'http://c', sample_percent: 1}"),
        small_with("tracing: {endpoint: 'http://c', headers: {a: b}}"),
        small_with("records: {directory: /a}"),
        small_with("records: {directory: /b}"),
        small_with("records: {directory: /a, retention: 1h}"),
        small_with_classes("interactive: {stage_budget: {queue: 1s}}", "long: {}", "batch: {}"),
        small_with_classes("interactive: {objectives: {availability_percent: 99}}", "long: {}", "batch: {}"),
    ]

    assert len({settings_of(each).hash for each in others}) == len(others)


def test_records_directory_does_not_change_the_hash_in_a_cell() -> None:
    one, other, longer = (
        settings_of(small_with(CELL, f"records: {records}")).hash
        for records in ("{directory: /a}", "{directory: /b}", "{directory: /a, retention: 1h}")
    )

    assert one == other != longer


def test_summary_shows_observability_settings() -> None:
    settings = settings_of(
        small_with(
            "tracing: {endpoint: 'http://c:4318', sample_percent: 2.5}",
            "records: {directory: /r}",
            "classes:",
            "  interactive: {ttft: 2s, stage_budget: {queue: 200ms}, objectives: {ttft_percent: 99.5, duration: 30s, "
            "duration_percent: 99, availability_percent: 99.9, cost_per_1k_tokens: 0.002}}",
            "  long: {}",
        )
    )
    lines = list(summary_lines(settings))

    assert (
        "traces go to http://c:4318: rejections, errors, 2.5 % of all requests, the slowest 1 % of each class; "
        "at most 200 per second; "
        "conventions gen_ai"
    ) in lines
    assert "request records in /r, kept for 24h or up to 1GiB, whichever is reached first" in lines
    [line] = [line for line in lines if line.startswith("class interactive")]
    assert line.endswith(
        ", stage budgets: queue 200ms, objectives: 99.5 % within ttft, 99 % done within 30s, 99.9 % available, "
        "at most $0.002 per thousand tokens"
    )
    plain = settings_of(small_with("tracing: {endpoint: 'http://c', semantic_conventions: plain}"))
    assert [line for line in summary_lines(plain) if line.endswith("conventions plain")]


# The state directory


def test_state_directory_is_parsed_and_summarized() -> None:
    settings = settings_of(small_with("state_directory: /var/lib/headgate/state"))

    assert settings.state_directory == "/var/lib/headgate/state"
    assert "learned speeds in /var/lib/headgate/state" in list(summary_lines(settings))
    assert settings_of(small_with()).state_directory is None
    assert settings.hash != settings_of(small_with()).hash


def test_state_directory_must_be_absolute() -> None:
    [problem] = problems_of(small_with("state_directory: state"))

    assert "must be an absolute path" in str(problem)


def test_state_directory_in_a_cell_causes_a_warning_and_is_not_hashed() -> None:
    settings = settings_of(small_with(CELL, "state_directory: /a"))

    assert any("state_directory" in each and "has no effect in a cell" in each for each in settings.warnings)
    assert settings.hash == settings_of(small_with(CELL)).hash
    assert not any("learned speeds" in each for each in summary_lines(settings))
