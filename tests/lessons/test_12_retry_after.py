"""Every 429 and 503 has a Retry-After header, whichever code path produced it.

The outcome table defines which outcomes have such a status. Each outcome that the gateway produces has scenarios here,
one per code path. The first test fails if an outcome has no scenario.
"""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest

import headgate
from headgate.core.admission.retry_after import RETRY_AFTER_MAX, retry_after_max
from headgate.edge.error_replies import ErrorReplies
from headgate.model.outcome import HTTP_REPLIES, Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration
from headgate.wire.keys import digest, format_digest
from testing.descriptors import no_descriptors_left
from testing.fake_engine import Behaviour, FakeEngine, Received
from testing.fault_proxy import FaultProxy
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from tests.lessons.scraped import series_of

COME_BACK = (429, 503)
RETRY = {"x-stainless-retry-count": "1"}


SECRET = "a secret for these tests alone"


@dataclass(frozen=True, slots=True)
class Told:
    """Parts of a response that these tests check."""

    status: int
    headers: dict[str, str]
    message: str


async def asked(gateway: GatewayInLoop, headers: dict[str, str] | None = None, **fields: Any) -> Told:
    async with gateway.post(chat(**fields), headers=headers) as answer:
        body = json.loads(await answer.read())
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return Told(answer.status, lower, body.get("error", {}).get("message", ""))


@asynccontextmanager
async def a_full_gateway(folder: Path, **settings: Any) -> AsyncIterator[tuple[GatewayInLoop, Received]]:
    """Gateway whose only slot is taken by a request that hangs before its first byte."""
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(hang_before_head=True))
        async with gateway_in_loop(a_config(engine.url, in_flight_max=1, **settings), folder) as gateway:
            holder = asyncio.create_task(asked(gateway))
            held = await engine.next_request()
            await held.hung.wait()
            yield gateway, held
            held.resume.set()
            await holder


def interactive(**settings: Any) -> dict[str, Any]:
    return {"interactive": {"priority_band": 0, **settings}}


@asynccontextmanager
async def one_waits(gateway: GatewayInLoop) -> AsyncIterator["asyncio.Task[Told]"]:
    waiting = asyncio.create_task(asked(gateway))
    await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)
    try:
        yield waiting
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


# Code paths


async def the_queue_of_the_class_is_full(folder: Path) -> Told:
    async with a_full_gateway(folder, classes=interactive(queue_length_max=1)) as (gateway, _), one_waits(gateway):
        return await asked(gateway)


async def the_queue_of_the_tenant_is_full(folder: Path) -> Told:
    classes = interactive(queue_length_per_tenant_max=1)
    async with a_full_gateway(folder, classes=classes) as (gateway, _), one_waits(gateway):
        return await asked(gateway)


async def the_door_is_full(folder: Path) -> Told:
    async with a_full_gateway(folder, limits={"requests_open_max": 1}) as (gateway, _):
        return await asked(gateway)


async def the_wait_is_over(folder: Path) -> Told:
    async with a_full_gateway(folder, classes=interactive(queue_wait_max="100ms")) as (gateway, _):
        return await asked(gateway)


async def the_budget_of_a_caller_who_retries_is_empty(folder: Path) -> Told:
    retry = {"tenant_budget_percent": 0, "tenant_budget_burst": 0}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, retry=retry), folder) as gateway:
        return await asked(gateway, RETRY)


async def its_only_endpoint_fails_under_it(folder: Path) -> Told:
    async with an_ejecting_gateway(folder) as gateway:
        return await asked(gateway)


async def every_endpoint_is_ejected(folder: Path) -> Told:
    async with an_ejecting_gateway(folder) as gateway:
        await asked(gateway)
        return await asked(gateway)


@asynccontextmanager
async def an_ejecting_gateway(folder: Path) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=500)
        classes = interactive(queue_wait_max="100ms")
        config = a_config(engine.url, classes=classes, health={"consecutive_failures_max": 1})
        async with gateway_in_loop(config, folder) as gateway:
            yield gateway


async def no_endpoint_gets_ready(folder: Path) -> Told:
    async with FakeEngine() as engine:
        engine.loading = True
        config = a_config(engine.url, classes=interactive(queue_wait_max="100ms"))
        async with gateway_in_loop(config, folder, wait_for=0) as gateway:
            return await asked(gateway)


async def it_comes_while_the_gateway_leaves(folder: Path) -> Told:
    async with a_full_gateway(folder) as (gateway, _):
        gateway.gateway.shut_down()
        await gateway.wait_for_status(lambda status: status["draining"])
        return await asked(gateway)


async def it_waits_when_the_grace_is_over(folder: Path) -> Told:
    async with a_full_gateway(folder, drain_grace="100ms") as (gateway, _), one_waits(gateway) as waiting:
        gateway.gateway.shut_down()
        return await waiting


