"""Limits are checked before a request's body is read."""

import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headgate.wire.keys import digest, format_digest
from headgate.wire.request_body import LARGE_BYTES
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, RunningGateway, a_config, gateway_in_loop, gateway_process_with_client
from tests.security.raw import CHUNKED, body_of, connected, head_of, request_of

SECRET = "of the tests, and long enough"
KEY = b"authorization: Bearer sk-acme"


def limited(url: str, **settings: object) -> Config:
    tenants = {"acme": {"keys": [format_digest(digest(SECRET.encode(), "sk-acme"))], **settings}}
    config = a_config(url, key_secret=SECRET, tenants=tenants)
    del config["anonymous_tenant"]
    return config


@pytest.mark.parametrize("framing", [b"content-length: 30000000", CHUNKED])
async def test_request_over_the_rate_limit_is_rejected_before_its_body_is_read(tmp_path: Path, framing: bytes) -> None:
    limits = {"requests_per_minute": 1}
    async with FakeEngine() as engine, gateway_in_loop(limited(engine.url, limits=limits), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            await caller.send(request_of(body_of("hi"), KEY))
            assert (await caller.answer()).status == 200
        async with connected(gateway.url) as caller:
            await caller.send(head_of(KEY, framing))
            answer = await caller.answer()

    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert int(answer.headers[b"retry-after-ms"]) > 0
    assert any(name.startswith(b"x-ratelimit-remaining-") for name in answer.headers)
    assert len(engine.requests) == 1


async def test_request_over_the_concurrency_limit_is_rejected_before_its_body_is_read(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(hang_before_head=True))
        config = limited(engine.url, limits={"concurrency": 1})
        async with (
            gateway_in_loop(config, tmp_path) as gateway,
            connected(gateway.url) as first,
            connected(gateway.url) as second,
        ):
            await first.send(request_of(body_of("hi"), KEY))
            await engine.next_request()
            await second.send(head_of(KEY, b"content-length: 30000000"))
            answer = await second.answer()

    assert answer.status == 429
    assert "requests open" in answer.error["message"]


async def test_unauthenticated_connections_do_not_block_authenticated_callers(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = limited(engine.url) | {"limits": {"unauthenticated_connections_max": 3}}
        async with gateway_in_loop(config, tmp_path) as gateway, connected(gateway.url) as known:
            await known.send(request_of(body_of("hi"), KEY))
            assert (await known.answer()).status == 200
            async with (
                connected(gateway.url) as oldest,
                connected(gateway.url),
                connected(gateway.url),
                connected(gateway.url) as latest,
            ):
                assert await oldest.is_closed()
                await latest.send(request_of(body_of("hi"), KEY))
                assert (await latest.answer()).status == 200
                await known.send(request_of(body_of("hi"), KEY))
                assert (await known.answer()).status == 200, "an authenticated connection stays open"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"[1]" + b" " * 100_000, 400), (b"{}", 400), (body_of("hi", model="other"), 404)],
    ids=["invalid", "small and invalid", "unknown model"],
)
async def test_rejected_requests_count_towards_the_request_rate(tmp_path: Path, body: bytes, status: int) -> None:
    limits = {"requests_per_minute": 3}
    async with FakeEngine() as engine, gateway_in_loop(limited(engine.url, limits=limits), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            statuses: list[int] = []
            for _ in range(3):
                await caller.send(request_of(body, KEY))
                statuses.append((await caller.answer()).status)
            await caller.send(request_of(body_of("hi"), KEY))
            answer = await caller.answer()

    assert statuses == [status] * 3
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert engine.requests == []


async def test_complete_bodies_from_a_tenant_at_its_limit_are_not_parsed(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 1}
    async with FakeEngine() as engine, gateway_in_loop(limited(engine.url, limits=limits), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            await caller.send(request_of(b"[1]", KEY))
            assert (await caller.answer()).status == 400
            await caller.send(request_of(b"[1]" + b" " * 40_000, KEY))
            answer = await caller.answer()

    assert answer.status == 429, "parsing this body would give 400"


@pytest.mark.process
@pytest.mark.timing
async def test_bodies_completing_together_do_not_cause_a_long_turn(tmp_path: Path) -> None:
    body = body_of("\n" * 130_000, n=1_000_000)
    assert 255 * 1000 < len(body) < LARGE_BYTES
    async with (
        FakeEngine() as engine,
        gateway_process_with_client(limited(engine.url), tmp_path) as (gateway, _),
        AsyncExitStack() as stack,
    ):
        callers = [await stack.enter_async_context(connected(gateway.url)) for _ in range(60)]
        for caller in callers:
            await caller.send(request_of(body, KEY)[:-1])
        await gateway.wait_for_status(lambda status: status["requests_open"] == 60)
        before = await longest_turn_s(gateway)
        for caller in callers:
            caller.send_now(body[-1:])
        answers = [await caller.answer() for caller in callers]
        longest = await longest_turn_s(gateway)

    assert [answer.status for answer in answers] == [400] * 60
    print(f"longest turn: {before * 1000:.1f} ms before, {longest * 1000:.1f} ms after")
    assert longest <= 0.05


async def longest_turn_s(gateway: RunningGateway) -> float:
    """Longest iteration of the gateway's event loop since it started, in CPU time of the loop's thread."""
    async with gateway.http.get(gateway.admin_url + "/metrics") as page:
        found = re.search(
            r'headgate_event_loop_iteration_max_seconds\{clock="cpu",window="lifetime"\} (\S+)', await page.text()
        )
    assert found is not None
    return float(found[1])
