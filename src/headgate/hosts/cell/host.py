"""How does a live process take part in a cell?

Around a `Node`, which decides what is said and done, this is all that a process adds: its clock, its timers, the lines
of its requests and the store. An event is told to the node the moment it happens. What the node has to say goes out in
one parcel as soon as the store is free: at once when little happens, and much together when much does.

The process's own observers see what becomes of its own requests, whoever decided it, so that the figures of all
gateways can be added. Those `of_scheduler` see what the scheduler of the cell decides, while this process is it.

What is not ideal: a snapshot is told and written on the event loop, which stands still for it
(`docs/project/cell-protocol.md`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from headgate.core.admission.limits import Shortage
from headgate.core.commands import BudgetCrossed, Command, Eject, Hold, Readmit
from headgate.core.events import Event, PolicyChanged, RequestArrived, RequestRejected, TimerFired
from headgate.core.summary import Summary
from headgate.hosts.cell.billed_ends import BilledEnds
from headgate.hosts.cell.decisions import Decisions
from headgate.hosts.cell.member.member import MemberEvent
from headgate.hosts.cell.member.orders import Order
from headgate.hosts.cell.node import Node, View
from headgate.hosts.cell.protocol.codec import Unwritable, encoded, writable_snapshot
from headgate.hosts.cell.protocol.messages import MemberEntry, SchedulerEntry
from headgate.hosts.cell.protocol.store import Parcel, Store
from headgate.hosts.cell.protocol.views import Mode
from headgate.hosts.cell.receiver import StoreReceiver
from headgate.hosts.cell.rejected_requests import RejectedRequests
from headgate.hosts.decide_time import DecideTime
from headgate.hosts.line import Line, Lines
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, Instant, TenantId
from headgate.ports.clock import Clock
from headgate.ports.host import Aside
from headgate.ports.observer import Observer

log = logging.getLogger("headgate")

_AWAY_NS = Duration(5 * MILLISECOND)
"""While the store takes nothing the node is woken this far apart, however urgent what it has to say is."""
_LEAVING_S_MAX = 1.0


class CellHost:
    def __init__(
        self,
        node: Node,
        store: Store,
        clock: Clock,
        observers: Sequence[Observer],
        on_fault: Callable[[BaseException], None],
        *,
        on_duty: Callable[[bool], None],
        on_agreed: Callable[[str], None],
        bookkeepers: Sequence[Observer] = (),
    ) -> None:
        """`on_duty` is told whether this process is to look at the engines; `on_agreed` which policy to go by.

        `bookkeepers` see what the other observers see, but the end of a request only with its bills.
        """
        self._node = node
        self._store = store
        self._clock = clock
        self._billed = BilledEnds(bookkeepers)
        self._on_fault = on_fault
        self._on_duty = on_duty
        self._lines = Lines()
        self._rejected = RejectedRequests()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: Instant | None = None
        self._sending: asyncio.Handle | None = None
        self._leading = False
        self._watching = False
        self._stopped = False
        self._left = asyncio.Event()
        self._decisions = Decisions(self._lines, clock, observers, self._billed, on_fault=on_fault, on_agreed=on_agreed)
        self.receiver = StoreReceiver(node, clock, self._decisions, self._look)

    def start(self) -> None:
        self._store.start(self.receiver)
        self._look()

    # What happens here

    def open(self, ticket: Ticket, aside: Aside) -> Line:
        line = self._lines.open(ticket.request_id, aside)
        event = RequestArrived(ticket)
        self._decide(event, lambda now: self._node.open(ticket, now))
        return line

    def tell(self, event: Event) -> None:
        if isinstance(event, RequestRejected):
            self._rejected.count(event.tenant, self._clock.now())
            return
        if isinstance(event, PolicyChanged):
            self._rejected.change_rules(event.policy, self._clock.now())
        assert isinstance(event, MemberEvent), f"a {type(event).__name__} is told by the protocol alone"
        self._decide(event, lambda now: self._node.tell(event, now))

    def stage(self, policy_hash: str) -> None:
        """This process could go by that policy; `on_agreed` says when it is to."""
        self._decide(None, lambda now: self._node.stage(policy_hash, now))

    def resign(self) -> None:
        """Others are to be the scheduler from here on; what is held here goes on."""
        self._node.resign(self._clock.now())
        self._look()

    def lose_name(self, problem: str) -> None:
        """Another process has taken this name: decide about the requests held here alone, and send nothing more."""
        log.error("leaving: %s", problem)
        self._node.lose_name(self._clock.now())
        self._look()

    async def leave(self) -> None:
        """Says that nothing is held here any more, as far as there is somebody to hear it."""
        if self._node.member.held:
            # Something would not end in time. It is kept for as long as for anybody who falls silent.
            log.warning("leaving with %d requests that have not ended at their engines", self._node.member.held)
            return
        self._node.leave(self._clock.now())
        self._look()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING_S_MAX if self._store.up else 0):
                await self._left.wait()

    def stop(self) -> None:
        """Says and does nothing more. The store is its owner's to stop."""
        self._stopped = True
        self._billed.close()
        for handle in (self._timer, self._sending):
            if handle is not None:
                handle.cancel()

    def summary(self) -> Summary:
        return self._node.summary()

    def limit_reached(self, tenant: TenantId) -> Shortage | None:
        """The limit that requests rejected here have reached. The scheduler alone knows about admitted requests."""
        return self._rejected.limit_reached(tenant, self._clock.now())

    def limits_left(self, tenant: TenantId) -> LimitsLeft | None:
        return None

    def budgets_left(self, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...] | None:
        return self._node.budgets_left(self._clock.now(), tenant)

    def view(self) -> View:
        return self._node.view(self._clock.now())

    def take_endpoint_times(self) -> tuple[EndpointTime, ...]:
        return self._node.take_endpoint_times(self._clock.now())

    def open_lines(self) -> int:
        return len(self._lines)

    @property
    def decide_time(self) -> DecideTime:
        return self._decisions.time

    @property
    def name(self) -> str:
        return self._node.member.name

    @property
    def nameless(self) -> bool:
        """Whether another process has taken this name."""
        return self._node.member.nameless

    @property
    def incarnation(self) -> int:
        return self._node.member.incarnation

    @property
    def name_problem(self) -> str | None:
        """What is wrong where two processes have one name, and the next step."""
        return self.receiver.name_problem

    @property
    def unintelligible(self) -> int:
        """Entries that this version could not read."""
        return self.receiver.unintelligible

    @property
    def leads(self) -> bool:
        return self._leading

    def ready_endpoints(self) -> list[EndpointId]:
        """Those that are ready, as far as is known here."""
        known = self._node.member.endpoints
        return [endpoint_id for endpoint_id in known.by_id if known.ready(endpoint_id)]

    @property
    def store(self) -> Store:
        return self._store

    # What follows from what is decided

    def _decide(self, event: Event | None, ask: Callable[[Instant], list[Order]], *, look: bool = True) -> None:
        self._decisions.decide(event, ask)
        if look:
            self._look()

    def _look(self) -> None:
        """Sees to it that what is due is sent, that the node is woken, and that everybody knows their part."""
        if self._stopped:
            return
        if self._node.left:
            self._left.set()
        if self._node.leads is not self._leading:
            self._leading = self._node.leads
            self._store.lead(self._leading)
            log.info("this process is the scheduler of the cell%s", "" if self._leading else " no more")
        watching = self._leading or self._node.member.mode is Mode.ISLAND
        if watching is not self._watching:
            self._watching = watching
            self._on_duty(watching)
        now = self._clock.now()
        due = self._node.next_wakeup(now)
        if due > now:
            self._wake_at(due, now)
        elif not self._store.free:
            self._wake_at(Instant(now + _AWAY_NS), now)
        elif self._sending is None:
            # What else happens in this turn of the loop goes with it.
            self._sending = asyncio.get_running_loop().call_soon(self._send)

    def _wake_at(self, due: Instant, now: Instant) -> None:
        if self._timer_at is not None:
            if self._timer_at <= due:
                return
            assert self._timer is not None
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later((due - now) / SECOND, self._wake)
        self._timer_at = due

    def _wake(self) -> None:
        self._timer = self._timer_at = None
        self._decide(None, self._node.tick)

    def _send(self) -> None:
        self._sending = None
        self._decide(None, self._node.tick, look=False)
        try:
            if self._store.free and (parcel := _parcel(self._node, self._clock.now())) is not None:
                self._store.send(parcel)
        except Exception as mistake:
            # Nothing would be sent any more, and nobody would hear of it.
            self._on_fault(mistake)
            raise
        self._look()


