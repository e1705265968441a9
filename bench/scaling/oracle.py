"""What would it cost to know the future?

The oracle knows every client's rate of all fourteen days, what requests cost on the mean, how long a cold start takes,
and the model itself; it does not know what chance makes of a rate within ten minutes, which the model takes as a mean
too. In each step it has the fewest endpoints that miss no more than the SLO allows *in this very step*. It orders each
of them one cold start before its step, gives it back with its last one, and keeps it through a gap that is no longer
than the cold start and the drain that it would be paid for otherwise. Endpoints are nested (the k-th is needed where at
least k are), so no other plan meets all steps for fewer hours.

`trading` is another: it may choose whom to miss. Where an hour of an endpoint saves fewer than so many requests it does
without, so that all days together reach the attainment and not every step. No scaler without its knowledge can do that.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from bench.scaling.demand import STEP_S, STEPS, Window
from bench.scaling.fluid import DRAIN_S, Outcome, chances

SLO = 0.99


def oracle(windows: Sequence[Window], *, cold_start_s: int, slo: float = SLO) -> Outcome:
    return _played(windows, [_fewest(each, slo) for each in windows], cold_start_s=cold_start_s)


def trading(windows: Sequence[Window], *, cold_start_s: int, attainment: float) -> Outcome:
    """The cheapest that reaches it, to a thousandth of the price."""
    dear, cheap = 1e9, 1e-9
    while dear / cheap > 1.001:
        price = (dear * cheap) ** 0.5
        found = _played(windows, [_worth(each, price) for each in windows], cold_start_s=0)
        dear, cheap = (price, cheap) if found.attainment >= attainment else (dear, price)
    return _played(windows, [_worth(each, dear) for each in windows], cold_start_s=cold_start_s)


def _fewest(window: Window, slo: float) -> int:
    return _first(0, lambda endpoints: chances(window, endpoints).missed <= 1 - slo)


def _worth(window: Window, price: float) -> int:
    """As many as each save requests worth an endpoint at this price. Each saves less than the one before it, except
    among the very first, and more than half of what is asked is worth serving at any price that matters."""

    def enough(endpoints: int) -> bool:
        saved = chances(window, endpoints).missed - chances(window, endpoints + 1).missed
        return saved * window.rate * price < 1

    return _first(int(window.work / 2), enough)


def _first(above: int, fits: Callable[[int], bool]) -> int:
    """The least number above this that fits; whatever is greater does too."""
    least, reach = above, 1
    while not fits(least + reach):
        reach *= 2
    greatest = least + reach
    while greatest - least > 1:
        middle = (least + greatest) // 2
        least, greatest = (least, middle) if fits(middle) else (middle, greatest)
    return greatest


def _played(windows: Sequence[Window], needed: Sequence[int], *, cold_start_s: int) -> Outcome:
    kept = bridged(needed, longest_s=cold_start_s + DRAIN_S, each_s=STEP_S * STEPS)
    came = missed = 0.0
    for window, endpoints in zip(windows, kept, strict=True):
        came += window.rate
        missed += window.rate * chances(window, endpoints).missed
    rises = sum(max(0, later - earlier) for earlier, later in pairwise(kept))
    falls = sum(max(0, earlier - later) for earlier, later in pairwise(kept))
    paid_s = sum(kept) * STEPS * STEP_S + rises * cold_start_s + falls * DRAIN_S
    course = [each for each in kept for _ in range(STEPS)]
    return Outcome(1 - missed / came, paid_s / 3600, rises, course)


def bridged(needed: Sequence[int], *, longest_s: int, each_s: int) -> list[int]:
    """Endpoints are kept through gaps that are no longer than this."""
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
