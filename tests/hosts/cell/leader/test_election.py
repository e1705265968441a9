"""At most one process is the scheduler at a time, even if the store loses data."""

from itertools import count

import pytest

from headgate.hosts.cell.leader.election import Election
from headgate.hosts.cell.protocol.lease import Claim, claim_lease, release_lease
from headgate.hosts.cell.protocol.messages import Epoch, Lease
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Instant
from testing.builders import at, duration

TIMING = Timing()


def an_election(name: str = "a") -> Election:
    numbers = count(1)
    return Election(TIMING, lambda: f"{name}{next(numbers)}")


def elected(election: Election, lease: Lease | None = None, now: Instant | None = None) -> Lease:
    """Sends a claim to the store and returns the resulting lease."""
    moment = at(0) if now is None else now
    claim = election.next_claim(moment)
    assert claim is not None
    after = claim_lease(lease, claim, moment)
    election.handle_lease(claim, after, moment)
    return after


def a_claim(number: int, name: str, **more: Epoch) -> Claim:
    return Claim(Epoch(number, name), duration(1), at(0), **more)


def test_candidate_acquires_and_renews_a_free_lease() -> None:
    election = an_election()

    lease = elected(election)
    assert election.holds(at(0.59)) == lease.epoch == Epoch(1, "a1")
    renewed = elected(election, lease, at(0.5))

    assert renewed == Lease(Epoch(1, "a1"), at(1.1))
    assert election.holds(at(1.09)) == Epoch(1, "a1")


def test_holder_stops_before_the_store_can_grant_the_lease_to_another() -> None:
    election = an_election()
    elected(election)

    # The holder stops 1 % early because its clock may be slower than the store's.
    assert election.holds(at(0.593)) is not None
    assert election.holds(at(0.594)) is None


def test_lease_from_a_delayed_reply_is_measured_from_its_claim() -> None:
    election = an_election()
    claim = election.next_claim(at(0))
    assert claim is not None

    election.handle_lease(claim, claim_lease(None, claim, at(0.3)), at(0.5))
    assert election.holds(at(0.59)) is not None
    assert election.holds(at(0.6)) is None


def test_reply_arriving_after_its_lease_has_ended_is_ignored() -> None:
    election = an_election()
    claim = election.next_claim(at(0))
    assert claim is not None

    election.handle_lease(claim, claim_lease(None, claim, at(0.4)), at(1.2))

    assert election.holds(at(1.2)) is None


def test_lease_held_by_another_process_is_not_acquired_before_it_expires() -> None:
    first = elected(an_election("a"))
    second = an_election("b")

    assert elected(second, first, at(0.5)) == first
    assert second.holds(at(0.5)) is None
    assert elected(second, first, at(1)).epoch == Epoch(2, "b2")


def test_claim_is_repeated_with_the_same_epoch_after_a_lost_reply() -> None:
    election = an_election()
    lost = election.next_claim(at(0))
    assert lost is not None
    lease = claim_lease(None, lost, at(0))

    assert elected(election, lease, at(0.1)).epoch == lost.epoch
    assert election.holds(at(0.2)) == lost.epoch


def test_holder_regains_its_lease_from_an_empty_store() -> None:
    election = an_election()
    elected(election)

    assert elected(election, None, at(0.3)).epoch == Epoch(1, "a1")


def test_new_epoch_number_is_higher_than_any_members_have_seen() -> None:
    election = an_election()
    election.observe_epoch(Epoch(7, "before"))

    assert elected(election).epoch.number == 8


@pytest.mark.parametrize("number", [1, 2, 9])
def test_scheduler_steps_down_for_a_competing_epoch_and_claims_a_higher_number(number: int) -> None:
    election = an_election()
    lease = elected(election)
    election.observe_epoch(Epoch(number, "another"))

    assert election.holds(at(0.1)) is None
    # The claim succeeds immediately because the stored lease is the claimant's own.
    assert elected(election, lease, at(0.1)).epoch.number == number + 1


@pytest.mark.parametrize("number", [1, 2, 9])
def test_scheduler_abandons_an_epoch_not_higher_than_the_stored_snapshot(number: int) -> None:
    """A store that has lost its lease may grant a low number, but it still has the snapshot with the highest number."""
    election = an_election()
    lease = elected(election)
    election.observe_snapshot_epoch(number, is_leader=False)

    assert election.holds(at(0.1)) is None
    assert elected(election, lease, at(0.1)).epoch.number == number + 1


def test_scheduler_keeps_its_epoch_when_it_reads_its_own_snapshot() -> None:
    election = an_election()
    elected(election)
    election.observe_snapshot_epoch(1, is_leader=True)

    assert election.holds(at(0.1)) == Epoch(1, "a1")
    election.observe_snapshot_epoch(2, is_leader=True)
    assert election.holds(at(0.1)) is None


def test_lower_epoch_from_another_scheduler_is_ignored() -> None:
    election = an_election()
    election.observe_epoch(Epoch(3, "before"))
    elected(election)
    election.observe_epoch(Epoch(3, "before"))

    assert election.holds(at(0.1)) == Epoch(4, "a1")


def test_stale_store_does_not_restore_an_old_epoch() -> None:
    stale = Lease(Epoch(3, "old"), at(1.5))
    holder = an_election()
    holder.observe_epoch(Epoch(6, "seen"))
    elected(holder)

    assert elected(holder, stale, at(0.5)) == stale
    assert holder.holds(at(0.5)) is None
    assert elected(holder, stale, at(10)).epoch.number == 8


def test_expired_lease_is_granted_only_to_a_higher_epoch_number() -> None:
    over = Lease(Epoch(5, "five"), at(0))

    assert claim_lease(over, a_claim(5, "other"), at(1)) == over
    assert claim_lease(over, a_claim(6, "six"), at(1)).epoch == Epoch(6, "six")


def test_lease_granted_before_the_store_clock_moved_backwards_can_be_claimed() -> None:
    held = Lease(Epoch(5, "five"), at(3_600))

    assert claim_lease(held, a_claim(5, "other"), at(0)) == held
    assert claim_lease(held, a_claim(6, "six"), at(0)) == Lease(Epoch(6, "six"), at(1))
    assert claim_lease(Lease(Epoch(5, "five"), at(2)), a_claim(6, "six"), at(0)).epoch == Epoch(5, "five")


def test_released_lease_expires_immediately_and_keeps_its_number() -> None:
    lease = Lease(Epoch(4, "a"), at(1))

    assert release_lease(lease, Epoch(4, "a"), at(0)) == Lease(Epoch(4, "a"), at(0))
    assert release_lease(lease, Epoch(3, "b"), at(0)) == lease
    assert release_lease(None, Epoch(3, "b"), at(0)) is None


def test_candidate_holds_no_lease_after_stepping_down() -> None:
    election = an_election()
    elected(election)

    assert election.step_down(at(0)) == Epoch(1, "a1")
    assert election.holds(at(0)) is None


def test_holder_waits_before_renewing_the_lease() -> None:
    election = an_election()
    lease = elected(election)

    assert election.next_claim(at(0.1)) is None
    assert election.next_wakeup(at(0.1)) == at(0.15)
    election.handle_lease(a_claim(1, "a1"), lease, at(0.1))
    assert election.holds(at(0.55)) is not None
