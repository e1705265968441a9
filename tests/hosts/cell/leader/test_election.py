"""Is there one scheduler at a time, though the store forgets?"""

from itertools import count

import pytest

from headgate.hosts.cell.leader.election import Election
from headgate.hosts.cell.protocol.lease import Claim, claimed, released
from headgate.hosts.cell.protocol.messages import Epoch, Lease
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Instant
from testing.builders import at, lasting

TIMING = Timing()


def an_election(name: str = "a") -> Election:
    numbers = count(1)
    return Election(TIMING, lambda: f"{name}{next(numbers)}")


def elected(election: Election, lease: Lease | None = None, now: Instant | None = None) -> Lease:
    """What the store has after the election has asked it."""
    moment = at(0) if now is None else now
    claim = election.ask(moment)
    assert claim is not None
    after = claimed(lease, claim, moment)
    election.answered(claim, after, moment)
    return after


def a_claim(number: int, name: str, **more: Epoch) -> Claim:
    return Claim(Epoch(number, name), lasting(1), at(0), **more)


def test_a_free_lease_is_taken_and_renewed() -> None:
    election = an_election()

    lease = elected(election)
    assert election.holds(at(0.59)) == lease.epoch == Epoch(1, "a1")
    renewed = elected(election, lease, at(0.5))

    assert renewed == Lease(Epoch(1, "a1"), at(1.1))
    assert election.holds(at(1.09)) == Epoch(1, "a1")


def test_a_holder_stops_before_the_store_could_give_the_lease_to_another() -> None:
    election = an_election()
    elected(election)

    # A hundredth earlier, since its clock may be the slower one.
    assert election.holds(at(0.593)) is not None
    assert election.holds(at(0.594)) is None


def test_an_answer_that_was_long_on_its_way_counts_from_when_it_was_asked_for() -> None:
    election = an_election()
    claim = election.ask(at(0))
    assert claim is not None

    election.answered(claim, claimed(None, claim, at(0.3)), at(0.5))
    assert election.holds(at(0.59)) is not None
    assert election.holds(at(0.6)) is None


def test_an_answer_that_comes_when_its_lease_is_over_counts_for_nothing() -> None:
    election = an_election()
    claim = election.ask(at(0))
    assert claim is not None

    election.answered(claim, claimed(None, claim, at(0.4)), at(1.2))

    assert election.holds(at(1.2)) is None


def test_a_lease_that_another_holds_is_not_taken_before_it_is_over() -> None:
    first = elected(an_election("a"))
    second = an_election("b")

    assert elected(second, first, at(0.5)) == first
    assert second.holds(at(0.5)) is None
    assert elected(second, first, at(1)).epoch == Epoch(2, "b2")


def test_a_lost_answer_is_asked_for_again_with_the_same_epoch() -> None:
    election = an_election()
    lost = election.ask(at(0))
    assert lost is not None
    lease = claimed(None, lost, at(0))

    assert elected(election, lease, at(0.1)).epoch == lost.epoch
    assert election.holds(at(0.2)) == lost.epoch


def test_an_empty_store_gives_the_lease_back_to_its_holder() -> None:
    election = an_election()
    elected(election)

    assert elected(election, None, at(0.3)).epoch == Epoch(1, "a1")


def test_a_number_is_above_every_one_that_members_have_seen() -> None:
    election = an_election()
    election.heard_of(Epoch(7, "before"))

    assert elected(election).epoch.number == 8


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_scheduler_that_members_outrank_gives_up_and_claims_a_number_above(number: int) -> None:
    election = an_election()
    lease = elected(election)
    election.heard_of(Epoch(number, "another"))

    assert election.holds(at(0.1)) is None
    # At once: what the store has is its own.
    assert elected(election, lease, at(0.1)).epoch.number == number + 1


@pytest.mark.parametrize("number", [1, 2, 9])
def test_scheduler_gives_up_an_epoch_that_is_not_above_the_stored_snapshot(number: int) -> None:
    """A store that lost its lease grants low numbers, but keeps the snapshot with the highest number."""
    election = an_election()
    lease = elected(election)
    election.read_snapshot_of(number, leads=False)

    assert election.holds(at(0.1)) is None
    assert elected(election, lease, at(0.1)).epoch.number == number + 1


def test_a_scheduler_keeps_its_epoch_when_it_reads_its_own_snapshot() -> None:
    election = an_election()
    elected(election)
    election.read_snapshot_of(1, leads=True)

    assert election.holds(at(0.1)) == Epoch(1, "a1")
    election.read_snapshot_of(2, leads=True)
    assert election.holds(at(0.1)) is None


def test_an_older_epoch_of_others_disturbs_nobody() -> None:
    election = an_election()
    election.heard_of(Epoch(3, "before"))
    elected(election)
    election.heard_of(Epoch(3, "before"))

    assert election.holds(at(0.1)) == Epoch(4, "a1")


def test_a_stale_store_cannot_bring_an_old_epoch_back() -> None:
    stale = Lease(Epoch(3, "old"), at(1.5))
    holder = an_election()
    holder.heard_of(Epoch(6, "seen"))
    elected(holder)

    assert elected(holder, stale, at(0.5)) == stale
    assert holder.holds(at(0.5)) is None
    assert elected(holder, stale, at(10)).epoch.number == 8


def test_a_lower_number_never_replaces_a_higher_one() -> None:
    over = Lease(Epoch(5, "five"), at(0))

    assert claimed(over, a_claim(5, "other"), at(1)) == over
    assert claimed(over, a_claim(6, "six"), at(1)).epoch == Epoch(6, "six")


def test_lease_that_outlasts_the_store_clock_after_it_moved_back_can_be_claimed() -> None:
    held = Lease(Epoch(5, "five"), at(3_600))

    assert claimed(held, a_claim(5, "other"), at(0)) == held
    assert claimed(held, a_claim(6, "six"), at(0)) == Lease(Epoch(6, "six"), at(1))
    assert claimed(Lease(Epoch(5, "five"), at(2)), a_claim(6, "six"), at(0)).epoch == Epoch(5, "five")


def test_a_scheduler_that_leaves_frees_the_lease_and_keeps_its_number_known() -> None:
    lease = Lease(Epoch(4, "a"), at(1))

    assert released(lease, Epoch(4, "a"), at(0)) == Lease(Epoch(4, "a"), at(0))
    assert released(lease, Epoch(3, "b"), at(0)) == lease
    assert released(None, Epoch(3, "b"), at(0)) is None


def test_one_that_gave_up_holds_nothing() -> None:
    election = an_election()
    elected(election)

    assert election.give_up(at(0)) == Epoch(1, "a1")
    assert election.holds(at(0)) is None


def test_the_store_is_asked_often_by_those_who_wait_and_seldom_by_the_holder() -> None:
    election = an_election()
    lease = elected(election)

    assert election.ask(at(0.1)) is None
    assert election.next_wakeup(at(0.1)) == at(0.15)
    election.answered(a_claim(1, "a1"), lease, at(0.1))
    assert election.holds(at(0.55)) is not None
