"""How much better is a block of time with the new value, and how sure is that at any moment?

Blocks come in groups. In each group, one block is drawn at random to have the new value. If the new value changes a
block's measurement by m, then subtracting m from that block makes all blocks of the group alike, and any of them could
have been drawn. For each factor L, the product over all groups of

    exp(L x) / mean of exp(L x_j) over the blocks j of the group

is therefore a fair game, where x_j is the difference between block j and the mean of the others, and x is that of the
drawn block. By Ville's inequality, a fair game that starts with 1 ever exceeds 1/alpha with a probability of at most
alpha. The values m for which no average of such games has exceeded that form an interval that is valid at any time.

The interval assumes the same effect m in every block, or none. If the effect differs between blocks, the interval can
miss the mean effect, for example if most blocks are slightly better and a few are much worse. `mean_effect.py` bounds
the mean, and a value is kept only if both agree.

This needs no assumption about the distribution, and requests within a block may be correlated in any way.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from headgate.control.rollouts.comparison import Interval

FACTORS: Final = (4.0, 16.0, 64.0, 256.0, 1024.0)
"""Factors of the games that are averaged. Together they find effects between 0.001 and 1."""
EFFECT_MAX: Final = 4.0
"""Largest effect that an interval can name: a ratio of 55, while shares differ by at most 1."""
_HALVINGS: Final = 15
_LOG_2: Final = math.log(2)
_EXPONENT_MAX: Final = 700.0
"""Largest exponent for which `math.exp` does not overflow."""


class BlockGroup(NamedTuple):
    """Measurements of a group's blocks, in order. `new` is the index of the block with the new value."""

    values: tuple[float, ...]
    new: int

    def effect(self) -> float:
        others = sum(self.values) - self.values[self.new]
        return self.values[self.new] - others / (len(self.values) - 1)

    def relative_effect(self) -> float:
        """Returns the mean relative difference to each of the others, between -1 and 1. Values are logarithms.

        Each is relative to the larger value, so that equal values have a mean of 0 however the values are distributed.
        """
        own = self.values[self.new]
        gaps = [own - each for index, each in enumerate(self.values) if index != self.new]
        return sum(math.copysign(-math.expm1(-abs(gap)), gap) for gap in gaps) / len(gaps)


def effect_interval(groups: Sequence[BlockGroup], alpha: float) -> Interval | None:
    """Returns the mean effect, with an interval for an effect that is the same in every block.

    It ever misses that effect with a probability of at most `alpha`. None without groups.
    """
    if not groups:
        return None
    estimate = sum(each.effect() for each in groups) / len(groups)
    mirrored = [BlockGroup(tuple(-value for value in each.values), each.new) for each in groups]
    low, high = _lower_bound(groups, alpha / 2), -_lower_bound(mirrored, alpha / 2)
    return Interval(min(low, estimate), estimate, max(high, estimate))


def groups_needed(size: int, alpha: float) -> int:
    """Returns the number of groups of this size without which no interval excludes 0, even if all blocks agree."""
    return math.ceil(math.log(2 / alpha) / math.log(size))


def _lower_bound(groups: Sequence[BlockGroup], alpha: float) -> float:
    """Returns the smallest effect that the groups do not exclude. The evidence decreases with the effect."""
    threshold = -math.log(alpha)
    low, high = -EFFECT_MAX, EFFECT_MAX
    if _evidence(groups, low) < threshold:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _evidence(groups, middle) < threshold:
            high = middle
        else:
            low = middle
    return low


def _evidence(groups: Sequence[BlockGroup], effect: float) -> float:
    """Returns the logarithm of the evidence that the true effect is larger than this one."""
    differences = [_differences(each, effect) for each in groups]
    games = [sum(_growth(factor, each) for each in differences) for factor in FACTORS]
    best = max(games)
    return best + math.log(sum(math.exp(each - best) for each in games) / len(games))


def _differences(group: BlockGroup, effect: float) -> tuple[float, ...]:
    """Returns the difference between each block and the mean of the others, without the effect. The new block's is
    first.
    """
    adjusted = list(group.values)
    adjusted[group.new] -= effect
    total, others = sum(adjusted), len(adjusted) - 1
    found = [value - (total - value) / others for value in adjusted]
    return (found[group.new], *found[: group.new], *found[group.new + 1 :])


def _growth(factor: float, differences: tuple[float, ...]) -> float:
    if len(differences) == 2 and (swing := 2 * factor * differences[0]) > -_EXPONENT_MAX:
        return _LOG_2 - math.log1p(math.exp(-swing))
    highest = max(differences)
    mean = sum(math.exp(factor * (each - highest)) for each in differences) / len(differences)
    return factor * (differences[0] - highest) - math.log(mean)
