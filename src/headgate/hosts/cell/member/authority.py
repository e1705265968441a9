"""Interface to the authority that makes decisions for a member's requests.

The member uses one `Authority` without knowing its kind. There are two kinds. In a session with the followed scheduler
(`remote_authority`), decisions arrive later, as messages. The member's own scheduler, which manages the member's share
(`island`), decides immediately. The member replaces the authority when its mode changes.
"""

from typing import Protocol

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptsProgressed,
    BudgetsSynced,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    RequestWithdrawn,
    SharesAssigned,
)
from headgate.core.summary import Summary
from headgate.hosts.cell.member.held_requests import HeldAttempt, HeldRequest
from headgate.hosts.cell.protocol.messages import FinishedAttempt, FromScheduler, GrantDeclined, SchedulerEntry, Share
from headgate.model.money import EndpointTime
from headgate.model.units import Duration, Instant

Decision = Dispatch | Abort | End
"""Decision of an authority about a request."""

RequestUpdate = FirstToken | AttemptsProgressed | FinishedAttempt | RequestWithdrawn
"""Update about a request after its arrival."""

SettingsUpdate = PolicyChanged | BudgetsSynced | SharesAssigned | FleetEvent
"""Update to the policy, the budgets, the shares of limits or the endpoints."""


class Authority(Protocol):
    @property
    def is_island(self) -> bool:
        """Whether the member is an island."""
        ...

    @property
    def share(self) -> Share:
        """Share that the member uses, or would use, as an island."""
        ...

    @property
    def serial(self) -> int:
        """Serial of the message that last reported an update to a scheduler. 0 if there is none."""
        ...

    # Requests

    def open_rejection(self) -> str | None:
        """Returns why no further requests can be opened, or None."""
        ...

    def open(self, request: HeldRequest, now: Instant) -> list[Decision]:
        """Submits a new request."""
        ...

    def handle(self, update: RequestUpdate, now: Instant) -> list[Decision]:
        """Reports an update about a request."""
        ...

    def report_last_progress(self, attempt: HeldAttempt, now: Instant) -> None:
        """Reports the tokens of an attempt that is about to end, unless they were reported."""
        ...

    def decline(self, declined: GrantDeclined, now: Instant) -> list[Decision]:
        """Reports that a dispatched attempt was not started."""
        ...

    def update_settings(self, update: SettingsUpdate, now: Instant) -> list[Decision]:
        """Reports an update to the policy, the budgets or the endpoints in this process."""
        ...

    # Time

    def tick(self, now: Instant) -> list[Decision]:
        """Makes the decisions that are due."""
        ...

    def next_wakeup(self) -> Instant | None:
        """Returns when to call `tick` and `is_lost` next if no event occurs before then."""
        ...

    # Cell scheduler

    def is_lost(self, now: Instant) -> bool:
        """Returns whether this authority has been silent for so long that the member must become an island."""
        ...

    def yields_to(self, stamp: Instant) -> bool:
        """Returns whether a scheduler that answers the member's entry with this timestamp takes over."""
        ...

    def restart_session(self, now: Instant) -> None:
        """Reports everything again, because there is a new scheduler or the member has a new incarnation."""
        ...

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[tuple[Duration, FromScheduler]]:
        """Returns the new messages in an entry, in order, each with its maximum age."""
        ...

    # Leaving

    def leave(self, now: Instant) -> None:
        """Announces that the member holds no requests and is leaving."""
        ...

    @property
    def leave_acknowledged(self) -> bool:
        """Whether the departure has been acknowledged, or there is no scheduler to acknowledge it."""
        ...

    # Status

    def collect_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """Returns how endpoints have spent their time since the last call, for the part this authority schedules."""
        ...

    def summary(self) -> Summary: ...
