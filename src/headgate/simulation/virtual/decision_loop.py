"""Decision loop: passes events to the decider and the observers, and carries out the commands.

Events caused by a command are queued until the current event has been handled, as on a gateway's event loop.
"""

from collections import deque
from collections.abc import Callable, Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from headgate.ports.observer import Observer
from headgate.simulation.virtual.scenario import Decider


class DecisionLoop:
    __slots__ = ("_observers", "_pending", "_perform", "decider", "events")

    def __init__(
        self, decider: Decider, perform: Callable[[Command], object], observers: Sequence[Observer] = ()
    ) -> None:
        self.decider = decider
        self.events = 0
        """Number of events decided so far."""
        self._perform = perform
        self._observers = tuple(observers)
        self._pending: deque[Event] = deque()

    def attach(self, observer: Observer) -> None:
        """Adds an observer after the others."""
        self._observers = (*self._observers, observer)

    def submit(self, event: Event) -> None:
        self._pending.append(event)

    def run_pending(self, now: Instant) -> None:
        """Handles all queued events, and the events that they cause."""
        told = self._pending
        while told:
            event = told.popleft()
            self.events += 1
            commands = self.decider.handle(event, now)
            for observer in self._observers:
                observer.observe(event, commands, now)
            for command in commands:
                self._perform(command)
