"""How does a store give away the lease of the scheduler?

`claimed` and `released` are all that a store has to do, each at once and undivided. The candidates do the rest
(`leader/election.py`).
"""

from headgate.hosts.cell.protocol.messages import Epoch, Lease
from headgate.model.message import message
from headgate.model.units import Duration, Instant, after


@message
class Claim:
    """What a candidate asks of the store: this lease, from now on for so long."""

    epoch: Epoch
    lasts_ns: Duration
    asked: Instant
    """By the candidate's clock; the store has no use for it."""
    instead_of: Epoch | None = None
    """An epoch of the candidate's own that is over."""


def claimed(lease: Lease | None, claim: Claim, now: Instant) -> Lease:
    """What the store has after a claim, by its own clock. The claim was granted where its epoch is in it.

    This is all that a store has to do, at once and undivided.
    """
    mine = Lease(claim.epoch, after(now, claim.lasts_ns))
    if lease is None or lease.epoch == claim.epoch:
        return mine
    # A lease that lasts longer than any claim was granted before the store's clock was set back.
    free = not now < lease.expires <= now + 2 * claim.lasts_ns or lease.epoch == claim.instead_of
    return mine if free and claim.epoch.number > lease.epoch.number else lease


def released(lease: Lease | None, epoch: Epoch, now: Instant) -> Lease | None:
    """What the store has after a holder gave up: the same epoch, over at once, so that its number is not lost."""
    return Lease(epoch, now) if lease is not None and lease.epoch == epoch else lease
