"""Shares of tenants' limits that a gateway process has leased from the share controller.

Every process of a cell has its own leases, because any of them may become the cell's scheduler. Only the scheduler and
islands apply them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from headgate.control.cells.assignment import account_of
from headgate.control.cells.messages import REVISION, AccountDemand, LeasedShare, ProcessReport, ShareMessage
from headgate.core.events import SharesAssigned, TenantShare
from headgate.model.limits import WHOLE_PPM, Limits, LimitShare
from headgate.model.overrides import Throttle
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, levels_of, tenant_table
from headgate.model.units import SECOND, Instant, TenantId
from headgate.telemetry.tenant_activity import TenantActivity

ACCOUNTS_MAX: Final = 16_384
"""Maximum number of leased shares, and of accounts in a report."""
LEASE_NS_MAX: Final = 60_000_000_000
_NO_LIMITS: Final = Limits()
_IDLE: Final = AccountDemand(0, 0, tokens=0)


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
        self._split: dict[TenantId, TenantShare] = {}
        """Leases with separate token shares, as last received."""
        self._ends_at: Instant | None = None
        """No lease ends before this time. None if there are no leases."""
        self._renewed_at: Instant | None = None
        """When the last message was applied."""
        self._lease_ns = 0
        """Length of the leases in that message."""
        self._had_leases = False
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
                self._renewed_at, self._lease_ns = now, message.lease_ns
                self._had_leases = self._had_leases or bool(message.shares)
                self._apply(message, until, now)
        return self.report()

    def _is_current(self, message: ShareMessage) -> bool:
        return message.session == self._session and message.epoch == self._epoch and message.version >= self._version

    def _apply(self, message: ShareMessage, until: Instant, now: Instant) -> None:
        self._drop_expired(now)
        changes: dict[TenantId, TenantShare | None] = {}
        free = ACCOUNTS_MAX - len(self._shares)
        for name, ppm in message.shares.items():
            account = TenantId(name)
            if account not in self._shares:
                free -= 1
                if free < 0:
                    continue
            changes[account] = lease = TenantShare(account, self._share(account, message, now), until)
            if message.token_shares.get(name, ppm) != ppm:
                self._split[account] = lease
            elif name in message.token_shares:
                self._split.pop(account, None)
        if changes:
            self._ends_at = until if self._ends_at is None else min(self._ends_at, until)
        self._shares = self._shares.updated(changes)
        self._assign(SharesAssigned(self._floor_ppm, self._shares))

    def _share(self, account: TenantId, message: ShareMessage, now: Instant) -> LimitShare:
        """Returns the account's share according to a message.

        A controller of an older version sends no token shares and does not know those that other cells have leased. A
        lower token share is therefore kept until its lease expires.
        """
        requests_ppm = message.shares[account]
        if (tokens_ppm := message.token_shares.get(account)) is None:
            split = self._split.get(account)
            kept_ppm = requests_ppm if split is None or split.until <= now else split.share.tokens_ppm
            tokens_ppm = min(requests_ppm, kept_ppm)
        return LimitShare(requests_ppm, tokens_ppm)

    def _drop_expired(self, now: Instant) -> None:
        """Drops expired leases. Returns immediately if none can have expired since the last call."""
        if self._ends_at is None or now < self._ends_at:
            return
        expired: dict[TenantId, TenantShare | None] = {
            each.account: None for each in self._shares.values() if each.until <= now
        }
        self.expired += len(expired)
        for account in expired:
            self._split.pop(account, None)
        self._shares = self._shares.updated(expired)
        self._ends_at = min((each.until for each in self._shares.values()), default=None)

    @property
    def renewal_age_ns(self) -> int | None:
        """Time since the controller last renewed the leases. None if it never has."""
        return None if self._renewed_at is None else self._now() - self._renewed_at

    @property
    def is_lost(self) -> bool:
        """Whether all leases have expired because the controller no longer renews them, so that the floor applies."""
        age_ns = self.renewal_age_ns
        return self._had_leases and age_ns is not None and age_ns > self._lease_ns and self.count == 0

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
            name: LeasedShare(
                each.share.requests_ppm,
                each.until - now,
                None if each.share.tokens_ppm == each.share.requests_ppm else each.share.tokens_ppm,
            )
            for name, each in self._shares.items()
        }
        return ProcessReport(
            self._session, now, self._epoch, self._version, self._floor_ppm, shares, dict(self._demand()), REVISION
        )


class AccountDemands:
    """Demand of the accounts that have limits or budgets.

    The accounts are updated from the differences between policies, because a policy may have many tenants.
    """

    def __init__(self) -> None:
        self._tenants: PersistentMap[TenantId, Tenant] = PersistentMap()
        self._limited: dict[str, int] = {}
        """Number of tenants with limits or budgets, by account."""

    def measure(self, policy: Policy, activities: Iterable[TenantActivity]) -> dict[str, AccountDemand]:
        """Returns the demand of at most `ACCOUNTS_MAX` accounts, starting with those that have requests."""
        self._change_tenants(tenant_table(policy.tenants).by_id)
        throttled = {account_of(each.tenant) for each in policy.overrides if isinstance(each, Throttle)}
        found: dict[str, AccountDemand] = {}
        open_by_level: dict[str, int] = {}
        for each in activities:
            account = account_of(each.name)
            if account in self._limited or account in throttled:
                running = each.queued + each.in_flight
                found[account] = _sum(found.get(account, _IDLE), each, running)
                if running:
                    for level in levels_of(TenantId(each.name)):
                        open_by_level[level] = open_by_level.get(level, 0) + running
        for level, running in open_by_level.items():
            tenant, account = self._tenants.get(TenantId(level)), account_of(level)
            if tenant is not None and tenant.limits.concurrency:
                held = running * WHOLE_PPM // tenant.limits.concurrency
                found[account] = replace(found[account], held_ppm=max(found[account].held_ppm, held))
        others = (name for name in chain(throttled, self._limited) if name not in found)
        found.update(dict.fromkeys(islice(others, max(0, ACCOUNTS_MAX - len(found))), _IDLE))
        return found

    def _change_tenants(self, tenants: PersistentMap[TenantId, Tenant]) -> None:
        before, self._tenants = self._tenants, tenants
        for name in tenants.changes_since(before):
            change = _is_limited(tenants.get(name)) - _is_limited(before.get(name))
            if change:
                account = account_of(name)
                count = self._limited.pop(account, 0) + change
                if count:
                    self._limited[account] = count


def _is_limited(tenant: Tenant | None) -> bool:
    return tenant is not None and (tenant.limits != _NO_LIMITS or bool(tenant.budgets))


def _sum(one: AccountDemand, other: TenantActivity, running: int) -> AccountDemand:
    return AccountDemand(
        one.arrived + other.arrived,
        one.open + running,
        tokens=(one.tokens or 0) + other.tokens,
        open_tokens=one.open_tokens + other.open_tokens,
    )
