"""Retry budgets, which limit retries and other extra attempts.

A retry is sent only if every budget allows it. A tenant earns a tenth of a retry with each first attempt and nothing by
waiting, so a tenant whose requests all fail cannot double its own load. A pool allows extra attempts up to a fifth of
its recent first attempts, so all tenants together cannot double the pool's load either. A small number of extra
attempts is always allowed, because requests to an almost idle pool would otherwise never be retried. The same limit
applies to all pools together, because the minimums of many small pools would add up.

Attempts are counted in tenths of the window. In the oldest, partly elapsed tenth, first attempts are excluded and extra
attempts are included, so any error results in fewer retries.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from headgate.core.counters import WindowCounter
from headgate.core.request_state import Attempt
from headgate.model.policy import Policy, RetryRules
from headgate.model.tenant import Tenant
from headgate.model.units import Duration, Instant, PoolName, TenantId

_SLICES = 10
_ALL: Final = PoolName("")


class RetryBudget:
    __slots__ = ("_all", "_credit", "_pools", "_rules")

    def __init__(self, rules: RetryRules) -> None:
        self._rules = rules
        self._credit: dict[TenantId, int] = {}
        self._pools: dict[PoolName, _Window] = {}
        self._all = _Window(rules.pool_budget_window_ns)

    def change_rules(self, policy: Policy) -> None:
        """Applies new rules and drops pools that no longer exist."""
        pools = [each.name for each in policy.pools if each.name in self._pools]
        if policy.retry.pool_budget_window_ns != self._rules.pool_budget_window_ns:
            pools = []
            self._all = _Window(policy.retry.pool_budget_window_ns)
        self._rules = policy.retry
        self._pools = {pool: self._pools[pool] for pool in pools}

    def change_tenants(self, changes: Mapping[TenantId, Tenant | None]) -> None:
        """Drops the tenants that no longer exist, which have the value None."""
        for name, tenant in changes.items():
            if tenant is None:
                self._credit.pop(name, None)

    def first_attempt(self, tenant: TenantId, pool: PoolName, now: Instant, *, client_retry: bool) -> None:
        """Counts a first attempt. It earns credit unless it is the caller's own retry."""
        if not client_retry:
            most = self._rules.credit_burst
            credit = self._credit.get(tenant, most) + self._rules.credit_per_first_attempt
            self._credit[tenant] = credit if credit < most else most
        self._window(pool).count_first(now)
        self._all.count_first(now)

    # Checks, without side effects

    def allows_for_tenant(self, tenant: TenantId, *, after_silence: bool = False) -> bool:
        """Returns whether the tenant's budget allows a retry by the caller."""
        return self._credit.get(tenant, self._rules.credit_burst) >= self._cost(after_silence=after_silence)

    def allows_for_pool(self, pool: PoolName, now: Instant) -> bool:
        """Returns whether the pool's budget and the overall budget allow a request to move to this pool."""
        return all(each.allows_extra(now, self._rules) for each in (self._window(pool), self._all))

    def allows(self, tenant: TenantId, pool: PoolName, now: Instant, *, after_silence: bool) -> bool:
        """Returns whether the tenant's, the pool's and the overall budget allow a retry by the gateway."""
        return self.allows_for_pool(pool, now) and self.allows_for_tenant(tenant, after_silence=after_silence)

    # Spending

    def spend_for_tenant(self, tenant: TenantId, *, after_silence: bool = False) -> None:
        credit = self._credit.get(tenant, self._rules.credit_burst)
        self._credit[tenant] = credit - self._cost(after_silence=after_silence)

    def spend_for_pool(self, pool: PoolName, now: Instant) -> None:
        for window in (self._window(pool), self._all):
            window.count_extra(now)

    def spend(self, tenant: TenantId, pool: PoolName, now: Instant, *, after_silence: bool) -> None:
        self.spend_for_tenant(tenant, after_silence=after_silence)
        self.spend_for_pool(pool, now)

    def _cost(self, *, after_silence: bool) -> int:
        return self._rules.timeout_cost if after_silence else self._rules.cost

    def recent_first_attempts(self, pools: tuple[PoolName, ...], now: Instant) -> tuple[int, Duration]:
        """Returns the number of recent first attempts in these pools, and the length of the window."""
        count = 0
        for pool in pools:
            count += self._window(pool).firsts(now)
        return count, self._rules.pool_budget_window_ns

    # Snapshot and takeover

    def counters(self, now: Instant) -> tuple[tuple[tuple[TenantId, int], ...], tuple[WindowCounter, ...]]:
        windows = ((_ALL, self._all), *self._pools.items())
        return tuple(self._credit.items()), tuple(window.counter(pool, now) for pool, window in windows)

    def restore(self, credit: Iterable[tuple[TenantId, int]], windows: Iterable[WindowCounter], now: Instant) -> None:
        for tenant, amount in credit:
            self._credit[tenant] = min(amount, self._rules.credit_burst)
        for each in windows:
            window = self._all if each.pool == _ALL else self._window(each.pool)
            window.restore(each, now)

    def backfill_extras(self, tenant: TenantId, pool: PoolName, count: int, now: Instant) -> None:
        """Counts extra attempts that another scheduler allowed and that the snapshot does not include.

        Nothing is checked.
        """
        for _ in range(count):
            self.backfill_client_retry(tenant)
            self._window(pool).count_extra(now)
            self._all.count_extra(now)

    def backfill_client_retry(self, tenant: TenantId) -> None:
        """Counts a caller's retry that another scheduler allowed and that the snapshot does not include."""
        credit = self._credit.get(tenant, self._rules.credit_burst)
        self._credit[tenant] = max(0, credit - self._rules.cost)

    def _window(self, pool: PoolName) -> "_Window":
        if (window := self._pools.get(pool)) is None:
            window = self._pools[pool] = _Window(self._rules.pool_budget_window_ns)
        return window


