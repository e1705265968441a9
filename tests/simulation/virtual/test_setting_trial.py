"""Setting trials in the simulator: a better value is kept, a harmful one is reverted within seconds."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import pytest

from headgate.config.live_values import LiveValueNotation
from headgate.control.operator_overrides import MemoryOverrides
from headgate.control.trials.plan import Effect, SettingTrial, effects
from headgate.control.trials.samples import BlockTally
from headgate.control.trials.service import TrialService
from headgate.core.commands import Command
from headgate.core.events import Event, PolicyChanged
from headgate.core.scheduler import Scheduler
from headgate.edge.admin.trials import NewTrial
from headgate.model.policy import Policy
from headgate.model.units import SECOND, ClassName, Duration, Instant
from headgate.ports.directory import Actor
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import a_scenario, arrival, at, engine, run, seconds

STARTS_S, RATE = 2, 30
TTFT = seconds(0.5)
LOOK_NS = Duration(SECOND // 4)
_Result = TypeVar("_Result")


def finished(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the coroutine waits")


async def evaluate(
    trial: SettingTrial, blocks: Mapping[int, BlockTally], classes: Sequence[ClassName]
) -> tuple[Effect, ...]:
    """Computes effects at once. The simulator has no event loop."""
    return effects(trial, blocks, classes)


class Trying:
    """Scheduler with a setting trial, as in a gateway without a database."""

    def __init__(self, places: int, asked: NewTrial) -> None:
        self._asked = asked
        self._scheduler = Scheduler()
        self._now = Instant(0)
        self._policy = Policy()
        self._changed = self._started = False
        self._look_at = at(STARTS_S)
        self._overrides = MemoryOverrides(self._on_change, lambda: self._now)
        self.service = TrialService(
            lambda: self._now, LiveValueNotation(), asyncio.Lock(), draw_seed=lambda: 3, evaluate=evaluate
        )
        self.service.in_flight_limits = lambda _: {places}
        self.service.store = self._overrides
        self.limits: list[tuple[float, int]] = []
        """Time in seconds and the number of requests that the first endpoint may have in flight, at each change."""
        self.status: dict[str, Any] = {}

    def _on_change(self) -> None:
        self._changed = True

    def handle(self, event: Event, now: Instant) -> list[Command]:
        self._now = now
        if isinstance(event, PolicyChanged):
            self._policy = self.service.policy = event.policy
        commands = self._handle(event)
        if now >= self._look_at:
            self._look_at = Instant(now + LOOK_NS)
            self._look()
            if self._changed:
                self._changed = False
                policy = self.service.policy = self._overrides.apply(self._policy)
                commands += self._handle(PolicyChanged(policy, self._overrides.name))
            self._record_limit()
        return commands

    def _handle(self, event: Event) -> list[Command]:
        commands = self._scheduler.handle(event, self._now)
        self.service.samples.observe(event, commands, self._now)
        return commands

    def _record_limit(self) -> None:
        [limit] = [each.in_flight_max for each in self._scheduler.summary().endpoints]
        if not self.limits or self.limits[-1][1] != limit:
            self.limits.append((self._now / SECOND, limit))

    def _look(self) -> None:
        if not self._started:
            self._started = True
            finished(self.service.start(self._asked, Actor("a", "")))
        else:
            finished(self.service.look())
        [self.status] = [dict(each) for each in finished(self.service.status())]

    def next_wakeup(self) -> Instant | None:
        return self._scheduler.next_wakeup()

    def ended_after_s(self) -> float:
        """Returns the time from the start of the trial to its result."""
        return self.status["since"] / SECOND - STARTS_S


def traffic(length_s: float) -> list[Arrival]:
    draws, now = Random("1 arrivals"), 0.0
    arrivals: list[Arrival] = []
    while now < length_s:
        now += draws.expovariate(RATE)
        arrivals.append(arrival(now, prompt=draws.randint(50, 150), output=draws.randint(20, 60)))
    return arrivals


def a_trial(before: int, after: int, *, length_s: float, **fields: Any) -> tuple[list[RequestTrace], Trying]:
    asked = NewTrial("pools.main.in_flight_max", str(after), **{"block_s": 8, "duration_s": 300} | fields)
    decider = Trying(before, asked)
    scene = a_scenario(traffic(length_s), engines=[engine(0, places=before)], callers=CallerBehaviour(), ttft_ns=TTFT)
    seen = run(replace(scene, decider=lambda: decider))
    return seen.stories, decider


def test_larger_in_flight_limit_that_serves_more_requests_is_kept() -> None:
    """With 4 slots, the endpoint serves about 10 requests per second of the 30 that arrive."""
    _, trial = a_trial(4, 32, length_s=200)

    assert (trial.status["phase"], trial.status["result"]) == ("kept", "improved"), trial.status
    assert trial.limits[-1][1] == 32
    assert trial.ended_after_s() < 200
    [promise] = [each for each in trial.status["effects"] if each["subject"] == "promise" and each["groups"]]
    assert promise["low"] > 0.2


def test_harmful_value_is_reverted_within_its_first_block() -> None:
    stories, trial = a_trial(32, 1, length_s=100)

    assert (trial.status["phase"], trial.status["result"]) == ("reverted", "worse"), trial.status
    [(began, low), (ended, back)] = trial.limits[-2:]
    assert (low, back) == (1, 32)
    assert ended - began < 8
    hurt = [each for each in stories if each.outcome.value != "completed"]
    assert all(began <= each.arrived_at / SECOND <= ended for each in hurt)


def test_equal_value_is_reverted_at_the_end() -> None:
    """With 32 or 40 slots, all requests are served at once. One of four blocks has the new value."""
    _, trial = a_trial(32, 40, length_s=145, share_percent=25, block_s=4, duration_s=136)
    spans = [(limit, later - sooner) for (sooner, limit), (later, _) in pairwise(trial.limits)]

    assert (trial.status["phase"], trial.status["result"]) == ("reverted", "undecided"), trial.status
    assert trial.limits[-1][1] == 32
    assert sum(length for limit, length in spans if limit == 40) == pytest.approx(8 * 4, abs=1)


def test_equal_value_is_kept_if_it_only_has_to_be_harmless() -> None:
    _, trial = a_trial(32, 40, length_s=150, block_s=2, duration_s=140, keep_if="harmless", tolerance_percent=20)

    assert (trial.status["phase"], trial.status["result"]) == ("kept", "harmless"), trial.status
