"""Corrects predicted work based on measured attainment.

The desired count is derived from the predicted engine time of requests. If the declared `speed` is wrong, the desired
count is wrong too, and only missed targets reveal it. This feedback loop maintains a factor by which predicted work is
multiplied. The factor rises while too many requests miss their target and falls while too few do, so that the miss rate
converges to the goal. The goal is slightly stricter than the objective, because some misses come in bursts that no
fleet can prevent.

The factor changes once per window. A window lasts at least one lead, so that the effect of a correction is measured
before the next one, and contains enough requests for a meaningful miss rate. Upward steps may be larger than downward
steps: too few endpoints cost requests, while too many only cost money. The factor does not rise while the pool's limits
allow no more endpoints. It does not fall while the desired count is determined by a term other than work, because
attainment then does not depend on the factor.
"""

from typing import Final

from headgate.model.scaling import ScalingRules
from headgate.model.units import MINUTE, Duration, Instant

PPM: Final = 1_000_000
JUDGED_MIN: Final = 100
"""Minimum number of requests per window."""
WINDOW_NS_MIN: Final = Duration(2 * MINUTE)
AIM_PERCENT: Final = 70
"""Target miss rate, in percent of the misses that the objective allows."""
GAIN_PPM: Final = 500
"""Change of the factor per window if the misses exceed the goal by as much as the objective allows, in millionths."""
RISE_PPM_MAX: Final = 10_000
"""Maximum increase in the factor per window, in millionths."""


class Correction:
    """Correction factor of one pool."""

    __slots__ = ("_judged", "_missed", "_since", "factor_ppm")

    def __init__(self) -> None:
        self.factor_ppm = PPM
        self._judged = self._missed = 0
        """Requests in the current window."""
        self._since: Instant | None = None

    def add(self, *, judged: int, missed: int) -> None:
        """Counts requests with a target and those that missed it."""
        self._judged += judged
        self._missed += missed

    def step(self, rules: ScalingRules, now: Instant, *, lead_ns: Duration, may_rise: bool, may_fall: bool) -> None:
        """Closes the window if it is complete and updates the factor."""
        if self._since is None:
            self._since = now
        if now - self._since >= max(lead_ns, WINDOW_NS_MIN) and self._judged >= JUDGED_MIN:
            change_ppm = self._change_ppm(rules)
            if (change_ppm > 0 and may_rise) or (change_ppm < 0 and may_fall):
                self.factor_ppm += self.factor_ppm * change_ppm // PPM
            self._since, self._judged, self._missed = now, 0, 0
        least, most = rules.correction_percent_min * PPM // 100, rules.correction_percent_max * PPM // 100
        self.factor_ppm = min(max(self.factor_ppm, least), most)

    def corrected(self, work: int) -> int:
        return work * self.factor_ppm // PPM

    def _change_ppm(self, rules: ScalingRules) -> int:
        allowed_ppm = max(1, PPM - rules.objective_ppm)
        beyond = 100 * PPM * self._missed - AIM_PERCENT * allowed_ppm * self._judged
        return min(RISE_PPM_MAX, GAIN_PPM * beyond // (100 * allowed_ppm * self._judged))
