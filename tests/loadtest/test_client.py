"""Tests for the load test client: how it behaves and how it records each request."""

import asyncio
import json

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.ports import free_port
from tests.loadtest.builders import Ran, a_plan, a_schedule, a_sender, ran
from tests.loadtest.scripted import ScriptedServer, answer, stream, token

SOON = {"retry-after-ms": "1"}
DONE = "[DONE]"


async def after(behaviour: Behaviour, **fields: object) -> Ran:
    """Sends one request to an engine with this behaviour."""
    async with FakeEngine() as engine:
        engine.behaviour = behaviour
        return await ran(a_plan(engine.url, **fields))  # type: ignore[arg-type]


async def test_client_reads_stream_to_the_end() -> None:
    line = (await after(Behaviour(tokens=5))).line

    assert (line["outcome"], line["status"], line["code"], line["retries"]) == ("completed", 200, None, 0)
    assert (line["prompt_tokens"], line["output_tokens"], line["usage_reported"]) == (7, 5, True)
    assert line["scheduled_s"] <= line["started_s"] <= line["sent_s"] <= line["first_token_s"] <= line["end_s"]


async def test_tokens_are_counted_from_text_events_if_usage_is_missing() -> None:
    line = (await after(Behaviour(tokens=5, usage=False))).line

    assert (line["output_tokens"], line["prompt_tokens"], line["usage_reported"]) == (5, 10, False)


async def test_non_streaming_response_has_no_first_token_time() -> None:
    ran_ = await after(Behaviour(tokens=5), stream=False)

    assert (ran_.line["outcome"], ran_.line["first_token_s"], ran_.line["output_tokens"]) == ("completed", None, 5)
    assert ran_.data["total"]["ttft_s"] is None


async def test_stream_split_into_single_bytes_is_parsed_correctly() -> None:
    line = (await after(Behaviour(tokens=5, piece_bytes=1))).line

    assert (line["outcome"], line["output_tokens"]) == ("completed", 5)


async def test_event_without_text_is_not_treated_as_first_token() -> None:
    role = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(body=f"data: {role}\n\n".encode(), tokens=0)
        line = (await ran(a_plan(engine.url))).line

    assert (line["first_token_s"], line["output_tokens"]) == (None, 0)


@pytest.mark.parametrize("text", ["content", "reasoning_content", "reasoning"])
async def test_reasoning_text_is_treated_as_first_token(text: str) -> None:
    event = json.dumps({"choices": [{"index": 0, "delta": {text: "hm"}}]})
    async with ScriptedServer(stream(event, DONE)) as server:
        line = (await ran(a_plan(server.url))).line

    assert line["first_token_s"] is not None


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (Behaviour(tokens=5, without_done=True), "no_done"),
        (Behaviour(tokens=5, cut_after=2), "connection_lost"),
        (Behaviour(tokens=5, error_after=2), "500"),
        (Behaviour(tokens=5, error_after=2, piece_bytes=3), "500"),
    ],
)
async def test_truncated_stream_is_recorded_as_interrupted_and_not_retried(behaviour: Behaviour, code: str) -> None:
    line = (await after(behaviour)).line

    assert (line["outcome"], line["status"], line["code"], line["retries"]) == ("interrupted", 200, code, 0)
    assert line["first_token_s"] is not None


async def test_error_event_code_is_recorded() -> None:
    event = json.dumps({"error": {"message": "gone", "type": "t", "param": None, "code": "stream_interrupted"}})
    async with ScriptedServer(stream(token("a"), event)) as server:
        line = (await ran(a_plan(server.url))).line

    assert (line["outcome"], line["code"]) == ("interrupted", "stream_interrupted")


async def test_truncated_non_streaming_response_is_recorded_as_interrupted() -> None:
    assert (await after(Behaviour(cut_after=0), stream=False)).line["outcome"] == "interrupted"


async def test_rejection_is_recorded_with_its_code_and_not_retried() -> None:
    async with ScriptedServer(answer(404, code="model_not_found")) as server:
        line = (await ran(a_plan(server.url))).line

    assert (line["outcome"], line["status"], line["code"]) == ("http_error", 404, "model_not_found")
    assert len(server.requests) == 1


async def test_rejection_without_a_code_is_recorded_with_its_status() -> None:
    head = b"HTTP/1.1 400 Bad\r\ncontent-length: 5\r\n\r\nwrong"
    async with ScriptedServer(head) as server:
        assert (await ran(a_plan(server.url))).line["code"] == "http_400"


async def test_request_is_sent_at_most_three_times_with_its_retry_count() -> None:
    async with ScriptedServer(answer(429, code="slow_down", headers=SOON)) as server:
        ran_ = await ran(a_plan(server.url))

    assert (ran_.line["outcome"], ran_.line["retries"]) == ("http_error", 2)
    assert [headers["x-stainless-retry-count"] for headers, _ in server.requests] == ["0", "1", "2"]
    assert len({json.dumps(body) for _, body in server.requests}) == 1
    total = ran_.data["total"]
    assert (total["http_error_by_code"], total["retries_by_code"]) == ({"slow_down": 1}, {"slow_down": 2})


async def test_latency_includes_retries() -> None:
    slow = answer(503, headers={"retry-after-ms": "60"})
    async with ScriptedServer(slow, stream(token("a"), DONE)) as server:
        line = (await ran(a_plan(server.url))).line

    assert (line["outcome"], line["retries"]) == ("completed", 1)
    assert line["sent_s"] - line["started_s"] >= 0.06
    assert line["scheduled_s"] == 0.0