def retry_pool(attempt: Attempt, pools: tuple[PoolName, ...]) -> PoolName:
    """Returns the pool whose budget pays for a retry: the last pool, or the first pool of a fallback model."""
    return attempt.endpoint.pool if attempt.endpoint.pool in pools else pools[0]


class _Window:
    """First and extra attempts in the window, for one pool or for all pools."""

    __slots__ = ("_extras", "_firsts", "_width_ns")

    def __init__(self, length: Duration) -> None:
        self._width_ns = max(1, length // _SLICES)
        self._firsts: deque[list[int]] = deque(maxlen=_SLICES + 1)
        """Rows of (number of the tenth, attempts), oldest first."""
        self._extras: deque[list[int]] = deque(maxlen=_SLICES + 1)

    def count_first(self, now: Instant) -> None:
        number, firsts = now // self._width_ns, self._firsts
        if firsts and firsts[-1][0] == number:
            firsts[-1][1] += 1
        else:
            self._add(firsts, number, 1)

    def count_extra(self, now: Instant) -> None:
        self._add(self._extras, now // self._width_ns, 1)

    def firsts(self, now: Instant) -> int:
        return self._total(self._firsts, since=now // self._width_ns - _SLICES + 1)

    def allows_extra(self, now: Instant, rules: RetryRules) -> bool:
        extras = self._total(self._extras, since=now // self._width_ns - _SLICES)
        allowed = max(100 * rules.pool_retries_min, rules.pool_budget_percent * self.firsts(now))
        return 100 * (extras + 1) <= allowed

    def counter(self, pool: PoolName, now: Instant) -> WindowCounter:
        """Returns the window's contents for the snapshot.

        The time of an attempt is known only to within a tenth of the window. First attempts are reported with their
        maximum age and extra attempts with their minimum age, so the next scheduler also errs on the side of fewer
        retries.
        """
        width = self._width_ns
        firsts = tuple((Duration(max(0, now - number * width)), count) for number, count in self._firsts)
        extras = tuple((Duration(max(0, now - number * width - width + 1)), count) for number, count in self._extras)
        return WindowCounter(pool, firsts, extras)

    def restore(self, counter: WindowCounter, now: Instant) -> None:
        for parts, told in ((self._firsts, counter.firsts), (self._extras, counter.extras)):
            for age_ns, count in told:
                self._add(parts, (now - age_ns) // self._width_ns, count)

    def _add(self, parts: deque[list[int]], number: int, count: int) -> None:
        """Adds to the tenth with this number, which is nearly always the newest."""
        place = len(parts)
        while place and parts[place - 1][0] > number:
            place -= 1
        if place and parts[place - 1][0] == number:
            parts[place - 1][1] += count
        elif place == len(parts):
            parts.append([number, count])
        elif len(parts) < _SLICES + 1:
            parts.insert(place, [number, count])

    def _total(self, parts: deque[list[int]], *, since: int) -> int:
        while parts and parts[0][0] < since:
            parts.popleft()
        total = 0
        for _, count in parts:
            total += count
        return total
