"""How large is the mean effect of the new value at least, if the effect differs between blocks?

A bettor starts with a capital of 1 and multiplies it, at each group of blocks, by

    1 + b (x - m)

where x is the difference between the block with the new value and the mean of the others, between -1 and 1. The new
block is drawn at random, so the expected value of x is the mean effect on the blocks of its group. If the mean of these
effects over all groups so far is at most m, the expected product is at most 1 for any fixed b from 0 to 1, because
1 + y is at most exp(y). By Ville's inequality, the capital then ever reaches 1/alpha with a probability of at most
alpha. The values m for which it has not been reached are possible, and the smallest is the lower bound.

This holds for effects that differ between groups in any way, also if a few blocks are much worse than the others. The
number of groups is therefore large: the bound cannot exclude a loss that is too rare to have been drawn.
"""

import math
from collections.abc import Sequence
from typing import Final

BETS: Final = (0.95, 0.4)
"""Factors b. The capital is divided equally: large ones need fewer groups, small ones tolerate more variation."""
_HALVINGS: Final = 15


def mean_lower_bound(differences: Sequence[float], alpha: float) -> float:
    """Returns the lower bound of the mean effect, from -1 to 0. It is 0 if the effect is shown to be positive.

    Over all groups, it exceeds the mean effect so far with a probability of at most `alpha`.
    """
    if _capital_log(differences, 0.0) >= -math.log(alpha):
        return 0.0
    low, high = -1.0, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _capital_log(differences, middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low


def groups_for_mean(difference: float, alpha: float) -> int:
    """Returns the number of groups that show a positive effect if all have this difference."""
    growths = [math.log1p(bet * difference) for bet in BETS]
    groups = 1
    while _mean_log([groups * each for each in growths]) < -math.log(alpha):
        groups += 1
    return groups


def _capital_log(differences: Sequence[float], effect: float) -> float:
    """Returns the logarithm of the capital. It decreases with the effect, which must not be positive."""
    return _mean_log([sum(math.log1p(bet * (each - effect)) for each in differences) for bet in BETS])


def _mean_log(logs: Sequence[float]) -> float:
    """Returns the logarithm of the mean of numbers that are given as logarithms."""
    best = max(logs)
    return best + math.log(sum(math.exp(each - best) for each in logs) / len(logs))
