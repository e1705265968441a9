"""Tests for complete incidents: the verdict lasts as long as the cause does."""

from collections.abc import Sequence

from headgate.core.commands import Dispatch
from headgate.core.diagnosis.diagnosis import CLEAR_AFTER_LOOKS, REPORT_AFTER_LOOKS, Diagnosis
from headgate.core.diagnosis.endpoints_down import START_NS
from headgate.core.events import Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import EndpointProblem
from headgate.model.fault import Fault
from headgate.model.units import SECOND, EndpointId, RequestId
from headgate.model.verdict import Incident
from testing.builders import (
    a_policy,
    arrived,
    at,
    completed,
    failed,
    first_token,
    joined,
    policy_changed,
    probed,
    readied,
    timed_out,
)

SERVES, HANGS, GONE = "serves", "hangs", "gone"
CLEARED_S = 30


class Fleet:
    """A scheduler that receives a few requests each second, and whose endpoints serve, hang or have exited."""

    def __init__(self, *names: str) -> None:
        self.scheduler, self.diagnosis = Scheduler(), Diagnosis()
        self.second = self.number = 0
        self.how = dict.fromkeys(names, SERVES)
        self.told: list[Incident] = []
        self.happened(policy_changed(a_policy()), *(joined(name, places=64) for name in names))

    def up(self, *names: str) -> None:
        for name in names:
            self.how[name] = SERVES
            self.happened(readied(name), probed(name))

    def happened(self, *events: Event) -> None:
        now = at(self.second)
        for event in events:
            commands = self.scheduler.handle(event, now)
            self.diagnosis.observe(event, commands, now)
            for command in commands:
                if isinstance(command, Dispatch):
                    self._answer(command.request_id, command.attempt, command.endpoint_id)

    def _answer(self, request_id: RequestId, attempt: int, endpoint_id: EndpointId) -> None:
        match self.how[endpoint_id]:
            case "serves":
                self.happened(first_token(request_id, attempt), completed(request_id, attempt))
            case "hangs":
                self.happened(timed_out(request_id, attempt))
            case _:
                self.happened(failed(request_id, attempt, fault=Fault.CONNECTION))

    def breaks(self, how: str, *names: str, probe: EndpointProblem) -> None:
        for name in names:
            self.how[name] = how
            self.happened(probed(name, probe, "probe detail"))

    def go_on(self, seconds: int, *, requests: int = 5) -> Sequence[Incident]:
        """Returns the pool's incident at the end of each of the next `seconds` seconds."""
        for _ in range(seconds):
            self.second += 1
            self.happened(TimerFired())
            for _ in range(requests):
                self.number += 1
                self.happened(arrived(f"r{self.number}"))
            self.told.append(self._look())
        return self.told[-seconds:]

    def _look(self) -> Incident:
        verdicts = self.diagnosis.diagnose(self.scheduler.summary(), at(self.second))
        return next(each.incident for each in verdicts if each.pool is not None)


def a_fleet() -> Fleet:
    fleet = Fleet("e1", "e2")
    fleet.up("e1", "e2")
    assert set(fleet.go_on(60)) == {Incident.HEALTHY}
    return fleet


def test_engine_hang_is_reported_until_the_engine_responds_again() -> None:
    fleet = a_fleet()
    fleet.breaks(HANGS, "e1", probe=EndpointProblem.UNRESPONSIVE)

    assert set(fleet.go_on(300)[REPORT_AFTER_LOOKS:]) == {Incident.ENGINE_HANG}

    fleet.up("e1")
    assert fleet.go_on(CLEARED_S)[-1] is Incident.HEALTHY


def test_killed_engine_is_reported_as_down_until_it_is_back() -> None:
    fleet = a_fleet()
    fleet.breaks(GONE, "e1", probe=EndpointProblem.CONNECTION_REFUSED)

    assert set(fleet.go_on(300)[REPORT_AFTER_LOOKS:]) == {Incident.ENGINE_DOWN}

    fleet.up("e1")
    assert fleet.go_on(CLEARED_S)[-1] is Incident.HEALTHY


def test_killed_engines_are_reported_as_down_rather_than_hanging() -> None:
    fleet = a_fleet()
    fleet.breaks(GONE, "e1", "e2", probe=EndpointProblem.CONNECTION_REFUSED)

    assert set(fleet.go_on(120)[REPORT_AFTER_LOOKS:]) == {Incident.ENGINE_DOWN}

    fleet.up("e1", "e2")
    assert fleet.go_on(CLEARED_S)[-1] is Incident.HEALTHY


def test_only_engine_down_since_start_is_reported_as_down() -> None:
    fleet = Fleet("e1")
    fleet.breaks(GONE, "e1", probe=EndpointProblem.CONNECTION_REFUSED)

    fleet.go_on(START_NS // SECOND + REPORT_AFTER_LOOKS)
    assert set(fleet.go_on(120, requests=1)) == {Incident.ENGINE_DOWN}


def test_engine_recovering_without_traffic_is_healthy_within_30_seconds() -> None:
    fleet = a_fleet()
    fleet.breaks(GONE, "e1", probe=EndpointProblem.CONNECTION_REFUSED)
    fleet.go_on(60)

    fleet.up("e1")

    assert fleet.go_on(CLEARED_S, requests=0)[-1] is Incident.HEALTHY
    assert CLEAR_AFTER_LOOKS < CLEARED_S
