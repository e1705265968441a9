"""Status of a process in a cell, created on demand.

A member that follows a scheduler knows only its own requests. Only the scheduler's process knows the queued and running
requests of the whole cell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.hosts.cell.protocol.messages import Epoch, Share
from headgate.model.units import Instant

_UNKNOWN = Instant(0)


class MemberMode(StrEnum):
    """Mode of a member."""

    SEEKING = "seeking"
    FOLLOWING = "following"
    ISLAND = "island"


class MemberPresence(StrEnum):
    """Presence of a member, as seen by the scheduler."""

    EXPECTED = "expected"
    """The scheduler is gathering reports, and the member is known but has not reported yet."""
    PRESENT = "present"
    """The member has reported and is connected."""
    ABSENT = "absent"
    """The member does not respond and may be an island. Its attempts and its share stay reserved."""
    DEAD = "dead"
    """The member's process has exited. Its attempts may still be running on the engines."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """State of a member, as seen by the scheduler."""

    presence: MemberPresence
    policy_hash: str
    staged_hash: str
    """Hash of a policy that the member has read but not applied. Empty if there is none."""
    incarnation: int = 0
    """Incarnation of the process with this name."""
    version: int = field(default=0, compare=False)
    """Protocol version of the process. 0 if it has not sent anything to this scheduler."""
    policy_since: Instant = field(default=_UNKNOWN, compare=False)
    """When this scheduler first saw the member with this policy."""
    serves: bool = field(default=True, compare=False)
    """Whether the process serves clients. A process that does not only schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    mode: MemberMode
    epoch: Epoch | None
    """Epoch that this process follows, or would follow."""
    is_leader: bool
    is_gathering: bool
    """Whether this process is the scheduler but does not make decisions yet."""
    share: Share
    """Share that this process uses, or would use, as an island."""
    unacknowledged: int
    """Number of messages that the scheduler has not acknowledged."""
    held_requests: int
    """Number of open requests, and of ended requests with attempts that are still running."""
    unsettled_requests: int
    """Number of finished requests that no confirmed snapshot includes."""
    staged_hash: str
    lowest_version: int
    """Lowest protocol version of the processes in the cell, as far as this process knows."""
    members: Mapping[str, MemberView]
    """Members by name. Empty unless this process is the scheduler."""
