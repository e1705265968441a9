"""A gateway whose event loop is late does not attribute its own delay to the speed of its engines."""

import asyncio
from typing import cast

import pytest

from headgate.core.events import Event, Progressed
from headgate.core.routing.learning import REPORTS
from headgate.core.scheduler import Scheduler
from headgate.edge.client import Client
from headgate.edge.open_attempts import LATE_SHARE_MAX, SWEEP_EVERY_S, OpenAttempt, OpenAttempts, SweepPace
from headgate.model.policy import Pool
from headgate.model.units import PoolName
from headgate.ports.records import AttemptRecord
from testing.builders import a_policy, a_scheduler, arrived, at, dispatch, endpoint_summary, first_token, told

SWEEPS = 40 * REPORTS


class ReadingClient:
    """A caller that reads everything at once."""

    blocked = finished = False


class Gateway:
    """One stream of an engine, swept by a gateway whose wake-ups come as late as a test decides."""

    def __init__(self) -> None:
        self.scheduler: Scheduler = a_scheduler(policy=a_policy(pools=(Pool(PoolName("p"), speed_assumed=True),)))
        told(self.scheduler, at(0), arrived("r"), first_token("r"))
        self.events: list[Event] = []
        self.attempts, self.now = OpenAttempts(self._tell), 0.0
        client, task = cast("Client", ReadingClient()), cast("asyncio.Task[None]", None)
        record = cast("AttemptRecord", None)
        self.stream = OpenAttempt(dispatch("r"), client, task, record, reports_tokens=True, now=0.0)
        self.stream.first_seen = True
        self.attempts.add(self.stream)
        self.attempts.pace.swept(0.0)

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        self.scheduler.handle(event, at(self.now))

    def sweep(self, *, tokens: int, late_s: float = 0.0) -> None:
        """The next wake-up comes so late, after the loop has read so many tokens."""
        due = self.now + SWEEP_EVERY_S
        self.now = due + late_s
        self.stream.events += tokens
        if self.attempts.pace.woke(due=due, now=self.now):
            self.attempts.sweep([self.stream], self.now)
            self.attempts.pace.swept(self.now)

    @property
    def learned_percent(self) -> int:
        return endpoint_summary(self.scheduler, "e1").decode_percent


def test_busy_loop_does_not_move_the_learned_speed() -> None:
    busy = Gateway()
    for _ in range(SWEEPS):
        busy.sweep(tokens=25)
    before = busy.learned_percent

    for _ in range(SWEEPS):
        # The engine streams as fast as before, but the loop reads only a fifth of the tokens.
        busy.sweep(tokens=5, late_s=0.1)

    assert busy.learned_percent == before


def test_engine_that_becomes_slow_moves_the_learned_speed_of_a_gateway_on_time() -> None:
    idle = Gateway()
    for _ in range(SWEEPS):
        idle.sweep(tokens=25)
    before = idle.learned_percent

    for _ in range(SWEEPS):
        idle.sweep(tokens=5)

    assert idle.learned_percent > 3 * before


def test_gateway_learns_again_once_its_loop_is_on_time() -> None:
    gateway = Gateway()
    for _ in range(SWEEPS):
        gateway.sweep(tokens=25, late_s=0.1)
    assert gateway.learned_percent == 100

    for _ in range(SWEEPS):
        gateway.sweep(tokens=5)

    assert gateway.learned_percent > 150


def test_late_sweep_still_reports_every_token() -> None:
    gateway = Gateway()
    for late_s in (0.0, 0.1, 0.0, 0.0):
        gateway.sweep(tokens=10, late_s=late_s)

    reports = [event for event in gateway.events if isinstance(event, Progressed)]
    # The report after the late one has the tokens that the loop had yet to read.
    assert [report.late for report in reports] == [False, True, True, False]
    assert sum(each.tokens for report in reports for each in report.attempts) == 40


def test_long_pause_marks_the_report_after_it() -> None:
    gateway = Gateway()
    for late_s in (0.0, 2.0, 0.0, 0.0, 0.0):
        gateway.sweep(tokens=10, late_s=late_s)

    reports = [event for event in gateway.events if isinstance(event, Progressed)]
    # The sweep right after the pause is left out, and the next one reports its tokens.
    assert [(report.late, report.attempts[0].tokens) for report in reports] == [
        (False, 10),
        (True, 20),
        (False, 10),
        (False, 10),
    ]


@pytest.mark.parametrize(("beyond", "late"), [(0.9, False), (1.1, True)])
def test_report_is_late_beyond_a_share_of_its_time(beyond: float, *, late: bool) -> None:
    late_s = beyond * LATE_SHARE_MAX * SWEEP_EVERY_S / (1 - LATE_SHARE_MAX)
    pace = SweepPace()
    pace.swept(10.0)
    due = 10.0 + SWEEP_EVERY_S
    pace.woke(due=due, now=due + late_s)

    assert pace.late is late
