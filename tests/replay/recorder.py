"""What was told, and what was decided, by a clock that shows what it is set to?"""

from collections.abc import Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from tests.replay.log import Log


class Recorder:
    """An observer that keeps the log, and what was decided."""

    def __init__(self) -> None:
        self.log: Log = []
        self.answers: list[list[Command]] = []

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self.log.append((event, now))
        self.answers.append(list(commands))


class SetClock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.shown = Instant(0)

    def now(self) -> Instant:
        return self.shown
