"""Compares latencies with the client's targets."""

from typing import Protocol


class LatencyTargets(Protocol):
    """Latency targets of a request in nanoseconds. None means no target."""

    @property
    def ttft_ns(self) -> int | None: ...

    @property
    def tpot_ns(self) -> int | None: ...

    @property
    def e2e_ns(self) -> int | None: ...


def meets_targets(targets: LatencyTargets, *, ttft_ns: int | None, tpot_ns: int | None, e2e_ns: int | None) -> bool:
    """Returns whether all measured latencies meet their targets.

    A latency that was not measured, such as the TTFT of a non-streaming response, cannot miss its target.
    """
    return _within(ttft_ns, targets.ttft_ns) and _within(tpot_ns, targets.tpot_ns) and _within(e2e_ns, targets.e2e_ns)


def _within(value: int | None, target: int | None) -> bool:
    return value is None or target is None or value <= target
