"""How fast is this endpoint really, beside what was said of it?

Two factors are learned per endpoint: one for the time that decoding takes, one for the time that prompts take. A few
reports of progress together make an equation: so much decoding was expected and so many prompts were computed, and so
long it took in fact. One by one they would mislead, for a long step begins in one report and ends in the next.
Recursive least squares with forgetting finds the two factors that explain the last fifty or so equations. What has not
been excited, for instance prompts where none came, stays as it was. Both are clamped, and quantised to whole percents
before anybody compares anything.
"""

from typing import Final

from headgate.core.counters import MILLION

PERCENT_MIN: Final = 25
PERCENT_MAX: Final = 400
_FORGET: Final = 0.98
REPORTS: Final = 8
"""So many make an equation."""
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
        "_pp",
        "_prefill",
        "_prefill_ns",
        "_py",
        "_reports",
        "_took_ns",
        "decode_percent",
        "prefill_percent",
    )

    def __init__(self) -> None:
        self.decode_percent = self.prefill_percent = 100
        self._decode = self._prefill = 1.0
        self._decode_ns = self._prefill_ns = self._took_ns = self._reports = 0
        """Of the reports since the last equation."""
        self._dd = self._dp = self._pp = self._dy = self._py = 0.0

    def observe(self, *, decode_ns: int, prefill_ns: int, took_ns: int, half_done: bool = False) -> bool:
        """So much decoding and prefill was expected in what took so long; true if a percent has changed.

        A prompt that is `half_done` has taken time already, but is counted when it is done: until then there is no
        equation, for it would blame decoding, and the next one would find prompts to take no time at all.
        """
        self._decode_ns += decode_ns
        self._prefill_ns += prefill_ns
        self._took_ns += took_ns
        self._reports += 1
        if self._reports < REPORTS or not self._decode_ns or half_done:
            return False
        expected_ns = self._decode_ns + self._prefill_ns
        decode, prefill = self._decode_ns / expected_ns, self._prefill_ns / expected_ns
        # An engine that stood still once must not outweigh all the rest.
        took = min(PERCENT_MAX / 100, self._took_ns / expected_ns)
        self._decode_ns = self._prefill_ns = self._took_ns = self._reports = 0
        self._dd = _FORGET * self._dd + decode * decode
        self._dp = _FORGET * self._dp + decode * prefill
        self._pp = _FORGET * self._pp + prefill * prefill
        self._dy = _FORGET * self._dy + decode * took
        self._py = _FORGET * self._py + prefill * took
        self._solve()
        before = (self.decode_percent, self.prefill_percent)
        self.decode_percent, self.prefill_percent = round(100 * self._decode), round(100 * self._prefill)
        return before != (self.decode_percent, self.prefill_percent)

    def counters(self) -> tuple[tuple[int, int], tuple[int, int, int, int, int]]:
        """The factors, and what they follow from, in millionths."""
        sums = (self._dd, self._dp, self._pp, self._dy, self._py)
        dd, dp, pp, dy, py = (round(MILLION * each) for each in sums)
        return (round(MILLION * self._decode), round(MILLION * self._prefill)), (dd, dp, pp, dy, py)

    def restore(self, factors: tuple[int, int], sums: tuple[int, int, int, int, int]) -> None:
        decode, prefill = factors
        self._decode, self._prefill = _clamped(decode / MILLION), _clamped(prefill / MILLION)
        self._dd, self._dp, self._pp, self._dy, self._py = (each / MILLION for each in sums)
        self.decode_percent, self.prefill_percent = round(100 * self._decode), round(100 * self._prefill)

    def _solve(self) -> None:
        dd, pp, dp = self._dd + _TRUST, self._pp + _TRUST, self._dp
        dy, py = self._dy + _TRUST * self._decode, self._py + _TRUST * self._prefill
        # Never near zero: both diagonals carry the trust in the present estimate.
        determinant = dd * pp - dp * dp
        self._decode = _clamped((dy * pp - py * dp) / determinant)
        self._prefill = _clamped((py * dd - dy * dp) / determinant)


def _clamped(factor: float) -> float:
    return min(PERCENT_MAX / 100, max(PERCENT_MIN / 100, factor))
