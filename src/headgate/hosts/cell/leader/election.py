"""Elects the scheduler through a store that may lose data or restore old data.

The store keeps one lease: an epoch and its expiry time. A candidate claims the lease with a number above every epoch
that it knows from the store or from members. The store grants the lease only if it is free, and only for a higher
number. The holder renews the lease and, by its own clock, stops before the store could grant it to another process.

The store alone is not trusted. A store that restarts empty grants the lease to the first claim with any number. A store
that restarts with an old copy may grant it to an epoch that is over. Members detect both cases: they follow the highest
number they know and include it in every message. A scheduler that sees its own number with another id, or a higher
number, steps down and claims a higher one.

Known weakness: if the store loses the lease, two schedulers may each consider themselves elected for up to one lease
duration. Members follow only one of them, so grants from the other reach only members that do not know about the first
one yet.
"""

from collections.abc import Callable

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Epoch, Lease
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Instant, after


class Election:
    """Election state of one candidate."""

    __slots__ = (
        "_asked_at",
        "_claimed_epoch",
        "_fresh_id",
        "_last_epoch",
        "_lease_until",
        "_paused_until",
        "_timing",
        "epoch",
        "highest_epoch",
    )

    def __init__(self, timing: Timing, fresh_id: Callable[[], str]) -> None:
        self._timing = timing
        self._fresh_id = fresh_id
        self.highest_epoch = 0
        """Highest known epoch number."""
        self.epoch: Epoch | None = None
        """Epoch of this process while it is the scheduler."""
        self._last_epoch: Epoch | None = None
        """Last epoch of this process."""
        self._claimed_epoch: Epoch | None = None
        """Claimed epoch. If a reply is lost, the same epoch is claimed again."""
        self._lease_until = Instant(0)
        self._asked_at: Instant | None = None
        self._paused_until: Instant | None = None
        """Time until which this process does not claim the lease."""

    def holds(self, now: Instant) -> Epoch | None:
        """Returns the epoch of this process, or None if its lease has ended."""
        if self.epoch is not None and now >= self._lease_until:
            self.epoch = None
        return self.epoch

    def observe_epoch(self, epoch: Epoch) -> None:
        """Records an epoch that members follow. If it takes precedence over our epoch, our epoch ends."""
        if epoch in (self.epoch, self._last_epoch):
            return
        self.highest_epoch = max(self.highest_epoch, epoch.number)
        if self.epoch is not None and epoch.number >= self.epoch.number:
            self.epoch, self._asked_at = None, None

    def observe_snapshot_epoch(self, number: int, *, is_leader: bool) -> None:
        """Records the epoch number of a snapshot that is in the store.

        `is_leader` is whether this process is already the scheduler. A store that has lost the lease grants any epoch
        number, but it keeps the snapshot with the highest number. An epoch that is not higher could not save a
        snapshot, so it is given up and a higher one is claimed.
        """
        self.highest_epoch = max(self.highest_epoch, number)
        if self.epoch is not None and (number > self.epoch.number or (number == self.epoch.number and not is_leader)):
            self.epoch, self._asked_at = None, None

    def next_claim(self, now: Instant) -> Claim | None:
        """Returns the claim to send now, or None."""
        if self.next_wakeup(now) > now:
            return None
        epoch = self.holds(now)
        if epoch is None:
            if self._claimed_epoch is None or self._claimed_epoch.number <= self.highest_epoch:
                self._claimed_epoch = Epoch(self.highest_epoch + 1, self._fresh_id())
            epoch = self._claimed_epoch
        self._asked_at = now
        return Claim(epoch, self._timing.lease_ns, now, replaces=self._last_epoch)

    def handle_lease(self, claim: Claim, lease: Lease, now: Instant) -> None:
        """Handles the store's reply to a claim."""
        if lease.epoch != claim.epoch:
            self.highest_epoch = max(self.highest_epoch, lease.epoch.number)
            if claim.epoch == self.epoch:
                self.epoch = None
            return
        # The lease started no earlier than its claim, and the store's clock may run faster.
        until = after(claim.asked_at, self._timing.min_elapsed(self._timing.lease_ns))
        if claim.epoch == self.epoch:
            self._lease_until = max(self._lease_until, until)
        elif claim.epoch == self._claimed_epoch and claim.epoch.number > self.highest_epoch and until > now:
            self.epoch = self._last_epoch = claim.epoch
            self._claimed_epoch, self._lease_until = None, until
            self.highest_epoch = claim.epoch.number

    def step_down(self, now: Instant) -> Epoch | None:
        """Steps down. Returns the epoch whose lease must be released."""
        epoch, self.epoch = self.holds(now), None
        return epoch

    def pause(self, now: Instant, until: Instant) -> Epoch | None:
        """Steps down and claims no lease until this time. Returns the epoch whose lease must be released."""
        self._paused_until = until
        return self.step_down(now)

    def is_paused(self, now: Instant) -> bool:
        return self._paused_until is not None and now < self._paused_until

    def next_wakeup(self, now: Instant) -> Instant:
        if self._paused_until is not None and now < self._paused_until:
            return self._paused_until
        if self._asked_at is None:
            return now
        return after(self._asked_at, self._timing.lease_poll_ns if self.epoch is None else self._timing.renew_ns)
