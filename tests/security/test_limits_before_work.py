"""Are limits checked before a request's body is read?"""

from pathlib import Path

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, a_config, gateway_in_loop
from tests.security.raw import CHUNKED, body_of, connected, head_of, request_of

SECRET = "of the tests, and long enough"
KEY = b"authorization: Bearer sk-acme"


def limited(url: str, **settings: object) -> Config:
    tenants = {"acme": {"keys": [format_digest(digest(SECRET.encode(), "sk-acme"))], **settings}}
    config = a_config(url, key_secret=SECRET, tenants=tenants)
    del config["anonymous_tenant"]
    return config


@pytest.mark.parametrize("framing", [b"content-length: 30000000", CHUNKED])
async def test_a_tenant_at_its_limit_is_rejected_before_its_body_is_read(tmp_path: Path, framing: bytes) -> None:
    limits = {"requests_per_minute": 1}
    async with FakeEngine() as engine, gateway_in_loop(limited(engine.url, limits=limits), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            await caller.send(request_of(body_of("hi"), KEY))
            assert (await caller.answer()).status == 200
        async with connected(gateway.url) as caller:
            await caller.send(head_of(KEY, framing))
            answer = await caller.answer(seconds_max=5)

    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert int(answer.headers[b"retry-after-ms"]) > 0
    assert any(name.startswith(b"x-ratelimit-remaining-") for name in answer.headers)
    assert len(engine.requests) == 1


async def test_a_tenant_at_its_concurrency_is_rejected_before_its_body_is_read(tmp_path: Path) -> None:
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
            answer = await second.answer(seconds_max=5)

    assert answer.status == 429
    assert "requests open" in answer.error["message"]


async def test_connections_without_a_key_do_not_keep_out_callers_with_one(tmp_path: Path) -> None:
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
                assert await oldest.is_closed(seconds_max=5)
                await latest.send(request_of(body_of("hi"), KEY))
                assert (await latest.answer()).status == 200
                await known.send(request_of(body_of("hi"), KEY))
                assert (await known.answer()).status == 200, "a connection whose caller is known stays"
