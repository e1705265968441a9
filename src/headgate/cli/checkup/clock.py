"""Do the clocks around us agree with ours?

Servers that say the time do so by the whole second, so two clocks that differ by less than two seconds cannot be told
apart.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from headgate.cli.checkup.finding import Finding, note, ok

SKEW_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What the clock of someone showed, and ours at that moment."""

    who: str
    theirs_s: float
    ours_s: float

    @property
    def skew_s(self) -> float:
        """How far theirs is ahead of ours; the fraction of the second that they did not say is taken as half."""
        return self.theirs_s + 0.5 - self.ours_s


def heard_at(who: str, headers: Mapping[str, str]) -> Heard | None:
    """What an answer that has just come says of the time; None where it says nothing."""
    said = headers.get("date")
    if said is None:
        return None
    try:
        theirs_s = parsedate_to_datetime(said).timestamp()
    except ValueError:
        return None
    return Heard(who, theirs_s, time.time())


def clock_findings(heard: Iterable[Heard | None]) -> Iterator[Finding]:
    """Nothing is said where nobody said the time."""
    told = [each for each in heard if each is not None]
    wrong = [each for each in told if abs(each.skew_s) > SKEW_S_MAX]
    for each in wrong:
        direction = "ahead of" if each.skew_s > 0 else "behind"
        message = (
            f"its clock is {abs(each.skew_s):.0f} s {direction} ours: times in logs and records cannot be compared"
        )
        yield note(each.who, message, then="set both by NTP")
    if told and not wrong:
        yield ok("clock", f"agrees within {SKEW_S_MAX:g} s with {len(told)} of those that were asked")
