"""Replays a log through each kind of host. All of them must return the same commands."""

import asyncio
from collections.abc import Callable, Mapping

from headgate.core.commands import Command, End
from headgate.core.events import RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.hosts.local.host import LocalHost
from headgate.model.units import RequestId
from headgate.ports.host import CommandChannel
from headgate.simulation.virtual.replay import replay
from tests.replay.cell import cell
from tests.replay.log import Log
from tests.replay.recorder import Recorder, SetClock


async def _tell_local(log: Log) -> list[list[Command]]:
    """Replays the log the way the request handler uses the host.

    Each request opens a command channel, which is closed when the request ends. The host sets timers, but they never
    fire because the event loop does not run between entries.
    """
    clock, recorder, faults = SetClock(), Recorder(), list[BaseException]()
    host = LocalHost(Scheduler(), clock, (recorder,), faults.append)
    lines: dict[RequestId, CommandChannel] = {}
    for event, now in log:
        clock.shown = now
        if isinstance(event, RequestArrived):
            lines[event.ticket.request_id] = host.open(event.ticket, lambda _: None)
        else:
            host.report(event)
        for command in recorder.answers[-1]:
            if isinstance(command, End):
                lines.pop(command.request_id).close()
    host.stop()
    assert faults == []
    assert recorder.log == log
    assert host.open_channels() == len(lines)
    return recorder.answers


def local(log: Log) -> list[list[Command]]:
    return asyncio.run(_tell_local(log))


def virtual(log: Log) -> list[list[Command]]:
    recorder = Recorder()
    answers = replay(log, Scheduler(), observers=(recorder,))
    assert (recorder.log, recorder.answers) == (log, answers)
    return answers


HOSTS: Mapping[str, Callable[[Log], list[list[Command]]]] = {"local": local, "virtual": virtual, "cell": cell}
