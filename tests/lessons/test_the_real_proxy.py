"""Envoy behaves as the tests that use it assume."""

import time

import aiohttp
import pytest

from testing.envoy import envoy_before
from testing.fake_engine import Behaviour, FakeEngine
from testing.processes import ProcessFailedError

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
BODY = {"model": "fake", "messages": [], "stream": True, "max_tokens": 3}


async def test_injected_faults_affect_only_post_requests() -> None:
    async with FakeEngine() as engine, envoy_before(engine.port) as envoy, aiohttp.ClientSession() as http:

        async def asked() -> tuple[int, bytes, float]:
            started = time.monotonic()
            async with http.post(envoy.url + CHAT, json=BODY) as answer:
                return answer.status, await answer.read(), time.monotonic() - started

        _, whole, _ = await asked()
        await envoy.inject(abort_status=429)
        aborted, _, _ = await asked()
        await envoy.inject(delay_s=0.3)
        delayed = await asked()
        engine.behaviour = Behaviour(body=b"data: " + b"x" * 1_500 + b"\n\n")
        await envoy.inject(slowly=True)
        slow, _, slow_s = await asked()
        async with http.get(envoy.url + "/health") as probe:
            assert probe.status == 200

    assert whole.endswith(b"[DONE]\n\n")
    assert aborted == 429
    assert (delayed[0], delayed[1]) == (200, whole)
    assert delayed[2] >= 0.29
    assert (slow, slow_s >= 0.3) == (200, True)
    assert len(engine.requests) == 3, "an aborted request must not reach the engine"


async def test_route_timeout_is_sent_upstream_as_a_header() -> None:
    async with FakeEngine() as engine, envoy_before(engine.port, route_s_max=2.5) as envoy:
        async with aiohttp.ClientSession() as http, http.post(envoy.url + CHAT, json=BODY) as answer:
            await answer.read()

        assert (await engine.next_request()).headers["x-envoy-expected-rq-timeout-ms"] == "2500"
    assert envoy.process.exit_status is not None


async def test_failed_start_reports_envoys_output() -> None:
    with pytest.raises(ProcessFailedError, match=r"(?s)envoy exited with status .*less than or equal to 65535"):
        async with envoy_before(70_000):
            pass
