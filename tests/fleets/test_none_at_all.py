"""May a pool have no endpoint at all, and do callers hear the truth while the first one starts?"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import NO_TARGETS, Config, chat, gateway_beside, gateway_in_loop
from tests.fleets.scaled import SIMULATED, a_scaled_config, gated

pytestmark = pytest.mark.process

COLD_START_S = 1.0
CLASSES = {
    "interactive": {**NO_TARGETS, "band": 0, "start_wait": "50s", "queue_wait_max": "30s"},
    "hasty": {**NO_TARGETS, "band": 0, "queue_wait_max": "30s", "unnamed": False},
}
HASTY = {"x-headgate-class": "hasty"}
SCALING = {"endpoints_min": 0, "warm_min": 0, "period": "200ms", "cold_start": "15s", "idle": "1h"}


def a_config_of_none(folder: Path, *, gate: Path | None = None, **scaling: Any) -> Config:
    """With a gate, engines start once it exists."""
    command = (*SIMULATED, "--cold-start", str(COLD_START_S))
    command = command if gate is None else gated(gate, command)
    return a_scaled_config(folder, command, endpoints=0, scaling={**SCALING, **scaling}, classes=CLASSES)


async def answered(request: Any) -> tuple[int, Any, bytes]:
    async with request as answer:
        return answer.status, answer.headers, await answer.read()


async def test_from_nothing_a_request_is_held_and_served_and_its_answer_says_so(tmp_path: Path) -> None:
    async with gateway_in_loop(a_config_of_none(tmp_path, period="20ms"), tmp_path, wait_for=0) as gateway:
        await asyncio.sleep(0.09)
        assert (await gateway.status())["endpoints"] == [], "nobody asked, so nothing was started"

        status, headers, body = await answered(gateway.post(chat(stream=True, max_tokens=20)))

        assert (status, body[-14:]) == (200, b"data: [DONE]\n\n"), body
        assert int(headers["x-headgate-held-ms"]) >= COLD_START_S * 1_000
        assert int(headers["x-headgate-queue-ms"]) >= int(headers["x-headgate-held-ms"])
        async with gateway.http.get(f"{gateway.admin_url}/explain/{headers['x-request-id']}") as answer:
            assert "for the first endpoint of pool small to start" in (await answer.json())["summary"]
        async with gateway.http.get(f"{gateway.admin_url}/metrics") as answer:
            assert 'headgate_requests_held_total{class="interactive",pool="small"} 1.0' in await answer.text()
        _, headers, _ = await answered(gateway.post(chat()))
        assert "x-headgate-held-ms" not in headers, "the next one is served as any"


async def test_those_beyond_the_hold_and_those_who_do_not_wait_are_told_when_to_come_back(tmp_path: Path) -> None:
    gate = tmp_path / "go"
    config = a_config_of_none(tmp_path, gate=gate, hold_max=2)
    async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
        status, headers, body = await answered(gateway.post(chat(), headers=HASTY))
        assert (status, headers["retry-after"]) == (503, "15"), body
        assert b'"no_endpoints"' in body
        assert b"has no start_wait for that" in body
        await gateway.until(lambda status: len(status["endpoints"]) == 1, seconds_max=60)

        held = [asyncio.create_task(answered(gateway.post(chat()))) for _ in range(2)]
        await gateway.until(lambda status: status["held_for_start"] == {"small": 2}, seconds_max=60)
        assert (await gateway.status())["queued"] == {"interactive": 0, "hasty": 0}, "they take no place in the queue"
        status, headers, body = await answered(gateway.post(chat()))
        assert (status, b"2 of 2 requests are held" in body) == (503, True), body
        assert 1 <= int(headers["retry-after"]) <= 15
        assert "x-headgate-held-ms" not in headers

        gate.touch()
        answers = await asyncio.gather(*held)

    assert [status for status, _, _ in answers] == [200, 200], answers
    assert all(int(headers["x-headgate-held-ms"]) > 0 for _, headers, _ in answers)


@pytest.mark.timeout(400)
async def test_a_gateway_process_starts_engines_when_it_is_asked_and_gives_up_the_last_when_nobody_does(
    tmp_path: Path,
) -> None:
    # Beside other tests a start may take some seconds. Were it said to take one, endpoints would be given back before
    # they have started, be wanted again at once, and then be kept for long.
    gate = tmp_path / "go"
    config = a_config_of_none(tmp_path, gate=gate, hold_max=4, period="50ms", cold_start="5s", idle="10s", settle="0s")
    async with gateway_beside(config, tmp_path, wait_for=0) as (gateway, process):
        began = time.monotonic()
        held = [asyncio.create_task(answered(gateway.post(chat(stream=True)))) for _ in range(4)]
        await gateway.until(lambda status: status["held_for_start"] == {"small": 4}, seconds_max=60)
        status, headers, body = await answered(gateway.post(chat()))
        assert (status, b"4 of 4 requests are held" in body, "retry-after" in headers) == (503, True, True), body

        gate.touch()
        answers = await asyncio.gather(*held)
        start_s_max = time.monotonic() - began
        assert [status for status, _, _ in answers] == [200] * 4, process.log()
        assert all(int(headers["x-headgate-held-ms"]) >= COLD_START_S * 1_000 for _, headers, _ in answers)
        status, _, body = await answered(gateway.post(chat(), headers=HASTY))
        assert status == 200, f"an endpoint that serves is there for everybody: {body!r}"

        await gateway.until(lambda status: not status["endpoints"], seconds_max=90)
        gate.unlink()
        status, headers, body = await answered(gateway.post(chat(), headers=HASTY))
        assert (status, b"has no start_wait" in body) == (503, True), body
        assert 1 <= int(headers["retry-after"]) <= start_s_max + 1, "as long as the last start took"
        await gateway.until(lambda status: status["endpoints"] != [], seconds_max=60)
        asked = asyncio.create_task(answered(gateway.post(chat())))
        await gateway.until(lambda status: status["held_for_start"] == {"small": 1}, seconds_max=60)
        gate.touch()
        status, headers, body = await asked
        assert (status, "x-headgate-held-ms" in headers) == (200, True), "held for what another one had asked for"
