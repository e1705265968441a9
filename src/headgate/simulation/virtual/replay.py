"""What does the virtual host answer to a log that another host has written?

The log says what happened and when, so nothing is simulated: each event goes over the desk at its own instant, and the
commands are kept instead of being performed.
"""

from collections.abc import Iterable, Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from headgate.ports.observer import Observer
from headgate.simulation.virtual.desk import Desk
from headgate.simulation.virtual.scenario import Decider


def play(
    log: Iterable[tuple[Event, Instant]], decider: Decider, *, observers: Sequence[Observer] = ()
) -> list[list[Command]]:
    """The commands that the decider answers to each entry, in order."""
    commands: list[Command] = []
    desk = Desk(decider, commands.append, observers)
    answers: list[list[Command]] = []
    for event, now in log:
        desk.tell(event)
        desk.decide(now)
        answers.append(list(commands))
        commands.clear()
    return answers
