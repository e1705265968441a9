"""How fast is this endpoint really, beside what was said of it?

Two factors are learned per endpoint: one for the time that decoding takes, one for the time that prompts take. A few
reports of progress together make an equation: so much decoding was expected and so many prompts were computed, and so
long it took in fact. One by one they would mislead, for a long step begins in one report and ends in the next.
Recursive least squares with forgetting finds the two factors that explain the last fifty or so equations. What has not
been excited, for instance prompts where none came, stays as it was. Both are clamped, and quantised to whole percents
before anybody compares anything.

The bounds are wider where the given speed is a guess (`assumed`): a guess may be wrong by a factor of twenty. An
equation then counts for at most four times what the present estimate explains, so that one stall does not outweigh the
rest, while an estimate that is far off still approaches the truth by that factor with each equation.
"""

from typing import Final

from headgate.core.counters import MILLION

PERCENT_MIN: Final = 25
PERCENT_MAX: Final = 400
ASSUMED_PERCENT_MIN: Final = 5
ASSUMED_PERCENT_MAX: Final = 10_000
_OUTLIER_TIMES: Final = 4.0
SETTLED_FROM: Final = 10
"""The number of equations from which a factor may count as learned."""
_SETTLED_WITHIN: Final = 2.0
"""It does once an equation differs from what the estimate explains by less than this factor."""
_FORGET: Final = 0.98
REPORTS: Final = 8
"""So many make an equation."""
BUSY_REPORTS: Final = 48
"""At a busy engine some prompt is always half done. After this many reports, the equation ends at the next report in
which a prompt was finished; the time already spent on other prompts is small in comparison."""
_TRUST: Final = 2.0
"""How much the present estimate weighs against what is observed, in observations."""


class Learned:
    """Percents of what was said of the endpoint: above a hundred it is slower."""

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
        "decode_percent",
        "prefill_percent",
        "settled",
    )

    def __init__(self, *, assumed: bool = False) -> None:
        self.assumed = assumed
        """Whether the speed that the percents refer to is a guess."""
        self.settled = False
        """Whether the percents have been learned."""
        self.decode_percent = self.prefill_percent = 100
        self._decode = self._prefill = 1.0
        self._begin()
        self._dd = self._dp = self._pp = self._dy = self._py = 0.0

    def observe(
        self, *, decode_ns: int, prefill_ns: int, took_ns: int, half_done: bool = False, late: bool = False
    ) -> bool:
        """So much decoding and prefill was expected in what took so long; true if a percent has changed or settled.

        A prompt that is `half_done` has taken time already, but is counted when it is done. An equation that ended
        there would blame decoding for that time, and the next one would find that prompts take none. A report is `late`
        if the gateway's event loop was late; tokens that it has yet to read are missing, so no equation ends there
        either. An equation in which more than half of the reports are late measures the gateway and not the engine, and
        is discarded.
        """
        self._decode_ns += decode_ns
        self._prefill_ns += prefill_ns
        self._took_ns += took_ns
        self._reports += 1
        self._late += late
        if self._reports < REPORTS or not self._decode_ns or late:
            return False
        if half_done and (self._reports < BUSY_REPORTS or not prefill_ns):
            return False
        if 2 * self._late > self._reports:
            self._begin()
            return False
        expected_ns = self._decode_ns + self._prefill_ns
        decode, prefill = self._decode_ns / expected_ns, self._prefill_ns / expected_ns
        explained = decode * self._decode + prefill * self._prefill
        # An engine that stood still once must not outweigh all the rest.
        most = _OUTLIER_TIMES * explained if self.assumed else PERCENT_MAX / 100
        took = min(most, self._took_ns / expected_ns)
        self._begin()
        self._dd = _FORGET * self._dd + decode * decode
        self._dp = _FORGET * self._dp + decode * prefill
        self._pp = _FORGET * self._pp + prefill * prefill
        self._dy = _FORGET * self._dy + decode * took
        self._py = _FORGET * self._py + prefill * took
        self._solve()
        before = (self.decode_percent, self.prefill_percent, self.settled)
        self.decode_percent, self.prefill_percent = round(100 * self._decode), round(100 * self._prefill)
        near = explained / _SETTLED_WITHIN < took < explained * _SETTLED_WITHIN
        self.settled = not self._is_too_fast and (self.settled or (near and self._equations >= SETTLED_FROM))
        return before != (self.decode_percent, self.prefill_percent, self.settled)

    def _begin(self) -> None:
        """Starts to collect reports for the next equation."""
        self._decode_ns = self._prefill_ns = self._took_ns = 0
        self._reports = self._late = 0
        """Number of reports, and how many of them were late."""

    @property
    def _is_too_fast(self) -> bool:
        """Whether a factor is at its lower bound: the engine may be faster than any estimate, so none is trusted."""
        return min(self.decode_percent, self.prefill_percent) <= ASSUMED_PERCENT_MIN

    @property
    def _equations(self) -> float:
        """The number of equations that count, forgetting included: the two shares of each add up to one."""
        return self._dd + 2 * self._dp + self._pp

    def counters(self) -> tuple[tuple[int, int], tuple[int, int, int, int, int]]:
        """The factors, and what they follow from, in millionths."""
        sums = (self._dd, self._dp, self._pp, self._dy, self._py)
        dd, dp, pp, dy, py = (round(MILLION * each) for each in sums)
        return (round(MILLION * self._decode), round(MILLION * self._prefill)), (dd, dp, pp, dy, py)

    def restore(self, factors: tuple[int, int], sums: tuple[int, int, int, int, int]) -> None:
        decode, prefill = factors
        self._decode, self._prefill = self._clamped(decode / MILLION), self._clamped(prefill / MILLION)
        self._dd, self._dp, self._pp, self._dy, self._py = (each / MILLION for each in sums)
        self.decode_percent, self.prefill_percent = round(100 * self._decode), round(100 * self._prefill)
        self.settled = self._equations >= SETTLED_FROM and not self._is_too_fast

    def _solve(self) -> None:
        dd, pp, dp = self._dd + _TRUST, self._pp + _TRUST, self._dp
        dy, py = self._dy + _TRUST * self._decode, self._py + _TRUST * self._prefill
        # Never near zero: both diagonals carry the trust in the present estimate.
        determinant = dd * pp - dp * dp
        self._decode = self._clamped((dy * pp - py * dp) / determinant)
        self._prefill = self._clamped((py * dd - dy * dp) / determinant)

    def _clamped(self, factor: float) -> float:
        least, most = (ASSUMED_PERCENT_MIN, ASSUMED_PERCENT_MAX) if self.assumed else (PERCENT_MIN, PERCENT_MAX)
        return min(most / 100, max(least / 100, factor))
