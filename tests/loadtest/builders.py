"""How does a test run a load test in its own event loop?"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headgate.loadtest.report import Result, as_data
from headgate.loadtest.run import LoadTest, Plan
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import Sender, Sizes
from headgate.loadtest.target import Target


def a_sender(**fields: Any) -> Sender:
    return Sender(**{"prompt": Sizes(10, 10), "output": Sizes(4, 4), **fields})


def a_schedule(*at_s: float, output_tokens: int = 4, sender: int = 0) -> Schedule:
    schedule = Schedule(round(max(at_s) * 1e9))
    for each in at_s:
        schedule.add(round(each * 1e9), prompt_tokens=10, output_tokens=output_tokens, sender=sender)
    return schedule


def a_plan(
    url: str, schedule: Schedule | None = None, *, senders: Sequence[Sender] | None = None, **fields: Any
) -> Plan:
    """One request at once, unless the schedule says otherwise."""
    return Plan(
        target=Target.parse(url),
        model="fake",
        schedule=schedule or a_schedule(0.0),
        senders=tuple(senders or [a_sender()]),
        **fields,
    )


@dataclass(frozen=True, slots=True)
class Ran:
    result: Result
    lines: list[dict[str, Any]]
    """The record, in the order of the schedule."""

    @property
    def data(self) -> dict[str, Any]:
        return as_data(self.result)

    @property
    def line(self) -> dict[str, Any]:
        [line] = self.lines
        return line


async def ran(plan: Plan) -> Ran:
    record = io.BytesIO()
    result = await LoadTest(plan, record=record).run()
    return Ran(result, lines_of(record))


def lines_of(record: io.BytesIO) -> list[dict[str, Any]]:
    return sorted(map(json.loads, record.getvalue().splitlines()), key=lambda line: line["number"])
