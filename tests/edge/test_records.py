"""Tests for request records: one per request, with all timestamps and the outcome."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.core.events import AttemptEnding
from headgate.engines.connect_times import SAMPLES_MIN
from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.ticket import Api
from headgate.model.units import Duration, PoolName
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.stage_times import stage_times
from headgate.wire.request_body import LARGE_BYTES
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_triton import FakeTriton
from testing.gateway import CHAT, Config, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.edge.test_batching_gateway import batching_config, embed, hung
from tests.edge.test_hedged_answers import asked_in_vain, two_engines
from tests.edge.test_kserve import infer, triton_config
from tests.edge.test_the_door import bearer, config_with_keys


class Kept(list[RequestRecord]):
    def add(self, record: RequestRecord) -> None:
        assert not any(record is other for other in self), "recorded twice"
        self.append(record)

    async def one(self) -> RequestRecord:
        """Waits for the only record, which is written after the client has received its response."""
        async with asyncio.timeout(30):
            while not self:
                await asyncio.sleep(0.001)
        (record,) = self
        return record


def kept_of(gateway: GatewayInLoop) -> Kept:
    gateway.gateway._app.records = kept = Kept()
    return kept


@asynccontextmanager
async def keeping(
    engine: FakeEngine | None, folder: Path, **settings: Any
) -> AsyncIterator[tuple[GatewayInLoop, Kept]]:
    config: Config = settings.pop("config", None) or a_config(engine.url if engine else "", **settings)
    async with gateway_in_loop(config, folder) as gateway:
        yield gateway, kept_of(gateway)


async def test_stream_record_has_all_timestamps_in_order(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        before = time.monotonic_ns()
        async with gateway.post(chat(stream=True, max_tokens=3)) as answer:
            await answer.read()
        record = await kept.one()

    (attempt,) = record.attempts
    moments = [
        before,
        record.started_at,
        record.head_received_at,
        record.authenticated_at,
        record.queued_at,
        attempt.dispatched_at,
        attempt.sent_at,
        attempt.first_byte_at,
        attempt.last_byte_at,
        record.replied_at,
        record.ended_at,
        time.monotonic_ns(),
    ]
    assert moments == sorted(moments)
    assert record.started_at <= record.body_received_at <= record.queued_at
    assert attempt.last_byte_at <= attempt.ended_at <= record.ended_at
    assert abs(record.arrived_at - time.time_ns()) < 10_000_000_000
    assert {piece.stage for piece in stage_times(record)} >= set(Stage) - {Stage.QUEUE}
    assert (record.api, record.model, record.stream, record.tenant) == (Api.CHAT, "m", True, "laptop")
    assert (record.outcome, record.status, record.class_name) == (Outcome.COMPLETED, 200, "interactive")
    assert (record.output_tokens, attempt.ending) == (3, AttemptEnding.COMPLETED)
    assert (attempt.number, attempt.pool, attempt.hedge) == (1, "small", False)
    assert record.trace_id == b""


@pytest.mark.process
async def test_non_streaming_response_record_has_all_timestamps(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        async with gateway.post(chat("x" * LARGE_BYTES)) as answer:
            assert answer.status == 200
        record = await kept.one()

    (attempt,) = record.attempts
    assert 0 < attempt.sent_at <= attempt.first_byte_at <= attempt.last_byte_at <= record.replied_at
    assert record.prompt_tokens > 0
    assert record.prompt_bytes >= LARGE_BYTES


async def test_record_starts_at_the_first_byte_of_each_request_on_a_connection(tmp_path: Path) -> None:
    body = json.dumps(chat()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            before = time.monotonic_ns()
            writer.write(head[:10])
            await received_by(gateway, before)
            between = time.monotonic_ns()
            writer.write(head[10:] + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.findall(rb"content-length: (\d+)", answer)[0]))
            record = await kept.one()
            kept.clear()
            assert before <= record.started_at <= between <= record.head_received_at
            assert stage_times(record)[0].stage is Stage.INGRESS
        writer.close()


async def received_by(gateway: GatewayInLoop, after: int) -> None:
    """Waits until the gateway has read the first bytes of a request."""
    connections = gateway.gateway._parts.listeners[0].connections._open
    async with asyncio.timeout(30):
        while not any(each._began_at >= after for each in connections):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("request_", "status", "outcome"),
    [
        ({"path": CHAT, "json": chat()}, 401, Outcome.UNAUTHORIZED),
        (
            {"path": CHAT, "json": chat(), "headers": bearer("hg-acme") | {"content-encoding": "gzip"}},
            400,
            Outcome.INVALID_REQUEST,
        ),
        ({"path": CHAT, "data": b"{", "headers": bearer("hg-acme")}, 400, Outcome.INVALID_REQUEST),
        ({"path": CHAT, "json": chat(model="no"), "headers": bearer("hg-acme")}, 404, Outcome.MODEL_NOT_FOUND),
        ({"path": CHAT, "json": chat("x" * 99_999), "headers": bearer("hg-acme")}, 413, Outcome.REQUEST_TOO_LARGE),
        ({"path": "/nothing", "json": chat()}, 404, Outcome.INVALID_REQUEST),
        ({"path": CHAT, "method": "GET"}, 405, Outcome.INVALID_REQUEST),
        ({"path": "/v2/models/m/infer", "json": {}}, 401, Outcome.UNAUTHORIZED),
    ],
)
async def test_rejected_request_is_recorded(
    tmp_path: Path, request_: dict[str, Any], status: int, outcome: Outcome
) -> None:
    async with FakeEngine() as engine:
        config = config_with_keys(engine.url) | {"limits": {"body_bytes_max": "16KiB"}}
        async with keeping(None, tmp_path, config=config) as (gateway, kept):
            method, path = request_.pop("method", "POST"), request_.pop("path")
            async with gateway.http.request(method, gateway.url + path, **request_) as answer:
                assert answer.status == status
            record = await kept.one()

    assert (record.status, record.outcome) == (status, outcome)
    assert record.attempts == []
    assert record.started_at <= record.head_received_at <= record.replied_at <= record.ended_at
    assert record.reason


async def test_requests_about_the_gateway_itself_are_not_recorded(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        for path in ("/v1/models", "/v1/usage", "/v2/health/ready", "/v2"):
            async with gateway.http.get(gateway.url + path) as answer:
                assert answer.status == 200
        async with gateway.post(chat()):
            pass
        assert (await kept.one()).api is Api.CHAT


async def test_request_rejected_while_draining_is_recorded(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        gateway.gateway._app.draining = True
        async with gateway.post(chat()) as answer:
            assert answer.status == 503
        assert (await kept.one()).outcome is Outcome.DRAINING
        gateway.gateway._app.draining = False


async def test_record_has_no_status_if_the_client_disconnects_before_the_response(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        engine.script.append(Behaviour(hang_before_head=True))
        call = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=chat(stream=True)))
        await (await engine.next_request()).hung.wait()
        call.cancel()
        record = await kept.one()

    assert (record.outcome, record.status, record.replied_at) == (Outcome.CANCELLED, 0, 0)
    assert record.attempts[0].ending is AttemptEnding.ABORTED
    assert stage_times(record)[-2].stage is Stage.PREFILL


async def test_record_has_one_entry_per_attempt(tmp_path: Path) -> None:
    async with FakeEngine() as bad, FakeEngine() as good:
        bad.behaviour = Behaviour(status=500)
        async with keeping(None, tmp_path, config=a_config(bad.url, good.url)) as (gateway, kept):
            for _ in range(2):
                async with gateway.post(chat(stream=True)) as answer:
                    assert answer.status == 200
                    await answer.read()
                record = await kept.one()
                if len(record.attempts) == 2:
                    break
                kept.clear()

    first, second = record.attempts
    assert (first.ending, second.ending) == (AttemptEnding.FAILED, AttemptEnding.COMPLETED)
    assert (first.number, second.number) == (1, 2)
    assert "500" in first.detail
    assert first.ended_at <= second.dispatched_at
    assert record.outcome is Outcome.COMPLETED


async def test_record_includes_the_hedge_as_an_attempt(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (gateway, one, other):
        kept = kept_of(gateway)
        call, _, _ = await asked_in_vain(gateway, one, other)
        assert (await call)[0] == 200
        record = await kept.one()

    assert [(each.hedge, each.ending) for each in record.attempts] == [
        (False, AttemptEnding.ABORTED),
        (True, AttemptEnding.COMPLETED),
    ]
    assert record.attempts[1].dispatched_at < record.attempts[0].ended_at


async def test_kserve_inference_and_generation_are_recorded(tmp_path: Path) -> None:
    async with FakeTriton() as engine, keeping(None, tmp_path, config=triton_config(engine)) as (gateway, kept):
        async with infer(gateway) as answer:
            assert answer.status == 200
        tensors = await kept.one()
        kept.clear()
        async with gateway.post(chat(stream=True)) as answer:
            await answer.read()
        text = await kept.one()

    assert (tensors.api, text.api) == (Api.INFER, Api.CHAT)
    for record in (tensors, text):
        (attempt,) = record.attempts
        assert 0 < attempt.sent_at <= attempt.first_byte_at <= attempt.last_byte_at


async def test_joined_requests_have_consistent_timestamps(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(None, tmp_path, config=batching_config(engine.url)) as (gateway, kept):
        first = await hung(engine, gateway)
        await asyncio.gather(*(embed(gateway, text) for text in ("a", "b", ["c", "d"])))
        async with asyncio.timeout(30):
            while len(kept) < 3:
                await asyncio.sleep(0.001)
        joined = [record.attempts[0] for record in kept]
        engine.requests[0].resume.set()
        await first

    assert max(each.dispatched_at for each in joined) <= min(each.sent_at for each in joined)
    assert max(each.sent_at for each in joined) <= min(each.first_byte_at for each in joined)
    assert all(each.dispatched_at <= each.sent_at <= each.first_byte_at for each in joined)


async def test_median_connect_time_is_measured_per_pool(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, _):
        times = gateway.gateway._engines.connect_times
        async with gateway.post(chat()):
            pass
        assert times.medians() == ()
        for _ in range(SAMPLES_MIN - 1):
            times.record(PoolName("small"), Duration(1))
        ((pool, took),) = times.medians()
        assert (pool, took) == ("small", 1)

        for length in (10, 20, 30, 40, 10**12):
            times.record(PoolName("other"), Duration(length))
        assert times.medians()[0] == ("other", 30)


async def test_request_ended_by_an_internal_error_has_no_outcome(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, kept):
        door = gateway.gateway._app
        limits, door.limits = door.limits, None  # type: ignore[assignment]
        async with gateway.post(chat()) as answer:
            assert answer.status == 500
        door.limits = limits
        record = await kept.one()

    assert (record.outcome, record.status, record.replied_at) == (None, 500, 0)
    assert sum(piece.end - piece.begin for piece in stage_times(record)) == record.ended_at - record.started_at


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"model": "m", "messages": "patient Jane Roe"}, '"messages" must be an array of messages'),
        (chat(stream="Jane Roe"), '"stream" must be true or false'),
        (chat(n="Jane Roe"), None),
    ],
)
async def test_body_contents_are_quoted_to_the_client_but_not_recorded(
    tmp_path: Path, body: Any, kept: str | None
) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, records):
        async with gateway.post(body) as answer:
            told = (await answer.json())["error"]["message"]
        record = await records.one()

    assert "Jane Roe" in told
    assert "Jane Roe" not in record.reason
    assert told.startswith(record.reason)
    assert kept in (None, record.reason)


@pytest.mark.process
async def test_large_body_contents_are_not_recorded(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, records):
        async with gateway.post({"model": "m", "messages": "Jane Roe " * (LARGE_BYTES // 4)}) as answer:
            assert "Jane Roe" in await answer.text()
        record = await records.one()

    assert record.reason == '"messages" must be an array of messages'


async def test_request_with_a_wrong_method_is_recorded(tmp_path: Path) -> None:
    async with FakeEngine() as engine, keeping(engine, tmp_path) as (gateway, records):
        async with gateway.post({}, "/v1/models") as answer:
            assert answer.status == 405
        record = await records.one()

    assert (record.outcome, record.status) == (Outcome.INVALID_REQUEST, 405)


async def test_unparsable_request_can_be_explained_by_its_response_id(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GARBAGE\r\n\r\n")
        head = (await reader.read()).decode()
        writer.close()
        request_id = head.lower().partition("x-request-id: ")[2].partition("\r")[0]
        async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
            told = await page.json()

    assert (told["outcome"], told["status"]) == ("invalid_request", 400)
    assert f"{request_id} (unknown tenant) ended before scheduling" in told["summary"]
