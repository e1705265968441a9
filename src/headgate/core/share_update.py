"""Applies changed shares to the limits and budgets of the tenants that they affect.

All leases expire at once when the controller stops, and one account may have many tenants. The scheduler therefore
applies changes in slices, and continues when a timer fires, so that requests are handled in between. A request whose
account is still waiting gets the new shares before it is checked (`apply_to`). Usage drains at the new rate from the
time when the share changed. The result is therefore the same as if all changes had been applied at that time.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from headgate.core.account_shares import AccountShares, account_id
from headgate.core.events import SharesAssigned, TenantShare
from headgate.core.scheduler_state import SchedulerState
from headgate.core.timers import Timers
from headgate.model.tenant import levels_of
from headgate.model.units import Instant, TenantId

SLICE_TENANTS_MAX: Final = 200
"""Maximum number of tenants whose limits are recalculated between two events."""
_CONTINUE: Final = "continue"


class _Change:
    """A share that some tenants of the account do not have yet."""

    __slots__ = ("since", "start")

    def __init__(self, since: Instant) -> None:
        self.since = since
        """When the share changed."""
        self.start: TenantId | None = None
        """First tenant below the account that has not been visited. None if the account has not been visited either."""


class ShareUpdate:
    __slots__ = ("_continue_timer", "_shares", "_state", "pending")

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._shares = AccountShares(state.timer_heap)
        self._continue_timer: Timers[str] = Timers(state.timer_heap)
        self.pending: dict[TenantId, _Change] = {}
        """Accounts with tenants that do not have the new share yet."""
        state.limits.share_of = self._shares.share_of
        state.budgets.use_shares(self._shares.share_of)

    def assign(self, event: SharesAssigned, now: Instant) -> None:
        floor_changed = event.floor_ppm != self._shares.floor_ppm
        differences = self._shares.differences(event)
        ending = tuple(self.pending) if floor_changed else self._pending_changed_by(differences, now)
        self._finish(ending)
        changed = self._shares.assign(event, differences, now)
        if floor_changed:
            # Only at the start of a process.
            self._apply({**dict.fromkeys(self._state.limits.limited), **dict.fromkeys(self._state.rules.tenants)}, now)
        else:
            self._add(changed, now)
        self._apply_slice(now)

    def expire(self, now: Instant) -> None:
        """Stops using expired shares, and continues with the changes that have not been applied yet."""
        due, continues = self._shares.pop_due(), bool(self._continue_timer.pop_fired())
        if due:
            self._finish(due)
            self._add(self._shares.expire(due), now)
        if due or continues:
            self._apply_slice(now)

    def apply_to(self, tenant: TenantId) -> None:
        """Applies a pending change to all levels of the tenant's path."""
        if self.pending and (change := self.pending.get(account_id(tenant))) is not None:
            self._apply(levels_of(tenant), change.since)

    def _pending_changed_by(self, differences: Mapping[TenantId, TenantShare | None], now: Instant) -> list[TenantId]:
        """Returns the pending accounts whose shares in force change again. Most differences are renewals."""
        pending, shares = self.pending, self._shares
        return [
            account
            for account, share in differences.items()
            if account in pending and shares.is_changed_by(account, share, now)
        ]

    def _add(self, accounts: Iterable[TenantId], now: Instant) -> None:
        for account in accounts:
            self.pending[account] = _Change(now)

    def _finish(self, accounts: Iterable[TenantId]) -> None:
        """Applies the pending changes of accounts whose shares are about to change again."""
        for account in [each for each in accounts if each in self.pending]:
            self._visit(account, None)

    def _apply_slice(self, now: Instant) -> None:
        left = SLICE_TENANTS_MAX
        while left > 0 and self.pending:
            left -= self._visit(next(iter(self.pending)), left)
        if self.pending:
            self._continue_timer.set(_CONTINUE, now)

    def _visit(self, account: TenantId, most: int | None) -> int:
        """Applies a pending change to at most `most` tenants, or to all. Returns the number of visited tenants."""
        change, tenants = self.pending[account], self._state.rules.tenants
        names: list[TenantId] = []
        if change.start is None:
            # Operators may have set limits for levels that are not tenants.
            names = [account, *(each for each in self._state.limits.throttled if account_id(each) == account)]
            change.start = TenantId(f"{account}/")
        found = list(islice(tenants.between(change.start, TenantId(f"{account}0")), most))
        self._apply([*names, *found], change.since)
        if most is None or len(found) < most:
            del self.pending[account]
        else:
            change.start = TenantId(f"{found[-1]}\0")
        return len(names) + len(found)

    def _apply(self, tenants: Iterable[TenantId], since: Instant) -> None:
        self._state.limits.change_shares(tenants, since)
        self._state.budgets.change_shares(tenants)
