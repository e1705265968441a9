"""Is it read as it was meant how requests are seen, and is nothing told that may be a secret?"""

import pytest

from headgate.config.explain import as_data, explain
from headgate.model.money import NanoUsd
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.telemetry.options import Objectives
from headgate.telemetry.records.options import RecordsOptions
from headgate.telemetry.traces.options import TracingOptions
from tests.config.builders import problems_of, settings_of, small_with, small_with_classes, warnings_of

CELL = "cell: {store: 'redis://cache', members: 2}"


def tracing_of(text: str) -> TracingOptions:
    found = settings_of(small_with(f"tracing: {text}"), {"KEY": "geheim"}).tracing
    assert found is not None
    return found


def test_what_is_left_out_is_not_done() -> None:
    settings = settings_of(small_with())

    assert (settings.tracing, settings.records, settings.stage_budgets, settings.objectives) == (None, None, {}, {})


def test_tracing_is_read_with_its_defaults() -> None:
    assert tracing_of("{endpoint: 'http://collector:4318'}") == TracingOptions(
        endpoint="http://collector:4318/v1/traces",
        headers={},
        sample_ppm=100_000,
        slowest_ppm=10_000,
        kept_per_second_max=200,
        names="gen_ai",
    )


@pytest.mark.parametrize(
    ("written", "posted_to"),
    [
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c", "https://c/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_a_path_is_added_where_there_is_none(written: str, posted_to: str) -> None:
    assert tracing_of(f"{{endpoint: '{written}'}}").endpoint == posted_to


@pytest.mark.parametrize(
    ("tracing", "said"),
    [
        ("{}", "missing; "),
        ("{endpoint: 'geheim:4318'}", "is no address that traces can be posted to; write http://HOST:4318"),
        ("{endpoint: 'ftp://geheim'}", "is no address that traces can be posted to"),
        ("{endpoint: 'http://'}", "is no address that traces can be posted to"),
        ("{endpoint: 'http://[geheim'}", "is no address that traces can be posted to"),
        ("{endpoint: 'http://c:geheim'}", "is no address that traces can be posted to"),
        ("{endpoint: 'http://c?geheim'}", "is no address that traces can be posted to"),
        ("{endpoint: 'http://c/ge heim'}", "is no address that traces can be posted to"),
        ("{endpoint: 'http://u:geheim@c'}", "holds a name or a password; send what the collector asks for by headers"),
        ("{endpoint: 'http://c', headers: {'a b': geheim}}", "cannot be sent as a header; use letters, digits and -"),
        ("{endpoint: 'http://c', headers: {a: \"ge\\nheim\"}}", "cannot be sent as a header"),
        ("{endpoint: 'http://c', headers: {a: gehéim}}", "cannot be sent as a header"),
        ("{endpoint: 'http://c', names: genai}", 'no names are called "genai" here; did you mean "gen_ai"?'),
        ("{endpoint: 'http://c', names: x}", 'no names are called "x" here; there is gen_ai, gen_ai_1_36, plain'),
        ("{endpoint: 'http://c', sample_percent: 101}", "sample_percent"),
    ],
)
def test_wrong_tracing_is_told_without_any_part_of_a_secret(tracing: str, said: str) -> None:
    [problem] = problems_of(small_with(f"tracing: {tracing}"))

    assert said in problem
    assert "heim" not in problem


def test_headers_of_a_collector_are_secrets() -> None:
    text = small_with("tracing: {endpoint: 'http://c/pfad', headers: {authorization: 'Bearer ${KEY}'}}")
    one, other = settings_of(text, {"KEY": "geheim"}), settings_of(text, {"KEY": "anders"})

    assert one.tracing is not None
    assert one.tracing.headers == {"authorization": "Bearer geheim"}
    assert one.hash != other.hash
    told = [repr(one), *explain(one), str(as_data(one))]
    assert not [each for each in told if "geheim" in each]
    assert not [each for each in told[1:] if "pfad" in each]


def test_records_are_read_with_their_defaults() -> None:
    settings = settings_of(small_with("records: {folder: /var/lib/headgate/records}"))

    assert settings.records == RecordsOptions("/var/lib/headgate/records", Duration(24 * 3_600 * SECOND), 1 << 30)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ("{}", "missing; "),
        ("{folder: records}", "is not a whole path, so a start from another folder would not find what was kept"),
        ("{folder: /r, bytes_max: 1MiB}", "bytes_max"),
        ("{folder: /r, retention: 0s}", "retention"),
    ],
)
def test_wrong_records_are_told(records: str, said: str) -> None:
    [problem] = problems_of(small_with(f"records: {records}"))

    assert said in problem


def test_stage_budgets_are_those_that_are_written() -> None:
    settings = settings_of(small_with_classes("interactive: {stage_budget: {queue: 200ms, prefill: 1s}}", "long: {}"))

    assert settings.stage_budgets == {
        "interactive": {Stage.QUEUE: 200 * MILLISECOND, Stage.PREFILL: SECOND},
    }


