"""Units and identifier types.

Time is integer nanoseconds. An `Instant` is UTC, set by the deciding host, and never decreases. A `Duration` is the
difference between two instants. Each kind of identifier has its own type, so that the type checker catches mix-ups.
"""

from typing import NewType

Instant = NewType("Instant", int)
Duration = NewType("Duration", int)

RequestId = NewType("RequestId", str)
TenantId = NewType("TenantId", str)
ClassName = NewType("ClassName", str)
PoolName = NewType("PoolName", str)
ModelName = NewType("ModelName", str)
EndpointId = NewType("EndpointId", str)

BYTES_PER_TOKEN = 4
"""Assumed number of bytes of text per token if tokens were not counted."""

MILLISECOND = Duration(1_000_000)
SECOND = Duration(1_000_000_000)
MINUTE = Duration(60 * SECOND)


def after(moment: Instant, wait: Duration) -> Instant:
    return Instant(moment + wait)


def format_seconds(length: Duration) -> str:
    """Formats a duration with three significant digits, or in whole seconds if it is at least 100 s."""
    value = length / SECOND
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
