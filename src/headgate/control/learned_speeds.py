"""Preserves learned endpoint speeds across restarts of a gateway that is not in a cell.

The speeds are stored in a JSON file in the state directory, which is written about once a minute and when the gateway
stops. Each write replaces the whole file, so a crash leaves either the old or the new version. The gateway reads the
file when it starts. It ignores the file if it is unreadable, and ignores the speeds of pools whose engine, model or
assumed speed has changed. In a cell, the scheduler's snapshot contains the learned speeds.
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
from headgate.ledger.spool.disk_thread import in_thread
from headgate.ledger.spool.segment import sync_to_disk
from headgate.model.policy import Policy
from headgate.model.speed import EngineSpeed
from headgate.model.units import EndpointId, PoolName
from headgate.telemetry.log import log_event

FILE_NAME: Final = "learned-speeds.json"
VERSION: Final = 1
WRITE_EVERY_S: Final = 60.0
STOP_S_MAX: Final = 2.0
"""Maximum time for the last write, in seconds. If the write takes longer, the gateway stops without waiting for it."""
BYTES_MAX: Final = 16 << 20

_Factor = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_Sum = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""Both types are in millionths, as in `LearnedSpeed`."""


class _Endpoint(msgspec.Struct, frozen=True):
    settled: bool
    factors: tuple[_Factor, _Factor]
    sums: tuple[_Sum, _Sum, _Sum, _Sum, _Sum]

    def is_possible(self) -> bool:
        """Returns whether the values can be sums of squares and products. If not, the equations built from them have no
        solution.
        """
        dd, dp, pp, _, _ = self.sums
        return dp * dp <= (dd + 2) * (pp + 2)


class PoolIdentity(msgspec.Struct, frozen=True):
    """Properties of a pool on which its learned factors depend."""

    engine: str
    model: str
    speed: EngineSpeed
    """Speed to which the factors apply."""
    speed_assumed: bool


class _PoolSpeeds(msgspec.Struct, frozen=True):
    identity: PoolIdentity
    endpoints: dict[EndpointId, _Endpoint]


class _Version(msgspec.Struct, frozen=True):
    version: int


class _File(_Version, frozen=True):
    pools: dict[PoolName, _PoolSpeeds]


class PoolEngine(Protocol):
    """Pool with its engine."""

    @property
    def name(self) -> PoolName: ...
    @property
    def engine(self) -> str: ...
    @property
    def served_model(self) -> str: ...


class SpeedSettings(Protocol):
    """Parts of the configuration in force that affect learned speeds."""

    @property
    def state_directory(self) -> str | None: ...
    @property
    def pools(self) -> Sequence[PoolEngine]: ...
    @property
    def policy(self) -> Policy: ...


class UnreadableSpeeds(Exception):
    """The file contains no speeds that this version can use."""


