"""Does each message arrive once and in order, whatever the way does?"""

from headgate.hosts.cell.protocol.link import Inbound, Outbound, Stamps, age_at_most
from headgate.hosts.cell.protocol.messages import Echo
from testing.builders import at, lasting


def an_outbound(*said: str, first: int = 1) -> Outbound[str]:
    outbound: Outbound[str] = Outbound(first, resend_ns=lasting(0.3))
    for each in said:
        outbound.push(each, at(0))
    return outbound


def test_what_is_sent_is_numbered_and_has_its_age() -> None:
    outbound = an_outbound("a", "b", first=5)

    assert outbound.take(10, at(0.1)) == (5, ((lasting(0.1), "a"), (lasting(0.1), "b")))
    assert outbound.take(10, at(0.1)) == (7, ())


def test_an_entry_takes_only_so_many() -> None:
    outbound = an_outbound("a", "b", "c")

    assert outbound.take(2, at(0))[1] == ((0, "a"), (0, "b"))
    assert outbound.take(2, at(0)) == (3, ((0, "c"),))


def test_what_nobody_acknowledges_is_sent_again_from_the_oldest_on() -> None:
    outbound = an_outbound("a", "b")
    outbound.take(10, at(0))
    outbound.acknowledged(1, at(0.1))

    assert outbound.resend_at() == at(0.4)
    assert outbound.take(10, at(0.39)) == (3, ())
    assert outbound.take(10, at(0.4)) == (2, ((lasting(0.4), "b"),))


def test_what_is_said_later_does_not_put_off_what_is_to_be_sent_again() -> None:
    outbound = an_outbound("a")
    outbound.take(10, at(0))
    for tenth in (1, 2):
        outbound.push(f"later {tenth}", at(tenth / 10))
        outbound.take(10, at(tenth / 10))

    first, messages = outbound.take(10, at(0.3))

    assert first == 1
    assert [said for _, said in messages] == ["a", "later 1", "later 2"]


def test_what_is_acknowledged_is_kept_no_longer() -> None:
    outbound = an_outbound("a", "b")
    outbound.take(10, at(0))

    outbound.acknowledged(2, at(0.1))

    assert (len(outbound), outbound.first, outbound.next, outbound.resend_at()) == (0, 3, 3, None)
    assert outbound.oldest_ns(at(1)) == 0


def test_a_repetition_is_taken_in_once() -> None:
    inbound: Inbound[str] = Inbound(1)
    messages = ((lasting(0), "a"), (lasting(0), "b"))

    assert [said for _, _, said in inbound.take(1, messages)] == ["a", "b"]
    assert inbound.take(1, messages) == []


def test_what_comes_after_a_gap_waits_to_come_again() -> None:
    inbound: Inbound[str] = Inbound(1)

    assert inbound.take(2, ((lasting(0), "b"),)) == []
    assert inbound.take(1, ((lasting(0), "a"), (lasting(0), "b"))) == [(1, 0, "a"), (2, 0, "b")]


def test_an_entry_is_no_older_than_its_way_there_and_back() -> None:
    # Stamped at 0, given back after it had lain for a second, here at 1.2 s.
    assert age_at_most(Echo(at(0), lasting(1)), at(1.2), drift_percent=0) == lasting(0.2)


def test_a_clock_that_runs_faster_elsewhere_makes_an_entry_look_older_never_younger() -> None:
    assert age_at_most(Echo(at(0), lasting(1)), at(1.2), drift_percent=1) == lasting(0.21)


def test_a_stamp_that_was_overtaken_is_not_given_back() -> None:
    stamps = Stamps()
    stamps.heard(at(2), at(10))
    stamps.heard(at(1), at(11))

    assert stamps.echo(at(12)) == Echo(at(2), lasting(2))
    assert Stamps().echo(at(12)) is None
