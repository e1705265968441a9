"""How is an event decided? The decider is told, whoever observes sees it, and the commands are handed on.

Events that follow from a command wait until the one before them has been dealt with, as on a gateway's event loop.
"""

from collections import deque
from collections.abc import Callable, Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from headgate.ports.observer import Observer
from headgate.simulation.virtual.scenario import Decider


class Desk:
    __slots__ = ("_observers", "_perform", "_told", "decider", "events")

    def __init__(
        self, decider: Decider, perform: Callable[[Command], object], observers: Sequence[Observer] = ()
    ) -> None:
        self.decider = decider
        self.events = 0
        """How many have been decided."""
        self._perform = perform
        self._observers = tuple(observers)
        self._told: deque[Event] = deque()

    def tell(self, event: Event) -> None:
        self._told.append(event)

    def decide(self, now: Instant) -> None:
        """Deals with all that was told, and with what follows from it."""
        told = self._told
        while told:
            event = told.popleft()
            self.events += 1
            commands = self.decider.handle(event, now)
            for observer in self._observers:
                observer.saw(event, commands, now)
            for command in commands:
                self._perform(command)
