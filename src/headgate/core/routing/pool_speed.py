"""Estimated engine speed of a pool whose speed is not configured.

The estimate starts from a typical speed. Once at least half of the endpoints have learned their speed, it is scaled by
the mean of the learned factors. Until then the pool is *learning*, and no request is rejected or expires because of an
estimate. A configured speed is used unchanged.

The harmonic mean is used, because a pool's work is divided in proportion to the rate of each endpoint.
"""

from typing import Final

from headgate.core.routing.speed_estimator import SpeedEstimator
from headgate.model.speed import EngineSpeed

_WHOLE: Final = 1_000_000
_ROUNDING_PERCENT: Final = 5
"""Rounding step of the factors, so that estimates do not change with every report."""


class PoolSpeed:
    """Engine speed used for cost estimates in one pool."""

    __slots__ = ("_assumed", "_configured", "_converged", "_decode", "_factors", "_prefill", "estimate")

    def __init__(self, configured: EngineSpeed, *, assumed: bool) -> None:
        self._converged: dict[SpeedEstimator, tuple[int, int]] = {}
        """Decode and prefill rate of each endpoint with a learned speed: `_WHOLE` divided by its percentage."""
        self._decode = self._prefill = 0
        """Totals of the rates in `_converged`."""
        self._factors: tuple[int, int] = (100, 100)
        self._configured, self._assumed, self.estimate = configured, assumed, configured

    def change(self, configured: EngineSpeed, *, assumed: bool) -> None:
        if (configured, assumed) != (self._configured, self._assumed):
            self._configured, self._assumed, self.estimate = configured, assumed, configured
            self._factors = (100, 100)
            self._scale()

    def is_learning(self, endpoints: int) -> bool:
        """Whether fewer than half of this many endpoints have learned their speed."""
        return self._assumed and (not self._converged or 2 * len(self._converged) < endpoints)

    def update(self, endpoint: SpeedEstimator) -> None:
        """Updates the estimate after an endpoint's factors have changed."""
        self._remove(endpoint)
        if self._assumed and endpoint.converged:
            rates = (_WHOLE // endpoint.decode_percent, _WHOLE // endpoint.prefill_percent)
            self._converged[endpoint] = rates
            self._decode, self._prefill = self._decode + rates[0], self._prefill + rates[1]
            self._scale()

    def forget(self, endpoint: SpeedEstimator) -> None:
        """Removes an endpoint that has left."""
        self._remove(endpoint)
        self._scale()

    def _remove(self, endpoint: SpeedEstimator) -> None:
        decode, prefill = self._converged.pop(endpoint, (0, 0))
        self._decode, self._prefill = self._decode - decode, self._prefill - prefill

    def _scale(self) -> None:
        if not self._assumed or not self._converged:
            return
        whole = len(self._converged) * _WHOLE
        factors = (_rounded(whole // self._decode), _rounded(whole // self._prefill))
        if factors != self._factors:
            self._factors = factors
            self.estimate = self._configured.scaled(decode_percent=factors[0], prefill_percent=factors[1])


def _rounded(percent: int) -> int:
    return max(1, (percent + _ROUNDING_PERCENT // 2) // _ROUNDING_PERCENT) * _ROUNDING_PERCENT
