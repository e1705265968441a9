"""Certificates are replaced in a gateway process without interrupting its streams."""

import asyncio
import ssl
from pathlib import Path

import pytest

from testing.certificates import Authority
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_process_with_client, text_of

pytestmark = pytest.mark.process

STREAMS = 200
ROTATIONS = 3
TOKENS = 16


async def serial_number(port: int, tls: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    found: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return found


async def test_rotation_breaks_no_stream(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    settings = {"listen_tls": authority.issue()._asdict(), "in_flight_max": STREAMS}
    tls = authority.client_context()
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=TOKENS, hang_after=TOKENS // 2)
        config = a_config(engine.url, **settings)
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):

            async def stream() -> str:
                async with gateway.post(chat(stream=True), ssl=tls) as answer:
                    return text_of(await answer.read())

            open_streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
            requests = [await engine.next_request() for _ in range(STREAMS)]
            port = int(gateway.url.rpartition(":")[2])
            served = [await serial_number(port, tls)]
            for _ in range(ROTATIONS):
                authority.issue()
                async with asyncio.timeout(60):
                    while (now := await serial_number(port, tls)) == served[-1]:
                        await asyncio.sleep(0.05)
                served.append(now)
            still_open = sum(not each.done() for each in open_streams)
            for request in requests:
                request.resume.set()
            texts = await asyncio.gather(*open_streams)
            log = process.log()

    assert (len(set(served)), still_open) == (ROTATIONS + 1, STREAMS)
    assert len(set(texts)) == 1
    assert texts[0].count(" ") >= TOKENS - 1
    assert "ERROR" not in log
