"""Load shedding: chooses the arrivals to reject under overload.

A PI controller adjusts the fraction of arrivals to reject so that pressure stays at its target. The ranks of the latest
arrivals turn that fraction into a threshold. Arrivals ranked above the threshold are rejected, so at most that fraction
is rejected. The rank of an arrival depends on these criteria, in order:

1. the priority band;
2. whether the tenant has more than its share of the queue;
3. the tenant's plan;
4. a random draw per tenant and hour.

Because of the draw, load shedding rejects all requests from a few tenants instead of some requests from every tenant.
In the next hour, other tenants are affected.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from headgate.model.policy import SheddingRules
from headgate.model.tenant import Plan
from headgate.model.units import MINUTE, Instant, TenantId

MILLION: Final = 1_000_000
_HOUR: Final = 60 * MINUTE
_CHANCE_BITS: Final = 16
_TENANTS_MAX: Final = 10_000
_PLANS: Final = {Plan.CRITICAL: 0, Plan.STANDARD: 1, Plan.FREE: 2}


class ShedDraws:
    """Random draw of each tenant for the current hour."""

    __slots__ = ("_drawn", "_hour")

    def __init__(self) -> None:
        self._hour = -1
        self._drawn: dict[TenantId, int] = {}

    def draw(self, tenant: TenantId, now: Instant) -> int:
        hour = now // _HOUR
        if hour != self._hour or len(self._drawn) >= _TENANTS_MAX:
            self._hour, self._drawn = hour, {}
        drawn = self._drawn.get(tenant)
        if drawn is None:
            digest = blake2b(f"{hour} {tenant}".encode(), digest_size=_CHANCE_BITS // 8).digest()
            drawn = self._drawn[tenant] = int.from_bytes(digest)
        return drawn


def rank(*, band: int, over_share: bool, plan: Plan, draw: int) -> int:
    """Returns the rank of an arrival. Higher ranks are rejected first."""
    return ((band * 2 + over_share) * len(_PLANS) + _PLANS[plan] << _CHANCE_BITS) + draw


class Shedder:
    __slots__ = ("_last_pressure", "_ranks", "_rules", "_threshold", "fraction")

    def __init__(self, rules: SheddingRules) -> None:
        self._rules = rules
        self._ranks: deque[int] = deque(maxlen=rules.arrival_window)
        self._last_pressure = 0
        """Pressure in the previous period."""
        self._threshold: int | None = None
        self.fraction = 0
        """Fraction of arrivals to reject, in millionths."""

    def change_rules(self, rules: SheddingRules) -> None:
        self._rules = rules
        self._ranks = deque(self._ranks, maxlen=rules.arrival_window)
        if not rules.enabled:
            self.fraction, self._threshold = 0, None

    def rejects(self, rank: int) -> bool:
        """Whether an arrival of this rank is rejected."""
        return self._threshold is not None and rank > self._threshold

    def record_arrival(self, rank: int) -> None:
        """Records the rank of an arrival, whether it is rejected or not."""
        self._ranks.append(rank)

    def update(self, pressure: int) -> None:
        """Updates the fraction and the threshold at the end of a period, based on the period's pressure."""
        rules = self._rules
        error, change = pressure - rules.target_pressure, pressure - self._last_pressure
        self._last_pressure = pressure
        fraction = self.fraction + rules.integral_gain * error + rules.proportional_gain * change
        self.fraction = min(max(0, fraction), rules.shed_percent_max * MILLION // 100)
        self._threshold = self._threshold_rank()

    def restore(self, *, fraction: int, pressure: int, ranks: Iterable[int]) -> None:
        self._ranks.extend(ranks)
        if self._rules.enabled:
            self.fraction, self._last_pressure = fraction, pressure
            self._threshold = self._threshold_rank()

    def recent(self) -> tuple[int, tuple[int, ...]]:
        """Returns the last pressure and, while arrivals are being rejected, the ranks of the latest ones."""
        return self._last_pressure, tuple(self._ranks) if self.fraction else ()

    def _threshold_rank(self) -> int | None:
        """Returns the threshold rank. At most the current fraction of the latest arrivals had a higher rank."""
        beyond = self.fraction * len(self._ranks) // MILLION
        return sorted(self._ranks)[-1 - beyond] if beyond else None
