"""Compare the clocks of other servers with the local clock.

Servers report whole seconds, so differences of less than two seconds cannot be detected.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from headgate.cli.checkup.finding import CheckFinding, note, ok

SKEW_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The time on another server's clock, and the local time when it was read."""

    source: str
    remote_s: float
    local_s: float

    @property
    def skew_s(self) -> float:
        """Seconds by which the other clock is ahead. Half a second is added, because the server does not report
        fractions.
        """
        return self.remote_s + 0.5 - self.local_s


def clock_reading(who: str, headers: Mapping[str, str]) -> ClockReading | None:
    """Clock reading taken from a response that has just arrived; None if it has no valid Date header."""
    said = headers.get("date")
    if said is None:
        return None
    try:
        theirs_s = parsedate_to_datetime(said).timestamp()
    except ValueError:
        return None
    return ClockReading(who, theirs_s, time.time())


def clock_findings(readings: Iterable[ClockReading | None]) -> Iterator[CheckFinding]:
    """Findings about clock skew; empty if no server reported the time."""
    told = [each for each in readings if each is not None]
    wrong = [each for each in told if abs(each.skew_s) > SKEW_S_MAX]
    for each in wrong:
        direction = "ahead of" if each.skew_s > 0 else "behind"
        message = f"its clock is {abs(each.skew_s):.0f} s {direction} the local clock; timestamps cannot be compared"
        yield note(each.source, message, next_step="synchronize both with NTP")
    if told and not wrong:
        yield ok("clock", f"within {SKEW_S_MAX:g} s of the clocks of other servers (compared: {len(told)})")
