"""Oracles: GPU-hours needed by a planner that knows the future.

The oracle knows every client's rate on all fourteen days, the mean request costs, the cold start and the model. It does
not know the random variation within ten minutes, which the model also treats as a mean. In each step it has the fewest
endpoints that keep the misses *of that step* within the SLO. It orders an endpoint one cold start before its first step
and releases it after its last. It keeps an endpoint through a gap if the gap is no longer than the cold start and drain
it would otherwise pay for. Endpoints are nested (the k-th is needed whenever at least k are), so no other plan meets
the SLO in every step with fewer hours.

The `cheapest_for_attainment` oracle may choose which requests to miss. It omits an endpoint that would save fewer than
a given number of requests per hour, so that the target is met in total rather than in every step. An autoscaler without
that knowledge cannot do this.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from bench.scaling.demand import STEP_S, STEPS, Window
from bench.scaling.fluid import DRAIN_S, Outcome, steady_state

SLO = 0.99


def oracle(windows: Sequence[Window], *, cold_start_s: int, slo: float = SLO) -> Outcome:
    return _simulate(windows, [_fewest(each, slo) for each in windows], cold_start_s=cold_start_s)


def cheapest_for_attainment(windows: Sequence[Window], *, cold_start_s: int, attainment: float) -> Outcome:
    """Cheapest plan that reaches the attainment, with the price determined to one part in a thousand."""
    dear, cheap = 1e9, 1e-9
    while dear / cheap > 1.001:
        price = (dear * cheap) ** 0.5
        found = _simulate(windows, [_endpoints_at_price(each, price) for each in windows], cold_start_s=0)
        dear, cheap = (price, cheap) if found.attainment >= attainment else (dear, price)
    return _simulate(windows, [_endpoints_at_price(each, dear) for each in windows], cold_start_s=cold_start_s)


def _fewest(window: Window, slo: float) -> int:
    return _first(0, lambda endpoints: steady_state(window, endpoints).missed <= 1 - slo)


def _endpoints_at_price(window: Window, price: float) -> int:
    """Number of endpoints that each save enough requests to be worth their cost at this price.

    Each endpoint saves less than the one before, except among the very first. The search starts at half of the demand,
    which is worth serving at every relevant price.
    """

    def enough(endpoints: int) -> bool:
        saved = steady_state(window, endpoints).missed - steady_state(window, endpoints + 1).missed
        return saved * window.rate * price < 1

    return _first(int(window.work / 2), enough)


def _first(above: int, fits: Callable[[int], bool]) -> int:
    """Smallest number greater than `above` for which `fits` is true. It must hold for all larger numbers too."""
    least, reach = above, 1
    while not fits(least + reach):
        reach *= 2
    greatest = least + reach
    while greatest - least > 1:
        middle = (least + greatest) // 2
        least, greatest = (least, middle) if fits(middle) else (middle, greatest)
    return greatest


def _simulate(windows: Sequence[Window], needed: Sequence[int], *, cold_start_s: int) -> Outcome:
    kept = bridge_gaps(needed, longest_s=cold_start_s + DRAIN_S, each_s=STEP_S * STEPS)
    came = missed = 0.0
    for window, endpoints in zip(windows, kept, strict=True):
        came += window.rate
        missed += window.rate * steady_state(window, endpoints).missed
    rises = sum(max(0, later - earlier) for earlier, later in pairwise(kept))
    falls = sum(max(0, earlier - later) for earlier, later in pairwise(kept))
    paid_s = sum(kept) * STEPS * STEP_S + rises * cold_start_s + falls * DRAIN_S
    course = [each for each in kept for _ in range(STEPS)]
    return Outcome(1 - missed / came, paid_s / 3600, rises, course)


def bridge_gaps(needed: Sequence[int], *, longest_s: int, each_s: int) -> list[int]:
    """Keep endpoints through gaps of at most `longest_s`."""
    longest = longest_s // each_s
    kept = list(needed)
    if not longest:
        return kept
    for place, here in enumerate(needed):
        following = needed[place + 1 : place + longest + 2]
        for distance, there in enumerate(following, start=1):
            for between in range(place + 1, place + distance):
                kept[between] = max(kept[between], min(here, there))
    return kept
