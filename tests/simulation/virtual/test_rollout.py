"""Rollouts in the simulator: a worse candidate is reverted, an equal one gets all traffic."""

from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from headgate.control.operator_overrides import MemoryOverrides
from headgate.control.rollouts.plan import STEPS_PERCENT
from headgate.control.rollouts.service import RolloutService
from headgate.core.commands import Command
from headgate.core.events import Event, PolicyChanged
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Model, Policy, Pool
from headgate.model.routes import ModelRoute
from headgate.model.units import SECOND, EndpointId, Instant, PoolName
from headgate.ports.directory import Actor
from headgate.simulation.options import CallerBehaviour, EngineSpec
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import INTERACTIVE, MODEL, SLOW, a_scenario, arrival, at, run, seconds

OLD, NEW = PoolName("old"), PoolName("new")
RATE, STARTS_S = 150, 5
TPOT_MAX = seconds(0.013)
"""The base takes about 10.5 ms per token. With 40 % more, every response takes too long."""
_Result = TypeVar("_Result")


def finished(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the coroutine waits")


class RollingOut:
    """Scheduler whose policy follows a rollout, as in a gateway without a database."""

    def __init__(self, *, step_s: int) -> None:
        self._step_s = step_s
        self._scheduler = Scheduler()
        self._now = Instant(0)
        self._policy = Policy()
        self._changed = False
        self._look_at = at(STARTS_S)
        self._overrides = MemoryOverrides(self._on_change, lambda: self._now)
        self._service = RolloutService(lambda: self._now)
        self._service.store = self._overrides
        self.percents: list[tuple[float, int]] = []
        """Time in seconds and the candidate's share, at each step."""
        self.reason = ""

    def _on_change(self) -> None:
        self._changed = True

    def handle(self, event: Event, now: Instant) -> list[Command]:
        self._now = now
        if isinstance(event, PolicyChanged):
            self._policy = self._service.policy = event.policy
        commands = self._handle(event)
        if now >= self._look_at:
            self._look_at = Instant(now + SECOND)
            self._look()
            if self._changed:
                self._changed = False
                policy = self._service.policy = self._overrides.apply(self._policy)
                commands += self._handle(PolicyChanged(policy, self._overrides.name))
        return commands

    def _handle(self, event: Event) -> list[Command]:
        commands = self._scheduler.handle(event, self._now)
        self._service.samples.observe(event, commands, self._now)
        return commands

    def _look(self) -> None:
        if not self.percents:
            begin = self._service.start("m", "new", None, Actor("a", ""), step_s=self._step_s, tolerance_percent=10)
            finished(begin)
        else:
            finished(self._service.look())
        [status] = finished(self._service.status("m"))
        percent = status["percent"]
        assert isinstance(percent, int)
        if not self.percents or self.percents[-1][1] != percent:
            self.percents.append((self._now / SECOND, percent))
            self.reason = str(status["reason"])

    def next_wakeup(self) -> Instant | None:
        return self._scheduler.next_wakeup()


def traffic(length_s: float) -> list[Arrival]:
    draws, now = Random("1 arrivals"), 0.0
    arrivals: list[Arrival] = []
    while now < length_s:
        now += draws.expovariate(RATE)
        arrivals.append(arrival(now, prompt=draws.randint(50, 150), output=draws.randint(10, 30)))
    return arrivals


def a_rollout(*, slower_percent: int, length_s: float, step_s: int) -> tuple[list[RequestTrace], RollingOut]:
    slow = replace(SLOW, step_ps=SLOW.step_ps * (100 + slower_percent) // 100)
    engines = [
        EngineSpec(id=EndpointId(f"{pool}/{n}"), pool=pool, profile=profile, in_flight_max=64)
        for pool, profile in ((OLD, SLOW), (NEW, slow))
        for n in range(2)
    ]
    scene: Scenario = a_scenario(
        traffic(length_s), engines=engines, callers=CallerBehaviour(tpot_ns=TPOT_MAX), tpot_ns=TPOT_MAX
    )
    routes = (ModelRoute("old", (OLD,), 100), ModelRoute("new", (NEW,), 0))
    policy = replace(scene.policy, pools=(Pool(OLD), Pool(NEW)), models=(Model(MODEL, (OLD,), routes=routes),))
    decider = RollingOut(step_s=step_s)
    seen = run(replace(scene, policy=policy, decider=lambda: decider))
    return seen.stories, decider


def missed(story: RequestTrace) -> bool:
    assert story.first_token_at is not None
    return story.ended_at - story.first_token_at > TPOT_MAX * (story.output_tokens - 1)


def test_candidate_with_40_percent_more_tpot_is_reverted_within_60_s() -> None:
    stories, rollout = a_rollout(slower_percent=40, length_s=STARTS_S + 60, step_s=60)
    since = [each for each in stories if each.arrived_at >= at(STARTS_S)]
    hurt = sum(map(missed, since))

    assert [percent for _, percent in rollout.percents] == [1, 0]
    assert rollout.percents[1][0] - rollout.percents[0][0] < 60
    assert "the candidate is worse: TPOT x 1." in rollout.reason
    assert {each.service_class for each in stories} == {INTERACTIVE}
    assert 0 < hurt < 0.005 * len(since), f"{hurt} of {len(since)} requests missed their target"


def test_equal_candidate_gets_all_traffic() -> None:
    stories, rollout = a_rollout(slower_percent=0, length_s=STARTS_S + 240, step_s=20)

    assert [percent for _, percent in rollout.percents] == list(STEPS_PERCENT)
    assert not any(map(missed, stories))
