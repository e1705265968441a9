"""Does a client behave as real ones do, and is it told truly how each request went?"""

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
    """One request to an engine that behaves so."""
    async with FakeEngine() as engine:
        engine.behaviour = behaviour
        return await ran(a_plan(engine.url, **fields))  # type: ignore[arg-type]


async def test_a_stream_is_followed_to_its_end() -> None:
    line = (await after(Behaviour(tokens=5))).line

    assert (line["ending"], line["status"], line["code"], line["retries"]) == ("completed", 200, None, 0)
    assert (line["prompt_tokens"], line["output_tokens"], line["tokens_told"]) == (7, 5, True)
    assert line["scheduled_s"] <= line["begun_s"] <= line["sent_s"] <= line["first_token_s"] <= line["end_s"]


async def test_tokens_that_are_not_told_are_counted_by_events_with_text() -> None:
    line = (await after(Behaviour(tokens=5, usage=False))).line

    assert (line["output_tokens"], line["prompt_tokens"], line["tokens_told"]) == (5, 10, False)


async def test_a_whole_answer_has_no_first_token() -> None:
    ran_ = await after(Behaviour(tokens=5), stream=False)

    assert (ran_.line["ending"], ran_.line["first_token_s"], ran_.line["output_tokens"]) == ("completed", None, 5)
    assert ran_.data["total"]["ttft_s"] is None


async def test_how_the_bytes_are_cut_changes_nothing() -> None:
    line = (await after(Behaviour(tokens=5, piece_bytes=1))).line

    assert (line["ending"], line["output_tokens"]) == ("completed", 5)


async def test_the_first_token_is_the_first_text_not_the_first_event() -> None:
    role = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(body=f"data: {role}\n\n".encode(), tokens=0)
        line = (await ran(a_plan(engine.url))).line

    assert (line["first_token_s"], line["output_tokens"]) == (None, 0)


@pytest.mark.parametrize("text", ["content", "reasoning_content", "reasoning"])
async def test_thoughts_are_tokens_too(text: str) -> None:
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
async def test_a_stream_that_does_not_end_well_is_broken_and_not_tried_again(behaviour: Behaviour, code: str) -> None:
    line = (await after(behaviour)).line

    assert (line["ending"], line["status"], line["code"], line["retries"]) == ("broken", 200, code, 0)
    assert line["first_token_s"] is not None


async def test_the_code_of_an_error_event_is_told() -> None:
    event = json.dumps({"error": {"message": "gone", "type": "t", "param": None, "code": "stream_interrupted"}})
    async with ScriptedServer(stream(token("a"), event)) as server:
        line = (await ran(a_plan(server.url))).line

    assert (line["ending"], line["code"]) == ("broken", "stream_interrupted")


async def test_a_whole_answer_cut_short_is_broken() -> None:
    assert (await after(Behaviour(cut_after=0), stream=False)).line["ending"] == "broken"


async def test_a_refusal_is_told_by_its_code_and_not_tried_again() -> None:
    async with ScriptedServer(answer(404, code="model_not_found")) as server:
        line = (await ran(a_plan(server.url))).line

    assert (line["ending"], line["status"], line["code"]) == ("refused", 404, "model_not_found")
    assert len(server.requests) == 1


async def test_a_refusal_without_a_code_is_told_by_its_status() -> None:
    head = b"HTTP/1.1 400 Bad\r\ncontent-length: 5\r\n\r\nwrong"
    async with ScriptedServer(head) as server:
        assert (await ran(a_plan(server.url))).line["code"] == "http_400"


async def test_a_request_is_tried_three_times_at_most_and_says_which_try_it_is() -> None:
    async with ScriptedServer(answer(429, code="slow_down", headers=SOON)) as server:
        ran_ = await ran(a_plan(server.url))

    assert (ran_.line["ending"], ran_.line["retries"]) == ("refused", 2)
    assert [headers["x-stainless-retry-count"] for headers, _ in server.requests] == ["0", "1", "2"]
    assert len({json.dumps(body) for _, body in server.requests}) == 1
    total = ran_.data["total"]
    assert (total["refused_by_code"], total["retries_by_code"]) == ({"slow_down": 1}, {"slow_down": 2})


async def test_latency_counts_over_all_tries() -> None:
    slow = answer(503, headers={"retry-after-ms": "60"})
    async with ScriptedServer(slow, stream(token("a"), DONE)) as server:
        line = (await ran(a_plan(server.url))).line

    assert (line["ending"], line["retries"]) == ("completed", 1)
    assert line["sent_s"] - line["begun_s"] >= 0.06
    assert line["scheduled_s"] == 0.0


async def test_a_server_that_forbids_another_try_gets_none() -> None:
    async with ScriptedServer(answer(429, headers={"x-should-retry": "false", **SOON})) as server:
        assert (await ran(a_plan(server.url))).line["retries"] == 0


async def test_a_server_that_asks_for_one_gets_it() -> None:
    again = answer(400, headers={"x-should-retry": "true", **SOON})
    async with ScriptedServer(again, stream(token("a"), DONE)) as server:
        assert (await ran(a_plan(server.url))).line["ending"] == "completed"