async def it_runs_when_the_grace_is_over(folder: Path) -> Told:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_before_head=True)
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), folder) as gateway:
            running = asyncio.create_task(asked(gateway))
            await (await engine.next_request()).hung.wait()
            gateway.gateway.shut_down()
            return await running


async def its_tenant_has_asked_enough_for_a_minute(folder: Path) -> Told:
    tenants = {"laptop": {"limits": {"requests_per_minute": 1}}}
    async with a_full_gateway(folder, tenants=tenants) as (gateway, _):
        return await asked(gateway)


def slow_pool(engine: FakeEngine) -> dict[str, Any]:
    """Pool whose configured speed implies about 15 s of engine time per response."""
    speed = {"decode_sequence": "100ms"}
    return {
        "small": {
            "engine": "vllm",
            "served_model": "fake",
            "in_flight_max": 1,
            "endpoints": [engine.url],
            "speed": speed,
        }
    }


async def left_open(gateway: GatewayInLoop) -> None:
    async with gateway.post(chat(stream=True)) as answer:
        await answer.read()


@asynccontextmanager
async def a_slow_gateway(folder: Path, **settings: Any) -> AsyncIterator[GatewayInLoop]:
    """Gateway with one request in its only slot and another queued."""
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(hang_before_head=True))
        config = a_config(engine.url, pools=slow_pool(engine), **settings)
        async with gateway_in_loop(config, folder) as gateway:
            others = [asyncio.create_task(left_open(gateway)) for _ in range(2)]
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)
            yield gateway
            for each in others:
                each.cancel()
            await asyncio.wait(others)


async def so_much_waits_that_it_would_be_too_late(folder: Path) -> Told:
    async with a_slow_gateway(folder, classes=interactive(queue_wait_max="9s")) as gateway:
        return await asked(gateway)


async def the_ladder_has_climbed_to_its_plan(folder: Path) -> Told:
    settings: dict[str, Any] = {
        "classes": interactive(ttft="50s", queue_wait_max="50s"),
        "key_secret": SECRET,
        "tenants": {"laptop": {}, "guest": {"plan": "free", "keys": [format_digest(digest(SECRET.encode(), "guest"))]}},
        "degradation": {"escalate_above_percent": 2, "escalate_after": "1ms", "recover_below_percent": 1},
    }
    async with a_slow_gateway(folder, **settings) as gateway:
        async with asyncio.timeout(30):
            while (await series_of(gateway))["headgate_degradation_level{pool=small}"] < 5:
                await asyncio.sleep(0.05)
        return await asked(gateway, headers={"authorization": "Bearer guest"})


async def the_money_of_its_tenant_is_spent(folder: Path) -> Told:
    async with FakeEngine() as engine:
        config = a_config(engine.url, tenants={"laptop": {"budgets": {"day": 0.001}}})
        config["pools"]["small"]["prices"] = [{"input_per_1m_tokens": 1, "output_per_1m_tokens": 1_000}]
        async with gateway_in_loop(config, folder) as gateway:
            return await asked(gateway, max_tokens=100)


async def its_key_cannot_be_looked_up(folder: Path) -> Told:
    with socket.socket() as nobody:
        # The port is bound, but no process is listening on it.
        nobody.bind(("127.0.0.1", 0))
        database = {"url": f"postgresql://postgres@127.0.0.1:{nobody.getsockname()[1]}/keys"}
        async with FakeEngine() as engine:
            config = a_config(engine.url, key_secret=SECRET, database=database)
            async with gateway_in_loop(config, folder) as gateway:
                return await asked(gateway, headers={"authorization": "Bearer of the database"})


async def the_gateway_is_out_of_descriptors(folder: Path) -> Told:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), folder) as gateway:
        async with gateway.http.get(gateway.url + "/v1/models") as answer:
            await answer.read()
        with no_descriptors_left():
            return await asked(gateway)


Way = Callable[[Path], Awaitable[Told]]
PATHS: dict[Outcome, tuple[Way, ...]] = {
    Outcome.QUEUE_FULL: (the_queue_of_the_class_is_full, the_queue_of_the_tenant_is_full, the_door_is_full),
    Outcome.RATE_LIMITED: (its_tenant_has_asked_enough_for_a_minute,),
    Outcome.BUDGET_EXCEEDED: (the_money_of_its_tenant_is_spent,),
    Outcome.DEADLINE_INFEASIBLE: (so_much_waits_that_it_would_be_too_late,),
    Outcome.SHED: (the_ladder_has_climbed_to_its_plan,),
    Outcome.QUEUE_TIMEOUT: (the_wait_is_over,),
    Outcome.RETRY_BUDGET_EXHAUSTED: (the_budget_of_a_caller_who_retries_is_empty,),
    Outcome.NO_ENDPOINTS: (its_only_endpoint_fails_under_it, every_endpoint_is_ejected, no_endpoint_gets_ready),
    Outcome.DRAINING: (it_comes_while_the_gateway_leaves, it_waits_when_the_grace_is_over),
    Outcome.EVICTED: (it_runs_when_the_grace_is_over,),
    Outcome.INTERNAL_ERROR: (the_gateway_is_out_of_descriptors,),
    Outcome.KEY_UNVERIFIED: (its_key_cannot_be_looked_up,),
}


