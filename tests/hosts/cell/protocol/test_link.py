"""Each message is delivered exactly once and in order over an unreliable transport."""

from headgate.hosts.cell.protocol.link import Inbound, Outbound, Stamps, max_age
from headgate.hosts.cell.protocol.messages import Echo
from testing.builders import at, duration


def an_outbound(*said: str, first: int = 1) -> Outbound[str]:
    outbound: Outbound[str] = Outbound(first, resend_ns=duration(0.3))
    for each in said:
        outbound.push(each, at(0))
    return outbound


def test_outbound_messages_have_numbers_and_ages() -> None:
    outbound = an_outbound("a", "b", first=5)

    assert outbound.pop_unsent(10, at(0.1)) == (5, ((duration(0.1), "a"), (duration(0.1), "b")))
    assert outbound.pop_unsent(10, at(0.1)) == (7, ())


def test_number_of_messages_taken_at_once_is_limited() -> None:
    outbound = an_outbound("a", "b", "c")

    assert outbound.pop_unsent(2, at(0))[1] == ((0, "a"), (0, "b"))
    assert outbound.pop_unsent(2, at(0)) == (3, ((0, "c"),))


def test_unacknowledged_messages_are_resent_from_the_oldest() -> None:
    outbound = an_outbound("a", "b")
    outbound.pop_unsent(10, at(0))
    outbound.acknowledge(1, at(0.1))

    assert outbound.resend_at() == at(0.4)
    assert outbound.pop_unsent(10, at(0.39)) == (3, ())
    assert outbound.pop_unsent(10, at(0.4)) == (2, ((duration(0.4), "b"),))


def test_later_messages_do_not_delay_a_resend() -> None:
    outbound = an_outbound("a")
    outbound.pop_unsent(10, at(0))
    for tenth in (1, 2):
        outbound.push(f"later {tenth}", at(tenth / 10))
        outbound.pop_unsent(10, at(tenth / 10))

    first, messages = outbound.pop_unsent(10, at(0.3))

    assert first == 1
    assert [said for _, said in messages] == ["a", "later 1", "later 2"]


def test_acknowledged_messages_are_dropped() -> None:
    outbound = an_outbound("a", "b")
    outbound.pop_unsent(10, at(0))

    outbound.acknowledge(2, at(0.1))

    assert (len(outbound), outbound.first, outbound.next_serial, outbound.resend_at()) == (0, 3, 3, None)
    assert outbound.oldest_ns(at(1)) == 0


def test_repeated_message_is_accepted_once() -> None:
    inbound: Inbound[str] = Inbound(1)
    messages = ((duration(0), "a"), (duration(0), "b"))

    assert [said for _, _, said in inbound.accept(1, messages)] == ["a", "b"]
    assert inbound.accept(1, messages) == []


def test_messages_after_a_gap_are_dropped_until_resent() -> None:
    inbound: Inbound[str] = Inbound(1)

    assert inbound.accept(2, ((duration(0), "b"),)) == []
    assert inbound.accept(1, ((duration(0), "a"), (duration(0), "b"))) == [(1, 0, "a"), (2, 0, "b")]


def test_entry_age_is_at_most_its_round_trip_time() -> None:
    # Stamped at 0 s, echoed after 1 s by the other side, received at 1.2 s.
    assert max_age(Echo(at(0), duration(1)), at(1.2), drift_percent=0) == duration(0.2)


def test_clock_drift_increases_the_maximum_entry_age() -> None:
    assert max_age(Echo(at(0), duration(1)), at(1.2), drift_percent=1) == duration(0.21)


def test_out_of_order_timestamp_is_not_echoed() -> None:
    stamps = Stamps()
    stamps.record(at(2), at(10))
    stamps.record(at(1), at(11))

    assert stamps.echo(at(12)) == Echo(at(2), duration(2))
    assert Stamps().echo(at(12)) is None