async def test_a_connection_closed_without_a_word_is_tried_again() -> None:
    async with ScriptedServer(b"", stream(token("a"), DONE)) as server:
        ran_ = await ran(a_plan(server.url))

    # There is no header to ask for a shorter wait: half a second, less up to a quarter.
    assert (ran_.line["ending"], ran_.line["retries"]) == ("completed", 1)
    assert ran_.line["sent_s"] >= 0.375
    assert ran_.data["total"]["retries_by_code"] == {"connection_lost": 1}


async def test_a_server_that_is_not_there_is_unreached() -> None:
    ran_ = await ran(a_plan(f"http://127.0.0.1:{free_port()}", retries_most=0))

    assert (ran_.line["ending"], ran_.line["status"]) == ("unreached", None)
    assert ran_.data["total"]["unreached_by_code"] == {"connection_refused": 1}


async def test_what_is_not_http_is_unreached() -> None:
    async with ScriptedServer(b"SSH-2.0-server\r\n") as server:
        assert (await ran(a_plan(server.url, retries_most=0))).line["code"] == "not_http"


@pytest.mark.timing
@pytest.mark.parametrize("behaviour", [Behaviour(hang_before_head=True), Behaviour(hang_after=0)])
async def test_a_client_out_of_patience_leaves_and_the_server_sees_it(behaviour: Behaviour) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = behaviour
        line = (await ran(a_plan(engine.url, patience_s=3.0))).line
        async with asyncio.timeout(60):
            await engine.requests[0].client_left.wait()

    assert (line["ending"], line["retries"], line["code"]) == ("abandoned", 0, None)
    assert line["end_s"] >= 2.99


@pytest.mark.timing
async def test_patience_ends_with_the_first_token() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=2, hang_after=1)
        running = asyncio.create_task(ran(a_plan(engine.url, patience_s=3.0)))
        request = await engine.next_request()
        await request.hung.wait()
        await asyncio.sleep(3.2)  # Longer than patience lasts: what must not happen has no event.
        request.resume.set()
        line = (await running).line

    assert (line["ending"], line["output_tokens"]) == ("completed", 2)


async def test_patience_goes_on_between_tries() -> None:
    async with ScriptedServer(answer(503, headers={"retry-after": "60"})) as server:
        line = (await ran(a_plan(server.url, patience_s=3.0))).line

    assert (line["ending"], line["retries"], len(server.requests)) == ("abandoned", 1, 1)


async def test_connections_are_used_again() -> None:
    async with FakeEngine() as engine:
        # A request that is due while another one runs waits for its connection instead of opening a second one.
        ran_ = await ran(a_plan(engine.url, a_schedule(0.0, 0.0, 0.0), connections_most=1))

        assert engine.connections_total == 1
    assert [line["ending"] for line in ran_.lines] == ["completed"] * 3


async def test_a_server_that_closes_is_connected_to_anew() -> None:
    async with ScriptedServer(stream(token("a"), DONE), close_after=True) as server:
        ran_ = await ran(a_plan(server.url, a_schedule(0.0, 0.3)))

    assert ([line["ending"] for line in ran_.lines], server.connections) == (["completed"] * 2, 2)


async def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    body = f"data: {token('a')}\n\ndata: [DONE]\n\n".encode()
    async with ScriptedServer(head + body, close_after=True) as server:
        assert (await ran(a_plan(server.url))).line["ending"] == "completed"


async def test_interim_answers_are_passed_over() -> None:
    async with ScriptedServer(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + stream(token("a"), DONE)) as server:
        assert (await ran(a_plan(server.url))).line["ending"] == "completed"


async def test_the_request_id_is_the_server_s() -> None:
    async with ScriptedServer(answer(400, headers={"x-request-id": "req_1"})) as server:
        assert (await ran(a_plan(server.url))).line["request_id"] == "req_1"


async def test_classes_tiers_and_keys_reach_the_server() -> None:
    sender = a_sender(service_class="batch", tier="flex", key="sk-1")
    async with FakeEngine(api_key="sk-1") as engine:
        line = (await ran(a_plan(engine.url, senders=[sender]))).line
        request = engine.requests[0]

    assert (line["ending"], line["class"]) == ("completed", "batch")
    assert request.headers["x-headgate-class"] == "batch"
    assert request.json["service_tier"] == "flex"


async def test_a_silent_try_is_asked_again_beside_itself() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_before_head=True)
        running = asyncio.create_task(ran(a_plan(engine.url, ask_again_s=0.01, retries_most=2, patience_s=3.0)))
        tries = [await engine.next_request() for _ in range(3)]
        line = (await running).line

    assert [each.headers["x-stainless-retry-count"] for each in tries] == ["0", "1", "2"]
    assert (line["ending"], line["retries"]) == ("abandoned", 0)


async def test_who_has_its_first_token_is_not_asked_again() -> None:
    async with FakeEngine() as engine:
        line = (await ran(a_plan(engine.url, ask_again_s=3.0))).line

        assert len(engine.requests) == 1
    assert line["ending"] == "completed"
