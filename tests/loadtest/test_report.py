"""Tests for the load test report as text and as JSON."""

import asyncio
from array import array
from collections.abc import Sequence

import pytest
from inline_snapshot import snapshot

from headgate.loadtest.generator import RunCounts
from headgate.loadtest.progress import LoadTestProgress, describe
from headgate.loadtest.report import LoadTestResult, report_json
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.loadtest.senders import Sender
from headgate.loadtest.table import render
from headgate.loadtest.tally import LoadTestTally, LoadTestTargets
from tests.loadtest.builders import a_sender

MS = 1_000_000

GROUP_KEYS = snapshot(
    [
        "offered",
        "offered_per_s",
        "completed",
        "http_error",
        "interrupted",
        "connection_failed",
        "abandoned",
        "unfinished",
        "completed_per_s",
        "good",
        "goodput_per_s",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "prompt_tokens",
        "output_tokens",
        "output_tokens_per_s",
        "responses_without_usage",
        "http_error_by_code",
        "interrupted_by_code",
        "connection_failed_by_code",
        "retries",
        "retries_by_code",
    ]
)


def completed(number: int) -> LoadTestRequest:
    """TTFT is `number` x 10 ms, followed by ten tokens at 5 ms each."""
    story = LoadTestRequest(
        number=number, sender=0, prompt_tokens_requested=10, output_tokens_requested=11, scheduled_ns=0
    )
    story.outcome, story.first_token_ns = LoadTestOutcome.COMPLETED, number * 10 * MS
    story.end_ns, story.prompt_tokens, story.output_tokens = story.first_token_ns + 50 * MS, 10, 11
    story.usage_reported = True
    return story


def http_error() -> LoadTestRequest:
    story = LoadTestRequest(number=0, sender=0, prompt_tokens_requested=10, output_tokens_requested=11, scheduled_ns=0)
    story.outcome, story.code, story.retries, story.retry_codes = (
        LoadTestOutcome.HTTP_ERROR,
        "slow_down",
        1,
        ("slow_down",),
    )
    return story


def a_result(
    senders: Sequence[Sender], stories: Sequence[Sequence[LoadTestRequest]], **course: object
) -> LoadTestResult:
    tallies = [LoadTestTally() for _ in senders]
    targets = LoadTestTargets(ttft_ns=500 * MS)
    for tally, told in zip(tallies, stories, strict=True):
        for story in told:
            tally.add(story, targets)
    ran = RunCounts(planned=110, lateness_ns=array("q", [1 * MS] * 99 + [4 * MS]), elapsed_ns=11_000 * MS, cpu_s=1.1)
    for name, value in course.items():
        setattr(ran, name, value)
    return LoadTestResult(
        url="http://h/v1/chat/completions",
        model="m",
        seed=0,
        run_id="lt-1",
        schedule_ns=10_000 * MS,
        targets=targets,
        counts=ran,
        senders=senders,
        tallies=tallies,
    )


def a_mixed_result(**course: object) -> LoadTestResult:
    senders = [a_sender(service_class="interactive", tenant="acme"), a_sender(service_class="batch", tenant="zeta")]
    return a_result(senders, [[completed(number) for number in range(1, 101)], [http_error()] * 10], **course)


def test_text_report_is_formatted_as_a_table() -> None:
    assert render(a_mixed_result(), width=100) == snapshot("""\
m at http://h/v1/chat/completions
110 requests in 10 s (11/s); good: TTFT ≤ 500 ms

requests           offered  completed  http_error  goodput/s  tokens/s  retries
class batch             10          0          10          0         0       10
class interactive      100        100           0          5       100        0
tenant acme            100        100           0          5       100        0
tenant zeta             10          0          10          0         0       10
all                    110        100          10          5       100       10

latency                     p50     p90     p95     p99     max
class interactive  TTFT  500 ms  900 ms  950 ms  990 ms     1 s
                   TPOT    5 ms    5 ms    5 ms    5 ms    5 ms
                    E2E  550 ms  950 ms     1 s  1.04 s  1.05 s
tenant acme        TTFT  500 ms  900 ms  950 ms  990 ms     1 s
                   TPOT    5 ms    5 ms    5 ms    5 ms    5 ms
                    E2E  550 ms  950 ms     1 s  1.04 s  1.05 s
all                TTFT  500 ms  900 ms  950 ms  990 ms     1 s
                   TPOT    5 ms    5 ms    5 ms    5 ms    5 ms
                    E2E  550 ms  950 ms     1 s  1.04 s  1.05 s

http_error: slow_down 10
retried after: slow_down 10

generator: start delay p50 1 ms, p99 1 ms, max 4 ms; 10% of a core; up to 0 open connections\
""")


