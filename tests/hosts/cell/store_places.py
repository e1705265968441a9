"""Stores for the contract tests, with a receiver that records all calls."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Lease, SnapshotId
from headgate.hosts.cell.protocol.store import Store, StoreBatch
from headgate.hosts.cell.redis import connector, stream_reader
from headgate.hosts.cell.redis import store as store_module
from headgate.hosts.cell.redis.store import RedisStore
from testing.earlier_version import NoHistory
from testing.processes import MissingProgram
from testing.stores import Sentinels, Server, make_certificates, redis, sentinels, valkey
from tests.hosts.cell.fake_store import FakeServer, FakeStore

WAIT_SECONDS_MAX = 90.0

_numbers = count()


@dataclass
class Recorder:
    """Receiver that records all calls."""

    outbox: list[bytes] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    leases: list[tuple[Claim, Lease]] = field(default_factory=list)
    kept: list[SnapshotId] = field(default_factory=list)
    read: list[bytes | None] = field(default_factory=list)
    freed: int = 0
    changes: list[tuple[bool, str | None]] = field(default_factory=list)

    def from_outbox(self, entries: list[bytes]) -> None:
        self.outbox += entries
        self.batches.append(len(entries))

    def from_inbox(self, entries: list[bytes]) -> None:
        self.inbox += entries
        self.batches.append(len(entries))

    def lease_received(self, claim: Claim, lease: Lease) -> None:
        self.leases.append((claim, lease))

    def snapshot_stored(self, at: SnapshotId, kept: SnapshotId) -> None:
        self.kept.append(kept)

    def snapshot_read(self, written: bytes | None) -> None:
        self.read.append(written)

    def store_idle(self) -> None:
        self.freed += 1

    def store_changed(self, up: bool, problem: str | None) -> None:
        self.changes.append((up, problem))


@dataclass
class Member:
    """One process's store and its recorded calls."""

    name: str
    store: Store
    told: Recorder

    async def send(self, batch: StoreBatch) -> None:
        """Sends a batch and waits until the store is idle again, even if the batch is lost."""
        await until(lambda: self.store.is_idle, f"store of member {self.name} is idle")
        freed = self.told.freed
        self.store.send(batch)
        await until(lambda: self.told.freed > freed, f"store of member {self.name} is idle again")


@dataclass
class StorePlace:
    """Store server of one kind, with its faults and members."""

    kind: str
    server: Any
    """A `FakeServer`, `Server` or `Sentinels`."""
    cell: str = field(default_factory=lambda: f"cell-{next(_numbers)}-{os.getpid()}")

    @asynccontextmanager
    async def member(self, name: str, url: str | None = None) -> AsyncGenerator[Member]:
        if isinstance(self.server, FakeServer):
            store: Store = FakeStore(self.server, name)
        else:
            store = RedisStore(url or self.server.url, cell=self.cell, member=name)
        told = Recorder()
        store.start(told)
        try:
            yield Member(name, store, told)
        finally:
            await store.stop()

    async def befall(self, fault: str, **how: Any) -> None:
        """Injects a fault. Faults on real servers run in a thread, so that the event loop is not blocked."""
        hurt = getattr(self.server, fault)
        if isinstance(self.server, FakeServer):
            hurt(**how)
        else:
            await asyncio.to_thread(hurt, **how)

    def key(self, name: str) -> str:
        return f"{{headgate:{self.cell}}}:{name}"


@contextmanager
def store_place(kind: str, folder: Path) -> Generator[StorePlace]:
    """Yields a store. If it is not installed, the test fails in CI and is skipped elsewhere."""
    try:
        match kind:
            case "fake":
                yield StorePlace(kind, FakeServer())
            case "redis" | "valkey":
                with (redis if kind == "redis" else valkey)(password="open-sesame") as server:
                    yield StorePlace(kind, server)
            case "tls":
                with redis(certificates=make_certificates(folder), password="open-sesame") as server:
                    yield StorePlace(kind, server)
            case _:
                raise AssertionError(kind)
    except MissingProgram as missing:
        absent(missing)


@contextmanager
def sentinel_set(**how: Any) -> Generator[Sentinels]:
    try:
        with sentinels(**how) as these:
            yield these
    except MissingProgram as missing:
        absent(missing)


@contextmanager
def started(begin: Callable[[], AbstractContextManager[Server]]) -> Generator[Server]:
    try:
        with begin() as server:
            yield server
    except MissingProgram as missing:
        absent(missing)


def absent(missing: MissingProgram) -> None:
    # CI installs every program, but it may run on a shallow clone.
    if os.environ.get("CI") and not isinstance(missing, NoHistory):
        pytest.fail(str(missing))
    pytest.skip(str(missing))


def be_patient(monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0) -> None:
    """Raises all timeouts, so that only a broken connection makes a store unavailable."""
    for module, names in (
        (store_module, ("BATCH_S_MAX", "SLOW_S", "CONNECT_S_MAX")),
        (stream_reader, ("ANSWER_S_MAX",)),
        (connector, ("CONNECT_S_MAX", "SENTINEL_S_MAX", "SILENCE_S_MAX", "SENTINEL_SILENCE_S_MAX")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, seconds)


async def until(true: Callable[[], bool], what: str, seconds_max: float = WAIT_SECONDS_MAX) -> float:
    """Waits for a condition and returns the elapsed time in seconds."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds_max, f"timed out after {seconds_max:g} s; expected: {what}"
        await asyncio.sleep(0.002)
    return time.monotonic() - began
