"""The keys of an issuer are read in the background, kept while it is unreachable, and read again at a limited rate."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.identity.issuer_keys import REREAD_GAP_S, IssuerKeys, IssuerUnavailable
from headgate.identity.options import IssuerOptions
from headgate.model.units import SECOND
from headgate.ports.tls import ClientTlsOptions
from testing.fake_issuer import signing_key

URL = "https://login.example.com"
KEYS = {"keys": [signing_key().public()]}


class World:
    """An issuer's pages, and a clock that only `sleep` advances."""

    def __init__(self, **pages: Any) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []
        self.reads: list[str] = []
        discovery = {"issuer": URL, "jwks_uri": f"{URL}/jwks"}
        self.pages: dict[str, Any] = {f"{URL}/.well-known/openid-configuration": discovery, f"{URL}/jwks": KEYS}
        self.on_sleep: Callable[[], Awaitable[None]] | None = None

    async def fetch(self, url: str, _: ClientTlsOptions | None) -> bytes:
        self.reads.append(url)
        page = self.pages.get(url)
        if page is None:
            raise IssuerUnavailable("connection refused")
        return page if isinstance(page, bytes) else json.dumps(page).encode()

    async def sleep(self, length_s: float) -> None:
        self.slept.append(length_s)
        self.now_s += length_s
        await asyncio.sleep(0)

    def keys(self, **options: Any) -> IssuerKeys:
        usual = IssuerOptions(**{"name": "corp", "issuer": URL, "audience": ("a",), "tenant": "t", **options})
        return IssuerKeys(usual, self.fetch, now_s=lambda: self.now_s, sleep=self.sleep)


async def run_until(issuer: IssuerKeys, reached: Callable[[], bool]) -> None:
    running = asyncio.create_task(issuer.run())
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])


async def test_keys_are_discovered_and_read_at_the_interval() -> None:
    world = World()
    issuer = world.keys(refresh_interval_ns=90 * SECOND)

    await run_until(issuer, lambda: len(world.slept) == 3)

    assert world.slept == [90, 90, 90]
    assert world.reads[:2] == [f"{URL}/.well-known/openid-configuration", f"{URL}/jwks"]
    assert issuer.status() == {"issuer": URL, "keys": 1, "age_s": 90.0, "problem": None}


async def test_configured_address_is_read_without_discovery() -> None:
    world = World()
    world.pages["https://cdn.example.com/keys"] = KEYS
    issuer = world.keys(jwks_url="https://cdn.example.com/keys")

    await issuer.read()

    assert world.reads == ["https://cdn.example.com/keys"]
    assert issuer.keys is not None


@pytest.mark.parametrize(
    ("discovery", "problem"),
    [
        ({"issuer": URL + "/", "jwks_uri": f"{URL}/jwks"}, "is for another issuer"),
        ({"issuer": "https://evil.example.com", "jwks_uri": f"{URL}/jwks"}, "is for another issuer"),
        ({"issuer": URL, "jwks_uri": "http://login.example.com/jwks"}, "does not use https"),
        ({"issuer": URL, "jwks_uri": "ftp://login.example.com/keys"}, "does not use https"),
        ({"issuer": URL, "jwks_uri": "https://user@login.example.com/jwks"}, "does not use https"),
        ({"issuer": URL}, "is invalid"),
        ([], "is invalid"),
        (b"<html>", "is invalid"),
        (b"[" * 100_000, "is invalid"),
    ],
)
async def test_wrong_discovery_document_is_rejected(discovery: Any, problem: str) -> None:
    world = World()
    world.pages[f"{URL}/.well-known/openid-configuration"] = discovery
    issuer = world.keys()

    await issuer.read()

    assert issuer.keys is None
    assert problem in str(issuer.problem)


async def test_failed_reads_are_repeated_with_growing_gaps() -> None:
    world = World()
    world.pages.clear()
    issuer = world.keys()

    await run_until(issuer, lambda: len(world.slept) == 5)

    assert world.slept == [5, 10, 20, 30, 30]
    assert issuer.stats().failures == 5


async def test_keys_stay_in_use_until_they_are_too_old() -> None:
    world = World()
    issuer = world.keys(key_retention_ns=100 * SECOND)
    await issuer.read()
    world.pages.clear()
    world.now_s += 100
    await issuer.read()
    kept = issuer.keys
    world.now_s += 1
    await issuer.read()

    assert kept is not None
    assert (issuer.keys, issuer.problem) == (None, "connection refused")


async def test_page_without_usable_keys_does_not_replace_the_keys() -> None:
    world = World()
    issuer = world.keys()
    await issuer.read()
    world.pages[f"{URL}/jwks"] = {"keys": []}

    await issuer.read()

    assert issuer.keys is not None
    assert issuer.problem == "the key set contains no usable signature key"


async def test_unchanged_keys_stay_the_same_object() -> None:
    """Otherwise every cached token would have to be verified again."""
    world = World()
    issuer = world.keys()
    await issuer.read()
    before = issuer.keys
    await issuer.read()
    unchanged = issuer.keys
    world.pages[f"{URL}/jwks"] = {"keys": [signing_key("new").public()]}
    await issuer.read()

    assert unchanged is before
    assert issuer.keys is not before


async def test_concurrent_requests_with_unknown_keys_share_one_read() -> None:
    world = World()
    issuer = world.keys(jwks_url=f"{URL}/jwks")

    await asyncio.gather(*(issuer.reread() for _ in range(100)))

    assert len(world.reads) == 1


async def test_reads_because_of_unknown_keys_have_a_minimum_gap() -> None:
    world = World()
    issuer = world.keys(jwks_url=f"{URL}/jwks")

    for _ in range(4):
        await issuer.reread()

    assert world.slept == [REREAD_GAP_S] * 3
    assert len(world.reads) == 4


async def test_cancelled_request_does_not_stop_the_read() -> None:
    world = World()
    issuer = world.keys(jwks_url=f"{URL}/jwks")
    first, second = asyncio.create_task(issuer.reread()), asyncio.create_task(issuer.reread())
    await asyncio.sleep(0)
    first.cancel()
    await second

    assert issuer.keys is not None
    assert len(world.reads) == 1
