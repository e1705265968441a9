"""Who is the scheduler, when the store that says so may forget, or remember wrongly?

The store keeps one lease: an epoch and when it expires. A candidate claims it with a number above every one that it has
heard of, from the store or from members; the store gives it away only when it is free, and always to a higher number.
Whoever holds the lease renews it, and stops by its own clock before the store's could have given it to another.

The store is not trusted alone. One that comes back empty gives the lease to whoever asks first, with any number; one
that comes back with an old copy may give it to an epoch that was over. Both are found out by the members, who follow
the highest number that they have heard and say which that is in all that they write. A scheduler that sees a number as
high as its own with another's id gives up at once, and claims a number above.

What is not ideal: two schedulers may each believe in their lease for as long as one lasts, if the store has lost it.
Members follow one of them, so what the other grants reaches only who has not yet heard of the first.
"""

from collections.abc import Callable

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Lease
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Instant, after


class Election:
    """One candidate's part."""

    __slots__ = ("_asked_at", "_fresh_id", "_last", "_timing", "_until", "_wanted", "epoch", "highest")

    def __init__(self, timing: Timing, fresh_id: Callable[[], str]) -> None:
        self._timing = timing
        self._fresh_id = fresh_id
        self.highest = 0
        """The highest number of an epoch that was heard of."""
        self.epoch: Epoch | None = None
        """Ours, while we are the scheduler."""
        self._last: Epoch | None = None
        """The last that was ours."""
        self._wanted: Epoch | None = None
        """What was claimed, so that an answer that is lost is asked for again, not instead."""
        self._until = Instant(0)
        self._asked_at: Instant | None = None

    def holds(self, now: Instant) -> Epoch | None:
        """The epoch that is ours at this moment; from the end of its lease on there is none."""
        if self.epoch is not None and now >= self._until:
            self.epoch = None
        return self.epoch

    def heard_of(self, epoch: Epoch) -> None:
        """Members follow this one. Where it outranks ours, ours is over."""
        if epoch in (self.epoch, self._last):
            return
        self.highest = max(self.highest, epoch.number)
        if self.epoch is not None and epoch.number >= self.epoch.number:
            self.epoch, self._asked_at = None, None

    def read_snapshot_of(self, number: int, *, leads: bool) -> None:
        """The store has a snapshot of the epoch with this number. `leads`: this process is already the scheduler.

        A store that has lost the lease grants any epoch number, but it keeps the snapshot with the highest number. So
        an epoch that is not higher could not save a snapshot: it is given up, and a higher one is claimed.
        """
        self.highest = max(self.highest, number)
        if self.epoch is not None and (number > self.epoch.number or (number == self.epoch.number and not leads)):
            self.epoch, self._asked_at = None, None

    def ask(self, now: Instant) -> Claim | None:
        """What is to be asked of the store at this moment."""
        if self.next_wakeup(now) > now:
            return None
        epoch = self.holds(now)
        if epoch is None:
            if self._wanted is None or self._wanted.number <= self.highest:
                self._wanted = Epoch(self.highest + 1, self._fresh_id())
            epoch = self._wanted
        self._asked_at = now
        return Claim(epoch, self._timing.lease_ns, now, instead_of=self._last)

    def answered(self, claim: Claim, lease: Lease, now: Instant) -> None:
        """The store has answered the claim with what it has."""
        if lease.epoch != claim.epoch:
            self.highest = max(self.highest, lease.epoch.number)
            if claim.epoch == self.epoch:
                self.epoch = None
            return
        # It began no earlier than it was asked for, and the store's clock may be the faster one.
        until = after(claim.asked, self._timing.at_least(self._timing.lease_ns))
        if claim.epoch == self.epoch:
            self._until = max(self._until, until)
        elif claim.epoch == self._wanted and claim.epoch.number > self.highest and until > now:
            self.epoch = self._last = claim.epoch
            self._wanted, self._until = None, until
            self.highest = claim.epoch.number

    def give_up(self, now: Instant) -> Epoch | None:
        """This process wants to be the scheduler no more; the epoch whose lease it has."""
        epoch, self.epoch = self.holds(now), None
        return epoch

    def next_wakeup(self, now: Instant) -> Instant:
        if self._asked_at is None:
            return now
        return after(self._asked_at, self._timing.stand_by_ns if self.epoch is None else self._timing.renew_ns)
