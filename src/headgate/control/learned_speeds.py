"""Keeps the learned speeds of endpoints across restarts of a gateway without a cell.

They are in one JSON file of the state folder, which is written about once a minute and when the gateway stops. A write
replaces the file as a whole, so that a crash leaves the old or the new one. The gateway reads the file when it starts.
It ignores a file that it cannot read, and the speeds of a pool whose engine, model or assumed speed has changed. In a
cell the snapshot of the scheduler has the learned speeds.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Protocol

import msgspec

from headgate.core.counters import LearnedSpeed
from headgate.hosts.local.host import LocalHost
from headgate.ledger.spool.handover import in_thread
from headgate.ledger.spool.segment import force_to_disk
from headgate.model.policy import Policy
from headgate.model.speed import EngineSpeed
from headgate.model.units import EndpointId, PoolName
from headgate.telemetry.log import tell

FILE_NAME: Final = "learned-speeds.json"
VERSION: Final = 1
EVERY_S: Final = 60.0
STOP_S_MAX: Final = 2.0
"""Time that the last write may take before the gateway stops without it."""
BYTES_MAX: Final = 16 << 20

_Factor = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Sum = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""Both in millionths, as in `LearnedSpeed`."""


class _Endpoint(msgspec.Struct, frozen=True):
    settled: bool
    factors: tuple[_Factor, _Factor]
    sums: tuple[_Sum, _Sum, _Sum, _Sum, _Sum]

    def is_possible(self) -> bool:
        """Whether the sums can be sums of squares and products; otherwise their equations have no solution."""
        dd, dp, pp, _, _ = self.sums
        return dp * dp <= (dd + 2) * (pp + 2)


class PoolIdentity(msgspec.Struct, frozen=True):
    """The facts about a pool without which its learned factors have no meaning."""

    engine: str
    model: str
    speed: EngineSpeed
    """The speed that the factors refer to."""
    speed_assumed: bool


class _PoolSpeeds(msgspec.Struct, frozen=True):
    of: PoolIdentity
    endpoints: dict[EndpointId, _Endpoint]


class _Version(msgspec.Struct, frozen=True):
    version: int


class _File(_Version, frozen=True):
    pools: dict[PoolName, _PoolSpeeds]


class EnginePool(Protocol):
    """The engine of a pool."""

    @property
    def name(self) -> PoolName: ...
    @property
    def engine(self) -> str: ...
    @property
    def served_model(self) -> str: ...


class Configured(Protocol):
    """The configuration in force, as far as it matters here."""

    @property
    def state_folder(self) -> str | None: ...
    @property
    def pools(self) -> Sequence[EnginePool]: ...
    @property
    def policy(self) -> Policy: ...


class UnreadableSpeeds(Exception):
    """The file has no speeds that this version can use."""


