"""What does each host decide when it is told a log? One way of telling per host; all must give the same."""

import asyncio
from collections.abc import Callable, Mapping

from headgate.core.commands import Command, End
from headgate.core.events import RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.hosts.local.host import LocalHost
from headgate.model.units import RequestId
from headgate.ports.host import RequestLine
from headgate.simulation.virtual.replay import play
from tests.replay.cell import cell
from tests.replay.log import Log
from tests.replay.recorder import Recorder, SetClock


async def _tell_local(log: Log) -> list[list[Command]]:
    """As the door does: requests by a line of their own, which is closed when they end; all else plainly.

    The host sets its timer as ever. It never rings, for the loop does not turn between two entries.
    """
    clock, recorder, faults = SetClock(), Recorder(), list[BaseException]()
    host = LocalHost(Scheduler(), clock, (recorder,), faults.append)
    lines: dict[RequestId, RequestLine] = {}
    for event, now in log:
        clock.shown = now
        if isinstance(event, RequestArrived):
            lines[event.ticket.request_id] = host.open(event.ticket, lambda _: None)
        else:
            host.tell(event)
        for command in recorder.answers[-1]:
            if isinstance(command, End):
                lines.pop(command.request_id).close()
    host.stop()
    assert faults == []
    assert recorder.log == log
    assert host.open_lines() == len(lines)
    return recorder.answers


def local(log: Log) -> list[list[Command]]:
    return asyncio.run(_tell_local(log))


def virtual(log: Log) -> list[list[Command]]:
    recorder = Recorder()
    answers = play(log, Scheduler(), observers=(recorder,))
    assert (recorder.log, recorder.answers) == (log, answers)
    return answers


HOSTS: Mapping[str, Callable[[Log], list[list[Command]]]] = {"local": local, "virtual": virtual, "cell": cell}