class LearnedSpeeds:
    def __init__(
        self,
        folder: Path,
        pools: Callable[[], Mapping[PoolName, PoolIdentity]],
        learned: Callable[[], Iterable[LearnedSpeed]],
        *,
        every_s: float = WRITE_EVERY_S,
        stop_s_max: float = STOP_S_MAX,
    ) -> None:
        self._path = folder / FILE_NAME
        self._pools, self._learned = pools, learned
        self._every_s, self._stop_s_max = every_s, stop_s_max
        self._initial_pools = pools()
        """Pools at the time the process started.

        If a pool has changed since then, its learned factors are not saved.
        """
        self._unclaimed: dict[PoolName, list[LearnedSpeed]] = {}
        """Speeds from the file for pools whose endpoints have not joined yet."""
        self._written = b""
        """Last content that this process wrote to the file."""
        self._failed = False
        self._stopping, self._stopped = asyncio.Event(), asyncio.Event()

    # Start

    def read(self) -> list[LearnedSpeed]:
        """Returns the speeds in the file, or nothing if the file is missing or unusable. Logs if it is unusable."""
        try:
            kept = read_speeds(self._path)
        except FileNotFoundError:
            return []
        except (OSError, UnreadableSpeeds) as error:
            log_event(logging.WARNING, "learned speeds ignored", file=str(self._path), why=str(error))
            return []
        speeds: list[LearnedSpeed] = []
        pools = self._pools()
        for name, pool in kept.items():
            if pool.identity == pools.get(name):
                self._unclaimed[name] = [
                    LearnedSpeed(each, name, found.settled, found.factors, found.sums)
                    for each, found in pool.endpoints.items()
                ]
                speeds += self._unclaimed[name]
            else:
                why = "its engine, model or assumed speed has changed" if name in pools else "it is not configured"
                log_event(logging.INFO, "ignoring a pool's learned speeds", pool=name, why=why)
        settled = sum(each.converged for each in speeds)
        log_event(logging.INFO, "learned speeds restored", endpoints=len(speeds), settled=settled)
        return speeds

    # Operation

    async def run(self) -> None:
        """Writes the file periodically, and once more after `stop` is called."""
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
        """Writes the file if its content has changed.

        A failure is logged once, and not again until a write has succeeded.
        """
        content = self._content()
        if content == self._written:
            return
        try:
            await in_thread(replace_file, self._path, content)
        except OSError as error:
            if not self._failed:
                log_event(logging.WARNING, "cannot write learned speeds", file=str(self._path), why=str(error))
            self._failed = True
        else:
            self._failed, self._written = False, content

    def _content(self) -> bytes:
        learned = list(self._learned())
        for joined in {each.pool for each in learned}:
            self._unclaimed.pop(joined, None)
        for unused in self._unclaimed.values():
            learned += unused
        pools = self._pools()
        return encode_speeds({name: of for name, of in pools.items() if self._initial_pools.get(name) == of}, learned)


def open_learned_speeds(host: object, configured: Callable[[], SpeedSettings]) -> LearnedSpeeds | None:
    """Restores the stored speeds.

    Each speed takes effect when its endpoint joins. Returns None if speeds are not stored.
    """
    folder = configured().state_directory
    if folder is None or not isinstance(host, LocalHost):
        return None
    speeds = LearnedSpeeds(Path(folder), lambda: pool_identities(configured()), host.learned_speeds)
    host.restore_speeds(speeds.read())
    return speeds


def pool_identities(configured: SpeedSettings) -> dict[PoolName, PoolIdentity]:
    speeds = {each.name: (each.speed, each.speed_assumed) for each in configured.policy.pools}
    return {each.name: PoolIdentity(each.engine, each.served_model, *speeds[each.name]) for each in configured.pools}


def encode_speeds(pools: Mapping[PoolName, PoolIdentity], speeds: Iterable[LearnedSpeed]) -> bytes:
    of_pools = {name: _PoolSpeeds(of, {}) for name, of in pools.items()}
    for each in speeds:
        if each.pool in of_pools:
            of_pools[each.pool].endpoints[each.endpoint_id] = _Endpoint(each.converged, each.factors, each.sums)
    return msgspec.json.encode(_File(VERSION, of_pools))


def read_speeds(path: Path) -> dict[PoolName, _PoolSpeeds]:
    """Returns the pools in the file. Raises `OSError` or `UnreadableSpeeds`."""
    with path.open("rb") as file:
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise UnreadableSpeeds(f"the file exceeds {BYTES_MAX:,} bytes")
    try:
        version = msgspec.json.decode(content, type=_Version).version
        if version != VERSION:
            raise UnreadableSpeeds(f"the file has version {version}; this gateway reads version {VERSION}")
        pools = msgspec.json.decode(content, type=_File).pools
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableSpeeds(str(error)) from error
    if not all(each.is_possible() for pool in pools.values() for each in pool.endpoints.values()):
        raise UnreadableSpeeds("the file has inconsistent sums")
    return pools


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file in such a way that a crash leaves either the old or the new content. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_bytes(content)
        sync_to_disk(new)
        new.replace(path)
        sync_to_disk(path)
    finally:
        new.unlink(missing_ok=True)
