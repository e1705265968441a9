"""When does the gate open, for whom, and towards which endpoint?"""

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.simulation.baselines.saturation_gate import SaturationGate
from testing.builders import arrived, at, client_left, end, told
from tests.simulation.baselines.arranged import sent, shows, with_endpoints


def a_gate(*endpoints: str, counts_sent: bool = True) -> SaturationGate:
    gate = SaturationGate(counts_sent=counts_sent)
    with_endpoints(gate, *endpoints)
    return gate


def test_an_engine_that_was_never_scraped_gets_nothing() -> None:
    gate = a_gate("e1")

    assert told(gate, at(0), arrived("a")) == []


def test_five_waiting_or_a_cache_four_fifths_full_is_saturated() -> None:
    gate = a_gate("e1", "e2", "e3")
    shows(gate, "e1", waiting=5, kv_used=0.0, now=at(0))
    shows(gate, "e2", waiting=0, kv_used=0.8, now=at(0))
    shows(gate, "e3", waiting=4, kv_used=0.79, now=at(0))

    assert told(gate, at(0), arrived("a"), arrived("b")) == [sent("a", "e3", "4 waiting, 79% of KV used")]


def test_the_shortest_queue_and_the_emptiest_cache_come_first() -> None:
    gate = a_gate("e1", "e2", "e3")
    shows(gate, "e1", waiting=0, kv_used=0.5, now=at(0))
    shows(gate, "e2", waiting=0, kv_used=0.2, now=at(0))
    shows(gate, "e3", waiting=2, kv_used=0.0, now=at(0))

    assert told(gate, at(0), arrived("a"), arrived("b")) == [
        sent("a", "e2", "0 waiting, 20% of KV used"),
        sent("b", "e1", "0 waiting, 50% of KV used"),
    ]


def test_what_was_sent_counts_until_the_next_scrape() -> None:
    gate = a_gate("e1")
    shows(gate, "e1", waiting=4, kv_used=0.0, now=at(0))
    told(gate, at(0), arrived("a"), arrived("b"))

    shows(gate, "e1", waiting=4, kv_used=0.0, now=at(1))

    assert told(gate, at(1), TimerFired()) == [sent("b", "e1", "4 waiting, 0% of KV used", waited=1)]


def test_a_blind_gate_lets_everything_through_after_one_good_scrape() -> None:
    gate = a_gate("e1", counts_sent=False)
    told(gate, at(0), *(arrived(f"r{number}") for number in range(9)))
    shows(gate, "e1", waiting=4, kv_used=0.0, now=at(1))

    assert told(gate, at(1), TimerFired()) == [
        sent(f"r{number}", "e1", "4 waiting, 0% of KV used", waited=1) for number in range(9)
    ]


def test_bands_go_in_their_order_and_tenants_of_a_band_take_turns() -> None:
    gate = a_gate("e1", counts_sent=False)
    told(
        gate,
        at(0),
        arrived("batch", "coil", service_class="batch"),
        *(arrived(f"a{number}", "acme") for number in range(3)),
        *(arrived(f"b{number}", "bolt") for number in range(2)),
    )
    shows(gate, "e1", waiting=0, kv_used=0.0, now=at(0))

    assert [each.request_id for each in told(gate, at(0), TimerFired())] == ["a0", "b0", "a1", "b1", "a2", "batch"]


def test_who_leaves_the_line_is_not_sent() -> None:
    gate = a_gate("e1")
    told(gate, at(0), arrived("a"), arrived("b"))

    assert told(gate, at(2), client_left("a")) == [end("a", Outcome.CANCELLED, "the client left", waited=2)]

    shows(gate, "e1", waiting=0, kv_used=0.0, now=at(3))
    assert told(gate, at(3), TimerFired()) == [sent("b", "e1", "0 waiting, 0% of KV used", waited=3)]
