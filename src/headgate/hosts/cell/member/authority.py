"""Who decides about the requests of a member?

The member asks one `Authority` and does not know which. There are two: the session with the scheduler that the member
follows (`remote`), whose decisions arrive later as messages, and the member's own scheduler over its share (`island`),
which answers with its decisions at once. The member replaces one by the other when its mode changes.
"""

from typing import Protocol

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import BudgetsTold, FirstToken, FleetEvent, PolicyChanged, Progressed, RequestWithdrawn
from headgate.core.summary import Summary
from headgate.hosts.cell.member.held import HeldRequest
from headgate.hosts.cell.protocol.messages import Declined, Ended, FromScheduler, SchedulerEntry, Share
from headgate.model.money import EndpointTime
from headgate.model.units import Duration, Instant

Decision = Dispatch | Abort | End
"""What an authority decides about a request."""

RequestNews = FirstToken | Progressed | Ended | RequestWithdrawn
"""What happens to a request after its arrival."""

SettingNews = PolicyChanged | BudgetsTold | FleetEvent
"""What happens to the policy, the budgets and the endpoints."""


class Authority(Protocol):
    @property
    def alone(self) -> bool:
        """Whether the member decides by itself."""
        ...

    @property
    def share(self) -> Share:
        """The part of everything that the member takes, or would take, when it decides by itself."""
        ...

    @property
    def serial(self) -> int:
        """The serial of the message that reported the latest news to a scheduler; 0 if none was told."""
        ...

    # Requests

    def full(self) -> str | None:
        """Why no further request can be opened; None if one can."""
        ...

    def open(self, request: HeldRequest, now: Instant) -> list[Decision]:
        """Submit a new request."""
        ...

    def handle(self, news: RequestNews, now: Instant) -> list[Decision]:
        """Report what has happened to a request."""
        ...

    def decline(self, declined: Declined, now: Instant) -> list[Decision]:
        """Report that a dispatched attempt was not started."""
        ...

    def tell(self, news: SettingNews, now: Instant) -> list[Decision]:
        """Report what this process has read or seen of policy, budgets and endpoints."""
        ...

    # Time

    def tick(self, now: Instant) -> list[Decision]:
        """Decide what is due by now."""
        ...

    def next_wakeup(self) -> Instant | None:
        """When `tick` or `is_lost` has something to say, if nothing happens before."""
        ...

    # The scheduler of the cell

    def is_lost(self, now: Instant) -> bool:
        """Whether the member has waited for this authority long enough to decide by itself."""
        ...

    def yields_to(self, stamp: Instant) -> bool:
        """Whether a scheduler that answers what the member said at this moment decides from now on."""
        ...

    def restart(self, now: Instant) -> None:
        """Report everything again: the scheduler is another one, or the member has a new incarnation."""
        ...

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[tuple[Duration, FromScheduler]]:
        """The new messages of an entry that count, in order, each with its age at most."""
        ...

    # Leaving

    def leave(self, now: Instant) -> None:
        """Announce that the member holds nothing and leaves."""
        ...

    @property
    def knows_of_leaving(self) -> bool:
        """Whether that was acknowledged, or nobody is there to acknowledge it."""
        ...

    # Observation

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How the endpoints spent the time that this authority decides about, since this was last asked."""
        ...

    def summary(self) -> Summary: ...
