"""Does a process that decides nothing repeat what the scheduler of its cell says of the pools, and only that?"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from headgate.control.leader_client import SchedulerWord
from headgate.model.units import SECOND
from headgate.model.verdict import Affected, Cause, Incident, Verdict
from headgate.telemetry.verdicts import verdict_row

NOW = 1_000 * SECOND
HUNG = Verdict(
    "small",
    Cause.UPSTREAM,
    Incident.ENGINE_HANG,
    since=990 * SECOND,
    sentence="small/a hangs.",
    evidence=("no token for 9 s",),
    affected=(Affected("chat", None, "waits"),),
    action="restart it",
)
OWN = Verdict(None, Cause.HEALTHY, Incident.HEALTHY, since=0, sentence="The gateway is healthy.")


@asynccontextmanager
async def word(answer: object, **how: float) -> AsyncIterator[tuple[SchedulerWord, list[str], str]]:
    """What asks a scheduler that answers so; the paths that it was asked; its address."""
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
            yield SchedulerWord(session, lambda: address, lambda: NOW, **how), asked, address
    finally:
        await runner.cleanup()


def told(*verdicts: Verdict, decides: bool = True) -> dict[str, object]:
    return {"gateway": "gw-1", "decides": decides, "verdicts": [verdict_row(each, NOW) for each in verdicts]}


async def test_what_the_scheduler_says_of_pools_is_repeated_whole() -> None:
    async with word(told(HUNG, OWN)) as (heard, asked, address):
        assert heard.verdicts() == ()
        await heard.ask(address)
        assert heard.verdicts() == (HUNG,)
        assert asked == ["/verdict"]


async def test_who_does_not_decide_is_not_believed() -> None:
    async with word(told(HUNG, decides=False)) as (heard, _, address):
        await heard.ask(address)
        assert heard.verdicts() == ()


async def test_what_cannot_be_read_changes_nothing() -> None:
    for nonsense in (b"", b"[]", b'{"decides": true, "verdicts": [{"pool": 1}]}', b"\xff", b'{"x": ' + b"[" * 100_000):
        async with word(nonsense) as (heard, _, address):
            await heard.ask(address)
            assert heard.verdicts() == ()


async def test_verdicts_heard_long_ago_are_not_repeated() -> None:
    async with word(told(HUNG), old_after_s=0.0) as (heard, _, address):
        await heard.ask(address)
        assert heard.verdicts() == ()


async def test_a_scheduler_that_nobody_knows_of_says_nothing() -> None:
    async with word(told(HUNG)) as (heard, _, address):
        await heard.ask(address)
        heard._address = lambda: None
        assert heard.verdicts() == ()
