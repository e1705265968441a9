"""Shares of tenants' limits that a gateway process has leased from the controller of several cells.

Every process of a cell has its own leases, because any of them may become the cell's scheduler. Only the scheduler and
islands apply them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headgate.control.cells.assignment import account_of
from headgate.control.cells.messages import AccountDemand, LeasedShare, ProcessReport, ShareMessage
from headgate.core.events import SharesAssigned, TenantShare
from headgate.model.limits import WHOLE_PPM, Limits
from headgate.model.overrides import Throttle
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.units import SECOND, Instant, TenantId
from headgate.telemetry.tenant_activity import TenantActivity

ACCOUNTS_MAX: Final = 16_384
"""Maximum number of leased shares."""
LEASE_NS_MAX: Final = 60_000_000_000
_NO_LIMITS: Final = Limits()


class ShareLeases:
    def __init__(
        self,
        session: str,
        floor_ppm: int,
        now: Callable[[], Instant],
        assign: Callable[[SharesAssigned], None],
        demand: Callable[[], Mapping[str, AccountDemand]],
    ) -> None:
        """`session` identifies this run of the process. `assign` passes the shares to the scheduler."""
        self._session = session
        self._floor_ppm = floor_ppm
        self._now = now
        self._assign = assign
        self._demand = demand
        self._epoch = self._version = 0
        self._shares: PersistentMap[TenantId, TenantShare] = PersistentMap()
        self._ends_at: Instant | None = None
        """No lease ends before this time. None if there are no leases."""
        self.expired = 0
        """Number of leases that expired because they were not renewed."""
        assign(SharesAssigned(floor_ppm))

    def handle(self, message: ShareMessage) -> ProcessReport:
        """Applies a message if it is not outdated. Always returns a report.

        Shares that the message does not contain stay in force until they expire. A long list of shares is therefore
        sent in several messages with the same version.
        """
        now = self._now()
        if message.epoch > self._epoch:
            self._epoch, self._version = message.epoch, 0
        if self._is_current(message):
            until = Instant(min(message.stamp_ns, now) + min(message.lease_ns, LEASE_NS_MAX))
            if until > now:
                self._version = message.version
                self._apply(message.shares, until, now)
        return self.report()

    def _is_current(self, message: ShareMessage) -> bool:
        return message.session == self._session and message.epoch == self._epoch and message.version >= self._version

    def _apply(self, shares: Mapping[str, int], until: Instant, now: Instant) -> None:
        self._drop_expired(now)
        changes: dict[TenantId, TenantShare | None] = {}
        free = ACCOUNTS_MAX - len(self._shares)
        for name, ppm in shares.items():
            account = TenantId(name)
            if account not in self._shares:
                free -= 1
                if free < 0:
                    continue
            changes[account] = TenantShare(account, ppm, until)
        if changes:
            self._ends_at = until if self._ends_at is None else min(self._ends_at, until)
        self._shares = self._shares.updated(changes)
        self._assign(SharesAssigned(self._floor_ppm, self._shares))

    def _drop_expired(self, now: Instant) -> None:
        """Drops expired leases. Visits them only if one of them may have expired since the last visit."""
        if self._ends_at is None or now < self._ends_at:
            return
        expired: dict[TenantId, TenantShare | None] = {
            each.account: None for each in self._shares.values() if each.until <= now
        }
        self.expired += len(expired)
        self._shares = self._shares.updated(expired)
        self._ends_at = min((each.until for each in self._shares.values()), default=None)

    @property
    def count(self) -> int:
        """Number of leases in force."""
        self._drop_expired(self._now())
        return len(self._shares)

    def status(self) -> Mapping[str, object]:
        """Returns the state for /status."""
        now = self._now()
        self._drop_expired(now)
        left = [each.until - now for each in self._shares.values()]
        return {
            "floor_ppm": self._floor_ppm,
            "controller_epoch": self._epoch or None,
            "leases": len(left),
            "leases_end_in_s": round(min(left) / SECOND, 1) if left else None,
        }

    def report(self) -> ProcessReport:
        now = self._now()
        self._drop_expired(now)
        shares: dict[str, LeasedShare] = {
            name: LeasedShare(each.ppm, each.until - now) for name, each in self._shares.items()
        }
        return ProcessReport(
            self._session, now, self._epoch, self._version, self._floor_ppm, shares, dict(self._demand())
        )


def demand_by_account(policy: Policy, activities: Iterable[TenantActivity]) -> dict[str, AccountDemand]:
    """Returns the demand of each account that has limits or budgets."""
    arrived: dict[str, int] = {}
    open_by_level: dict[str, int] = {}
    for each in activities:
        account, running = account_of(each.name), each.queued + each.in_flight
        arrived[account] = arrived.get(account, 0) + each.arrived
        if running:
            steps = each.name.split("/")
            for depth in range(1, len(steps) + 1):
                level = "/".join(steps[:depth])
                open_by_level[level] = open_by_level.get(level, 0) + running
    held = dict.fromkeys(_limited_accounts(policy), 0)
    for tenant in policy.tenants:
        if tenant.limits.concurrency:
            account = account_of(tenant.id)
            used = open_by_level.get(tenant.id, 0) * WHOLE_PPM // tenant.limits.concurrency
            held[account] = max(held[account], used)
    return {name: AccountDemand(arrived.get(name, 0), open_by_level.get(name, 0), used) for name, used in held.items()}


def _limited_accounts(policy: Policy) -> Iterable[str]:
    for tenant in policy.tenants:
        if tenant.limits != _NO_LIMITS or tenant.budgets:
            yield account_of(tenant.id)
    for order in policy.overrides:
        if isinstance(order, Throttle):
            yield account_of(order.tenant)
