"""Keys of one issuer, read in the background.

The keys are read at an interval, and once more if a token names an unknown key. If the issuer is unreachable, the keys
stay in use for a limited time. No request waits for the issuer unless its key is unknown.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from headgate.identity.key_set import InvalidKeySet, KeySet, read_key_set
from headgate.identity.options import IssuerOptions, is_secure_url
from headgate.model.units import SECOND
from headgate.ports.identity import IssuerStats
from headgate.ports.tls import ClientTlsOptions

PAGE_BYTES_MAX: Final = 256 * 1024
"""Maximum size of a key set and of a discovery document."""
REREAD_GAP_S: Final = 5.0
"""Minimum time between two reads because of unknown keys."""
METADATA_S_MAX: Final = 600.0
"""Maximum age of the metadata for a login."""
_RETRY_S: Final = 5.0
_RETRY_S_MAX: Final = 30.0
_DISCOVERY_PATH: Final = "/.well-known/openid-configuration"

FetchPage = Callable[[str, ClientTlsOptions | None], Awaitable[bytes]]
"""Returns the page at a URL, of at most `PAGE_BYTES_MAX` bytes. Raises `IssuerUnavailable`."""


class IssuerUnavailable(Exception):
    """The issuer did not return a usable page. The message gives the reason."""


class DiscoveryDocument(msgspec.Struct, frozen=True):
    """OpenID Connect metadata of an issuer."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class IssuerKeys:
    """Must be used inside one event loop."""

    def __init__(
        self,
        options: IssuerOptions,
        fetch: FetchPage,
        *,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.options = options
        self._fetch = fetch
        self._now_s = now_s
        self._sleep = sleep
        self.keys: KeySet | None = None
        """Keys in use. The same object until they change. None if none could be read."""
        self.problem: str | None = "its keys have not been read yet"
        """Why the last read failed. None if it succeeded."""
        self.read_once = asyncio.Event()
        """Set when the first read has succeeded or failed."""
        self._read_at_s: float | None = None
        self._failures = 0
        self._reread_at_s = float("-inf")
        """Time of the last read because of an unknown key."""
        self._rereading: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._metadata: DiscoveryDocument | None = None
        self._metadata_at_s = 0.0

    async def run(self) -> None:
        """Reads the keys at the interval until cancelled."""
        retry_s = _RETRY_S
        while True:
            await self.read()
            self.read_once.set()
            if self.problem is None:
                retry_s = _RETRY_S
                await self._sleep(self.options.refresh_interval_ns / SECOND)
            else:
                await self._sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)

    async def reread(self) -> None:
        """Reads the keys because one is unknown. Concurrent calls share one read, and reads have a minimum gap."""
        if self._rereading is None:
            self._rereading = asyncio.create_task(self._reread(), name="read an issuer's keys again")
        # A client that disconnects must not stop the read, which other requests wait for.
        await asyncio.shield(self._rereading)

    async def _reread(self) -> None:
        try:
            if (wait_s := self._reread_at_s + REREAD_GAP_S - self._now_s()) > 0:
                await self._sleep(min(wait_s, REREAD_GAP_S))
            self._reread_at_s = self._now_s()
            await self.read()
        finally:
            self._rereading = None

    async def read(self) -> None:
        """Reads the keys once. If that fails, the earlier keys stay in use until they are too old."""
        async with self._reading:
            try:
                page = await self._fetch(await self._jwks_url(), self.options.tls)
                # A large set takes milliseconds to parse.
                keys = await asyncio.to_thread(read_key_set, page)
            except (IssuerUnavailable, InvalidKeySet) as error:
                self.problem = str(error)
                self._failures += 1
                if self.age_s > self.options.key_retention_ns / SECOND:
                    self.keys = None
                return
            self.problem = None
            self._read_at_s = self._now_s()
            if self.keys is None or keys.source != self.keys.source:
                self.keys = keys

    async def stop(self) -> None:
        if (task := self._rereading) is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _jwks_url(self) -> str:
        if self.options.jwks_url is not None:
            return self.options.jwks_url
        return (await self._discovery()).jwks_uri

    async def discover(self) -> DiscoveryDocument:
        """Returns the metadata for a login, read again if it is too old. Raises `IssuerUnavailable`."""
        if self._metadata is not None and self._now_s() - self._metadata_at_s < METADATA_S_MAX:
            return self._metadata
        found = await self._discovery()
        for url in (found.authorization_endpoint, found.token_endpoint):
            if not is_secure_url(url):
                raise IssuerUnavailable("the discovery document has no https addresses for a login")
        self._metadata, self._metadata_at_s = found, self._now_s()
        return found

    async def _discovery(self) -> DiscoveryDocument:
        page = await self._fetch(self.options.issuer.rstrip("/") + _DISCOVERY_PATH, self.options.tls)
        try:
            found = msgspec.json.decode(page, type=DiscoveryDocument)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise IssuerUnavailable("the discovery document is invalid; set jwks_url") from None
        if found.issuer != self.options.issuer:
            raise IssuerUnavailable("the discovery document is for another issuer; write issuer exactly as it does")
        if not is_secure_url(found.jwks_uri):
            raise IssuerUnavailable("the jwks_uri in the discovery document does not use https")
        return found

    @property
    def age_s(self) -> float:
        """Time since the keys were last read; infinite if they never were."""
        return float("inf") if self._read_at_s is None else max(0.0, self._now_s() - self._read_at_s)

    def stats(self) -> IssuerStats:
        return IssuerStats(self.options.name, 0 if self.keys is None else len(self.keys), self.age_s, self._failures)

    def status(self) -> dict[str, object]:
        age_s = self.age_s
        return {
            "issuer": self.options.issuer,
            "keys": 0 if self.keys is None else len(self.keys),
            "age_s": None if age_s == float("inf") else round(age_s, 1),
            "problem": self.problem,
        }
