"""Shares of tenants' limits if several cells serve the same tenants.

The cells have separate schedulers. A controller outside of them divides the limits of each account, which is the first
component of a tenant's path. It assigns this cell a share of them for a short time, and keeps renewing it. When a share
expires, the floor applies. The sum of all cells' shares never exceeds the whole.

A change of a share changes how fast usage drains, but it does not make room at once. Otherwise, a tenant could use a
full minute's allowance in one cell and, after the share has moved, once more in another (`limits`).

Shares are rounded down but are never less than one unit, unless the share is zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headgate.core.events import SharesAssigned, TenantShare
from headgate.core.timers import TimerHeap, Timers
from headgate.model.limits import WHOLE_PPM, Limits
from headgate.model.tenant import Tenant
from headgate.model.units import Instant, TenantId

_EXPIRY: Final = "expiry"
_NO_LIMITS: Final = Limits()


class AccountShares:
    __slots__ = ("_divided", "_expiry_timer", "_floor_ppm", "_in_force", "_leases")

    def __init__(self, timer_heap: TimerHeap) -> None:
        self._floor_ppm = WHOLE_PPM
        self._leases: tuple[TenantShare, ...] = ()
        self._in_force: dict[TenantId, int] = {}
        self._divided: dict[TenantId, tuple[Tenant, Tenant]] = {}
        """Tenants and what they were divided into. Most of them do not change when shares do."""
        self._expiry_timer: Timers[str] = Timers(timer_heap)
        """One timer for the share that expires first."""

    def assign(self, event: SharesAssigned, now: Instant) -> bool:
        """Replaces all shares. Returns whether a share in force has changed."""
        floor_before, self._floor_ppm = self._floor_ppm, event.floor_ppm
        self._leases = event.shares
        return self._refresh(now) or self._floor_ppm != floor_before

    def expire_due(self, now: Instant) -> bool:
        """Removes expired shares and returns whether a share in force has changed."""
        return bool(self._expiry_timer.pop_fired()) and self._refresh(now)

    def _refresh(self, now: Instant) -> bool:
        before = self._in_force
        self._leases = tuple(each for each in self._leases if each.until > now)
        self._in_force = {each.account: each.ppm for each in self._leases}
        self._expiry_timer.clear_all()
        if self._leases:
            self._expiry_timer.set(_EXPIRY, min(each.until for each in self._leases))
        return self._in_force != before

    def share_of(self, tenant: TenantId) -> int:
        """Returns the share of a tenant's limits that applies now, in parts per million."""
        return self._in_force.get(TenantId(tenant.partition("/")[0]), self._floor_ppm)

    @property
    def divides(self) -> bool:
        """Whether any limit may be divided."""
        return self._floor_ppm != WHOLE_PPM or bool(self._leases)

    def divided(self, tenants: Iterable[Tenant]) -> Sequence[Tenant]:
        """Returns the tenants with their shares of the limits."""
        known, self._divided = self._divided, {}
        found: list[Tenant] = []
        for tenant in tenants:
            share_ppm, before = self.share_of(tenant.id), known.get(tenant.id)
            if before is None or before[0] is not tenant or before[1].limits.share_ppm != share_ppm:
                before = (tenant, replace(tenant, limits=_divided(tenant.limits, share_ppm)))
            self._divided[tenant.id] = before
            found.append(before[1])
        return found

    def divided_throttles(self, throttles: Mapping[TenantId, Limits]) -> dict[TenantId, Limits]:
        """Returns this cell's shares of the limits that operators have set."""
        return {name: _divided(limits, self.share_of(name)) for name, limits in throttles.items()}


def _divided(limits: Limits, share_ppm: int) -> Limits:
    if limits == _NO_LIMITS:
        return limits
    return Limits(
        requests_per_minute=_part(limits.requests_per_minute, share_ppm),
        tokens_per_minute=_part(limits.tokens_per_minute, share_ppm),
        concurrency=_part(limits.concurrency, share_ppm),
        total_tokens_per_minute=limits.total_tokens_per_minute or limits.tokens_per_minute,
        total_concurrency=limits.total_concurrency or limits.concurrency,
        share_ppm=share_ppm,
    )


def _part(whole: int | None, share_ppm: int) -> int | None:
    if whole is None:
        return None
    part = whole * share_ppm // WHOLE_PPM
    return part if part or not share_ppm else min(1, whole)
