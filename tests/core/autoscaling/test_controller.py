"""Tests for the controller, which runs the autoscaler alongside a scheduler."""

from dataclasses import replace

from headgate.core.autoscaling.autoscaler import ScaleDecision
from headgate.core.autoscaling.controller import AutoscalingController
from headgate.core.autoscaling.starts import ColdStart
from headgate.core.events import Event, PolicyChanged
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Pool
from headgate.model.scaling import ScalingRules
from headgate.model.units import PoolName
from testing.builders import a_policy, arrived, at, duration, joined, leaving, readied

POOL = PoolName("p")
ONE_WARM = ScalingRules(endpoints_max=5)
THREE_WARM = replace(ONE_WARM, warm_endpoints_min=3)
NONE_YET = replace(ONE_WARM, endpoints_min=0)


class World:
    """A scheduler that a controller observes."""

    def __init__(self, rules: dict[PoolName, ScalingRules]) -> None:
        self.scheduler = Scheduler()
        self.controller = AutoscalingController(rules)
        scales = any(not each.endpoints_min for each in rules.values())
        pool = Pool(POOL, hold_max=5 if scales else 0, scales=bool(rules))
        self.tell(0, PolicyChanged(a_policy(pools=(pool,)), "h"))

    def tell(self, second: float, *events: Event) -> ColdStart | None:
        started = None
        for event in events:
            commands = self.scheduler.handle(event, at(second))
            started = self.controller.observe(event, commands, at(second))
        return started

    def tick(self, second: float) -> list[ScaleDecision]:
        return self.controller.tick(self.scheduler.summary(), at(second))

    def tick_early(self, second: float) -> list[ScaleDecision]:
        return self.controller.tick_early(self.scheduler.summary(), at(second))


def test_tick_decides_and_expects_the_missing_endpoints_to_start() -> None:
    world = World({POOL: THREE_WARM})
    world.tell(0, joined("a"), readied("a"))

    [decision] = world.tick(10)

    assert (decision.pool, decision.endpoints) == (POOL, 3)
    assert world.controller.desired() == {POOL: 3}
    assert [each.since for each in world.controller.starts.in_progress()] == [at(10)] * 2


def test_cold_start_is_measured_from_the_decision() -> None:
    world = World({POOL: THREE_WARM})
    world.tell(0, joined("a"), readied("a"))
    world.tick(10)

    assert world.tell(30, joined("b")) is None
    assert world.tell(50, readied("b")) == ColdStart(POOL, duration(40))
    assert world.controller.autoscaler.lead_ns(POOL) == duration(50)


def test_cold_start_of_an_unscaled_pool_is_not_recorded() -> None:
    world = World({})

    world.controller.starts.set_desired(POOL, 0, at(0))
    world.controller.starts.set_desired(POOL, 1, at(1))

    assert world.tell(2, joined("a"), readied("a")) is None


def test_period_is_the_shortest_of_all_pools() -> None:
    other = replace(ONE_WARM, period_ns=duration(3))

    assert AutoscalingController({POOL: ONE_WARM, PoolName("q"): other}).period_ns == duration(3)
    assert AutoscalingController({}, unscaled=other).period_ns == duration(3)


def test_request_without_an_endpoint_is_reported_only_if_pools_may_be_empty() -> None:
    for rules, missing in ((NONE_YET, True), (ONE_WARM, False)):
        world = World({POOL: rules})
        world.tell(1, arrived("r"))
        world.tell(2, arrived("s"))

        assert world.controller.endpoint_missing is missing


def test_early_tick_starts_an_endpoint_for_an_empty_pool() -> None:
    world = World({POOL: NONE_YET})
    assert [each.endpoints for each in world.tick(10)] == [0]
    world.tell(11, arrived("r"))

    [decision] = world.tick_early(11)

    assert decision.endpoints == 1


def test_early_tick_before_the_first_period_reports_metrics() -> None:
    world = World({POOL: NONE_YET})

    world.tick_early(1)

    assert [each.pool for each in world.controller.figures] == [POOL]


def test_early_tick_leaves_pools_with_endpoints_alone() -> None:
    world = World({POOL: THREE_WARM})
    world.tell(0, joined("a"), readied("a"))

    assert world.tick_early(1) == []


def test_new_rules_apply_to_the_next_tick() -> None:
    world = World({POOL: ONE_WARM})
    world.tell(0, joined("a"), readied("a"))
    world.tick(10)

    world.controller.change_rules({POOL: THREE_WARM})

    assert [each.endpoints for each in world.tick(20)] == [3]


def test_reset_forgets_metrics_and_starts() -> None:
    world = World({POOL: THREE_WARM})
    world.tell(0, joined("a"), readied("a"))
    world.tick(10)

    world.controller.reset()

    assert (world.controller.figures, world.controller.starts.in_progress()) == ((), [])


def test_endpoint_that_leaves_has_to_be_started_again() -> None:
    world = World({POOL: THREE_WARM})
    world.tell(0, *(event for name in "abc" for event in (joined(name), readied(name))))
    world.tick(10)

    world.tell(11, leaving("c"))

    assert len(world.controller.starts.in_progress()) == 1