async def test_client_does_not_retry_if_the_server_forbids_it() -> None:
    async with ScriptedServer(answer(429, headers={"x-should-retry": "false", **SOON})) as server:
        assert (await ran(a_plan(server.url))).line["retries"] == 0


async def test_client_retries_if_the_server_asks_for_it() -> None:
    again = answer(400, headers={"x-should-retry": "true", **SOON})
    async with ScriptedServer(again, stream(token("a"), DONE)) as server:
        assert (await ran(a_plan(server.url))).line["outcome"] == "completed"


async def test_request_is_retried_if_the_connection_closes_without_a_response() -> None:
    async with ScriptedServer(b"", stream(token("a"), DONE)) as server:
        ran_ = await ran(a_plan(server.url))

    # Without a header the backoff is half a second, minus up to a quarter of that.
    assert (ran_.line["outcome"], ran_.line["retries"]) == ("completed", 1)
    assert ran_.line["sent_s"] >= 0.375
    assert ran_.data["total"]["retries_by_code"] == {"connection_lost": 1}


async def test_request_to_a_closed_port_is_recorded_as_failed_connection() -> None:
    ran_ = await ran(a_plan(f"http://127.0.0.1:{free_port()}", retries_max=0))

    assert (ran_.line["outcome"], ran_.line["status"]) == ("connection_failed", None)
    assert ran_.data["total"]["connection_failed_by_code"] == {"connection_refused": 1}


async def test_non_http_response_is_recorded_as_not_http() -> None:
    async with ScriptedServer(b"SSH-2.0-server\r\n") as server:
        assert (await ran(a_plan(server.url, retries_max=0))).line["code"] == "not_http"


@pytest.mark.timing
@pytest.mark.parametrize("behaviour", [Behaviour(hang_before_head=True), Behaviour(hang_after=0)])
async def test_client_disconnects_when_its_patience_runs_out(behaviour: Behaviour) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = behaviour
        line = (await ran(a_plan(engine.url, patience_s=3.0))).line
        async with asyncio.timeout(60):
            await engine.requests[0].client_left.wait()

    assert (line["outcome"], line["retries"], line["code"]) == ("abandoned", 0, None)
    assert line["end_s"] >= 2.99


@pytest.mark.timing
async def test_patience_does_not_apply_after_the_first_token() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=2, hang_after=1)
        running = asyncio.create_task(ran(a_plan(engine.url, patience_s=3.0)))
        request = await engine.next_request()
        await request.hung.wait()
        await asyncio.sleep(3.2)  # Sleeps longer than the client's patience, because there is no event to wait for.
        request.resume.set()
        line = (await running).line

    assert (line["outcome"], line["output_tokens"]) == ("completed", 2)


async def test_patience_includes_the_backoff() -> None:
    async with ScriptedServer(answer(503, headers={"retry-after": "60"})) as server:
        line = (await ran(a_plan(server.url, patience_s=3.0))).line

    assert (line["outcome"], line["retries"], len(server.requests)) == ("abandoned", 1, 1)


async def test_connections_are_reused() -> None:
    async with FakeEngine() as engine:
        # With one connection, a request that is due has to wait until the connection is free.
        ran_ = await ran(a_plan(engine.url, a_schedule(0.0, 0.0, 0.0), connections_max=1))

        assert engine.connections_total == 1
    assert [line["outcome"] for line in ran_.lines] == ["completed"] * 3


async def test_client_reconnects_after_the_server_closes_the_connection() -> None:
    async with ScriptedServer(stream(token("a"), DONE), close_after=True) as server:
        ran_ = await ran(a_plan(server.url, a_schedule(0.0, 0.3)))

    assert ([line["outcome"] for line in ran_.lines], server.connections) == (["completed"] * 2, 2)


async def test_response_delimited_by_connection_close_is_complete() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    body = f"data: {token('a')}\n\ndata: [DONE]\n\n".encode()
    async with ScriptedServer(head + body, close_after=True) as server:
        assert (await ran(a_plan(server.url))).line["outcome"] == "completed"


async def test_interim_responses_are_skipped() -> None:
    async with ScriptedServer(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + stream(token("a"), DONE)) as server:
        assert (await ran(a_plan(server.url))).line["outcome"] == "completed"


async def test_request_id_is_taken_from_the_response() -> None:
    async with ScriptedServer(answer(400, headers={"x-request-id": "req_1"})) as server:
        assert (await ran(a_plan(server.url))).line["request_id"] == "req_1"


async def test_class_tier_and_key_reach_the_server() -> None:
    sender = a_sender(service_class="batch", tier="flex", key="sk-1")
    async with FakeEngine(api_key="sk-1") as engine:
        line = (await ran(a_plan(engine.url, senders=[sender]))).line
        request = engine.requests[0]

    assert (line["outcome"], line["class"]) == ("completed", "batch")
    assert request.headers["x-headgate-class"] == "batch"
    assert request.json["service_tier"] == "flex"


async def test_client_hedges_requests_without_a_first_token() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_before_head=True)
        running = asyncio.create_task(ran(a_plan(engine.url, duplicate_after_s=0.01, retries_max=2, patience_s=3.0)))
        tries = [await engine.next_request() for _ in range(3)]
        line = (await running).line

    assert [each.headers["x-stainless-retry-count"] for each in tries] == ["0", "1", "2"]
    assert (line["outcome"], line["retries"]) == ("abandoned", 0)


async def test_client_does_not_hedge_after_the_first_token() -> None:
    async with FakeEngine() as engine:
        line = (await ran(a_plan(engine.url, duplicate_after_s=3.0))).line

        assert len(engine.requests) == 1
    assert line["outcome"] == "completed"
