"""Are faults drawn as often as asked, within their bounds, and alike for the same seed?"""

from itertools import combinations
from random import Random

from headgate.model.units import MINUTE, SECOND, Duration, EndpointId
from headgate.simulation.virtual.faults import RandomFaults, draw
from headgate.simulation.virtual.scenario import Crash, Fault, Hang, Slow

ENGINES = [EndpointId(f"main/{number}") for number in range(3)]
SOME = RandomFaults(
    crashes=3,
    hangs=2,
    slows=4,
    lasts_ns_min=Duration(5 * SECOND),
    lasts_ns_max=Duration(20 * SECOND),
    speed_min=100,
    speed_max=300,
)


def drawn(seed: int, span: Duration = Duration(10 * MINUTE)) -> tuple[Fault, ...]:
    return draw(SOME, ENGINES, span_ns=span, chance=Random(f"{seed} faults"))


def lasts_ns(fault: Fault) -> int:
    return fault.back_after_ns if isinstance(fault, Crash) else fault.lasts_ns


def test_there_are_as_many_of_each_kind_as_asked() -> None:
    for seed in range(20):
        kinds = [type(each) for each in drawn(seed)]

        assert [kinds.count(kind) for kind in (Crash, Hang, Slow)] == [3, 2, 4]


def test_moments_lengths_and_speeds_keep_their_bounds_in_the_order_of_time() -> None:
    for seed in range(20):
        faults = drawn(seed)

        assert [each.at for each in faults] == sorted(each.at for each in faults)
        assert all(0 <= each.at <= 10 * MINUTE for each in faults)
        assert all(5 * SECOND <= lasts_ns(each) <= 20 * SECOND for each in faults)
        assert all(100 <= each.speed <= 300 for each in faults if isinstance(each, Slow))


def test_an_engine_has_one_fault_at_a_time() -> None:
    for seed in range(20):
        for first, second in combinations(drawn(seed), 2):
            apart = first.at + lasts_ns(first) < second.at
            assert apart or first.endpoint_id != second.endpoint_id


def test_where_there_is_no_room_they_overlap_rather_than_never_end() -> None:
    assert len(drawn(0, span=Duration(SECOND))) == 9


def test_a_seed_decides() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
