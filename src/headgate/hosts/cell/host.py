"""Host for one process in a cell.

A `Node` decides what the process sends and does. The host adds a clock, timers, the command channels of its requests
and the store. It passes each event to the node immediately. Outgoing messages are sent in one batch as soon as the
store is idle, so batches are small under low load and large under high load.

The observers of a process see the results of its own requests, regardless of which process made the decisions, so that
the metrics of all gateways can be summed. The scheduler's observers see the decisions for the whole cell while this
process is the scheduler.

Known weakness: the scheduler takes and encodes snapshots on the event loop and blocks it while doing so
(`docs/project/cell-protocol.md`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from headgate.core.admission.limits import QuotaShortage
from headgate.core.commands import BudgetCrossed, Command, Eject, Hold, Readmit
from headgate.core.events import Event, PolicyChanged, RequestArrived, RequestRejected, TimerFired
from headgate.core.summary import Summary
from headgate.hosts.cell.billed_ends import BilledEnds
from headgate.hosts.cell.command_executor import CommandExecutor
from headgate.hosts.cell.member.commands import MemberCommand
from headgate.hosts.cell.member.member import MemberEvent
from headgate.hosts.cell.node import CellView, Node
from headgate.hosts.cell.protocol.codec import UnencodableEntry, encode_entry, try_encode_snapshot
from headgate.hosts.cell.protocol.messages import MemberEntry, SchedulerEntry
from headgate.hosts.cell.protocol.store import Store, StoreBatch
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.cell.rejected_requests import RejectedRequests
from headgate.hosts.cell.store_receiver import StoreReceiver
from headgate.hosts.command_channel import CommandChannels, HostCommandChannel
from headgate.hosts.decision_time import DecisionTime
from headgate.hosts.garbage_collection import GarbageCollectionPause
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetStatus, EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, Instant, TenantId
from headgate.ports.clock import Clock
from headgate.ports.host import InterruptHandler
from headgate.ports.observer import Observer

log = logging.getLogger("headgate")

_STORE_RETRY_NS = Duration(5 * MILLISECOND)
"""Interval at which the node wakes up while the store is busy, even if messages are due."""
_LEAVE_S_MAX = 1.0
_LATE_NS = Duration(50 * MILLISECOND)
"""Delay of a timer that shows that the event loop was blocked."""
_READ_NS = Duration(MILLISECOND)
"""Time after which timers are handled if the event loop was blocked."""


class _WakeupTimer:
    """Timer for the next wakeup.

    If the event loop was blocked, the timer is postponed once, so that entries which arrived meanwhile are read first.
    Otherwise, a member could become an island although the scheduler has answered.
    """

    __slots__ = ("_at", "_clock", "_handle", "_has_waited", "_wake")

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock, self._wake = clock, wake
        self._handle: asyncio.TimerHandle | None = None
        self._at: Instant | None = None
        self._has_waited = False

    def wake_at(self, due: Instant, now: Instant) -> None:
        """Sets the timer unless it is set to an earlier time."""
        if self._at is not None:
            if self._at <= due:
                return
            self.cancel()
        self._handle = asyncio.get_running_loop().call_later((due - now) / SECOND, self.fire)
        self._at = due

    @property
    def must_wait(self) -> bool:
        """Whether the timer is so late that the event loop was blocked, and has not been postponed yet."""
        return not self._has_waited and self._at is not None and self._clock.now() - self._at > _LATE_NS

    def fire(self) -> None:
        self._has_waited, self._at = self.must_wait, None
        if self._has_waited:
            now = self._clock.now()
            self.wake_at(Instant(now + _READ_NS), now)
        else:
            self._wake()

    def cancel(self) -> None:
        self._at = None
        if self._handle is not None:
            self._handle.cancel()


class CellHost:
    def __init__(
        self,
        node: Node,
        store: Store,
        clock: Clock,
        observers: Sequence[Observer],
        on_fault: Callable[[BaseException], None],
        *,
        on_engine_watch: Callable[[bool], None],
        on_policy_agreed: Callable[[str], None],
        billing_observers: Sequence[Observer] = (),
    ) -> None:
        """`on_engine_watch` receives whether this process must probe the engines.

        `on_policy_agreed` receives the hash of the policy to apply. `billing_observers` see the same events as the
        other observers, but learn that a request has ended only once its bills have arrived.
        """
        self._node = node
        self._store = store
        self._clock = clock
        self._billed_ends = BilledEnds(billing_observers)
        self._on_fault = on_fault
        self._on_duty = on_engine_watch
        self._channels = CommandChannels()
        self._rejected = RejectedRequests()
        self._timer = _WakeupTimer(clock, self._wake)
        self._sending: asyncio.Handle | None = None
        self._leading = False
        self._garbage = GarbageCollectionPause()
        self._watching = False
        self._stopped = False
        self._left = asyncio.Event()
        self._executor = CommandExecutor(
            self._channels, clock, observers, self._billed_ends, on_fault=on_fault, on_policy_agreed=on_policy_agreed
        )
        self.receiver = StoreReceiver(node, clock, self._executor, self._update)

    def start(self) -> None:
        self._store.start(self.receiver)
        self._update()

    # Events of this process

    def open(self, ticket: Ticket, on_interrupt: InterruptHandler) -> HostCommandChannel:
        line = self._channels.open(ticket.request_id, on_interrupt)
        event = RequestArrived(ticket)
        self._decide(event, lambda now: self._node.open(ticket, now))
        return line

    def report(self, event: Event) -> None:
        if isinstance(event, RequestRejected):
            self._rejected.count(event.tenant, self._clock.now())
            return
        if isinstance(event, PolicyChanged):
            self._rejected.change_rules(event.policy, self._clock.now())
        assert isinstance(event, MemberEvent), f"{type(event).__name__} events come only from the cell protocol"
        self._decide(event, lambda now: self._node.handle(event, now))

    def stage(self, policy_hash: str) -> bool:
        """Announces that this process has read a policy. `on_policy_agreed` is called when it must be applied.

        Returns False if this process has already applied it, so that there is nothing to agree on.
        """
        is_new = policy_hash != self._node.member.rules.hash
        self._decide(None, lambda now: self._node.stage(policy_hash, now))
        return is_new

    def step_down(self, pause_ns: Duration | None = None) -> bool:
        """Steps down as the scheduler and stops being a candidate. Open requests continue.

        With `pause_ns`, this process only steps down if it makes the decisions, and is a candidate again after that
        time. Returns whether it made them.
        """
        now = self._clock.now()
        decided = self._node.step_down(now, until=None if pause_ns is None else Instant(now + pause_ns))
        self._update()
        return decided

    def lose_name(self, problem: str) -> None:
        """Leaves the cell because another process has taken this name.

        From then on, this process makes the decisions for its open requests itself.
        """
        log.error("leaving the cell: %s", problem)
        self._node.lose_name(self._clock.now())
        self._update()

    async def leave(self) -> None:
        """Announces that this process holds no requests, and waits briefly for the acknowledgement."""
        if self._node.member.held:
            # Some attempts did not end in time. The scheduler keeps their slots reserved, as for any silent member.
            log.warning("leaving the cell while %d requests are still running on their engines", self._node.member.held)
            return
        self._node.leave(self._clock.now())
        self._update()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S_MAX if self._store.up else 0):
                await self._left.wait()

    def stop(self) -> None:
        """Stops sending and processing. The owner of the store stops the store."""
        self._stopped = True
        self._garbage.resume()
        self._billed_ends.close()
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def add_observer(self, observer: Observer) -> Callable[[], None]:
        """Adds an observer of this process's requests. Returns a function that removes it."""
        return self._executor.add_observer(observer)

    def summary(self) -> Summary:
        return self._node.summary()

    def limit_reached(self, tenant: TenantId) -> QuotaShortage | None:
        """Returns the limit reached by requests rejected in this process.

        Only the scheduler knows the usage of admitted requests.
        """
        return self._rejected.limit_reached(tenant, self._clock.now())

    def limits_left(self, tenant: TenantId) -> LimitsLeft | None:
        return None

    def budgets_left(self, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...] | None:
        return self._node.budgets_left(self._clock.now(), tenant)

    def view(self) -> CellView:
        return self._node.view(self._clock.now())

    def collect_endpoint_times(self) -> tuple[EndpointTime, ...]:
        return self._node.collect_endpoint_times(self._clock.now())

    def open_channels(self) -> int:
        return len(self._channels)

    @property
    def decision_time(self) -> DecisionTime:
        return self._executor.decision_time

    @property
    def name(self) -> str:
        return self._node.member.name

    @property
    def lost_name(self) -> bool:
        """Whether another process has taken this member's name."""
        return self._node.member.lost_name

    @property
    def incarnation(self) -> int:
        return self._node.member.incarnation

    @property
    def name_problem(self) -> str | None:
        """Problem and next step if two processes use the same name, or None."""
        return self.receiver.name_problem

    @property
    def unreadable_entries(self) -> int:
        """Number of entries that this version could not decode."""
        return self.receiver.unreadable_entries

    @property
    def is_leader(self) -> bool:
        return self._leading

    def ready_endpoints(self) -> list[EndpointId]:
        """Returns the endpoints known to be ready."""
        known = self._node.member.endpoints
        return [endpoint_id for endpoint_id in known.by_id if known.is_ready(endpoint_id)]

    @property
    def store(self) -> Store:
        return self._store

    # Effects of decisions

    def _decide(
        self, event: Event | None, handler: Callable[[Instant], list[MemberCommand]], *, update: bool = True
    ) -> None:
        self._executor.decide(event, handler)
        if update:
            self._update()

    def _update(self) -> None:
        """Sends due messages, schedules the next wakeup, and announces role changes."""
        if self._stopped:
            return
        if self._node.has_left:
            self._left.set()
        if self._node.is_leader is not self._leading:
            self._leading = self._node.is_leader
            self._store.set_leading(self._leading)
            log.info("this process is %s the cell's scheduler", "now" if self._leading else "no longer")
        if self._node.leader is not None and self._node.leader.gathering:
            self._garbage.pause()
        else:
            self._garbage.resume()
        watching = self._leading or self._node.member.mode is MemberMode.ISLAND
        if watching is not self._watching:
            self._watching = watching
            self._on_duty(watching)
        now = self._clock.now()
        due = self._node.next_wakeup(now)
        if due > now:
            self._timer.wake_at(due, now)
        elif not self._store.is_idle:
            self._timer.wake_at(Instant(now + _STORE_RETRY_NS), now)
        elif self._sending is None:
            # Messages produced later in this iteration of the event loop are sent in the same batch.
            self._sending = asyncio.get_running_loop().call_soon(self._send)

    def _wake(self) -> None:
        self._decide(None, self._node.tick)

    def _send(self) -> None:
        self._sending = None
        if self._timer.must_wait:
            # `_wake` follows.
            return
        self._decide(None, self._node.tick, update=False)
        try:
            if self._store.is_idle and (batch := _store_batch(self._node, self._clock.now())) is not None:
                self._store.send(batch)
        except Exception as mistake:
            # Otherwise, the process would keep running without sending anything.
            self._on_fault(mistake)
            raise
        self._update()