def test_budgets_that_exceed_the_target_are_warned_of() -> None:
    def warned(*stages: str) -> list[str]:
        return warnings_of(small_with_classes(f"interactive: {{ttft: 1s, stage_budget: {{{', '.join(stages)}}}}}"))

    allowed = "up to the first token they come to 1100ms, and ttft is 1s"
    assert warned("queue: 500ms", "prefill: 600ms", "decode: 1s") == [
        f"9: classes.interactive.stage_budget: {allowed}; shorten some, or allow a longer ttft"
    ]
    assert warned("queue: 500ms", "prefill: 500ms", "decode: 9s") == []
    assert warnings_of(small_with_classes("interactive: {ttft: unlimited, stage_budget: {prefill: 9h}}")) == []


def test_objectives_are_read() -> None:
    settings = settings_of(
        small_with_classes(
            "interactive: {ttft: 1s, objectives: {ttft_percent: 99.5, duration: 30s, duration_percent: 99, "
            "served_percent: 99.9, cost_per_1k_tokens: 0.002}}",
            "long: {}",
        )
    )

    assert settings.objectives == {
        "interactive": Objectives(995_000, Duration(30 * SECOND), 990_000, 999_000, NanoUsd(2_000_000))
    }


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        ("{ttft_percent: 99}, ttft: unlimited", "has no target to be measured by; set ttft of the class"),
        ("{duration: 1s}", "duration and duration_percent say something only together; write both, or neither"),
        ("{duration_percent: 99}", "duration and duration_percent say something only together"),
        ("{served_percent: 100}", "served_percent"),
    ],
)
def test_wrong_objectives_are_told(objectives: str, said: str) -> None:
    [problem] = problems_of(small_with_classes(f"interactive: {{objectives: {objectives}}}"))

    assert said in problem


def test_each_of_them_changes_the_hash() -> None:
    others = [
        small_with(),
        small_with("tracing: {endpoint: 'http://c'}"),
        small_with("tracing: {endpoint: 'http://d'}"),
        small_with("tracing: {endpoint: 'http://c', sample_percent: 1}"),
        small_with("tracing: {endpoint: 'http://c', headers: {a: b}}"),
        small_with("records: {folder: /a}"),
        small_with("records: {folder: /b}"),
        small_with("records: {folder: /a, retention: 1h}"),
        small_with_classes("interactive: {stage_budget: {queue: 1s}}", "long: {}", "batch: {}"),
        small_with_classes("interactive: {objectives: {served_percent: 99}}", "long: {}", "batch: {}"),
    ]

    assert len({settings_of(each).hash for each in others}) == len(others)


def test_gateways_of_a_cell_may_keep_their_records_in_different_folders() -> None:
    one, other, longer = (
        settings_of(small_with(CELL, f"records: {records}")).hash
        for records in ("{folder: /a}", "{folder: /b}", "{folder: /a, retention: 1h}")
    )

    assert one == other != longer


def test_all_of_it_is_said_in_words() -> None:
    settings = settings_of(
        small_with(
            "tracing: {endpoint: 'http://c:4318', sample_percent: 2.5}",
            "records: {folder: /r}",
            "classes:",
            "  interactive: {ttft: 2s, stage_budget: {queue: 200ms}, objectives: {ttft_percent: 99.5, duration: 30s, "
            "duration_percent: 99, served_percent: 99.9, cost_per_1k_tokens: 0.002}}",
            "  long: {}",
        )
    )
    lines = list(explain(settings))

    assert (
        "traces go to http://c:4318: refusals, errors, 2.5 % of all, 1 % slowest of each class, 200 a second at most, "
        "named by gen_ai"
    ) in lines
    assert "what became of requests is kept in /r for 24h or 1GiB, whichever is less" in lines
    [line] = [line for line in lines if line.startswith("class interactive")]
    assert line.endswith(
        ", budget of its stages: queue 200ms, objectives: 99.5 % begin in time, 99 % done within 30s, 99.9 % served, "
        "$0.002 a thousand tokens at most"
    )
    plain = settings_of(small_with("tracing: {endpoint: 'http://c', names: plain}"))
    assert [line for line in explain(plain) if line.endswith("named by plain")]


# The state folder


def test_state_folder_is_read_and_said_in_words() -> None:
    settings = settings_of(small_with("state_folder: /var/lib/headgate/state"))

    assert settings.state_folder == "/var/lib/headgate/state"
    assert "learned speeds are kept in /var/lib/headgate/state" in list(explain(settings))
    assert settings_of(small_with()).state_folder is None
    assert settings.hash != settings_of(small_with()).hash


def test_state_folder_must_be_a_whole_path() -> None:
    [problem] = problems_of(small_with("state_folder: state"))

    assert "must be an absolute path" in str(problem)


def test_state_folder_of_a_cell_is_a_warning_and_not_in_the_hash() -> None:
    settings = settings_of(small_with(CELL, "state_folder: /a"))

    assert any("state_folder" in each and "snapshot of the cell" in each for each in settings.warnings)
    assert settings.hash == settings_of(small_with(CELL)).hash
    assert not any("learned speeds" in each for each in explain(settings))
