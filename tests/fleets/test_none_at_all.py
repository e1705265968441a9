"""A pool scaled to zero holds requests during a cold start and rejects others with a correct Retry-After."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import NO_TARGETS, Config, chat, gateway_in_loop, gateway_process_with_client
from tests.fleets.scaled import SIMULATED, a_scaled_config, gated

pytestmark = pytest.mark.process

COLD_START_S = 1.0
CLASSES = {
    "interactive": {**NO_TARGETS, "priority_band": 0, "cold_start_wait_max": "50s", "queue_wait_max": "30s"},
    "hasty": {**NO_TARGETS, "priority_band": 0, "queue_wait_max": "30s", "accepts_unclassified": False},
}
HASTY = {"x-headgate-class": "hasty"}
SCALING = {
    "endpoints_min": 0,
    "warm_endpoints_min": 0,
    "period": "200ms",
    "cold_start": "15s",
    "scale_to_zero_after": "1h",
}


def a_config_of_none(folder: Path, *, gate: Path | None = None, **scaling: Any) -> Config:
    """Configuration for a pool scaled to zero. With a gate, engines start only once that file exists."""
    command = (*SIMULATED, "--cold-start", str(COLD_START_S))
    command = command if gate is None else gated(gate, command)
    return a_scaled_config(folder, command, endpoints=0, scaling={**SCALING, **scaling}, classes=CLASSES)


async def answered(request: Any) -> tuple[int, Any, bytes]:
    async with request as answer:
        return answer.status, answer.headers, await answer.read()


async def test_request_is_held_during_a_cold_start_and_reports_it(tmp_path: Path) -> None:
    async with gateway_in_loop(a_config_of_none(tmp_path, period="20ms"), tmp_path, wait_for=0) as gateway:
        await asyncio.sleep(0.09)
        assert (await gateway.status())["endpoints"] == [], "an engine was started without a request"

        status, headers, body = await answered(gateway.post(chat(stream=True, max_tokens=20)))

        assert (status, body[-14:]) == (200, b"data: [DONE]\n\n"), body
        assert int(headers["x-headgate-cold-start-ms"]) >= COLD_START_S * 1_000
        assert int(headers["x-headgate-queue-ms"]) >= int(headers["x-headgate-cold-start-ms"])
        async with gateway.http.get(f"{gateway.admin_url}/explain/{headers['x-request-id']}") as answer:
            assert "for a cold start of pool small" in (await answer.json())["summary"]
        async with gateway.http.get(f"{gateway.admin_url}/metrics") as answer:
            assert 'headgate_requests_held_total{class="interactive",pool="small"} 1.0' in await answer.text()
        _, headers, _ = await answered(gateway.post(chat()))
        assert "x-headgate-cold-start-ms" not in headers, "only the request that waited has the header"


async def test_requests_over_the_hold_limit_or_without_start_wait_get_retry_after(tmp_path: Path) -> None:
    gate = tmp_path / "go"
    config = a_config_of_none(tmp_path, gate=gate, held_requests_max=2)
    async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
        status, headers, body = await answered(gateway.post(chat(), headers=HASTY))
        assert (status, headers["retry-after"]) == (503, "15"), body
        assert b'"no_endpoints"' in body
        assert b"does not set cold_start_wait_max" in body
        await gateway.wait_for_status(lambda status: len(status["endpoints"]) == 1, seconds_max=60)

        held = [asyncio.create_task(answered(gateway.post(chat()))) for _ in range(2)]
        await gateway.wait_for_status(lambda status: status["held_for_start"] == {"small": 2}, seconds_max=60)
        assert (await gateway.status())["queued"] == {"interactive": 0, "hasty": 0}, (
            "held requests do not count as queued"
        )
        status, headers, body = await answered(gateway.post(chat()))
        assert (status, b"holds 2 of 2 requests" in body) == (503, True), body
        assert 1 <= int(headers["retry-after"]) <= 15
        assert "x-headgate-cold-start-ms" not in headers

        gate.touch()
        answers = await asyncio.gather(*held)

    assert [status for status, _, _ in answers] == [200, 200], answers
    assert all(int(headers["x-headgate-cold-start-ms"]) > 0 for _, headers, _ in answers)


@pytest.mark.timeout(400)
async def test_gateway_process_scales_from_zero_and_back_to_zero(
    tmp_path: Path,
) -> None:
    # A start can take several seconds while other tests are running. With a shorter cold_start, the autoscaler would
    # remove endpoints before they have started, request them again immediately and then keep them for a long time.
    gate = tmp_path / "go"
    config = a_config_of_none(
        tmp_path,
        gate=gate,
        held_requests_max=4,
        period="50ms",
        cold_start="5s",
        scale_to_zero_after="10s",
        scale_down_stabilization="0s",
    )
    async with gateway_process_with_client(config, tmp_path, wait_for=0) as (gateway, process):
        began = time.monotonic()
        held = [asyncio.create_task(answered(gateway.post(chat(stream=True)))) for _ in range(4)]
        await gateway.wait_for_status(lambda status: status["held_for_start"] == {"small": 4}, seconds_max=60)
        status, headers, body = await answered(gateway.post(chat()))
        assert (status, b"holds 4 of 4 requests" in body, "retry-after" in headers) == (503, True, True), body

        gate.touch()
        answers = await asyncio.gather(*held)
        start_s_max = time.monotonic() - began
        assert [status for status, _, _ in answers] == [200] * 4, process.log()
        assert all(int(headers["x-headgate-cold-start-ms"]) >= COLD_START_S * 1_000 for _, headers, _ in answers)
        status, _, body = await answered(gateway.post(chat(), headers=HASTY))
        assert status == 200, f"a ready endpoint must serve every class: {body!r}"

        await gateway.wait_for_status(lambda status: not status["endpoints"], seconds_max=90)
        gate.unlink()
        status, headers, body = await answered(gateway.post(chat(), headers=HASTY))
        assert (status, b"does not set cold_start_wait_max" in body) == (503, True), body
        assert 1 <= int(headers["retry-after"]) <= start_s_max + 1, (
            "Retry-After is based on the duration of the last start"
        )
        await gateway.wait_for_status(lambda status: status["endpoints"] != [], seconds_max=60)
        asked = asyncio.create_task(answered(gateway.post(chat())))
        await gateway.wait_for_status(lambda status: status["held_for_start"] == {"small": 1}, seconds_max=60)
        gate.touch()
        status, headers, body = await asked
        assert (status, "x-headgate-cold-start-ms" in headers) == (200, True), (
            "the request waited for a start that another request had triggered"
        )
