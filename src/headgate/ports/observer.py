"""Who watches what is decided?"""

from collections.abc import Sequence
from typing import Protocol

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant


class Observer(Protocol):
    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        """Called after each decision, on the deciding path: it must be quick and must not raise."""
        ...
