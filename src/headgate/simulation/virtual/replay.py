"""What does the virtual host decide when it is told a log that any host wrote?

Time is what the log says: it stands at each entry's instant while that is decided, and nothing happens between. Whether
a moment that the scheduler named had come is the log's to say as well, for the host that wrote it noted each ring.
"""

from collections.abc import Iterable, Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from headgate.ports.observer import Observer
from headgate.simulation.virtual.scenario import Decider


def play(
    log: Iterable[tuple[Event, Instant]], decider: Decider, *, observers: Sequence[Observer] = ()
) -> list[list[Command]]:
    """The answer to each entry, in order."""
    answers: list[list[Command]] = []
    for event, now in log:
        commands = decider.handle(event, now)
        for observer in observers:
            observer.saw(event, commands, now)
        answers.append(commands)
    return answers
