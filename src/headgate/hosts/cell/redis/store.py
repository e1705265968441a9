"""How does a cell use Redis or Valkey, and how is it not held up by one that is slow, paused or gone?

Three connections, so that none delays another: one writes, one waits for what schedulers say to this member, and one,
only while this process is the scheduler, for what members say. They share one fate. When an answer does not come in
time, when answers are slow twice in a row or when one connection breaks, all are closed and the parcel under way counts
as lost. They are made anew, with a pause that grows and is drawn by lot, and nothing is sent before the store has
answered a PING promptly. Nothing waits in here: while the store is away there is nothing to grow.

The streams are bounded three times over: readers trim what they have read, a stream that nobody reads is cut off at a
length, and an outbox that nobody writes to any more expires. The lease and the last snapshot stay.

What is not ideal: a replica may be behind, so that after a failover entries, lease or snapshot are old or gone. The
protocol is made for that.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import hiredis

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Snapshots
from headgate.hosts.cell.protocol.store import Parcel, Receiver
from headgate.hosts.cell.redis import scripts
from headgate.hosts.cell.redis.connect import CONNECT_S_MAX, Connector
from headgate.hosts.cell.redis.entries import EntryCommands
from headgate.hosts.cell.redis.intake import Intake, end_of, position_of
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.place import Address, place_of
from headgate.hosts.cell.redis.problem import CAUSES, FOREIGN, Replaced, Slow, Unusable, problem_of
from headgate.hosts.cell.redis.slowest import Slowest
from headgate.hosts.cell.redis.wire import Command, Wire
from headgate.model.units import SECOND, Duration

log = logging.getLogger("headgate")

PARCEL_S_MAX: Final = 0.5
SLOW_S: Final = 0.25
"""Two round trips in a row that take longer are one too many."""
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.25
"""Before the next attempt to connect, at most; less than this is drawn by lot."""
WATCH_S: Final = 1.0
"""So often sentinels are asked whether the master is still the same."""

_Handler = Callable[[Any], None]
_Expected = tuple[int, Command, _Handler]
"""Which of the answers belongs to which command, and who is told."""


class RedisStore:
    def __init__(self, url: str, *, cell: str, member: str) -> None:
        self._connector = Connector(place_of(url))
        self._keys = CellKeys(cell)
        self._checks: list[Command] = [self._keys.check, *scripts.LOADS]
        self._inbox = Intake(self._keys.inbox, self._from_inbox, self._lose)
        self._outbox = Intake(self._keys.outbox(member), self._from_outbox, self._lose)
        self._entries = EntryCommands(self._keys)
        self._address: Address | None = None
        self._wire: Wire | None = None
        """The writing one; None while the store is away."""
        self._leading = False
        self._opening: asyncio.Task[None] | None = None
        """Connects the reader of the inbox."""
        self._parcel: Parcel | None = None
        """What is under way."""
        self._handlers: list[_Expected] = []
        self._sent_at = 0.0
        self._slow = 0
        self._pause_s = PAUSE_S_MIN
        self._lost: asyncio.Future[Exception] | None = None
        self._settled: asyncio.Future[None] | None = None
        """Whoever stops the store waits for this: nothing is under way."""
        self._running: asyncio.Task[None] | None = None
        self._connected = 0

        self.up = False
        self.problem: str | None = None
        self._slowest = Slowest()
        self.entries_sent = 0
        self.bytes_sent = 0
        self.timeouts = 0

    # Figures

    @property
    def round_trip_ns(self) -> Duration:
        if self._running is None:
            return Duration(0)
        now_s = self._loop.time()
        waiting_s = 0.0 if self._parcel is None else now_s - self._sent_at
        return Duration(int(self._slowest.seconds(now_s, waiting_s) * SECOND))

    @property
    def entries_read(self) -> int:
        return self._inbox.entries + self._outbox.entries

    @property
    def bytes_read(self) -> int:
        return self._inbox.bytes + self._outbox.bytes

    @property
    def reconnects(self) -> int:
        return max(0, self._connected - 1)

    # Its life

    def start(self, receiver: Receiver) -> None:
        assert self._running is None, "a store is started once"
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """What is under way is waited for, which has its own limit; nothing is told any more after that."""
        if self._parcel is not None and self._wire is not None:
            self._settled = self._loop.create_future()
            await asyncio.wait((self._settled,), timeout=2 * PARCEL_S_MAX)
        for task in (self._running, self._opening):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.up = False
        self._close()
        # Closed connections are gone after a turn of the loop.
        await asyncio.sleep(0)

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
            except Exception as cause:
                self._close()
                self._count(cause)
                problem = self._problem(cause)
                if not isinstance(cause, CAUSES) and problem != self.problem:
                    # Nobody waits for this task: if it ended, the store would stay away and nobody be told.
                    log.exception("connecting to the store of the cell failed by a mistake of ours; it is tried again")
                self._change(up=False, problem=problem)
            else:
                assert self._lost is not None
                self._connected += 1
                self._change(up=True, problem=None)
                self._receiver.store_free()
                await self._watch(self._lost)
            # All who lost the same store at the same moment come back at different ones.
            await asyncio.sleep(random.uniform(0, self._pause_s))  # noqa: S311  Nothing is kept secret by it.
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    async def _connect(self) -> None:
        self._lost = self._loop.create_future()
        self._address = None
        self._address = address = await self._connector.address()
        wire = await self._connector.prompt(address, self._lose, self._checks)
        try:
            await self._open(self._outbox, address)
            if self._leading and self._inbox.position is not None:
                await self._open(self._inbox, address)
            if self._lost.done():
                raise self._lost.result()
        except BaseException:
            wire.close()
            raise
        self._wire, self._slow = wire, 0
        self._entries.clear()

    async def _open(self, intake: Intake, address: Address) -> None:
        async with asyncio.timeout(2 * CONNECT_S_MAX):
            wire = await self._connector.connected(address, self._lose)
            try:
                await intake.begin(wire)
            except BaseException:
                wire.close()
                raise
        if intake is self._inbox and not self._leading:
            # It was given up meanwhile. Whoever reads also trims, and would take entries from the one who leads.
            intake.forget()

    async def _watch(self, lost: asyncio.Future[Exception]) -> None:
        """Until the store is lost. A master that was replaced may go on for ten seconds as if it had not been."""
        while not lost.done():
            sentinels = self._connector.place.master is not None
            await asyncio.wait((lost,), timeout=WATCH_S if sentinels else None)
            if not lost.done():
                # Sentinels that are away say nothing against the master.
                with suppress(*CAUSES):
                    if await self._connector.address() != self._address:
                        self._lose(Replaced())

    def _lose(self, cause: Exception) -> None:
        """The store is away from this moment on, whichever of the connections has shown it."""
        if self._lost is None or self._lost.done():
            return
        self._lost.set_result(cause)
        if self._wire is not None:
            if self._parcel is not None:
                self._slowest.add(self._loop.time() - self._sent_at, self._loop.time())
            self._count(cause)
            self._close()
            self._change(up=False, problem=self._problem(cause))

    def _close(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = None
        self._settle()
        if self._opening is not None:
            self._opening.cancel()
        self._inbox.end()
        self._outbox.end()

    def _count(self, cause: Exception) -> None:
        if isinstance(cause, TimeoutError | Slow):
            self.timeouts += 1

    def _problem(self, cause: Exception) -> str:
        return problem_of(cause, self._connector.place, self._address)

    def _change(self, *, up: bool, problem: str | None) -> None:
        if (up, problem) != (self.up, self.problem):
            self.up, self.problem = up, problem
            self._receiver.store_changed(up, problem)

    # Who reads the inbox

    def lead(self, leading: bool) -> None:  # noqa: FBT001  A state, told as it is.
        if leading is self._leading:
            return
        self._leading = leading
        # The next parcel asks where the inbox ends, before it says anything that could be answered.
        self._inbox.forget()
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _begin_inbox(self, answer: Any) -> None:
        if self._leading and self._inbox.position is None:
            self._inbox.position = position_of(answer)
            self._opening = self._loop.create_task(self._open_inbox())

    async def _open_inbox(self) -> None:
        assert self._address is not None
        try:
            await self._open(self._inbox, self._address)
        except CAUSES as cause:
            self._opening = None
            self._lose(cause)

    def _from_inbox(self, entries: list[bytes]) -> None:
        self._receiver.from_inbox(entries)

    def _from_outbox(self, entries: list[bytes]) -> None:
        self._receiver.from_outbox(entries)

    # Parcels

    @property
    def free(self) -> bool:
        return self._wire is not None and self._parcel is None and self.up

    def send(self, parcel: Parcel) -> None:
        assert self.free, "a parcel is sent only while the store is free"
        assert self._wire is not None
        commands: list[Command] = []
        handlers: list[_Expected] = []
        self._sent_at = self._loop.time()

        def ask(command: Command, handler: _Handler) -> None:
            handlers.append((len(commands), command, handler))
            commands.append(command)

        if self._leading and self._inbox.position is None:
            ask(end_of(self._keys.inbox), self._begin_inbox)
        if (claim := parcel.claim) is not None:
            ask(scripts.claim(self._keys.lease, claim), lambda answer: self._claimed(claim, answer))
        commands += self._entries.of(parcel, self._sent_at)
        self.entries_sent += len(parcel.inbox) + len(parcel.outboxes)
        if parcel.write is not None:
            at, written = parcel.write
            ask(scripts.write(self._keys.snapshot, at, written), lambda answer: self._written(at, answer))
        if parcel.read:
            ask(("HGET", self._keys.snapshot, "bytes"), self._receiver.snapshot_read)
        commands.extend(trim for intake in (self._outbox, self._inbox) if (trim := intake.trim()) is not None)
        if parcel.release is not None:
            # Last, so that whoever takes it finds all else of this parcel done.
            ask(scripts.release(self._keys.lease, parcel.release), _nothing)
        assert commands, "an empty parcel would never be answered"
        self._parcel, self._handlers = parcel, handlers
        self.bytes_sent += self._wire.ask(commands, PARCEL_S_MAX, self._answered)

    def _answered(self, answers: list[Any]) -> None:
        handlers, again = self._handlers, list[_Expected]()
        for at, answer in enumerate(answers):
            if isinstance(answer, hiredis.ReplyError):
                unknown = next((each for each in handlers if each[0] == at and _unknown(answer)), None)
                if unknown is None:
                    self._lose(answer)
                    return
                again.append(unknown)
        told = [(handler, answers[at]) for at, _, handler in handlers if not any(each[0] == at for each in again)]
        if again:
            self._send_whole(again)
        else:
            self._settle()
            self._measure()
        for handler, answer in told:
            handler(answer)
        if self.free:
            self._receiver.store_free()

    def _settle(self) -> None:
        self._parcel = None
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _send_whole(self, unknown: list[_Expected]) -> None:
        """The parcel goes on with the scripts that the store did not know."""
        assert self._wire is not None
        calls = [scripts.SCRIPTS[str(call[1])].whole(call) for _, call, _ in unknown]
        self._handlers = [
            (at, call, handler) for at, (call, (_, _, handler)) in enumerate(zip(calls, unknown, strict=True))
        ]
        self.bytes_sent += self._wire.ask(calls, PARCEL_S_MAX, self._answered)

    def _measure(self) -> None:
        """How long it took; a store that is slow again and again is left alone for a while."""
        now_s = self._loop.time()
        took_s = now_s - self._sent_at
        self._slowest.add(took_s, now_s)
        self._pause_s = PAUSE_S_MIN
        self._slow = self._slow + 1 if took_s > SLOW_S else 0
        if self._slow > 1:
            self._lose(Slow())

    def _claimed(self, claim: Claim, answer: Any) -> None:
        try:
            lease = scripts.lease(answer)
        except (ValueError, TypeError, AttributeError):
            self._lose(Unusable(FOREIGN))
        else:
            self._receiver.lease_answered(claim, lease)

    def _written(self, at: Snapshots, answer: Any) -> None:
        try:
            kept = scripts.kept(answer)
        except (ValueError, TypeError):
            # The store keeps something that is not a snapshot, so this one is not written.
            return
        self._receiver.snapshot_kept(at, kept)


def _unknown(answer: Exception) -> bool:
    return str(answer).startswith("NOSCRIPT")


def _nothing(answer: Any) -> None:
    """That a lease was given up concerns nobody here."""
