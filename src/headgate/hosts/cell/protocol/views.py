"""What does a process of a cell show to those who look?

A picture of one moment, made on demand. A member that follows a scheduler knows of its own requests alone; what waits
and runs in the whole cell is asked of the process that leads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headgate.hosts.cell.protocol.messages import Epoch, Share


class Mode(StrEnum):
    """Whom a member goes by."""

    SEEKING = "seeking"
    FOLLOWING = "following"
    ISLAND = "island"


class Standing(StrEnum):
    """What a member is to the scheduler."""

    EXPECTED = "expected"
    """Known of, and yet to report, while reports are gathered."""
    PRESENT = "present"
    """Has reported, and answers."""
    ABSENT = "absent"
    """Does not answer: it may be an island, and what it has and may take is kept for it."""
    DEAD = "dead"
    """A life that is over; what it had may still be at the engines."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """What the scheduler knows of a member."""

    standing: Standing
    policy_hash: str
    staged: str
    """Rules that it has read and does not go by; empty where there are none."""
    incarnation: int = 0
    """Of the process that is known by this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    mode: Mode
    epoch: Epoch | None
    """The one that is followed, or would be."""
    leads: bool
    share: Share
    """What this process takes, or would take, by itself."""
    unacknowledged: int
    """Messages that the scheduler has yet to acknowledge."""
    held: int
    """Requests that have not ended, and those that have with something of them under way."""
    unsettled: int
    """Ends that no confirmed snapshot covers."""
    staged: str
    members: Mapping[str, MemberView]
    """By their names; only where this process leads."""
