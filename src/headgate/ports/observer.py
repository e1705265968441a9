"""Observer of scheduler decisions."""

from collections.abc import Sequence
from typing import Protocol

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant


class Observer(Protocol):
    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        """Called after each decision, before the next one. Must be fast and must not raise."""
        ...
