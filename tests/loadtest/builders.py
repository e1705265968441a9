"""Builders that run a load test in the test's event loop."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headgate.loadtest.load_test import LoadTest, LoadTestPlan
from headgate.loadtest.report import LoadTestResult, report_json
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import Sender, TokenRange
from headgate.loadtest.target import TargetUrl


def a_sender(**fields: Any) -> Sender:
    return Sender(**{"prompt": TokenRange(10, 10), "output": TokenRange(4, 4), **fields})


def a_schedule(*at_s: float, output_tokens: int = 4, sender: int = 0) -> Schedule:
    schedule = Schedule(round(max(at_s) * 1e9))
    for each in at_s:
        schedule.add(round(each * 1e9), prompt_tokens=10, output_tokens=output_tokens, sender=sender)
    return schedule


def a_plan(
    url: str, schedule: Schedule | None = None, *, senders: Sequence[Sender] | None = None, **fields: Any
) -> LoadTestPlan:
    """Plans one immediate request unless a schedule is given."""
    return LoadTestPlan(
        target=TargetUrl.parse(url),
        model="fake",
        schedule=schedule or a_schedule(0.0),
        senders=tuple(senders or [a_sender()]),
        **fields,
    )


@dataclass(frozen=True, slots=True)
class Ran:
    result: LoadTestResult
    lines: list[dict[str, Any]]
    """Lines of the record file, in schedule order."""

    @property
    def data(self) -> dict[str, Any]:
        return report_json(self.result)

    @property
    def line(self) -> dict[str, Any]:
        [line] = self.lines
        return line


async def ran(plan: LoadTestPlan) -> Ran:
    record = io.BytesIO()
    result = await LoadTest(plan, record=record).run()
    return Ran(result, lines_of(record))


def lines_of(record: io.BytesIO) -> list[dict[str, Any]]:
    return sorted(map(json.loads, record.getvalue().splitlines()), key=lambda line: line["number"])
