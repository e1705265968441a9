"""Executes the commands that a cell node returns.

Decisions are handled one at a time. Observers see each decision first. Then each command goes to the command channel of
its request, to the log or to the owner of the policy. An exception here stops the whole process.
"""

import logging
from collections.abc import Callable, Sequence

from headgate.core.events import Event, TimerFired
from headgate.hosts.cell.billed_ends import BilledEnds
from headgate.hosts.cell.member.commands import BillsReceived, MemberCommand, ModeChanged, PolicyAgreed
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.command_channel import CommandChannels
from headgate.hosts.decision_time import DecisionTime
from headgate.model.units import Instant
from headgate.ports.clock import Clock
from headgate.ports.observer import Observer

log = logging.getLogger("headgate")


class CommandExecutor:
    def __init__(
        self,
        channels: CommandChannels,
        clock: Clock,
        observers: Sequence[Observer],
        billed: BilledEnds,
        *,
        on_fault: Callable[[BaseException], None],
        on_policy_agreed: Callable[[str], None],
    ) -> None:
        self._lines, self._clock = channels, clock
        self._observers, self._billed = tuple(observers), billed
        self._on_fault, self._on_agreed = on_fault, on_policy_agreed
        self._deciding = False
        self.decision_time = DecisionTime()

    def add_observer(self, observer: Observer) -> Callable[[], None]:
        """Adds an observer. Returns a function that removes it."""
        self._observers = (*self._observers, observer)

        def remove() -> None:
            self._observers = tuple(each for each in self._observers if each is not observer)

        return remove

    def notify(self, handler: Callable[..., None], *arguments: object) -> None:
        """Passes the node input that produces no commands."""
        try:
            began = self.decision_time.begin()
            handler(*arguments, self._clock.now())
            if began:
                self.decision_time.end(began)
        except Exception as mistake:
            self._on_fault(mistake)
            raise

    def decide(self, event: Event | None, handler: Callable[[Instant], list[MemberCommand]]) -> None:
        """Calls the node and carries out the returned commands."""
        assert not self._deciding, "an observer or a command channel reported an event during a decision"
        self._deciding = True
        agreed: list[str] = []
        try:
            now = self._clock.now()
            began = self.decision_time.begin()
            orders = handler(now)
            if began:
                self.decision_time.end(began)
            self._observe(event, orders, now)
            for order in orders:
                match order:
                    case ModeChanged():
                        log.log(_level(order.mode), "mode changed to %s: %s", order.mode.value, order.reason)
                    case PolicyAgreed():
                        agreed.append(order.hash)
                    case BillsReceived():
                        pass
                    case _:
                        self._lines.deliver(order)
        except Exception as mistake:
            # The node's state may be inconsistent, so the process must stop.
            self._on_fault(mistake)
            raise
        finally:
            self._deciding = False
        for policy_hash in agreed:
            self._on_agreed(policy_hash)

    def _observe(self, event: Event | None, orders: Sequence[MemberCommand], now: Instant) -> None:
        commands = [order for order in orders if not isinstance(order, ModeChanged | PolicyAgreed | BillsReceived)]
        if event is not None or commands:
            for observer in self._observers:
                observer.observe(event or TimerFired(), commands, now)
        self._billed.observe(event, commands, [order for order in orders if isinstance(order, BillsReceived)], now)


def _level(mode: MemberMode) -> int:
    return logging.WARNING if mode is MemberMode.ISLAND else logging.INFO
