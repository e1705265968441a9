"""On which stores does the contract suite run, and how does a test look at what one tells?"""

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
from headgate.hosts.cell.protocol.messages import Lease, Snapshots
from headgate.hosts.cell.protocol.store import Parcel, Store
from headgate.hosts.cell.redis import connect, intake
from headgate.hosts.cell.redis import store as store_module
from headgate.hosts.cell.redis.store import RedisStore
from testing.processes import MissingPart
from testing.stores import Sentinels, Server, made_certificates, redis, sentinels, valkey
from tests.hosts.cell.fake_store import FakeServer, FakeStore

WAIT_SECONDS_MAX = 90.0

_numbers = count()


@dataclass
class Recorder:
    """A receiver that writes everything down."""

    outbox: list[bytes] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    leases: list[tuple[Claim, Lease]] = field(default_factory=list)
    kept: list[Snapshots] = field(default_factory=list)
    read: list[bytes | None] = field(default_factory=list)
    freed: int = 0
    changes: list[tuple[bool, str | None]] = field(default_factory=list)

    def from_outbox(self, entries: list[bytes]) -> None:
        self.outbox += entries
        self.batches.append(len(entries))

    def from_inbox(self, entries: list[bytes]) -> None:
        self.inbox += entries
        self.batches.append(len(entries))

    def lease_answered(self, claim: Claim, lease: Lease) -> None:
        self.leases.append((claim, lease))

    def snapshot_kept(self, at: Snapshots, kept: Snapshots) -> None:
        self.kept.append(kept)

    def snapshot_read(self, written: bytes | None) -> None:
        self.read.append(written)

    def store_free(self) -> None:
        self.freed += 1

    def store_changed(self, up: bool, problem: str | None) -> None:
        self.changes.append((up, problem))


@dataclass
class Member:
    """One process's store, and what it was told."""

    name: str
    store: Store
    told: Recorder

    async def send(self, parcel: Parcel) -> None:
        """Returns when it was answered, or lost and the store is back."""
        await until(lambda: self.store.free, f"the store of {self.name} is free")
        freed = self.told.freed
        self.store.send(parcel)
        await until(lambda: self.told.freed > freed, f"the store of {self.name} is free again")


@dataclass
class StorePlace:
    """A store of some kind, its faults, and members around it."""

    kind: str
    server: Any
    """FakeServer, Server or Sentinels."""
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
        """What is done to a process takes a moment, in which the event loop goes on."""
        hurt = getattr(self.server, fault)
        if isinstance(self.server, FakeServer):
            hurt(**how)
        else:
            await asyncio.to_thread(hurt, **how)

    def key(self, name: str) -> str:
        return f"{{headgate:{self.cell}}}:{name}"


@contextmanager
def store_place(kind: str, folder: Path) -> Generator[StorePlace]:
    """A store that is not installed fails the test in CI, and skips it elsewhere."""
    try:
        match kind:
            case "fake":
                yield StorePlace(kind, FakeServer())
            case "redis" | "valkey":
                with (redis if kind == "redis" else valkey)(password="open-sesame") as server:
                    yield StorePlace(kind, server)
            case "tls":
                with redis(certificates=made_certificates(folder), password="open-sesame") as server:
                    yield StorePlace(kind, server)
            case _:
                raise AssertionError(kind)
    except MissingPart as missing:
        absent(missing)


@contextmanager
def sentinel_set(**how: Any) -> Generator[Sentinels]:
    try:
        with sentinels(**how) as these:
            yield these
    except MissingPart as missing:
        absent(missing)


@contextmanager
def started(begin: Callable[[], AbstractContextManager[Server]]) -> Generator[Server]:
    try:
        with begin() as server:
            yield server
    except MissingPart as missing:
        absent(missing)


def absent(missing: MissingPart) -> None:
    if os.environ.get("CI"):
        pytest.fail(str(missing))
    pytest.skip(str(missing))


def be_patient(monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0) -> None:
    """A store counts as away when its connection breaks, and not for being slow."""
    for module, names in (
        (store_module, ("PARCEL_S_MAX", "SLOW_S", "CONNECT_S_MAX")),
        (intake, ("ANSWER_S_MAX",)),
        (connect, ("CONNECT_S_MAX", "SENTINEL_S_MAX", "SILENCE_S_MAX", "REPLACEABLE_S_MAX")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, seconds)


async def until(true: Callable[[], bool], what: str, seconds_max: float = WAIT_SECONDS_MAX) -> float:
    """How long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds_max, f"not within {seconds_max:g} s: {what}"
        await asyncio.sleep(0.002)
    return time.monotonic() - began
