"""Tenants have separate shares of connections and of requests with unfinished bodies."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, gateway_in_loop
from tests.security.raw import Caller, Closed, body_of, connected, head_of, request_of

SECRET = "of the tests, and long enough"
FLOOD, VICTIM = b"authorization: Bearer sk-flood", b"authorization: Bearer sk-victim"
NO_BODY = head_of(FLOOD, b"content-length: 1000")


def two_tenants(url: str, **limits: int) -> Config:
    keys = {name: [format_digest(digest(SECRET.encode(), f"sk-{name}"))] for name in ("flood", "victim")}
    config = a_config(url, key_secret=SECRET, tenants={name: {"keys": each} for name, each in keys.items()})
    del config["anonymous_tenant"]
    return config | {"limits": limits}


@asynccontextmanager
async def a_gateway(folder: Path, **limits: int) -> AsyncIterator[tuple[GatewayInLoop, AsyncExitStack]]:
    async with (
        FakeEngine() as engine,
        gateway_in_loop(two_tenants(engine.url, **limits), folder) as gateway,
        AsyncExitStack() as stack,
    ):
        yield gateway, stack


async def asked(stack: AsyncExitStack, gateway: GatewayInLoop, key: bytes) -> tuple[Caller, int]:
    """Open a connection that stays open. Return it and the status of its first request."""
    caller = await stack.enter_async_context(connected(gateway.url))
    await caller.send(request_of(body_of("hi"), key))
    return caller, (await caller.answer()).status


async def test_idle_connections_from_one_tenant_do_not_block_others(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=10, requests_open_max=10) as (gateway, stack):
        flood = [await asked(stack, gateway, FLOOD) for _ in range(14)]
        assert [status for _, status in flood] == [200] * 8 + [429] * 6
        _, status = await asked(stack, gateway, VICTIM)

    assert status == 200


async def test_rejected_connection_gets_retry_after_and_is_closed(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=5, requests_open_max=5) as (gateway, stack):
        for _ in range(4):
            await asked(stack, gateway, FLOOD)
        surplus = await stack.enter_async_context(connected(gateway.url))
        await surplus.send(request_of(body_of("hi"), FLOOD))
        answer = await surplus.answer()
        assert await surplus.is_closed()

    assert (answer.status, answer.error["code"]) == (429, "slow_down")
    assert "limits.connections_open_max" in answer.error["message"]
    assert int(answer.headers[b"retry-after"]) >= 1
    assert answer.headers[b"connection"] == b"close"


async def test_connection_is_counted_for_the_tenant_of_its_latest_request(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=5, requests_open_max=5) as (gateway, stack):
        callers = [(await asked(stack, gateway, FLOOD))[0] for _ in range(4)]
        assert (await asked(stack, gateway, FLOOD))[1] == 429
        await callers[0].send(request_of(body_of("hi"), VICTIM))
        assert (await callers[0].answer()).status == 200
        await callers[1].send(request_of(body_of("hi"), b"authorization: Bearer sk-wrong"))
        assert (await callers[1].answer()).status == 401
        shares = gateway.gateway._parts.listeners[0].connections._tenant_connections

        assert (shares.of("flood"), shares.of("victim")) == (3, 1)


async def test_new_connections_replace_unauthenticated_ones(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=5, requests_open_max=5) as (gateway, stack):
        for _ in range(4):
            await asked(stack, gateway, FLOOD)
        unknown = [await stack.enter_async_context(connected(gateway.url)) for _ in range(3)]
        assert await unknown[0].is_closed()
        _, status = await asked(stack, gateway, VICTIM)
        assert status == 200
        surplus = await stack.enter_async_context(connected(gateway.url))
        await surplus.send(request_of(body_of("hi"), VICTIM))
        with pytest.raises(Closed):
            await surplus.answer()


async def test_unfinished_bodies_from_one_tenant_do_not_block_others(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=100, requests_open_max=10) as (gateway, stack):
        door = gateway.gateway._app
        for number in range(8):
            caller = await stack.enter_async_context(connected(gateway.url))
            await caller.send(NO_BODY)
            while door.open_requests <= number:
                await caller.send(b"")
        surplus = await stack.enter_async_context(connected(gateway.url))
        await surplus.send(NO_BODY)
        answer = await surplus.answer()
        _, status = await asked(stack, gateway, VICTIM)

    assert status == 200
    assert (answer.status, answer.error["code"]) == (429, "slow_down")
    assert 'tenant "flood"' in answer.error["message"]
    assert int(answer.headers[b"retry-after"]) >= 1


async def test_only_the_scheduler_limits_fully_received_requests(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=100, requests_open_max=1) as (gateway, stack):
        first, status = await asked(stack, gateway, FLOOD)
        assert status == 200
        await first.send(request_of(body_of("hi"), FLOOD))
        assert (await first.answer()).status == 200
        assert gateway.gateway._app._awaiting_body.total == 0
