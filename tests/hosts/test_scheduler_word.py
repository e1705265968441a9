"""Tests for the client that queries the cell's scheduler for verdicts about pools."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from headgate.control.leader_client import LeaderClient
from headgate.model.units import SECOND
from headgate.model.verdict import Affected, Cause, Incident, Verdict
from headgate.telemetry.verdict_metrics import verdict_row

NOW = 1_000 * SECOND
HUNG = Verdict(
    "small",
    Cause.UPSTREAM,
    Incident.ENGINE_HANG,
    since=990 * SECOND,
    summary="small/a hangs.",
    evidence=("no token for 9 s",),
    affected=(Affected("chat", None, "waits"),),
    action="restart it",
)
OWN = Verdict(None, Cause.HEALTHY, Incident.HEALTHY, since=0, summary="The gateway is healthy.")


@asynccontextmanager
async def word(answer: object, **how: float) -> AsyncIterator[tuple[LeaderClient, list[str], str]]:
    """Yields a client for a scheduler with this response, the list of requested paths and the scheduler's address."""
    asked: list[str] = []

    async def tell(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.json_response(answer) if not isinstance(answer, bytes) else web.Response(body=answer)

    app = web.Application()
    app.router.add_get("/{path:.*}", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession() as session:
            yield LeaderClient(session, lambda: address, lambda: NOW, **how), asked, address
    finally:
        await runner.cleanup()


def told(*verdicts: Verdict, decides: bool = True) -> dict[str, object]:
    return {"gateway": "gw-1", "decides": decides, "verdicts": [verdict_row(each, NOW) for each in verdicts]}


async def test_scheduler_verdicts_about_pools_are_returned_unchanged() -> None:
    async with word(told(HUNG, OWN)) as (heard, asked, address):
        assert heard.verdicts() == ()
        await heard.fetch(address)
        assert heard.verdicts() == (HUNG,)
        assert asked == ["/verdict"]


async def test_verdicts_from_a_non_deciding_gateway_are_ignored() -> None:
    async with word(told(HUNG, decides=False)) as (heard, _, address):
        await heard.fetch(address)
        assert heard.verdicts() == ()


async def test_unreadable_response_is_ignored() -> None:
    for nonsense in (b"", b"[]", b'{"decides": true, "verdicts": [{"pool": 1}]}', b"\xff", b'{"x": ' + b"[" * 100_000):
        async with word(nonsense) as (heard, _, address):
            await heard.fetch(address)
            assert heard.verdicts() == ()


async def test_outdated_verdicts_are_not_returned() -> None:
    async with word(told(HUNG), stale_after_s=0.0) as (heard, _, address):
        await heard.fetch(address)
        assert heard.verdicts() == ()


async def test_no_verdicts_are_returned_without_a_scheduler_address() -> None:
    async with word(told(HUNG)) as (heard, _, address):
        await heard.fetch(address)
        heard._address = lambda: None
        assert heard.verdicts() == ()
