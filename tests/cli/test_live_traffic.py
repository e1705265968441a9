"""Reading and merging the recordings of several gateways, with failures."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from headgate.cli.input.admin_request import AdminRequestFailed, AdminTarget
from headgate.cli.input.live_traffic import ATTEMPTS_MAX, LiveResult, LiveTraffic, start_recordings
from headgate.ports.traffic import TrafficRow

Reply = dict[str, Any] | int
"""A page of a recording, or the status of an error."""


class FakeGateway:
    """Answers with these replies, one after another, and repeats the last one."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, int):
            return web.json_response({"error": {"message": "out of order"}}, status=reply)
        return web.json_response({"recording": "r", "age_us": 0} | reply)


@asynccontextmanager
async def served(*gateways: FakeGateway) -> AsyncIterator[list[AdminTarget]]:
    runners, targets = [], []
    for gateway in gateways:
        app = web.Application()
        app.router.add_post("/admin/v1/traffic/{action}", gateway.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        targets.append(AdminTarget(f"http://127.0.0.1:{runner.addresses[0][1]}", "key", None))
    try:
        yield targets
    finally:
        for runner in runners:
            await runner.cleanup()


def a_page(*at_us: int, first: int = 0, **fields: Any) -> dict[str, Any]:
    return {"first": first, "rows": [{"at_us": each, "prefix": "AAECAw=="} for each in at_us], **fields}


async def read(
    *gateways: FakeGateway, wait_s: float = 60, on_start: Callable[[LiveTraffic], None] = lambda _: None
) -> tuple[LiveResult, list[TrafficRow]]:
    rows: list[TrafficRow] = []
    async with served(*gateways) as targets:
        recordings = await start_recordings(targets, duration_s=5, recent=False)
        traffic = LiveTraffic(recordings, duration_s=0, wait_s=wait_s, interval_s=0)
        on_start(traffic)
        return await traffic.read(rows.append), rows


async def test_rows_are_confirmed_and_the_recording_is_ended() -> None:
    gateway = FakeGateway(a_page(), a_page(1, 2), a_page(3, first=2), a_page(first=3, ended=True))
    result, rows = await read(gateway)

    assert ([row.at_us for row in rows], rows[0].prefix) == ([1, 2, 3], b"\0\1\2\3")
    assert result == LiveResult(0, 0, ())
    assert gateway.asked[0] == {"duration_s": 5}
    assert [(each["after"], each["end"]) for each in gateway.asked[1:]] == [
        (0, False),
        (2, False),
        (3, False),
        (3, True),
    ]


async def test_open_requests_are_awaited_until_the_deadline() -> None:
    waits = FakeGateway(a_page(), a_page(open=1, ended=True), a_page(9, ended=True), a_page(first=1, ended=True))
    result, rows = await read(waits)
    assert (result.unfinished, len(rows)) == (0, 1)

    result, rows = await read(FakeGateway(a_page(open=2, ended=True)), wait_s=0)
    assert (result.unfinished, rows) == (2, [])


async def test_stopped_recording_keeps_what_has_ended() -> None:
    gateway = FakeGateway(
        a_page(),
        a_page(4, open=3, dropped=2, ended=True),
        a_page(5, first=1, open=2, dropped=2),
        a_page(first=2, open=2, dropped=2),
    )
    result, rows = await read(gateway, on_start=LiveTraffic.stop)

    assert ([row.at_us for row in rows], result) == ([4, 5], LiveResult(2, 2, ()))
    assert [each["end"] for each in gateway.asked[1:]] == [True, True, True]


async def test_failed_read_is_repeated_and_confirms_nothing_new() -> None:
    gateway = FakeGateway(a_page(5), 503, 503, a_page(6, first=1), a_page(first=2, ended=True))
    result, rows = await read(gateway)

    assert ([row.at_us for row in rows], result.problems) == ([5, 6], ())
    assert [each["after"] for each in gateway.asked[1:4]] == [1, 1, 1]


async def test_other_gateways_are_recorded_if_one_stops_responding() -> None:
    broken, sound = FakeGateway(a_page(), 503), FakeGateway(a_page(), a_page(7), a_page(first=1, ended=True))
    result, rows = await read(broken, sound)

    assert len(broken.asked) == 1 + ATTEMPTS_MAX
    assert len(rows) == 1
    [problem] = result.problems
    assert problem.endswith(": out of order")


async def test_times_are_relative_to_the_earliest_recording() -> None:
    earlier = FakeGateway(a_page(1, age_us=10_000_000), a_page(first=1, ended=True))
    later = FakeGateway(a_page(1, age_us=0), a_page(first=1, ended=True))
    began = time.monotonic()
    _, rows = await read(earlier, later)
    took_us = (time.monotonic() - began) * 1e6

    assert rows[0].at_us == 1
    assert abs(rows[1].at_us - 10_000_000) <= took_us


async def test_response_of_another_version_is_reported() -> None:
    with pytest.raises(AdminRequestFailed, match=r"response is invalid: .*; check that it runs the same version"):
        await read(FakeGateway({"age_us": "long ago"}))
