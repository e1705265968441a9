"""A drill sends the operator's key only to the gateway that the operator has named.

The addresses of a cell's other members come from its store. Whoever can write there must not get the key.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from headgate.cli.drills.fleet import LiveFleet
from headgate.cli.input.admin_request import AdminTarget
from headgate.cli.input.operator_key import ADMIN_KEY_VARIABLE

KEY = "hg-operator"


@dataclass
class Member:
    name: str
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    needs_key: bool = False
    url: str = ""
    keys: list[str | None] = field(default_factory=list[str | None])
    """`Authorization` of each request."""

    async def respond(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("authorization"))
        if self.needs_key and self.keys[-1] is None:
            return web.json_response({"error": "log in"}, status=401)
        match request.path:
            case "/metrics":
                return web.Response(text='headgate_requests_total{class="chat",outcome="completed"} 3\n')
            case "/verdict":
                return web.json_response({"verdicts": []})
            case _:
                cell = {"member": self.name, "mode": "following", "leads": False, "admin_addresses": self.addresses}
                return web.json_response({"uptime_s": 1.0, "cell": cell, "data": []})


@asynccontextmanager
async def running(member: Member) -> AsyncIterator[Member]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", member.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    member.url = str(site.name)
    try:
        yield member
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("needs_key", [False, True])
async def test_operator_key_is_not_sent_to_addresses_from_the_store(
    monkeypatch: pytest.MonkeyPatch, *, needs_key: bool
) -> None:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, KEY)
    async with running(Member("other", needs_key=needs_key)) as other:
        addresses = {"other": other.url.removeprefix("http://"), "named": "127.0.0.1:1"}
        async with running(Member("named", addresses)) as named, aiohttp.ClientSession() as session:
            fleet = LiveFleet(session, AdminTarget(named.url, KEY, None))
            await fleet.find_members()
            sample = await fleet.sample()
            await fleet.post("overrides/list", {})

    assert fleet.urls == [named.url, other.url]
    assert set(named.keys) == {f"Bearer {KEY}"}
    assert set(other.keys) == {None}
    assert (other.url in sample.statuses) is not needs_key
    assert any("only to the gateway given by --url" in each for each in sample.unreachable) is needs_key
