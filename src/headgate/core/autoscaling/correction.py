"""By how much does the measured attainment correct the want?

The want follows from the engine time that requests are predicted to take. If the declared `speed` is wrong, so is the
want, and only the requests that miss their target show it. This is a closed loop on them: a factor by which predicted
work is multiplied. It rises while more requests miss their target than aimed at, and falls while fewer do, so in the
long run the share of misses settles at the aim. The aim is a little better than the objective, because misses also come
in bursts that no fleet prevents.

One correction is made for each window. A window lasts one lead, so that the effect of a correction is measured before
the next one, and has enough requests for a share. Steps are bounded, upwards more loosely than downwards: too few
endpoints cost requests, too many cost only money. The factor does not rise while the bounds of the pool allow no more
endpoints, and does not fall while something other than work decides the want: attainment then does not depend on it.
"""

from typing import Final

from headgate.model.scaling import ScalingRules
from headgate.model.units import MINUTE, Duration, Instant

PPM: Final = 1_000_000
JUDGED_MIN: Final = 100
"""Requests that a window needs at least."""
WINDOW_NS_MIN: Final = Duration(2 * MINUTE)
AIM_PERCENT: Final = 70
"""Share of the misses that the objective allows at which the loop aims."""
GAIN_PPM: Final = 500
"""Change of the factor per window for each time that the misses exceed the aim by what the objective allows."""
RISE_PPM_MAX: Final = 10_000
"""Largest change of the factor per window."""


class Correction:
    """The correction of one pool."""

    __slots__ = ("_judged", "_missed", "_since", "factor_ppm")

    def __init__(self) -> None:
        self.factor_ppm = PPM
        self._judged = self._missed = 0
        """Requests of the present window."""
        self._since: Instant | None = None

    def add(self, *, judged: int, missed: int) -> None:
        """So many requests had a target, and so many of them missed it."""
        self._judged += judged
        self._missed += missed

    def step(self, rules: ScalingRules, now: Instant, *, lead_ns: Duration, may_rise: bool, may_fall: bool) -> None:
        """Closes the window if it is complete, and corrects the factor by it."""
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
