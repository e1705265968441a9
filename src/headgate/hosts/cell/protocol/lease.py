"""The store's part of the scheduler lease.

A store runs `claim_lease` and `release_lease` atomically. The candidates do the rest (`leader/election.py`).
"""

from headgate.hosts.cell.protocol.messages import Epoch, Lease
from headgate.model.message import message
from headgate.model.units import Duration, Instant, after


@message
class Claim:
    """Claim of the lease by a candidate, for `duration_ns` from now."""

    epoch: Epoch
    duration_ns: Duration
    asked_at: Instant
    """Time of the claim by the candidate's clock. The store ignores it."""
    replaces: Epoch | None = None
    """An earlier epoch of the candidate, now over."""


def claim_lease(lease: Lease | None, claim: Claim, now: Instant) -> Lease:
    """Returns the store's lease after a claim at `now` by the store's clock.

    The claim was granted if the returned lease has the claim's epoch. The store must run this function atomically.
    """
    mine = Lease(claim.epoch, after(now, claim.duration_ns))
    if lease is None or lease.epoch == claim.epoch:
        return mine
    # A lease that would last longer than any claim was granted before the store's clock was set back.
    free = not now < lease.expires_at <= now + 2 * claim.duration_ns or lease.epoch == claim.replaces
    return mine if free and claim.epoch.number > lease.epoch.number else lease


def release_lease(lease: Lease | None, epoch: Epoch, now: Instant) -> Lease | None:
    """Returns the store's lease after a release: the same epoch, expired now, so that its number is not lost."""
    return Lease(epoch, now) if lease is not None and lease.epoch == epoch else lease