class LeaderWatch:
    """What the scheduler does to endpoints concerns everybody; the process that is it counts and logs it."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        concerning = [command for command in commands if isinstance(command, Eject | Readmit | Hold | BudgetCrossed)]
        if concerning:
            for observer in self._observers:
                observer.saw(TimerFired(), concerning, now)


def _parcel(node: Node, now: Instant) -> Parcel | None:
    """Outgoing entries, encoded; None if there are none."""
    going = node.outgoing(now)
    inbox = [written for entry in going.inbox for written in _written(entry, None, node, now)]
    outboxes = [(member, each) for member, entry in going.outboxes for each in _written(entry, member, node, now)]
    written = None if going.write is None else writable_snapshot(going.write)
    write = None if going.write is None or written is None else (going.write.at, written)
    if not (inbox or outboxes or going.claim or going.release or write or going.read):
        return None
    return Parcel(inbox, outboxes, going.claim, going.release, write, going.read)


def _written(entry: MemberEntry | SchedulerEntry, member: str | None, node: Node, now: Instant) -> list[bytes]:
    """The encoded entry for this member, or for the scheduler. If it cannot be encoded, its session is dropped."""
    try:
        return list(encoded(entry))
    except Unwritable as problem:
        reader = "the scheduler" if member is None else f'member "{member}"'
        log.warning("an entry for %s cannot be written and is dropped: %s", reader, problem)
        node.drop_session(member, str(problem), now)
        return []
