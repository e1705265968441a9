"""Estimates the speed of an endpoint relative to its configured speed.

Two factors are learned per endpoint: one for decode time and one for prefill time. A few consecutive progress reports
form one equation that relates the expected decode time and the expected prefill time to the time that actually passed.
Individual reports would be misleading, because a long step can start in one report and end in the next.

Recursive least squares with forgetting finds the two factors that best explain about the last fifty equations. A factor
without data, for example prefill when no prompts arrive, stays unchanged. Both factors are clamped, and rounded to
whole percents before they are used.

The bounds are wider if the configured speed is a guess (`assumed`), because a guess can be wrong by a factor of twenty.
In that case, the measured time in an equation is capped at four times the time that the current estimate explains. A
single stall cannot outweigh the other equations, but an estimate that is far off can still grow by that factor with
each equation.
"""

from typing import Final

from headgate.core.counters import MILLION

PERCENT_MIN: Final = 25
PERCENT_MAX: Final = 400
ASSUMED_PERCENT_MIN: Final = 5
ASSUMED_PERCENT_MAX: Final = 10_000
_OUTLIER_TIMES: Final = 4.0
CONVERGED_EQUATIONS_MIN: Final = 10
"""Minimum number of equations before the factors can count as learned."""
_CONVERGED_FACTOR: Final = 2.0
"""The factors count as learned once the estimate explains an equation to within this factor."""
_FORGETTING_FACTOR: Final = 0.98
REPORTS_PER_EQUATION: Final = 8
"""Number of reports per equation."""
BUSY_REPORTS: Final = 48
"""Number of reports after which an equation ends at the next report in which a prompt was finished. A busy engine
always has an unfinished prompt, but the time already spent on unfinished prompts is then comparatively small."""
_PRIOR_WEIGHT: Final = 2.0
"""Weight of the current estimate, in number of equations."""


class SpeedEstimator:
    """Learned decode and prefill time in percent of the configured time. Above 100 means slower than configured."""

    __slots__ = (
        "_dd",
        "_decode",
        "_decode_ns",
        "_dp",
        "_dy",
        "_late",
        "_pp",
        "_prefill",
        "_prefill_ns",
        "_py",
        "_reports",
        "_took_ns",
        "assumed",
        "converged",
        "decode_percent",
        "prefill_percent",
    )

    def __init__(self, *, assumed: bool = False) -> None:
        self.assumed = assumed
        """Whether the configured speed is a guess."""
        self.converged = False
        """Whether both factors count as learned."""
        self.decode_percent = self.prefill_percent = 100
        self._decode = self._prefill = 1.0
        self._begin_equation()
        self._dd = self._dp = self._pp = self._dy = self._py = 0.0

    def observe(
        self, *, decode_ns: int, prefill_ns: int, took_ns: int, prefill_pending: bool = False, late: bool = False
    ) -> bool:
        """Adds a progress report. Returns whether a percentage or `converged` changed.

        `decode_ns` and `prefill_ns` are the expected times, `took_ns` is the measured time.

        `prefill_pending` means that a prompt is still being computed. The prompt has already taken time but is counted
        when it is finished. An equation that ended here would attribute that time to decoding, and in the next equation
        the prefill would appear to take no time.

        `late` means that the gateway's event loop was late. Tokens that it has not read yet are missing, so no equation
        ends here either. An equation with more than half of its reports late measures the gateway instead of the engine
        and is discarded.
        """
        self._decode_ns += decode_ns
        self._prefill_ns += prefill_ns
        self._took_ns += took_ns
        self._reports += 1
        self._late += late
        if self._reports < REPORTS_PER_EQUATION or not self._decode_ns or late:
            return False
        if prefill_pending and (self._reports < BUSY_REPORTS or not prefill_ns):
            return False
        if 2 * self._late > self._reports:
            self._begin_equation()
            return False
        expected_ns = self._decode_ns + self._prefill_ns
        decode, prefill = self._decode_ns / expected_ns, self._prefill_ns / expected_ns
        explained = decode * self._decode + prefill * self._prefill
        # A single engine stall must not outweigh all other equations.
        most = _OUTLIER_TIMES * explained if self.assumed else PERCENT_MAX / 100
        took = min(most, self._took_ns / expected_ns)
        self._begin_equation()
        self._dd = _FORGETTING_FACTOR * self._dd + decode * decode
        self._dp = _FORGETTING_FACTOR * self._dp + decode * prefill
        self._pp = _FORGETTING_FACTOR * self._pp + prefill * prefill
        self._dy = _FORGETTING_FACTOR * self._dy + decode * took
        self._py = _FORGETTING_FACTOR * self._py + prefill * took
        self._solve()
        before = (self.decode_percent, self.prefill_percent, self.converged)
        self.decode_percent, self.prefill_percent = round(100 * self._decode), round(100 * self._prefill)
        near = explained / _CONVERGED_FACTOR < took < explained * _CONVERGED_FACTOR
        self.converged = not self._is_too_fast and (
            self.converged or (near and self._equations >= CONVERGED_EQUATIONS_MIN)
        )
        return before != (self.decode_percent, self.prefill_percent, self.converged)

    def _begin_equation(self) -> None:
        """Starts the next equation."""
        self._decode_ns = self._prefill_ns = self._took_ns = 0
        self._reports = self._late = 0
        """Number of reports, and number of late ones."""

    @property
    def _is_too_fast(self) -> bool:
        """Whether a factor is at its lower bound. If so, the engine may be faster than the estimate."""
        return min(self.decode_percent, self.prefill_percent) <= ASSUMED_PERCENT_MIN

    @property
    def _equations(self) -> float:
        """Effective number of equations after forgetting. The decode and prefill shares of an equation add up to 1."""
        return self._dd + 2 * self._dp + self._pp

    def counters(self) -> tuple[tuple[int, int], tuple[int, int, int, int, int]]:
        """Returns the factors and the sums of the least-squares problem, in millionths."""
        sums = (self._dd, self._dp, self._pp, self._dy, self._py)
        dd, dp, pp, dy, py = (round(MILLION * each) for each in sums)
        return (round(MILLION * self._decode), round(MILLION * self._prefill)), (dd, dp, pp, dy, py)

    def restore(self, factors: tuple[int, int], sums: tuple[int, int, int, int, int]) -> None:
        decode, prefill = factors
        self._decode, self._prefill = self._clamped(decode / MILLION), self._clamped(prefill / MILLION)
        self._dd, self._dp, self._pp, self._dy, self._py = (each / MILLION for each in sums)
        self.decode_percent, self.prefill_percent = round(100 * self._decode), round(100 * self._prefill)
        self.converged = self._equations >= CONVERGED_EQUATIONS_MIN and not self._is_too_fast

    def _solve(self) -> None:
        dd, pp, dp = self._dd + _PRIOR_WEIGHT, self._pp + _PRIOR_WEIGHT, self._dp
        dy, py = self._dy + _PRIOR_WEIGHT * self._decode, self._py + _PRIOR_WEIGHT * self._prefill
        # The determinant is never near zero, because `_PRIOR_WEIGHT` is added to both diagonal elements.
        determinant = dd * pp - dp * dp
        self._decode = self._clamped((dy * pp - py * dp) / determinant)
        self._prefill = self._clamped((py * dd - dy * dp) / determinant)

    def _clamped(self, factor: float) -> float:
        least, most = (ASSUMED_PERCENT_MIN, ASSUMED_PERCENT_MAX) if self.assumed else (PERCENT_MIN, PERCENT_MAX)
        return min(most / 100, max(least / 100, factor))
