"""How fast are the engines of a pool, if the configuration does not give their speed?

The scheduler then starts from a usual speed. Once at least half of the endpoints have settled on what they learned, the
estimates for new requests are scaled by the mean of these. Until then the pool is *learning*: no request is rejected or
expired on an estimate. A configured speed is used unchanged.

The mean is harmonic, since the work of a pool is shared out by how much each endpoint serves in a second.
"""

from typing import Final

from headgate.core.routing.learning import Learned
from headgate.model.speed import EngineSpeed

_WHOLE: Final = 1_000_000
_GRAIN_PERCENT: Final = 5
"""Factors are rounded to multiples of this, so that estimates do not change with every report."""


class PoolSpeed:
    """The speed by which requests to one pool are estimated."""

    __slots__ = ("_assumed", "_decode", "_factors", "_given", "_prefill", "_settled", "estimate")

    def __init__(self, given: EngineSpeed, *, assumed: bool) -> None:
        self._settled: dict[Learned, tuple[int, int]] = {}
        """How much of the usual decoding and prefill each settled endpoint does in the same time, in millionths."""
        self._decode = self._prefill = 0
        """Totals of these."""
        self._factors: tuple[int, int] = (100, 100)
        self._given, self._assumed, self.estimate = given, assumed, given

    def change(self, given: EngineSpeed, *, assumed: bool) -> None:
        if (given, assumed) != (self._given, self._assumed):
            self._given, self._assumed, self.estimate = given, assumed, given
            self._factors = (100, 100)
            self._scale()

    def learning(self, endpoints: int) -> bool:
        """Whether fewer than half of so many endpoints have settled."""
        return self._assumed and (not self._settled or 2 * len(self._settled) < endpoints)

    def learned(self, endpoint: Learned) -> None:
        """Takes the factors of an endpoint, after a change of them."""
        self._remove(endpoint)
        if self._assumed and endpoint.settled:
            rates = (_WHOLE // endpoint.decode_percent, _WHOLE // endpoint.prefill_percent)
            self._settled[endpoint] = rates
            self._decode, self._prefill = self._decode + rates[0], self._prefill + rates[1]
            self._scale()

    def forget(self, endpoint: Learned) -> None:
        """Forgets an endpoint that has left."""
        self._remove(endpoint)
        self._scale()

    def _remove(self, endpoint: Learned) -> None:
        decode, prefill = self._settled.pop(endpoint, (0, 0))
        self._decode, self._prefill = self._decode - decode, self._prefill - prefill

    def _scale(self) -> None:
        if not self._assumed or not self._settled:
            return
        whole = len(self._settled) * _WHOLE
        factors = (_rounded(whole // self._decode), _rounded(whole // self._prefill))
        if factors != self._factors:
            self._factors = factors
            self.estimate = self._given.scaled(decode_percent=factors[0], prefill_percent=factors[1])


def _rounded(percent: int) -> int:
    return max(1, (percent + _GRAIN_PERCENT // 2) // _GRAIN_PERCENT) * _GRAIN_PERCENT
