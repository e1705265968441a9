"""Replay of a log through a cell of one gateway and one scheduler.

Both are built as in production and exchange messages through a store. The scheduler receives the log's fleet and policy
events, and the gateway receives the policy events and all others. All messages are delivered before the next log entry,
so no time passes in transit. There is no standby, lease renewal or heartbeat.
"""

import asyncio
from itertools import count
from typing import Any, cast

from headgate.core.commands import Command
from headgate.core.events import (
    AttemptsProgressed,
    BudgetsSynced,
    FleetEvent,
    PolicyChanged,
    RequestArrived,
    SharesAssigned,
    TimerFired,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.hosts.cell.timing import Timing
from headgate.model.units import SECOND, Duration, Instant, RequestId
from headgate.ports.host import CommandChannel
from tests.hosts.cell.fake_store import FakeServer, FakeStore
from tests.replay.log import Log
from tests.replay.recorder import Recorder, SetClock

_LONG = Duration(2_000_000 * SECOND)
_UNHURRIED = Timing(
    heartbeat_ns=_LONG,
    resend_ns=_LONG,
    start_within_ns=_LONG,
    answer_ns_max=_LONG,
    island_after_ns=_LONG,
    lease_ns=_LONG,
    renew_ns=_LONG,
    ack_ns=Duration(0),
    lease_poll_ns=Duration(0),
    gather_ns_min=Duration(0),
    gather_ns_max=_LONG,
    snapshot_ns=_LONG,
    lost_after_ns=_LONG,
)
_TURNS_MAX = 1_000


class _SilentScheduler:
    """Scheduler that needs no wake-up unless the log contains one."""

    def __init__(self, scheduler: Scheduler, cell: "Cell") -> None:
        self._scheduler = scheduler
        self._cell = cell

    def next_wakeup(self) -> Instant | None:
        return self._scheduler.next_wakeup() if self._cell._rings else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


class Cell:
    """Cell consisting of one gateway and one scheduler with a shared clock."""

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
        return CellHost(
            node, store, self.clock, (), self.faults.append, on_engine_watch=nobody, on_policy_agreed=nobody
        )

    async def start(self) -> None:
        """Starts the scheduler first, because earlier messages from the gateway would be lost and resent much later."""
        self.scheduler.start()
        await self.settle(self.scheduler)
        assert self.scheduler.is_leader
        self.gateway.start()
        await self.settle()
        assert self.scheduler.view().members["gateway"].presence is MemberPresence.PRESENT
        leader = self.scheduler._node.leader
        assert leader is not None
        leader._assignments.scheduler = cast("Scheduler", _SilentScheduler(leader._assignments.scheduler, self))

    async def settle(self, *hosts: CellHost) -> None:
        """Runs the event loop until no host has anything to send."""
        quiet, hosts = 0, hosts or (self.scheduler, self.gateway)
        for _ in range(_TURNS_MAX):
            await asyncio.sleep(0)
            for each in hosts:
                if each._timer.must_wait:
                    # The clock jumps between two log entries, which looks like a blocked event loop.
                    each._timer.cancel()
                    each._wake()
            quiet = 0 if any(self._busy(each) for each in hosts) else quiet + 1
            if quiet > 3:
                return
        raise AssertionError("the hosts keep sending messages")

    def ring(self) -> None:
        """Runs the scheduler's due timers. At all other times the scheduler's timers are disabled."""
        self._rings = True
        self.scheduler._wake()
        self._rings = False

    def _busy(self, host: CellHost) -> bool:
        now = self.clock.now()
        return host._sending is not None or not host.store.is_idle or host._node.next_wakeup(now) <= now


async def tell(log: Log) -> list[list[Command]]:
    cell = Cell(log[0][1])
    lines: dict[RequestId, CommandChannel] = {}
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
            case AttemptsProgressed():
                # Otherwise the report would wait for the next message, a heartbeat or an earlier report's interval.
                connection = cell.gateway._node.member._connection
                connection.urgent = True
                connection.progress._reported_at = None
                cell.gateway.report(event)
            case PolicyChanged() | BudgetsSynced() | SharesAssigned():
                cell.scheduler.report(event)
                cell.gateway.report(event)
            case _:
                (cell.scheduler if isinstance(event, FleetEvent) else cell.gateway).report(event)
        await cell.settle()
        if len(cell.decided.answers) == before:
            # A gateway does not forward repeated events, but due decisions must still be made.
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
