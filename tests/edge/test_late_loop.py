"""Tests that event loop delays do not affect the learned engine speed."""

import asyncio
from typing import cast

import pytest

from headgate.core.events import AttemptsProgressed, Event
from headgate.core.routing.speed_estimator import REPORTS_PER_EQUATION
from headgate.core.scheduler import Scheduler
from headgate.edge.client import Client, ClientTransport
from headgate.edge.open_attempts import LATE_SHARE_MAX, SWEEP_EVERY_S, OpenAttempt, OpenAttempts, SweepLateness
from headgate.model.policy import Pool
from headgate.model.units import EndpointId, PoolName
from headgate.ports.records import AttemptRecord
from testing.builders import a_policy, a_scheduler, arrived, at, commands_for, dispatch, endpoint_summary, first_token

SWEEPS = 40 * REPORTS_PER_EQUATION


class ReadingTransport:
    """Connection of a client that reads all data immediately."""

    blocked = False

    def send(self, data: bytes) -> None: ...


class Gateway:
    """One response stream, swept by a gateway whose event loop is late by a chosen amount."""

    def __init__(self) -> None:
        self.scheduler: Scheduler = a_scheduler(policy=a_policy(pools=(Pool(PoolName("p"), speed_assumed=True),)))
        commands_for(self.scheduler, at(0), arrived("r"), first_token("r"))
        self.events: list[Event] = []
        self.attempts, self.now = OpenAttempts(self._tell), 0.0
        transport, task = cast("ClientTransport", ReadingTransport()), cast("asyncio.Task[None]", None)
        client = Client(transport, method="POST", path=b"/", headers={}, body_bytes_max=0)
        record = AttemptRecord(1, EndpointId("e1"), PoolName("p"), reason="", hedge=False, waited_ns=0, now=0)
        self.stream = OpenAttempt(dispatch("r"), client, task, record, reports_tokens=True, now=0.0)
        self.stream.first_token_seen = True
        self.attempts.add(self.stream)
        self.attempts.lateness.record_sweep(0.0)

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        self.scheduler.handle(event, at(self.now))

    def sweep(self, *, tokens: int, late_s: float = 0.0) -> None:
        """Runs the next sweep, `late_s` seconds late, after reading `tokens` tokens."""
        due = self.now + SWEEP_EVERY_S
        self.now = due + late_s
        self.stream.events += tokens
        if self.attempts.lateness.record_wakeup(due=due, now=self.now):
            self.attempts.sweep([self.stream], self.now)
            self.attempts.lateness.record_sweep(self.now)

    @property
    def learned_percent(self) -> int:
        return endpoint_summary(self.scheduler, "e1").decode_percent


def test_lagging_event_loop_does_not_change_the_learned_speed() -> None:
    busy = Gateway()
    for _ in range(SWEEPS):
        busy.sweep(tokens=25)
    before = busy.learned_percent

    for _ in range(SWEEPS):
        # The engine is streaming as fast as before, but the loop reads only a fifth of the tokens.
        busy.sweep(tokens=5, late_s=0.1)

    assert busy.learned_percent == before


def test_slow_engine_changes_the_learned_speed_if_the_event_loop_is_on_time() -> None:
    idle = Gateway()
    for _ in range(SWEEPS):
        idle.sweep(tokens=25)
    before = idle.learned_percent

    for _ in range(SWEEPS):
        idle.sweep(tokens=5)

    assert idle.learned_percent > 3 * before


def test_gateway_resumes_learning_once_its_event_loop_is_on_time() -> None:
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

    reports = [event for event in gateway.events if isinstance(event, AttemptsProgressed)]
    # The report after the late one contains the tokens that the loop had not yet read.
    assert [report.late for report in reports] == [False, True, True, False]
    assert sum(each.tokens for report in reports for each in report.attempts) == 40


def test_long_pause_marks_the_next_report_as_late() -> None:
    gateway = Gateway()
    for late_s in (0.0, 2.0, 0.0, 0.0, 0.0):
        gateway.sweep(tokens=10, late_s=late_s)

    reports = [event for event in gateway.events if isinstance(event, AttemptsProgressed)]
    # The sweep right after the pause is skipped, and the next one reports its tokens.
    assert [(report.late, report.attempts[0].tokens) for report in reports] == [
        (False, 10),
        (True, 20),
        (False, 10),
        (False, 10),
    ]


@pytest.mark.parametrize(("beyond", "late"), [(0.9, False), (1.1, True)])
def test_report_is_late_if_its_delay_exceeds_a_fraction_of_the_interval(beyond: float, *, late: bool) -> None:
    late_s = beyond * LATE_SHARE_MAX * SWEEP_EVERY_S / (1 - LATE_SHARE_MAX)
    pace = SweepLateness()
    pace.record_sweep(10.0)
    due = 10.0 + SWEEP_EVERY_S
    pace.record_wakeup(due=due, now=due + late_s)

    assert pace.late is late
