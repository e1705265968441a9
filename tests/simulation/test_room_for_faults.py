"""Do faults that are drawn find the room that others leave?"""

from random import Random
from time import process_time

from headgate.model.units import MINUTE, SECOND, Duration, EndpointId, Instant
from headgate.simulation.virtual.faults import Place, RandomFaults, draw
from headgate.simulation.virtual.scenario import Fault

ONE = EndpointId("main/0")
SPAN = Duration(10 * MINUTE)


def drawn(
    seed: int, *taken: tuple[int, int], count: int = 1, lasts_s: tuple[int, int] = (5, 60), engines: int = 1
) -> tuple[Fault, ...]:
    """Where the first engine is out of order from and until these seconds."""
    faults = RandomFaults(
        crashes=0,
        hangs=count,
        slows=0,
        lasts_ns_min=Duration(lasts_s[0] * SECOND),
        lasts_ns_max=Duration(lasts_s[1] * SECOND),
        speed_min=1,
        speed_max=1,
    )
    places = [Place(ONE, Instant(start * SECOND), Duration((end - start) * SECOND)) for start, end in taken]
    endpoints = [EndpointId(f"main/{number}") for number in range(engines)]
    return draw(faults, endpoints, span_ns=SPAN, chance=Random(f"{seed} faults"), taken=places)


def test_the_only_gap_is_found_however_small() -> None:
    for seed in range(50):
        [fault] = drawn(seed, (0, 300), (310, 700), lasts_s=(5, 5))

        assert 300 * SECOND < fault.at < 305 * SECOND


def test_where_only_a_short_one_fits_it_is_short() -> None:
    for seed in range(50):
        [fault] = drawn(seed, (0, 300), (306, 700))

        assert fault.at > 300 * SECOND
        assert fault.at + 5 * SECOND < 306 * SECOND


def test_the_order_of_what_is_taken_does_not_matter() -> None:
    first, last, around = (10, 20), (30, 40), (15, 35)

    assert drawn(3, first, last, around, count=5) == drawn(3, around, last, first, count=5)


def test_where_every_engine_but_one_is_taken_it_is_that_one() -> None:
    faults = [fault for seed in range(50) for fault in drawn(seed, (0, 600), engines=2)]

    assert [each.endpoint_id for each in faults] == ["main/1"] * 50


def test_all_come_before_the_end_of_the_span() -> None:
    assert all(each.at < SPAN for seed in range(20) for each in drawn(seed, count=9, engines=9))


def test_thousands_without_room_are_drawn_all_the_same_and_soon() -> None:
    began = process_time()

    assert len(drawn(1, count=3000)) == 3000
    assert process_time() - began < 20
