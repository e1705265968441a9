"""How much of what arrives is refused under overload, and which part of it?

A controller steers the fraction that is refused, so that pressure stays where it should be: by how much pressure has
changed, and by how far it is off. The rank of the last arrivals says where the line is: beyond it is refused, up to it
let in, and never more than the fraction. A rank is the band first, then whether its tenant has more than its share
waiting, then its plan, then chance: the same for one tenant for an hour, so that a few are refused everything rather
than everybody something, and somebody else the next hour.
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


class Chances:
    """The lot that each tenant has drawn for this hour."""

    __slots__ = ("_drawn", "_hour")

    def __init__(self) -> None:
        self._hour = -1
        self._drawn: dict[TenantId, int] = {}

    def of(self, tenant: TenantId, now: Instant) -> int:
        hour = now // _HOUR
        if hour != self._hour or len(self._drawn) >= _TENANTS_MAX:
            self._hour, self._drawn = hour, {}
        drawn = self._drawn.get(tenant)
        if drawn is None:
            digest = blake2b(f"{hour} {tenant}".encode(), digest_size=_CHANCE_BITS // 8).digest()
            drawn = self._drawn[tenant] = int.from_bytes(digest)
        return drawn


def rank(*, band: int, over_share: bool, plan: Plan, chance: int) -> int:
    """The higher, the sooner refused."""
    return ((band * 2 + over_share) * len(_PLANS) + _PLANS[plan] << _CHANCE_BITS) + chance


class Shedder:
    __slots__ = ("_last", "_ranks", "_rules", "_threshold", "fraction")

    def __init__(self, rules: SheddingRules) -> None:
        self._rules = rules
        self._ranks: deque[int] = deque(maxlen=rules.arrivals)
        self._last = 0
        """The pressure before."""
        self._threshold: int | None = None
        self.fraction = 0
        """In millionths of what arrives."""

    def change_rules(self, rules: SheddingRules) -> None:
        self._rules = rules
        self._ranks = deque(self._ranks, maxlen=rules.arrivals)
        if not rules.enabled:
            self.fraction, self._threshold = 0, None

    def refuses(self, rank: int) -> bool:
        """Whether an arrival of this rank is refused."""
        return self._threshold is not None and rank > self._threshold

    def note(self, rank: int) -> None:
        """Remembers an arrival, refused or not."""
        self._ranks.append(rank)

    def steer(self, pressure: int) -> None:
        """A period is over, at this pressure."""
        rules = self._rules
        error, change = pressure - rules.pressure, pressure - self._last
        self._last = pressure
        fraction = self.fraction + rules.integral_gain * error + rules.proportional_gain * change
        self.fraction = min(max(0, fraction), rules.percent_max * MILLION // 100)
        self._threshold = self._line()

    def restore(self, *, fraction: int, pressure: int, ranks: Iterable[int]) -> None:
        self._ranks.extend(ranks)
        if self._rules.enabled:
            self.fraction, self._last = fraction, pressure
            self._threshold = self._line()

    def remembered(self) -> tuple[int, tuple[int, ...]]:
        """The last pressure, and the ranks of the last arrivals where any is refused by them."""
        return self._last, tuple(self._ranks) if self.fraction else ()

    def _line(self) -> int | None:
        """The rank beyond which no more than the fraction of the last arrivals were."""
        beyond = self.fraction * len(self._ranks) // MILLION
        return sorted(self._ranks)[-1 - beyond] if beyond else None
