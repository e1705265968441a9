"""May this request be tried once more?

All budgets must agree. A tenant earns a tenth of a retry with each first attempt and
nothing by waiting, so a tenant whose requests all fail cannot double its own load. A pool
allows extra attempts up to a fifth of its first attempts of the last seconds, so that all
tenants together cannot either; a few are always allowed, or a quiet pool would never retry.
The same holds for all pools together, or the few of many small pools would add up.
Counts are kept in tenths of the window: first attempts of the oldest, partly elapsed tenth are
left out and extra attempts of it kept in, which errs on the side of fewer retries.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from headgate.core.counters import WindowCounter
from headgate.core.state import Attempt
from headgate.model.policy import Policy, RetryRules
from headgate.model.units import Duration, Instant, PoolName, TenantId

_PARTS = 10
_ALL: Final = PoolName("")


class RetryBudget:
    __slots__ = ("_all", "_credit", "_pools", "_rules")

    def __init__(self, rules: RetryRules) -> None:
        self._rules = rules
        self._credit: dict[TenantId, int] = {}
        self._pools: dict[PoolName, _Window] = {}
        self._all = _Window(rules.pool_window_ns)

    def change_rules(self, policy: Policy) -> None:
        """Takes new rules and forgets the tenants and pools that are gone."""
        tenants = [each.id for each in policy.tenants if each.id in self._credit]
        pools = [each.name for each in policy.pools if each.name in self._pools]
        if policy.retry.pool_window_ns != self._rules.pool_window_ns:
            pools = []
            self._all = _Window(policy.retry.pool_window_ns)
        self._rules = policy.retry
        self._credit = {tenant: self._credit[tenant] for tenant in tenants}
        self._pools = {pool: self._pools[pool] for pool in pools}

    def first_attempt(self, tenant: TenantId, pool: PoolName, now: Instant, *, client_retry: bool) -> None:
        """A first attempt of ours earns credit, unless for its caller it is a retry."""
        if not client_retry:
            credit = self._credit.get(tenant, self._rules.credit_burst) + self._rules.credit_per_first_attempt
            self._credit[tenant] = min(credit, self._rules.credit_burst)
        self._window(pool).count_first(now)
        self._all.count_first(now)

    # Checks, which spend nothing

    def allows_for_tenant(self, tenant: TenantId, *, after_silence: bool = False) -> bool:
        """For a retry that the caller makes: only its own budget is asked."""
        return self._credit.get(tenant, self._rules.credit_burst) >= self._cost(after_silence=after_silence)

    def allows_for_pool(self, pool: PoolName, now: Instant) -> bool:
        """For what goes to this pool although it was meant for another: the pool is asked, and all pools together."""
        return all(each.allows_extra(now, self._rules) for each in (self._window(pool), self._all))

    def allows(self, tenant: TenantId, pool: PoolName, now: Instant, *, after_silence: bool) -> bool:
        """For a retry that we make: tenant and pool are asked, and all pools together."""
        return self.allows_for_pool(pool, now) and self.allows_for_tenant(tenant, after_silence=after_silence)

    # What was allowed is spent

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
        return self._rules.cost_after_silence if after_silence else self._rules.cost

    def pace(self, pools: tuple[PoolName, ...], now: Instant) -> tuple[int, Duration]:
        """How quickly these pools have been taking work: first attempts, and in how long."""
        count = 0
        for pool in pools:
            count += self._window(pool).firsts(now)
        return count, self._rules.pool_window_ns

    # For a successor, and from a predecessor

    def counters(self, now: Instant) -> tuple[tuple[tuple[TenantId, int], ...], tuple[WindowCounter, ...]]:
        windows = ((_ALL, self._all), *self._pools.items())
        return tuple(self._credit.items()), tuple(window.counter(pool, now) for pool, window in windows)

    def restore(self, credit: Iterable[tuple[TenantId, int]], windows: Iterable[WindowCounter], now: Instant) -> None:
        for tenant, amount in credit:
            self._credit[tenant] = min(amount, self._rules.credit_burst)
        for each in windows:
            window = self._all if each.pool == _ALL else self._window(each.pool)
            window.restore(each, now)

    def extras_before(self, tenant: TenantId, pool: PoolName, count: int, now: Instant) -> None:
        """Extra attempts that another scheduler allowed and did not count for us; nobody is asked any more."""
        for _ in range(count):
            self.client_retry_before(tenant)
            self._window(pool).count_extra(now)
            self._all.count_extra(now)

    def client_retry_before(self, tenant: TenantId) -> None:
        """The same of a retry that its caller made."""
        credit = self._credit.get(tenant, self._rules.credit_burst)
        self._credit[tenant] = max(0, credit - self._rules.cost)

    def _window(self, pool: PoolName) -> "_Window":
        if (window := self._pools.get(pool)) is None:
            window = self._pools[pool] = _Window(self._rules.pool_window_ns)
        return window


def pool_of_retry(attempt: Attempt, pools: tuple[PoolName, ...]) -> PoolName:
    """The pool whose budget another attempt at these pools is asked of: its last one, or the first of another model."""
    return attempt.endpoint.pool if attempt.endpoint.pool in pools else pools[0]


class _Window:
    """First and extra attempts over the last window, of one pool or of all."""

    __slots__ = ("_extras", "_firsts", "_width_ns")

    def __init__(self, length: Duration) -> None:
        self._width_ns = max(1, length // _PARTS)
        self._firsts: deque[list[int]] = deque(maxlen=_PARTS + 1)
        """Each part that saw any: its number, and how many; oldest first."""
        self._extras: deque[list[int]] = deque(maxlen=_PARTS + 1)

    def count_first(self, now: Instant) -> None:
        self._count(self._firsts, now)

    def count_extra(self, now: Instant) -> None:
        self._count(self._extras, now)

    def firsts(self, now: Instant) -> int:
        return self._total(self._firsts, since=now // self._width_ns - _PARTS + 1)

    def allows_extra(self, now: Instant, rules: RetryRules) -> bool:
        extras = self._total(self._extras, since=now // self._width_ns - _PARTS)
        allowed = max(100 * rules.pool_extra_min, rules.pool_percent * self.firsts(now))
        return 100 * (extras + 1) <= allowed

    def counter(self, pool: PoolName, now: Instant) -> WindowCounter:
        """Nobody knows when in its part of the window an attempt was: firsts are told as early as they may have been
        and extras as late, so that a successor errs on the same side.
        """
        width = self._width_ns
        firsts = tuple((Duration(max(0, now - number * width)), count) for number, count in self._firsts)
        extras = tuple((Duration(max(0, now - number * width - width + 1)), count) for number, count in self._extras)
        return WindowCounter(pool, firsts, extras)

    def restore(self, counter: WindowCounter, now: Instant) -> None:
        for parts, told in ((self._firsts, counter.firsts), (self._extras, counter.extras)):
            for age_ns, count in told:
                self._add(parts, (now - age_ns) // self._width_ns, count)

    def _count(self, parts: deque[list[int]], now: Instant) -> None:
        number = now // self._width_ns
        if parts and parts[-1][0] == number:
            parts[-1][1] += 1
        else:
            self._add(parts, number, 1)

    def _add(self, parts: deque[list[int]], number: int, count: int) -> None:
        """Counts in the part of this number, which is nearly always the newest."""
        place = len(parts)
        while place and parts[place - 1][0] > number:
            place -= 1
        if place and parts[place - 1][0] == number:
            parts[place - 1][1] += count
        elif place == len(parts):
            parts.append([number, count])
        elif len(parts) < _PARTS + 1:
            parts.insert(place, [number, count])

    def _total(self, parts: deque[list[int]], *, since: int) -> int:
        while parts and parts[0][0] < since:
            parts.popleft()
        total = 0
        for _, count in parts:
            total += count
        return total
