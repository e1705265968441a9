"""A cell's store on Redis or Valkey.

It uses three connections, so that none delays another: one writes, one reads entries for this member, and one reads
entries for the scheduler while this process is the scheduler. If a reply does not arrive in time, two replies in a row
are slow, or a connection is lost, all three are closed and the batch in flight counts as lost. They are reopened after
a random, increasing backoff. Nothing is sent until the store has replied quickly to a PING. There is no queue, so
nothing accumulates while the store is unavailable.

Streams are limited in three ways: readers trim entries they have read, a stream that is not read has a maximum length,
and an outbox that is not written to expires. The lease and the last snapshot do not expire.

Known weakness: a replica may lag behind, so entries, the lease or the snapshot may be old or missing after a failover.
The protocol handles this.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import hiredis

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import SnapshotId
from headgate.hosts.cell.protocol.store import Receiver, StoreBatch
from headgate.hosts.cell.redis import scripts
from headgate.hosts.cell.redis.connection import RedisCommand, RedisConnection
from headgate.hosts.cell.redis.connector import CONNECT_S_MAX, Connector
from headgate.hosts.cell.redis.entry_commands import EntryCommands
from headgate.hosts.cell.redis.keys import CellKeys
from headgate.hosts.cell.redis.location import Address, parse_store_url
from headgate.hosts.cell.redis.round_trips import SlowestRoundTrip
from headgate.hosts.cell.redis.store_errors import (
    FOREIGN_DATA,
    STORE_ERRORS,
    MasterReplaced,
    StoreTooSlow,
    StoreUnusable,
    describe_error,
)
from headgate.hosts.cell.redis.stream_reader import StreamReader, last_entry_command, position_of
from headgate.model.units import SECOND, Duration

log = logging.getLogger("headgate")

BATCH_S_MAX: Final = 0.5
SLOW_S: Final = 0.25
"""Round-trip time, in seconds, above which a reply counts as slow. Two slow replies in a row close the connections."""
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.25
"""Maximum backoff before the next connection attempt. The actual backoff is random."""
SENTINEL_CHECK_S: Final = 1.0
"""Interval at which sentinels are queried for a new master."""

_Handler = Callable[[Any], None]
_Expected = tuple[int, RedisCommand, _Handler]
"""Position of a reply, its command and its handler."""


class RedisStore:
    def __init__(self, url: str, *, cell: str, member: str) -> None:
        self._connector = Connector(parse_store_url(url))
        self._keys = CellKeys(cell)
        self._checks: list[RedisCommand] = [self._keys.check, *scripts.LOAD_COMMANDS]
        self._inbox = StreamReader(self._keys.inbox, self._from_inbox, self._disconnect)
        self._outbox = StreamReader(self._keys.outbox(member), self._from_outbox, self._disconnect)
        self._entries = EntryCommands(self._keys)
        self._address: Address | None = None
        self._connection: RedisConnection | None = None
        """Connection for writing. None while the store is unavailable."""
        self._leading = False
        self._opening: asyncio.Task[None] | None = None
        """Task that opens the inbox connection."""
        self._batch: StoreBatch | None = None
        """Batch in flight."""
        self._handlers: list[_Expected] = []
        self._sent_at = 0.0
        self._slow = 0
        self._pause_s = PAUSE_S_MIN
        self._lost: asyncio.Future[Exception] | None = None
        self._batch_done: asyncio.Future[None] | None = None
        """Completed when no batch is in flight. `stop` waits for it."""
        self._running: asyncio.Task[None] | None = None
        self._connects = 0

        self.up = False
        self.problem: str | None = None
        self._slowest = SlowestRoundTrip()
        self.entries_sent = 0
        self.bytes_sent = 0
        self.timeouts = 0

    # Metrics

    @property
    def round_trip_ns(self) -> Duration:
        if self._running is None:
            return Duration(0)
        now_s = self._loop.time()
        waiting_s = 0.0 if self._batch is None else now_s - self._sent_at
        return Duration(int(self._slowest.seconds(now_s, waiting_s) * SECOND))

    @property
    def entries_read(self) -> int:
        return self._inbox.entries + self._outbox.entries

    @property
    def bytes_read(self) -> int:
        return self._inbox.bytes + self._outbox.bytes

    @property
    def reconnects(self) -> int:
        return max(0, self._connects - 1)

    # Lifecycle

    def start(self, receiver: Receiver) -> None:
        assert self._running is None, "the store is already started"
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Stops the store. Waits for the batch in flight, with a timeout. The receiver is not called after that."""
        if self._batch is not None and self._connection is not None:
            self._batch_done = self._loop.create_future()
            await asyncio.wait((self._batch_done,), timeout=2 * BATCH_S_MAX)
        for task in (self._running, self._opening):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.up = False
        self._close()
        await asyncio.sleep(0)  # Transports close in the next iteration of the event loop.

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
            except Exception as cause:
                self._close()
                self._count_timeout(cause)
                problem = self._problem(cause)
                if not isinstance(cause, STORE_ERRORS) and problem != self.problem:
                    # No other code awaits this task. If it ended, the store would silently stay unavailable.
                    log.exception("internal error while connecting to the cell's store; retrying")
                self._set_state(up=False, problem=problem)
            else:
                assert self._lost is not None
                self._connects += 1
                self._set_state(up=True, problem=None)
                self._receiver.store_idle()
                await self._watch(self._lost)
            # Makes processes that lost the store at the same time reconnect at different times.
            await asyncio.sleep(random.uniform(0, self._pause_s))  # noqa: S311  Not used for security.
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    async def _connect(self) -> None:
        self._lost = self._loop.create_future()
        self._address = None
        self._address = address = await self._connector.address()
        wire = await self._connector.connect_responsive(address, self._disconnect, self._checks)
        try:
            await self._open_reader(self._outbox, address)
            if self._leading and self._inbox.position is not None:
                await self._open_reader(self._inbox, address)
            if self._lost.done():
                raise self._lost.result()
        except BaseException:
            wire.close()
            raise
        self._connection, self._slow = wire, 0
        self._entries.clear()

    async def _open_reader(self, intake: StreamReader, address: Address) -> None:
        async with asyncio.timeout(2 * CONNECT_S_MAX):
            wire = await self._connector.connect(address, self._disconnect)
            try:
                await intake.begin(wire)
            except BaseException:
                wire.close()
                raise
        if intake is self._inbox and not self._leading:
            # The process has stepped down in the meantime. A reader also trims the stream and would remove entries
            # meant for the new scheduler.
            intake.reset()

    async def _watch(self, lost: asyncio.Future[Exception]) -> None:
        """Waits until the store is lost. A replaced master may still accept commands for ten seconds."""
        while not lost.done():
            sentinels = self._connector.location.master is not None
            await asyncio.wait((lost,), timeout=SENTINEL_CHECK_S if sentinels else None)
            if not lost.done():
                # Unreachable sentinels do not mean that the master has failed.
                with suppress(*STORE_ERRORS):
                    if await self._connector.address() != self._address:
                        self._disconnect(MasterReplaced())

    def _disconnect(self, cause: Exception) -> None:
        """Marks the store as unavailable, whichever connection failed."""
        if self._lost is None or self._lost.done():
            return
        self._lost.set_result(cause)
        if self._connection is not None:
            if self._batch is not None:
                self._slowest.add(self._loop.time() - self._sent_at, self._loop.time())
            self._count_timeout(cause)
            self._close()
            self._set_state(up=False, problem=self._problem(cause))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._finish_batch()
        if self._opening is not None:
            self._opening.cancel()
        self._inbox.close()
        self._outbox.close()

    def _count_timeout(self, cause: Exception) -> None:
        if isinstance(cause, TimeoutError | StoreTooSlow):
            self.timeouts += 1

    def _problem(self, cause: Exception) -> str:
        return describe_error(cause, self._connector.location, self._address)

    def _set_state(self, *, up: bool, problem: str | None) -> None:
        if (up, problem) != (self.up, self.problem):
            self.up, self.problem = up, problem
            self._receiver.store_changed(up, problem)

    # Inbox

    def set_leading(self, leading: bool) -> None:  # noqa: FBT001  The state is the argument.
        if leading is self._leading:
            return
        self._leading = leading
        # The next batch first queries the end of the inbox, before it sends anything that could be answered.
        self._inbox.reset()
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
            await self._open_reader(self._inbox, self._address)
        except STORE_ERRORS as cause:
            self._opening = None
            self._disconnect(cause)

    def _from_inbox(self, entries: list[bytes]) -> None:
        self._receiver.from_inbox(entries)

    def _from_outbox(self, entries: list[bytes]) -> None:
        self._receiver.from_outbox(entries)

    # Batches

    @property
    def is_idle(self) -> bool:
        return self._connection is not None and self._batch is None and self.up

    def send(self, batch: StoreBatch) -> None:
        assert self.is_idle, "the store is not idle"
        assert self._connection is not None
        commands: list[RedisCommand] = []
        handlers: list[_Expected] = []
        self._sent_at = self._loop.time()

        def ask(command: RedisCommand, handler: _Handler) -> None:
            handlers.append((len(commands), command, handler))
            commands.append(command)

        if self._leading and self._inbox.position is None:
            ask(last_entry_command(self._keys.inbox), self._begin_inbox)
        if (claim := batch.claim) is not None:
            ask(scripts.claim_command(self._keys.lease, claim), lambda answer: self._on_lease(claim, answer))
        commands += self._entries.build(batch, self._sent_at)
        self.entries_sent += len(batch.inbox) + len(batch.outboxes)
        if batch.snapshot is not None:
            at, written = batch.snapshot
            ask(scripts.write_snapshot_command(self._keys.snapshot, at, written), partial(self._on_snapshot_stored, at))
        if batch.read_snapshot:
            ask(("HGET", self._keys.snapshot, "bytes"), self._receiver.snapshot_read)
        commands.extend(trim for intake in (self._outbox, self._inbox) if (trim := intake.trim_command()) is not None)
        if batch.release is not None:
            # This comes last, so that the next scheduler sees the effects of all other commands in this batch.
            ask(scripts.release_command(self._keys.lease, batch.release), _ignore_reply)
        assert commands, "the batch is empty"
        self._batch, self._handlers = batch, handlers
        self.bytes_sent += self._connection.send(commands, BATCH_S_MAX, self._on_replies)

    def _on_replies(self, answers: list[Any]) -> None:
        handlers, again = self._handlers, list[_Expected]()
        for at, answer in enumerate(answers):
            if isinstance(answer, hiredis.ReplyError):
                unknown = next((each for each in handlers if each[0] == at and _is_unknown_script(answer)), None)
                if unknown is None:
                    self._disconnect(answer)
                    return
                again.append(unknown)
        told = [(handler, answers[at]) for at, _, handler in handlers if not any(each[0] == at for each in again)]
        if again:
            self._send_scripts(again)
        else:
            self._finish_batch()
            self._record_round_trip()
        for handler, answer in told:
            handler(answer)
        if self.is_idle:
            self._receiver.store_idle()

    def _finish_batch(self) -> None:
        self._batch = None
        if self._batch_done is not None and not self._batch_done.done():
            self._batch_done.set_result(None)

    def _send_scripts(self, unknown: list[_Expected]) -> None:
        """Continues the batch with the complete text of scripts that the store did not have."""
        assert self._connection is not None
        calls = [scripts.SCRIPTS[str(call[1])].eval_call(call) for _, call, _ in unknown]
        self._handlers = [
            (at, call, handler) for at, (call, (_, _, handler)) in enumerate(zip(calls, unknown, strict=True))
        ]
        self.bytes_sent += self._connection.send(calls, BATCH_S_MAX, self._on_replies)

    def _record_round_trip(self) -> None:
        """Records the round trip time. A store that is slow twice in a row is not used for a while."""
        now_s = self._loop.time()
        took_s = now_s - self._sent_at
        self._slowest.add(took_s, now_s)
        self._pause_s = PAUSE_S_MIN
        self._slow = self._slow + 1 if took_s > SLOW_S else 0
        if self._slow > 1:
            self._disconnect(StoreTooSlow())

    def _on_lease(self, claim: Claim, answer: Any) -> None:
        try:
            lease = scripts.parse_lease(answer)
        except (ValueError, TypeError, AttributeError):
            self._disconnect(StoreUnusable(FOREIGN_DATA))
        else:
            self._receiver.lease_received(claim, lease)

    def _on_snapshot_stored(self, at: SnapshotId, answer: Any) -> None:
        try:
            kept = scripts.parse_snapshot_id(answer)
        except (ValueError, TypeError):
            # The store has data that is not a snapshot, so this one was not written.
            return
        self._receiver.snapshot_stored(at, kept)


def _is_unknown_script(answer: Exception) -> bool:
    return str(answer).startswith("NOSCRIPT")


def _ignore_reply(answer: Any) -> None:
    """Ignores the reply to a release."""
