"""Measured time of responses that contain no generated tokens, such as rankings and embeddings.

No tokens are reported while an engine computes such a response, so its speed cannot be learned from progress reports.
The time between dispatch and response is measured instead, for requests with an e2e target, and related to the time
that the speed model predicts for the prompt. Each endpoint has a ratio, and each pool has one for all of its endpoints.
Older responses are weighted less. A new scheduler measures again.
"""

from typing import Final

SAMPLES_MIN: Final = 16
"""Number of responses before the ratio is used."""
_FORGET_AFTER: Final = 128
"""Number of responses at which all totals are halved."""
PERCENT_MIN: Final = 1
PERCENT_MAX: Final = 10_000


class ResponseTimes:
    """Measured time in percent of the predicted time, for one endpoint or for all endpoints of a pool."""

    __slots__ = ("_measured_ns", "_predicted_ns", "_samples", "percent", "pool")

    def __init__(self) -> None:
        self._measured_ns = self._predicted_ns = self._samples = 0
        self.percent: int | None = None
        """Measured time in percent of the predicted time. None until enough responses have been measured."""
        self.pool: ResponseTimes | None = None
        """Times of the endpoint's pool, which its responses are added to. None for a pool."""

    def learn(self, *, measured_ns: int, predicted_ns: int) -> None:
        if self.pool is not None:
            self.pool.learn(measured_ns=measured_ns, predicted_ns=predicted_ns)
        self._measured_ns += measured_ns
        self._predicted_ns += predicted_ns
        self._samples += 1
        if self._samples >= SAMPLES_MIN:
            ratio = 100 * self._measured_ns // max(1, self._predicted_ns)
            self.percent = min(max(PERCENT_MIN, ratio), PERCENT_MAX)
        if self._samples >= _FORGET_AFTER:
            self._measured_ns //= 2
            self._predicted_ns //= 2
            self._samples //= 2

    def relative_percent(self) -> int:
        """Returns the endpoint's ratio minus the ratio of its pool. 0 until both are known."""
        if self.percent is None or self.pool is None or self.pool.percent is None:
            return 0
        return self.percent - self.pool.percent