class LearnedSpeeds:
    def __init__(
        self,
        folder: Path,
        pools: Callable[[], Mapping[PoolName, PoolIdentity]],
        learned: Callable[[], Iterable[LearnedSpeed]],
        *,
        every_s: float = EVERY_S,
        stop_s_max: float = STOP_S_MAX,
    ) -> None:
        self._path = folder / FILE_NAME
        self._pools, self._learned = pools, learned
        self._every_s, self._stop_s_max = every_s, stop_s_max
        self._began = pools()
        """The pools when the process started. Factors of a pool that has changed since are not kept."""
        self._unused: dict[PoolName, list[LearnedSpeed]] = {}
        """Speeds of the file, of pools of which no endpoint has joined yet."""
        self._written = b""
        """The content of the file, as far as this process has written it."""
        self._failed = False
        self._stopping, self._stopped = asyncio.Event(), asyncio.Event()

    # At the start

    def read(self) -> list[LearnedSpeed]:
        """The speeds in the file. Without a usable file there are none; an unusable one is logged."""
        try:
            kept = decoded(self._path)
        except FileNotFoundError:
            return []
        except (OSError, UnreadableSpeeds) as error:
            tell(logging.WARNING, "learned speeds are ignored", file=str(self._path), why=str(error))
            return []
        speeds: list[LearnedSpeed] = []
        pools = self._pools()
        for name, pool in kept.items():
            if pool.of == pools.get(name):
                self._unused[name] = [
                    LearnedSpeed(each, name, found.settled, found.factors, found.sums)
                    for each, found in pool.endpoints.items()
                ]
                speeds += self._unused[name]
            else:
                why = "its engine, model or assumed speed has changed" if name in pools else "it is not configured"
                tell(logging.INFO, "learned speeds of a pool are ignored", pool=name, why=why)
        settled = sum(each.settled for each in speeds)
        tell(logging.INFO, "learned speeds are restored", endpoints=len(speeds), settled=settled)
        return speeds

    # While the gateway runs

    async def run(self) -> None:
        """Writes at intervals, and once more after `stop` is called."""
        try:
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every_s):
                        await self._stopping.wait()
                await self.write()
        finally:
            self._stopped.set()

    async def stop(self) -> None:
        """Waits for the last write, unless the disk hangs."""
        self._stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stop_s_max):
                await self._stopped.wait()

    async def write(self) -> None:
        """Writes the file if anything has changed. A failure is logged once, until a write succeeds."""
        content = self._content()
        if content == self._written:
            return
        try:
            await in_thread(replace_file, self._path, content)
        except OSError as error:
            if not self._failed:
                tell(logging.WARNING, "learned speeds cannot be written", file=str(self._path), why=str(error))
            self._failed = True
        else:
            self._failed, self._written = False, content

    def _content(self) -> bytes:
        learned = list(self._learned())
        for joined in {each.pool for each in learned}:
            self._unused.pop(joined, None)
        for unused in self._unused.values():
            learned += unused
        pools = self._pools()
        return encoded({name: of for name, of in pools.items() if self._began.get(name) == of}, learned)


def open_speeds(host: object, configured: Callable[[], Configured]) -> LearnedSpeeds | None:
    """Restores the speeds that were kept; each applies when its endpoint joins. None if no speeds are kept."""
    folder = configured().state_folder
    if folder is None or not isinstance(host, LocalHost):
        return None
    speeds = LearnedSpeeds(Path(folder), lambda: pool_identities(configured()), host.learned_speeds)
    host.recall_speeds(speeds.read())
    return speeds


def pool_identities(configured: Configured) -> dict[PoolName, PoolIdentity]:
    speeds = {each.name: (each.speed, each.speed_assumed) for each in configured.policy.pools}
    return {each.name: PoolIdentity(each.engine, each.served_model, *speeds[each.name]) for each in configured.pools}


def encoded(pools: Mapping[PoolName, PoolIdentity], speeds: Iterable[LearnedSpeed]) -> bytes:
    of_pools = {name: _PoolSpeeds(of, {}) for name, of in pools.items()}
    for each in speeds:
        if each.pool in of_pools:
            of_pools[each.pool].endpoints[each.endpoint_id] = _Endpoint(each.settled, each.factors, each.sums)
    return msgspec.json.encode(_File(VERSION, of_pools))


def decoded(path: Path) -> dict[PoolName, _PoolSpeeds]:
    """The pools in the file. Raises `OSError` or `UnreadableSpeeds`."""
    with path.open("rb") as file:
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise UnreadableSpeeds(f"it has more than {BYTES_MAX:,} bytes")
    try:
        version = msgspec.json.decode(content, type=_Version).version
        if version != VERSION:
            raise UnreadableSpeeds(f"it has version {version}; this gateway reads version {VERSION}")
        pools = msgspec.json.decode(content, type=_File).pools
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableSpeeds(str(error)) from error
    if not all(each.is_possible() for pool in pools.values() for each in pool.endpoints.values()):
        raise UnreadableSpeeds("it has impossible sums")
    return pools


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file so that a crash leaves either the old or the new content. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_bytes(content)
        force_to_disk(new)
        new.replace(path)
        force_to_disk(path)
    finally:
        new.unlink(missing_ok=True)
