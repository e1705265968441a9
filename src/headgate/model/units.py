"""What do the numbers count?

Time is integer nanoseconds. An `Instant` is UTC, stamped by the deciding host and never
decreasing; a `Duration` is the difference of two. Identifiers are strings that must not be
mixed up, so each has a type of its own.
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
"""Of text, where nobody has counted."""

MILLISECOND = Duration(1_000_000)
SECOND = Duration(1_000_000_000)
MINUTE = Duration(60 * SECOND)


def after(moment: Instant, wait: Duration) -> Instant:
    return Instant(moment + wait)


def seconds(length: Duration) -> str:
    """A duration as people read it: three digits, or all of the whole seconds where those are more."""
    value = length / SECOND
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
