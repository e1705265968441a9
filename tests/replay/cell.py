"""What does the scheduler of a cell decide when another process tells it a log?

A gateway and a scheduler as live processes have them, with a store between. The gateway is told what gateways see, the
scheduler what it sees itself: the engines and the rules. Before the next entry of the log is told all that there is to
say has been said, so that no time passes on the way. Nobody stands by, renews or beats meanwhile.
"""

import asyncio
from itertools import count

from headgate.core.commands import Command
from headgate.core.events import BudgetsTold, FleetEvent, PolicyChanged, Progressed, RequestArrived, TimerFired
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.views import Standing
from headgate.hosts.cell.timing import Timing
from headgate.model.units import SECOND, Duration, Instant, RequestId
from headgate.ports.host import RequestLine
from tests.hosts.cell.fake_store import FakeServer, FakeStore
from tests.replay.log import Log
from tests.replay.recorder import Recorder, SetClock

_LONG = Duration(2_000_000 * SECOND)
_UNHURRIED = Timing(
    beat_ns=_LONG,
    resend_ns=_LONG,
    start_within_ns=_LONG,
    answer_ns_max=_LONG,
    island_after_ns=_LONG,
    lease_ns=_LONG,
    renew_ns=_LONG,
    stand_by_ns=Duration(0),
    gather_ns_min=Duration(0),
    gather_ns_max=_LONG,
    snapshot_ns=_LONG,
    lost_ns=_LONG,
)
_TURNS_MAX = 1_000


class Cell:
    """One gateway and one scheduler."""

    def __init__(self, began: Instant) -> None:
        self.clock = SetClock()
        self.clock.shown = began
        self.decided = Recorder()
        self.faults: list[BaseException] = []
        self._rings = False
        server = FakeServer()
        self.scheduler = self._host("scheduler", server, serves=False)
        self.gateway = self._host("gateway", server, serves=True)

    def _host(self, name: str, server: FakeServer, *, serves: bool) -> CellHost:
        ids, now = count(), self.clock.now()
        watching = () if serves else (self.decided,)
        node = Node(
            name,
            1,
            now,
            lambda: str(next(ids)),
            timing=_UNHURRIED,
            candidate=not serves,
            serves=serves,
            observers=watching,
        )
        store, nobody = FakeStore(server, name), lambda _: None
        return CellHost(node, store, self.clock, (), self.faults.append, on_duty=nobody, on_agreed=nobody)

    async def start(self) -> None:
        """The scheduler first: whoever speaks before it is one is not heard, and does not soon speak again."""
        self.scheduler.start()
        await self.settle(self.scheduler)
        assert self.scheduler.leads
        self.gateway.start()
        await self.settle()
        assert self.scheduler.view().members["gateway"].standing is Standing.PRESENT
        leader = self.scheduler._node.leader
        assert leader is not None
        wakeup = leader._book.scheduler.next_wakeup
        leader._book.scheduler.next_wakeup = lambda: wakeup() if self._rings else None

    async def settle(self, *hosts: CellHost) -> None:
        """Until nobody has anything to say."""
        quiet, hosts = 0, hosts or (self.scheduler, self.gateway)
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
            quiet = 0 if any(self._busy(each) for each in hosts) else quiet + 1
            if quiet > 3:
                return
        raise AssertionError("they talk for ever")

    def ring(self) -> None:
        """What is due is decided when the log says that the timer rang, and not before."""
        self._rings = True
        self.scheduler._wake()
        self._rings = False

    def _busy(self, host: CellHost) -> bool:
        now = self.clock.now()
        return host._sending is not None or not host.store.free or host._node.next_wakeup(now) <= now


async def tell(log: Log) -> list[list[Command]]:
    cell = Cell(log[0][1])
    lines: dict[RequestId, RequestLine] = {}
    await cell.start()
    answers: list[list[Command]] = []
    for event, now in log:
        cell.clock.shown = now
        before = len(cell.decided.answers)
        match event:
            case RequestArrived(ticket):
                lines[ticket.request_id] = cell.gateway.open(ticket, lambda _: None)
            case TimerFired():
                cell.ring()
            case Progressed():
                # It would go with the next thing that is said, or the next beat.
                cell.gateway._node.member._conversation.urgent = True
                cell.gateway.tell(event)
            case PolicyChanged() | BudgetsTold():
                cell.scheduler.tell(event)
                cell.gateway.tell(event)
            case _:
                (cell.scheduler if isinstance(event, FleetEvent) else cell.gateway).tell(event)
        await cell.settle()
        if len(cell.decided.answers) == before:
            # A gateway does not forward repeated events; decisions that are due are still made.
            cell.ring()
            await cell.settle()
        answer: list[Command] = []
        for (_, at), commands in zip(cell.decided.log[before:], cell.decided.answers[before:], strict=True):
            assert at == now
            answer += commands
        answers.append(answer)
    assert cell.faults == []
    for host in (cell.scheduler, cell.gateway):
        host.stop()
        await host.store.stop()
    return answers


def cell(log: Log) -> list[list[Command]]:
    return asyncio.run(tell(log))
