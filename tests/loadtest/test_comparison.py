"""Tests for comparisons of two runs: intervals, verdicts, records and targets side by side."""

import io
import json
from pathlib import Path
from random import Random

import pytest

from headgate.loadtest.comparison import RequestSample, compare, read_samples
from headgate.loadtest.comparison_report import NO_DIFFERENCE, comparison_json, render_comparison
from headgate.loadtest.load_test import LoadTest
from headgate.loadtest.problem import WorkloadError
from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.builders import a_plan, a_schedule
from tests.loadtest.command import loadtest, served

MILLISECOND = 1_000_000


def a_run(seed: int, *, scale: float = 1.0, failed: float = 0.0, requests: int = 2_000) -> list[RequestSample]:
    draw = Random(seed)
    samples = []
    for number in range(requests):
        if draw.random() < failed:
            samples.append(RequestSample(number, None, None, None, completed=False, good=False))
            continue
        ttft_ns = int(scale * draw.lognormvariate(3, 1) * MILLISECOND)
        samples.append(RequestSample(number, ttft_ns, None, 2 * ttft_ns, completed=True, good=True))
    return samples


def differing(base: list[RequestSample], other: list[RequestSample]) -> set[str]:
    return {measure.name for measure in compare(base, other) if measure.differs}


def test_no_difference_is_shown_between_runs_of_the_same_distribution() -> None:
    false_alarms = sum(bool(differing(a_run(seed), a_run(100 + seed)) & {"TTFT p50"}) for seed in range(40))

    assert false_alarms <= 6  # 5 % of the intervals miss the true ratio.


def test_slower_run_is_shown_with_its_ratio() -> None:
    measures = {measure.name: measure for measure in compare(a_run(1), a_run(2, scale=1.5))}
    median = measures["TTFT p50"]

    assert median.differs
    assert median.interval.low < 1.5 < median.interval.high
    assert median.interval.estimate == pytest.approx(1.5, rel=0.1)
    assert measures["E2E p95"].differs
    assert not measures["failed requests"].differs


def test_more_failures_are_a_difference_in_shares() -> None:
    measures = {measure.name: measure for measure in compare(a_run(1, failed=0.01), a_run(2, failed=0.1))}
    failed = measures["failed requests"]

    assert failed.is_share
    assert failed.interval.estimate == pytest.approx(0.09, abs=0.03)
    assert {"failed requests", "good requests"} <= {each.name for each in measures.values() if each.differs}


def test_percentiles_need_enough_requests_beyond_them() -> None:
    assert {measure.name for measure in compare(a_run(1, requests=300), a_run(2, requests=300))} == {
        *("TTFT p50", "TTFT p95", "E2E p50", "E2E p95"),
        *("good requests", "failed requests"),
    }


def test_comparison_of_short_runs_is_rejected() -> None:
    with pytest.raises(WorkloadError, match="needs 100 requests in each run, but there are 99 and 2000"):
        compare(a_run(1, requests=99), a_run(1))


def test_verdicts_are_in_text_and_json() -> None:
    measures = compare(a_run(1), a_run(2, scale=1.5))
    text = render_comparison(measures, ("a.jsonl", "b.jsonl"), width=120).splitlines()
    data = comparison_json(measures, ("a.jsonl", "b.jsonl"))

    assert text[:2] == ["base: a.jsonl", "other: b.jsonl"]
    assert text[4].startswith("TTFT p50")
    assert text[4].endswith("higher")
    assert next(line for line in text if line.startswith("failed requests")).endswith(NO_DIFFERENCE)
    assert json.loads(json.dumps(data))["measures"]["TTFT p50"]["differs"] is True
    assert "difference" in json.loads(json.dumps(data))["measures"]["failed requests"]


async def test_record_contains_the_samples_of_a_comparison(tmp_path: Path) -> None:
    record, samples = io.BytesIO(), list[RequestSample]()
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(status=400))
        plan = a_plan(engine.url, a_schedule(*(number / 1000 for number in range(20))))
        await LoadTest(plan, record=record, on_sample=samples.append).run()
    path = tmp_path / "run.jsonl"
    path.write_bytes(record.getvalue())

    read = read_samples(path)
    assert [each.completed for each in read] == [each.completed for each in samples]
    assert [each.good for each in read] == [each.good for each in samples]
    assert [(each.e2e_ns or 0) / 1e9 for each in read] == pytest.approx(
        [(each.e2e_ns or 0) / 1e9 for each in samples], abs=3e-6
    )


def test_file_that_is_no_record_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("{}\n")

    said = loadtest("", "--compare", str(path), str(path))

    problem = "Object missing required field `scheduled_s`; use a file that --record has written"
    assert (said.code, said.err) == (2, f"headgate loadtest: {path}: {problem}\n")


def test_command_compares_two_records(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with served(FakeEngine()) as engine:
        for path in paths:
            loadtest(engine.url, "--rate", "500", "--limit", "120", "--record", str(path))
    said = loadtest("", "--compare", *map(str, paths), "--json")

    assert said.code == 0
    assert said.json["base"] == str(paths[0])
    assert said.json["measures"]["failed requests"] == {
        "base": 0.0,
        "other": 0.0,
        "difference": 0.0,
        "low": 0.0,
        "high": 0.0,
        "differs": False,
    }


def test_command_sends_the_same_requests_to_both_targets() -> None:
    with served(FakeEngine()) as base, served(FakeEngine()) as other:
        other.behaviour = Behaviour(status=400)
        said = loadtest(base.url, "--against", other.url, "--rate", "500", "--limit", "120", "--json")
        bodies = [sorted(str(request.json) for request in engine.requests) for engine in (base, other)]

    assert bodies[0] == bodies[1]
    assert said.json["base"]["total"]["completed"] == said.json["other"]["total"]["http_error"] == 120
    assert said.json["comparison"]["measures"]["failed requests"]["difference"] == 1.0
    assert said.json["comparison"]["measures"]["failed requests"]["differs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "1,2", "--record", "r"), "--sweep cannot be combined with --record; remove one of them"),
        (
            ("--against", "http://a:1", "--record", "r"),
            "--against cannot be combined with --record; remove one of them",
        ),
    ],
)
def test_options_that_exclude_each_other_are_rejected(arguments: tuple[str, ...], message: str) -> None:
    said = loadtest("http://127.0.0.1:1", "--rate", "1", *arguments)

    assert (said.code, said.err) == (2, f"headgate loadtest: {message}\n")
