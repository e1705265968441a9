"""Which of several processes has a member name?

`claimed_name` is all that a store has to do, at once and undivided. `NameView` is what one process concludes from the
store's answers. A process that was killed no longer renews its entry, so its successor gets the name within one lease.
An entry that is renewed belongs to a live process, and no other gets the name meanwhile.

An entry of another incarnation alone proves nothing: a store that fails over may come back with the entry of a process
that is gone. Only one that is renewed counts.
"""

from typing import Final

from headgate.model.message import message
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, after

NAME_LEASE_NS: Final = Duration(2 * SECOND)
NAME_RENEW_NS: Final = Duration(500 * MILLISECOND)
NAME_LOOK_NS: Final = Duration(100 * MILLISECOND)
"""Between two looks at an entry of another process."""
NAME_ANSWER_NS_MAX: Final = Duration(500 * MILLISECOND)
"""A store that does not answer for so long is away."""


@message
class NameEntry:
    incarnation: str
    expires: Instant
    """By the store's clock."""


@message
class NameAnswer:
    """What the store says to a claim."""

    held: str = ""
    """The other incarnation that has the name; empty where the name was granted."""
    left_ns: int = 0
    """How long the entry of that one lasts; negative where it lasts for one lease from now on, renewed or not."""


def claimed_name(
    entry: NameEntry | None, incarnation: str, lasts_ns: Duration, now: Instant
) -> tuple[NameEntry, NameAnswer]:
    """What the store has after a claim, by its own clock, and what it answers."""
    if entry is None or entry.incarnation == incarnation or entry.expires <= now:
        return NameEntry(incarnation, after(now, lasts_ns)), NameAnswer()
    if entry.expires > now + 2 * lasts_ns:
        # It was written before the store's clock was put back. Whoever lives renews it within one lease.
        return NameEntry(entry.incarnation, after(now, lasts_ns)), NameAnswer(entry.incarnation, -1)
    return entry, NameAnswer(entry.incarnation, entry.expires - now)


class NameView:
    """What one process knows of its name."""

    __slots__ = ("_rival", "has", "taken")

    def __init__(self) -> None:
        self._rival: NameAnswer | None = None
        """The entry of another incarnation, as it was last seen."""
        self.has = False
        """Whether the name was ours when it was last asked for."""
        self.taken = False
        """Whether another incarnation has renewed its entry."""

    def answered(self, answer: NameAnswer) -> bool:
        """Takes in what the store says; whether the name is ours."""
        before, self._rival = self._rival, answer if answer.held and answer.left_ns >= 0 else None
        self.has = not answer.held
        if before is not None and self._rival is not None:
            self.taken = before.held == answer.held and answer.left_ns > before.left_ns
        return self.has
