"""Tests for random faults: count, bounds and dependence on the seed."""

from itertools import combinations
from random import Random

from headgate.model.units import MINUTE, SECOND, Duration, EndpointId
from headgate.simulation.options import Crash, Hang, RandomFaults, ScenarioFault, Slowdown
from headgate.simulation.virtual.random_faults import draw_faults

ENGINES = [EndpointId(f"main/{number}") for number in range(3)]
SOME = RandomFaults(
    crashes=3,
    hangs=2,
    slowdowns=4,
    duration_ns_min=Duration(5 * SECOND),
    duration_ns_max=Duration(20 * SECOND),
    speed_min=100,
    speed_max=300,
)


def drawn(seed: int, span: Duration = Duration(10 * MINUTE)) -> tuple[ScenarioFault, ...]:
    return draw_faults(SOME, ENGINES, span_ns=span, rng=Random(f"{seed} faults"))


def lasts_ns(fault: ScenarioFault) -> int:
    return fault.recover_after_ns if isinstance(fault, Crash) else fault.duration_ns


def test_draw_returns_the_requested_number_of_each_fault() -> None:
    for seed in range(20):
        kinds = [type(each) for each in drawn(seed)]

        assert [kinds.count(kind) for kind in (Crash, Hang, Slowdown)] == [3, 2, 4]


def test_faults_are_sorted_by_time_and_within_their_bounds() -> None:
    for seed in range(20):
        faults = drawn(seed)

        assert [each.at for each in faults] == sorted(each.at for each in faults)
        assert all(0 <= each.at <= 10 * MINUTE for each in faults)
        assert all(5 * SECOND <= lasts_ns(each) <= 20 * SECOND for each in faults)
        assert all(100 <= each.speed <= 300 for each in faults if isinstance(each, Slowdown))


def test_engine_has_one_fault_at_a_time() -> None:
    for seed in range(20):
        for first, second in combinations(drawn(seed), 2):
            apart = first.at + lasts_ns(first) < second.at
            assert apart or first.endpoint_id != second.endpoint_id


def test_faults_overlap_if_the_time_span_is_too_short() -> None:
    assert len(drawn(0, span=Duration(SECOND))) == 9


def test_faults_depend_only_on_the_seed() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
