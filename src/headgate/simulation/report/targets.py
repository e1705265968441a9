"""Was an answer quick enough for its caller?"""

from typing import Protocol


class Targets(Protocol):
    """How long each part of an answer may take; None asks nothing."""

    @property
    def ttft_ns(self) -> int | None: ...

    @property
    def tpot_ns(self) -> int | None: ...

    @property
    def e2e_ns(self) -> int | None: ...


def met(targets: Targets, *, ttft_ns: int | None, tpot_ns: int | None, e2e_ns: int | None) -> bool:
    """What was not measured, as the first token of an answer that came whole, is not held against a request."""
    return _within(ttft_ns, targets.ttft_ns) and _within(tpot_ns, targets.tpot_ns) and _within(e2e_ns, targets.e2e_ns)


def _within(value: int | None, target: int | None) -> bool:
    return value is None or target is None or value <= target
