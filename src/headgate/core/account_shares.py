"""Shares of tenants' limits if several cells serve the same tenants.

The cells have separate schedulers. A controller outside of them divides the limits of each account, which is the first
component of a tenant's path. It assigns this cell a share of them for a short time, and keeps renewing it. When a share
expires, the floor applies. The sum of all cells' shares never exceeds the whole.

A change of a share changes how fast usage drains, but it does not make room at once. Otherwise, a tenant could use a
full minute's allowance in one cell and, after the share has moved, once more in another (`limits`).

Shares are rounded down but are never less than one unit, unless the share is zero.

This module stores the shares. `share_update` applies changes to them.
"""

from collections.abc import Iterable, Mapping

from headgate.core.events import SharesAssigned, TenantShare
from headgate.core.timers import TimerHeap, Timers
from headgate.model.limits import WHOLE_PPM, WHOLE_SHARE, Limits, LimitShare
from headgate.model.persistent_map import PersistentMap
from headgate.model.units import Instant, TenantId


class AccountShares:
    __slots__ = ("_expiring", "_expiry_timers", "_floor", "_in_force", "_listed", "floor_ppm")

    def __init__(self, timer_heap: TimerHeap) -> None:
        self.floor_ppm = WHOLE_PPM
        self._floor = WHOLE_SHARE
        self._listed: PersistentMap[TenantId, TenantShare] = PersistentMap()
        """Shares in the last assignment. Some of them may have expired."""
        self._in_force: dict[TenantId, TenantShare] = {}
        self._expiring: dict[str, dict[TenantId, None]] = {}
        """Accounts by the time when their shares expire. The shares of one message expire together."""
        self._expiry_timers: Timers[str] = Timers(timer_heap)
        """One timer for each entry in `_expiring`."""

    def share_of(self, tenant: TenantId) -> LimitShare:
        """Returns the share of a tenant's limits that applies now."""
        if not self._in_force:
            return self._floor
        share = self._in_force.get(account_id(tenant))
        return self._floor if share is None else share.share

    def differences(self, event: SharesAssigned) -> Mapping[TenantId, TenantShare | None]:
        """Returns the shares that differ from those in the last assignment. Changes nothing."""
        return event.shares.changes_since(self._listed)

    def is_changed_by(self, account: TenantId, share: TenantShare | None, now: Instant) -> bool:
        """Whether the account's share in force would change. A renewal changes only the expiry time."""
        in_force = self._floor if share is None or share.until <= now else share.share
        return in_force != self.share_of(account)

    def assign(
        self, event: SharesAssigned, differences: Mapping[TenantId, TenantShare | None], now: Instant
    ) -> list[TenantId]:
        """Replaces all shares. Returns the accounts whose shares in force have changed.

        A changed floor also affects all accounts without a share.
        """
        self.floor_ppm, self._listed = event.floor_ppm, event.shares
        self._floor = LimitShare(event.floor_ppm, event.floor_ppm)
        changed: list[TenantId] = []
        for account, share in differences.items():
            if self.is_changed_by(account, share, now):
                changed.append(account)
            self._remove(account)
            if share is not None and share.until > now:
                self._in_force[account] = share
                self._expire_at(share.until, account)
        return changed

    def pop_due(self) -> list[TenantId]:
        """Returns the accounts whose shares have expired. They stay in force until `expire` is called."""
        due: list[TenantId] = []
        for moment in self._expiry_timers.pop_fired():
            due += self._expiring.pop(moment)
        return due

    def expire(self, accounts: Iterable[TenantId]) -> list[TenantId]:
        """Removes these expired shares. Returns the accounts whose shares in force have changed."""
        in_force, floor = self._in_force, self._floor
        return [account for account in accounts if in_force.pop(account).share != floor]

    def _expire_at(self, until: Instant, account: TenantId) -> None:
        moment = str(until)
        if (together := self._expiring.get(moment)) is None:
            together = self._expiring[moment] = {}
            self._expiry_timers.set(moment, until)
        together[account] = None

    def _remove(self, account: TenantId) -> None:
        share = self._in_force.pop(account, None)
        if share is None:
            return
        moment = str(share.until)
        together = self._expiring[moment]
        del together[account]
        if not together:
            del self._expiring[moment]
            self._expiry_timers.clear(moment)


def whole_share(_: TenantId) -> LimitShare:
    """Returns the share of every tenant if there is only one cell."""
    return WHOLE_SHARE


def account_id(tenant: TenantId) -> TenantId:
    """Returns the first component of a tenant's path."""
    return TenantId(tenant.partition("/")[0])


def divided_limits(limits: Limits, share: LimitShare) -> Limits:
    """Returns a share of the limits."""
    if share == WHOLE_SHARE:
        return limits
    return Limits(
        requests_per_minute=_part(limits.requests_per_minute, share.requests_ppm),
        tokens_per_minute=_part(limits.tokens_per_minute, share.tokens_ppm),
        concurrency=_part(limits.concurrency, share.requests_ppm),
        total_tokens_per_minute=limits.total_tokens_per_minute or limits.tokens_per_minute,
        total_concurrency=limits.total_concurrency or limits.concurrency,
        share=share,
    )


def _part(whole: int | None, share_ppm: int) -> int | None:
    if whole is None:
        return None
    part = whole * share_ppm // WHOLE_PPM
    return part if part or not share_ppm else min(1, whole)
