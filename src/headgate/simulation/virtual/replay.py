"""Replays a log recorded by another host.

The log contains the events and their times, so nothing is simulated. The decision loop receives each event at its
recorded instant, and the commands are collected instead of carried out.
"""

from collections.abc import Iterable, Sequence

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.units import Instant
from headgate.ports.observer import Observer
from headgate.simulation.virtual.decision_loop import DecisionLoop
from headgate.simulation.virtual.scenario import Decider


def replay(
    log: Iterable[tuple[Event, Instant]], decider: Decider, *, observers: Sequence[Observer] = ()
) -> list[list[Command]]:
    """Returns the decider's commands for each log entry, in order."""
    commands: list[Command] = []
    desk = DecisionLoop(decider, commands.append, observers)
    answers: list[list[Command]] = []
    for event, now in log:
        desk.submit(event)
        desk.run_pending(now)
        answers.append(list(commands))
        commands.clear()
    return answers
