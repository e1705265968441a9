"""Tests for race conditions between dispatch and a request, exchange or endpoint that is going away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReady,
    PolicyChanged,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.core.scheduler import Scheduler
from headgate.edge.error_replies import ErrorReplies
from headgate.edge.exchange import Exchange
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.parsed_request import ParsedRequest
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost
from headgate.model.endpoint import Endpoint
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ClassName, EndpointId, ModelName, PoolName, RequestId, TenantId
from headgate.ports.engine import Call, EngineFault
from headgate.wire.request_body import RequestBody
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.in_process_client import InProcessClient

POLICY = Policy(
    classes=(ServiceClass(ClassName("only"), band=0),),
    tenants=(Tenant(TenantId("t")),),
    pools=(Pool(PoolName("p")),),
    models=(Model(ModelName("m"), (PoolName("p"),)),),
)


class Untouched:
    """An engine that must not be called."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, call: Call) -> "Untouched":  # type: ignore[override]
        self.asked += 1
        raise EngineFault("the engine was called")


def a_ticket(name: str) -> Ticket:
    return Ticket(RequestId(name), Api.CHAT, ModelName("m"), TenantId("t"), stream=True, prompt_bytes=10)


@asynccontextmanager
async def one_place_taken() -> AsyncIterator[tuple[LocalHost, Untouched, "asyncio.Task[None]"]]:
    """Yields a host whose only slot is taken by request `a`, and the exchange for request `b`, which is waiting."""
    faults: list[BaseException] = []
    host = LocalHost(Scheduler(), SystemClock(), (), faults.append)
    host.report(PolicyChanged(POLICY, "hash"))
    host.report(EndpointJoined(Endpoint(EndpointId("p/e"), PoolName("p"), in_flight_max=1)))
    host.report(EndpointReady(EndpointId("p/e")))
    host.open(a_ticket("a"), lambda _: None)
    engine, client = Untouched(), InProcessClient({}).client
    body = RequestBody.parse(b'{"model":"m","stream":true,"messages":[{}]}', Api.CHAT)
    engines, attempts = {EndpointId("p/e"): engine}, OpenAttempts(host.report)
    exchange = Exchange(client, ParsedRequest(a_ticket("b"), body, {}), host, engines, attempts, replies=ErrorReplies())
    task = asyncio.create_task(exchange.run())
    while not host.summary().queued["only"]:
        await asyncio.sleep(0)
    yield host, engine, task
    assert host.summary().endpoints[0].in_flight == 0
    assert host.summary().requests == 0
    assert len(attempts) == 0
    host.stop()
    assert faults == []


async def test_request_is_not_sent_if_its_client_disconnects_as_it_is_dispatched() -> None:
    async with one_place_taken() as (host, engine, exchange):
        host.report(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
        host.report(RequestWithdrawn(RequestId("b"), WithdrawalCause.CLIENT_DISCONNECTED))
        await exchange

    assert engine.asked == 0


async def test_exchange_cancelled_as_it_is_dispatched_releases_its_slot() -> None:
    async with one_place_taken() as (host, engine, exchange):
        host.report(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
        exchange.cancel()
        await asyncio.wait([exchange])
        assert exchange.cancelled()

    assert engine.asked == 0


async def test_removed_endpoint_still_serves_a_request_dispatched_just_before(tmp_path: Path) -> None:
    async with FakeEngine() as busy, FakeEngine() as removed, FakeEngine() as staying:
        config = a_config(busy.url, in_flight_max=1)
        config["pools"]["big"] = config["pools"]["small"] | {"endpoints": [removed.url, staying.url]}
        async with gateway_in_loop(config, tmp_path) as gateway:
            busy.behaviour = Behaviour(hang_before_head=True)
            first = asyncio.create_task(attempts_of(gateway.post(chat())))
            held = await busy.next_request()
            waiting = asyncio.create_task(attempts_of(gateway.post(chat())))
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)

            # The new policy immediately sends the request to the other pool, to an endpoint that this reload removes.
            config["pools"]["big"]["endpoints"] = [staying.url]
            config["models"]["m"] = "big"
            await gateway.rewrite(config)
            assert await waiting == (200, "1")
            held.resume.set()
            await first
            await gateway.wait_for_status(lambda status: len(status["endpoints"]) == 2)

    assert len(removed.requests) == 1


async def test_endpoint_added_again_while_draining_must_become_ready_again(tmp_path: Path) -> None:
    async with FakeEngine() as engine, FakeEngine() as other:
        config = a_config(engine.url, other.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.behaviour = other.behaviour = Behaviour(hang_before_head=True)
            call = asyncio.create_task(attempts_of(gateway.post(chat())))
            await gateway.wait_for_status(lambda _: bool(engine.requests or other.requests))
            held = (engine.requests or other.requests)[0]
            left = engine if engine.requests else other
            stays = other if engine.requests else engine
            await gateway.rewrite(a_config(stays.url) | {"listen": config["listen"]})
            left.loading = True
            await gateway.rewrite(config)
            states = {each["id"]: each["state"] for each in (await gateway.status())["endpoints"]}
            held.resume.set()
            await call

    assert states[f"small/{left.url[7:]}"] == "warming"


async def attempts_of(request: object) -> tuple[int, str]:
    async with request as answer:  # type: ignore[attr-defined]
        return answer.status, answer.headers["x-headgate-attempts"]
