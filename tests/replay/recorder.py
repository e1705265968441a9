"""An observer that records a log, and a clock that tests set."""

from collections.abc import Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from tests.replay.log import Log


class Recorder:
    """Observer that records events and the commands returned for them."""

    def __init__(self) -> None:
        self.log: Log = []
        self.answers: list[list[Command]] = []

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self.log.append((event, now))
        self.answers.append(list(commands))


class SetClock:
    """Clock that returns the time it was set to."""

    def __init__(self) -> None:
        self.shown = Instant(0)

    def now(self) -> Instant:
        return self.shown