def test_every_retryable_outcome_has_scenarios() -> None:
    come_back = {outcome for outcome, face in HTTP_REPLIES.items() if face.status in COME_BACK}
    without = come_back & outcomes_made() - PATHS.keys()
    assert without == set(), f"outcomes without a scenario: {', '.join(sorted(without))}"
    assert PATHS.keys() <= come_back


@cache
def outcomes_made() -> frozenset[Outcome]:
    """Outcomes named in the source, other than in the outcome table and the simulation."""
    source = Path(headgate.__file__).parent
    names: set[str] = set()
    for file in source.rglob("*.py"):
        if file != source / "model" / "outcome.py" and source / "simulation" not in file.parents:
            names.update(re.findall(r"\bOutcome\.([A-Z_]+)", file.read_text()))
    return frozenset(Outcome[name] for name in names if name in Outcome.__members__)


def test_source_scan_finds_the_outcomes() -> None:
    assert PATHS.keys() <= outcomes_made()


def says_when(told: Told, most: Duration = RETRY_AFTER_MAX) -> None:
    wait_s, wait_ms = told.headers["retry-after"], told.headers["retry-after-ms"]
    assert wait_s.isdecimal(), wait_s
    assert wait_ms.isdecimal(), wait_ms
    assert 1 <= int(wait_s) <= most // SECOND
    # Clients that read only the header in seconds must not come back earlier than the others.
    assert 0 < int(wait_ms) <= 1000 * int(wait_s) < int(wait_ms) + 1000


@pytest.mark.parametrize(
    ("outcome", "path"),
    [pytest.param(outcome, path, id=path.__name__) for outcome, paths in PATHS.items() for path in paths],
)
async def test_response_has_retry_after(tmp_path: Path, outcome: Outcome, path: Way) -> None:
    told = await path(tmp_path)

    assert told.status == HTTP_REPLIES[outcome].status
    assert f"({outcome})" in told.message, "the scenario must produce this outcome"
    says_when(told, retry_after_max(outcome))


@pytest.mark.parametrize("outcome", [outcome for outcome, face in HTTP_REPLIES.items() if face.status in COME_BACK])
@pytest.mark.parametrize("wait", [None, SECOND, SECOND + MILLISECOND, 2 * SECOND - 1, 60 * SECOND])
def test_every_retryable_outcome_has_retry_after_for_any_wait(outcome: Outcome, wait: int | None) -> None:
    """Includes outcomes that no code produces yet."""
    retry_after = None if wait is None else Duration(wait)
    status, headers, _ = ErrorReplies().error(outcome, "why", retry_after_ns=retry_after)

    says_when(Told(status, {name.decode(): value.decode() for name, value in headers}, ""))


@pytest.mark.parametrize("status", COME_BACK)
async def test_engine_429_or_503_is_never_relayed_without_retry_after(tmp_path: Path, status: int) -> None:
    """Engines send these statuses without Retry-After. The gateway adds the header or returns a different status."""
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=status)
        config = a_config(engine.url, health={"consecutive_failures_max": 1_000})
        async with gateway_in_loop(config, tmp_path) as gateway:
            for stream in (True, False):
                says_when(await asked(gateway, stream=stream))


# Official OpenAI client


async def test_openai_client_retries_after_the_specified_time(tmp_path: Path) -> None:
    """Without the header, the client would retry within half a second."""
    async with a_full_gateway(tmp_path, limits={"requests_open_max": 1}) as (gateway, held):
        async with FaultProxy(int(gateway.url.rpartition(":")[2])) as door:
            async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key="unused", max_retries=1) as client:
                started = time.monotonic()
                asking = asyncio.create_task(client.chat.completions.create(**chat()))
                while b"retry-after-ms" not in door.answer:
                    await asyncio.sleep(0.01)
                first = door.answer.lower()
                told_ms = int(first.partition(b"retry-after-ms: ")[2].partition(b"\r\n")[0])
                held.resume.set()
                whole = await asking
                took_s = time.monotonic() - started

    assert first.startswith(b"http/1.1 429")
    assert whole.choices[0].finish_reason == "stop"
    assert door.questions == {b"POST": 2}
    assert took_s >= told_ms / 1000 >= 1


async def test_openai_client_does_not_retry_if_told_not_to(tmp_path: Path) -> None:
    retry = {"tenant_budget_percent": 0, "tenant_budget_burst": 0}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, retry=retry), tmp_path) as gateway:
        async with FaultProxy(int(gateway.url.rpartition(":")[2])) as door:
            async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key="unused", max_retries=5) as client:
                with pytest.raises(openai.RateLimitError):
                    await client.chat.completions.create(**chat(), extra_headers=RETRY)

    assert door.questions == {b"POST": 1}
    assert engine.requests == []
