"""Tests for responses that the engine streams but the gateway returns as a whole."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.core.events import AttemptEnding
from headgate.model.stage import Stage
from headgate.telemetry.stages.stage_times import stage_times
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, NO_TARGETS, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.edge.test_records import kept_of


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


LIMITS = {"first_token_timeout": "5s", "stream_idle_timeout": "5s", "attempt_timeout": "60s"}


def a_watching_config(*engines: FakeEngine) -> dict[str, Any]:
    urls = [engine.url for engine in engines]
    return a_config(*urls, engine="llamacpp", classes={"interactive": {"priority_band": 0, **NO_TARGETS} | LIMITS})


def sweep(gateway: GatewayInLoop, *, later_s: float) -> None:
    """Checks the open attempts as if `later_s` seconds had passed."""
    attempts = gateway.gateway._attempts
    attempts.sweep(list(attempts._open.values()), asyncio.get_running_loop().time() + later_s)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await true():
            await asyncio.sleep(0.005)


def events_of(gateway: GatewayInLoop) -> list[int]:
    return [attempt.events for attempt in gateway.gateway._attempts._open.values()]


async def heard(gateway: GatewayInLoop, events: int) -> None:
    """Waits until the only open attempt has been sent and has produced this number of events."""

    async def enough() -> bool:
        attempts = gateway.gateway._attempts._open.values()
        return [events] == [each.events for each in attempts if each.record.sent_at]

    await until(enough)


@pytest.mark.parametrize(("after", "why"), [(0, "no first token within 5 s"), (2, "no token for 5 s")])
async def test_request_is_retried_elsewhere_when_its_engine_falls_silent(
    engine: FakeEngine, tmp_path: Path, after: int, why: str
) -> None:
    async with FakeEngine() as other:
        for each in (engine, other):
            each.behaviour = Behaviour(tokens=4)
        async with gateway_in_loop(a_watching_config(engine, other), tmp_path) as gateway:
            kept = kept_of(gateway)
            for each in (engine, other):
                each.script.append(Behaviour(tokens=4, hang_after=after))
            asking = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=chat()))
            await gateway.wait_for_status(lambda status: status["attempts_open"] == 1)
            await heard(gateway, after)
            for each in (engine, other):
                each.script.clear()
            sweep(gateway, later_s=0)
            sweep(gateway, later_s=4)
            assert len(events_of(gateway)) == 1
            sweep(gateway, later_s=10)
            async with await asking as answer:
                body = await answer.json()
            record = await kept.one()

    assert (answer.status, answer.headers["x-headgate-attempts"]) == (200, "2")
    assert body["choices"][0]["message"]["content"] == "word0 word1 word2 word3 "
    assert [each.ending for each in record.attempts] == [AttemptEnding.TIMEOUT, AttemptEnding.COMPLETED]
    assert record.attempts[0].detail == why
    decoded = {(each.stage, each.attempt) for each in stage_times(record)}
    assert ((Stage.DECODE, 1) in decoded) is (after > 0)
    assert {(Stage.PREFILL, 1), (Stage.PREFILL, 2)} <= decoded


async def test_explain_shows_the_first_token_and_stages_separate_prefill_from_decode(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)
    async with gateway_in_loop(a_watching_config(engine), tmp_path) as gateway:
        kept = kept_of(gateway)
        asking = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=chat()))
        received = await engine.next_request()
        await heard(gateway, 1)
        between = time.monotonic_ns()
        received.resume.set()
        async with await asking as answer:
            body = await answer.json()
            request_id = answer.headers["x-request-id"]
        async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
            steps = [(step["kind"], step["event"]) for step in (await page.json())["steps"]]
        record = await kept.one()

    (attempt,) = record.attempts
    assert body["usage"]["completion_tokens"] == 3
    assert attempt.sent_at < attempt.first_byte_at < between < attempt.last_byte_at <= record.replied_at
    stages = {piece.stage: piece for piece in stage_times(record)}
    assert stages[Stage.PREFILL].end == stages[Stage.DECODE].begin == attempt.first_byte_at
    assert stages[Stage.DECODE].end == attempt.last_byte_at
    assert [each for each in steps if each[0] == "first_token"] == [
        ("first_token", "first token"),
        ("first_token", "response begins"),
    ]


async def test_disconnecting_client_is_charged_for_generated_tokens(engine: FakeEngine, tmp_path: Path) -> None:
    engine.behaviour = Behaviour(tokens=6, hang_after=4)
    async with gateway_in_loop(a_watching_config(engine), tmp_path) as gateway:
        kept = kept_of(gateway)
        asking = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=chat()))
        received = await engine.next_request()
        await heard(gateway, 4)
        asking.cancel()
        async with asyncio.timeout(30):
            await received.client_left.wait()
        record = await kept.one()

    assert record.attempts[0].ending is AttemptEnding.ABORTED
    assert record.output_tokens == 4


async def test_attempt_is_watched_only_if_the_engine_streams(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(
            engine.url, engine="openai_compatible", classes={"interactive": {"priority_band": 0, **NO_TARGETS} | LIMITS}
        )
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=2, hang_before_head=True)
            asking = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=chat()))
            received = await engine.next_request()
            sweep(gateway, later_s=10)
            assert events_of(gateway) == [0]
            received.resume.set()
            async with await asking as answer:
                assert answer.headers["x-headgate-attempts"] == "1"