class LeaderObserver:
    """Passes the scheduler's decisions about endpoints and budgets to the observers of its process."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        concerning = [command for command in commands if isinstance(command, Eject | Readmit | Hold | BudgetCrossed)]
        if concerning:
            for observer in self._observers:
                observer.observe(TimerFired(), concerning, now)


def _store_batch(node: Node, now: Instant) -> StoreBatch | None:
    """Returns the encoded outgoing entries, or None if there are none."""
    going = node.outgoing(now)
    inbox = [written for entry in going.inbox for written in _encode_or_drop(entry, None, node, now)]
    outboxes = [
        (member, each) for member, entry in going.outboxes for each in _encode_or_drop(entry, member, node, now)
    ]
    written = None if going.snapshot is None else try_encode_snapshot(going.snapshot)
    write = None if going.snapshot is None or written is None else (going.snapshot.at, written)
    if not (inbox or outboxes or going.claim or going.release or write or going.read_snapshot):
        return None
    return StoreBatch(inbox, outboxes, going.claim, going.release, write, going.read_snapshot)


def _encode_or_drop(entry: MemberEntry | SchedulerEntry, member: str | None, node: Node, now: Instant) -> list[bytes]:
    """Encodes an entry for a member, or for the scheduler. If it cannot be encoded, drops its session."""
    try:
        return list(encode_entry(entry))
    except UnencodableEntry as problem:
        reader = "the scheduler" if member is None else f'member "{member}"'
        log.warning("dropped an entry for %s that cannot be encoded: %s", reader, problem)
        node.drop_session(member, str(problem), now)
        return []
