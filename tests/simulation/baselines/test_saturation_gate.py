"""Tests for the saturation gate baseline: when it opens, the order of service and the choice of endpoint."""

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.simulation.baselines.saturation_gate import SaturationGate
from testing.builders import arrived, at, client_disconnected, commands_for, end
from tests.simulation.baselines.arranged import sent, shows, with_endpoints


def a_gate(*endpoints: str, counts_sent: bool = True) -> SaturationGate:
    gate = SaturationGate(counts_sent=counts_sent)
    with_endpoints(gate, *endpoints)
    return gate


def test_gate_sends_nothing_to_an_endpoint_without_metrics() -> None:
    gate = a_gate("e1")

    assert commands_for(gate, at(0), arrived("a")) == []


def test_endpoint_with_five_waiting_requests_or_eighty_percent_kv_usage_is_saturated() -> None:
    gate = a_gate("e1", "e2", "e3")
    shows(gate, "e1", waiting=5, kv_used=0.0, now=at(0))
    shows(gate, "e2", waiting=0, kv_used=0.8, now=at(0))
    shows(gate, "e3", waiting=4, kv_used=0.79, now=at(0))

    assert commands_for(gate, at(0), arrived("a"), arrived("b")) == [sent("a", "e3", "4 waiting, 79% of KV cache used")]


def test_gate_prefers_the_shortest_queue_and_then_the_lowest_kv_usage() -> None:
    gate = a_gate("e1", "e2", "e3")
    shows(gate, "e1", waiting=0, kv_used=0.5, now=at(0))
    shows(gate, "e2", waiting=0, kv_used=0.2, now=at(0))
    shows(gate, "e3", waiting=2, kv_used=0.0, now=at(0))

    assert commands_for(gate, at(0), arrived("a"), arrived("b")) == [
        sent("a", "e2", "0 waiting, 20% of KV cache used"),
        sent("b", "e1", "0 waiting, 50% of KV cache used"),
    ]


def test_sent_requests_are_counted_as_waiting_until_the_next_scrape() -> None:
    gate = a_gate("e1")
    shows(gate, "e1", waiting=4, kv_used=0.0, now=at(0))
    commands_for(gate, at(0), arrived("a"), arrived("b"))

    shows(gate, "e1", waiting=4, kv_used=0.0, now=at(1))

    assert commands_for(gate, at(1), TimerFired()) == [sent("b", "e1", "4 waiting, 0% of KV cache used", waited=1)]


def test_gate_ignoring_sent_requests_sends_everything_after_one_unsaturated_scrape() -> None:
    gate = a_gate("e1", counts_sent=False)
    commands_for(gate, at(0), *(arrived(f"r{number}") for number in range(9)))
    shows(gate, "e1", waiting=4, kv_used=0.0, now=at(1))

    assert commands_for(gate, at(1), TimerFired()) == [
        sent(f"r{number}", "e1", "4 waiting, 0% of KV cache used", waited=1) for number in range(9)
    ]


def test_bands_are_served_by_priority_and_tenants_within_a_band_take_turns() -> None:
    gate = a_gate("e1", counts_sent=False)
    commands_for(
        gate,
        at(0),
        arrived("batch", "coil", service_class="batch"),
        *(arrived(f"a{number}", "acme") for number in range(3)),
        *(arrived(f"b{number}", "bolt") for number in range(2)),
    )
    shows(gate, "e1", waiting=0, kv_used=0.0, now=at(0))

    assert [each.request_id for each in commands_for(gate, at(0), TimerFired())] == [
        "a0",
        "b0",
        "a1",
        "b1",
        "a2",
        "batch",
    ]


def test_queued_request_is_not_sent_after_its_client_disconnects() -> None:
    gate = a_gate("e1")
    commands_for(gate, at(0), arrived("a"), arrived("b"))

    assert commands_for(gate, at(2), client_disconnected("a")) == [
        end("a", Outcome.CANCELLED, "the client disconnected", waited=2)
    ]

    shows(gate, "e1", waiting=0, kv_used=0.0, now=at(3))
    assert commands_for(gate, at(3), TimerFired()) == [sent("b", "e1", "0 waiting, 0% of KV cache used", waited=3)]
