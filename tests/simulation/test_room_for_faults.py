"""Tests that random faults avoid times at which an engine already has a fault."""

from random import Random
from time import process_time

from headgate.model.units import MINUTE, SECOND, Duration, EndpointId, Instant
from headgate.simulation.options import RandomFaults, ScenarioFault
from headgate.simulation.virtual.random_faults import FaultWindow, draw_faults

ONE = EndpointId("main/0")
SPAN = Duration(10 * MINUTE)


def drawn(
    seed: int, *taken: tuple[int, int], count: int = 1, lasts_s: tuple[int, int] = (5, 60), engines: int = 1
) -> tuple[ScenarioFault, ...]:
    """Draws random faults. `taken` lists the start and end of the first engine's existing faults, in seconds."""
    faults = RandomFaults(
        crashes=0,
        hangs=count,
        slowdowns=0,
        duration_ns_min=Duration(lasts_s[0] * SECOND),
        duration_ns_max=Duration(lasts_s[1] * SECOND),
        speed_min=1,
        speed_max=1,
    )
    places = [FaultWindow(ONE, Instant(start * SECOND), Duration((end - start) * SECOND)) for start, end in taken]
    endpoints = [EndpointId(f"main/{number}") for number in range(engines)]
    return draw_faults(faults, endpoints, span_ns=SPAN, rng=Random(f"{seed} faults"), occupied=places)


def test_fault_is_placed_in_the_only_gap() -> None:
    for seed in range(50):
        [fault] = drawn(seed, (0, 300), (310, 700), lasts_s=(5, 5))

        assert 300 * SECOND < fault.at < 305 * SECOND


def test_fault_is_shortened_to_fit_a_short_gap() -> None:
    for seed in range(50):
        [fault] = drawn(seed, (0, 300), (306, 700))

        assert fault.at > 300 * SECOND
        assert fault.at + 5 * SECOND < 306 * SECOND


def test_faults_do_not_depend_on_the_order_of_existing_faults() -> None:
    first, last, around = (10, 20), (30, 40), (15, 35)

    assert drawn(3, first, last, around, count=5) == drawn(3, around, last, first, count=5)


def test_fault_is_placed_on_the_only_free_engine() -> None:
    faults = [fault for seed in range(50) for fault in drawn(seed, (0, 600), engines=2)]

    assert [each.endpoint_id for each in faults] == ["main/1"] * 50


def test_faults_start_before_the_end_of_the_time_span() -> None:
    assert all(each.at < SPAN for seed in range(20) for each in drawn(seed, count=9, engines=9))


def test_thousands_of_overlapping_faults_are_drawn_quickly() -> None:
    began = process_time()

    assert len(drawn(1, count=3000)) == 3000
    assert process_time() - began < 20