def test_text_report_has_one_row_for_a_single_sender() -> None:
    assert render(a_result([a_sender()], [[completed(1)]]), width=100) == snapshot("""\
m at http://h/v1/chat/completions
1 requests in 10 s (0.1/s); good: TTFT ≤ 500 ms

requests  offered  completed  http_error  goodput/s  tokens/s  retries
all             1          1           0        0.1         1        0

latency          p50    p90    p95    p99    max
all      TTFT  10 ms  10 ms  10 ms  10 ms  10 ms
         TPOT   5 ms   5 ms   5 ms   5 ms   5 ms
          E2E  60 ms  60 ms  60 ms  60 ms  60 ms

generator: start delay p50 1 ms, p99 1 ms, max 4 ms; 10% of a core; up to 0 open connections\
""")


@pytest.mark.parametrize("width", [60, 72, 80, 120])
def test_tables_fit_the_width(width: int) -> None:
    tables = render(a_mixed_result(), width=width).split("\n\n")[1:3]

    assert all(len(line) <= width for table in tables for line in table.splitlines())


def test_json_report_contains_all_groups() -> None:
    data = report_json(a_mixed_result())
    groups = [data["total"], *data["classes"].values(), *data["tenants"].values()]  # type: ignore[attr-defined]

    assert list(data) == snapshot(
        [
            "url",
            "model",
            "seed",
            "run_id",
            "schedule_s",
            "elapsed_s",
            "stopped_early",
            "slo",
            "slo_by_class",
            "total",
            "classes",
            "tenants",
            "cost",
            "generator",
        ]
    )
    assert all(list(group) == GROUP_KEYS for group in groups)
    assert data["classes"]["interactive"] == snapshot(
        {
            "offered": 100,
            "offered_per_s": 10.0,
            "completed": 100,
            "http_error": 0,
            "interrupted": 0,
            "connection_failed": 0,
            "abandoned": 0,
            "unfinished": 0,
            "completed_per_s": 10.0,
            "good": 50,
            "goodput_per_s": 5.0,
            "ttft_s": {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0},
            "tpot_s": {"p50": 0.005, "p90": 0.005, "p95": 0.005, "p99": 0.005, "max": 0.005},
            "e2e_s": {"p50": 0.55, "p90": 0.95, "p95": 1.0, "p99": 1.04, "max": 1.05},
            "prompt_tokens": 1000,
            "output_tokens": 1100,
            "output_tokens_per_s": 100.0,
            "responses_without_usage": 0,
            "http_error_by_code": {},
            "interrupted_by_code": {},
            "connection_failed_by_code": {},
            "retries": 0,
            "retries_by_code": {},
        }
    )  # type: ignore[index]
    assert data["generator"] == snapshot(
        {
            "behind": False,
            "lateness_s": {"p50": 0.001, "p90": 0.001, "p95": 0.001, "p99": 0.001, "max": 0.004},
            "cpu_share": 0.1,
            "connections_open_peak": 0,
            "connection_waits": 0,
        }
    )


def test_text_report_warns_if_the_generator_fell_behind() -> None:
    late = array("q", [30 * MS] * 100)

    assert "WARNING: the generator fell behind: 1 request in 100 started at least 30 ms late" in render(
        a_mixed_result(lateness_ns=late), width=100
    )


def test_progress_fits_on_one_line() -> None:
    course = RunCounts(planned=100, started=50, ended=40)
    course.outcomes[LoadTestOutcome.COMPLETED] = 38
    course.outcomes[LoadTestOutcome.HTTP_ERROR] = 2

    assert describe(course, 5.0) == "5 s, started 50 of 100, open 10, completed 38, http_error 2"


async def test_terminal_progress_rewrites_its_line_and_clears_it_at_the_end() -> None:
    written: list[str] = []
    showing = asyncio.create_task(
        LoadTestProgress(RunCounts(planned=9), written.append, terminal=True, width=20).show()
    )
    async with asyncio.timeout(30):
        while not written:
            await asyncio.sleep(0.05)
    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)

    # A process that stalls for a second writes the next line as well.
    assert (written[0], written[-1]) == ("\r\x1b[K1 s, started 0 of 9", "\r\x1b[K")
