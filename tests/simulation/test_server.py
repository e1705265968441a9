"""Tests that the simulated engine's HTTP API behaves like vLLM."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from headgate.hosts.local.clock import SystemClock
from headgate.model.engine_profile import TINY
from headgate.simulation.server.record import read_record
from headgate.simulation.server.run import run_engines
from tests.simulation.servers import CHAT, Running, an_engine, events_of, slow, some_options, text_of

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
HELLO: Any = [{"role": "user", "content": "Say hello."}]


async def test_openai_client_streams_a_chat() -> None:
    async with an_engine() as engine, openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    *told, last = chunks
    assert [chunk.choices[0].delta.role for chunk in told[:2]] == ["assistant", None]
    assert [chunk.choices[0].finish_reason for chunk in told] == [None] * 8 + ["length"]
    assert all(chunk.choices[0].delta.content for chunk in told[1:])
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (4, 8, 12)


async def test_openai_client_gets_the_same_response_without_streaming() -> None:
    async with an_engine() as engine, openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(model="m", messages=HELLO)
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert whole.choices[0].message.content == said
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    # The end-of-sequence token has no text.
    assert whole.usage.completion_tokens == len(said.split()) + 1


async def test_openai_client_gets_completions_embeddings_and_models() -> None:
    async with an_engine() as engine, openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        completion = await client.completions.create(model="m", prompt=["Once", "upon"], n=2, max_tokens=3)
        vectors = await client.embeddings.create(model="m", input=["a", "b", "a"])
        models = await client.models.list()

    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 12
    first, second, third = (each.embedding for each in vectors.data)
    assert first == third != second
    assert vectors.usage.prompt_tokens == 3
    assert [model.id for model in models.data] == ["m"]


async def test_multiple_choices_are_treated_as_separate_sequences() -> None:
    async with an_engine() as engine:
        async with engine.chat(n=3, max_tokens=5, ignore_eos=True, stream=True) as answer:
            events = events_of(await answer.read())
        generated = await engine.metric("vllm:generation_tokens_total")

    finished = [event["choices"][0] for event in events[:-1] if event["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in finished) == [0, 1, 2]
    assert generated == 15
    assert len({text_of(events, index) for index in range(3)}) == 3


async def test_stream_has_one_event_per_token_and_no_usage_by_default() -> None:
    async with an_engine() as engine:
        async with engine.chat(stream=True, max_tokens=6, ignore_eos=True) as answer:
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            events = events_of(await answer.read())

    assert events[-1] == "[DONE]"
    assert len(events) == 1 + 6 + 1
    assert not any("usage" in event for event in events[:-1])


async def test_each_chunk_includes_usage_if_requested() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with an_engine() as engine:
        async with engine.chat(stream=True, max_tokens=3, ignore_eos=True, stream_options=options) as answer:
            events = events_of(await answer.read())

    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [0, 1, 2, 3, 3]


async def test_engine_omits_usage_if_configured() -> None:
    async with an_engine(reports_usage=False) as engine:
        async with engine.chat(stream=True, max_tokens=2, stream_options={"include_usage": True}) as answer:
            events = events_of(await answer.read())
        async with engine.chat(max_tokens=2) as answer:
            whole = await answer.json()

    assert not any("usage" in event for event in [*events[:-1], whole])


async def test_output_lengths_depend_only_on_the_prompt_and_the_seed() -> None:
    async def lengths(seed: int) -> list[int]:
        async with an_engine(seed=seed) as engine:
            found: list[int] = []
            for content in ("one", "two", "three"):
                async with engine.chat(content) as answer:
                    found.append((await answer.json())["usage"]["completion_tokens"])
            return found

    assert await lengths(1) == await lengths(1) != await lengths(2)


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({"max_tokens": 5}, 1, 5),
        ({"min_tokens": 400, "max_tokens": 500}, 400, 500),
        ({"max_completion_tokens": 1}, 1, 1),
    ],
)
async def test_output_length_is_within_the_requested_limits(fields: dict[str, int], least: int, most: int) -> None:
    async with an_engine(speed_up=100.0) as engine, engine.chat(**fields) as answer:
        tokens = (await answer.json())["usage"]["completion_tokens"]

    assert least <= tokens <= most


MISTAKES = [
    pytest.param({"messages": "nope"}, 400, "body.messages", id="messages of invalid type"),
    pytest.param({"messages": []}, 400, "body.messages", id="empty messages"),
    pytest.param({}, 400, "body.messages", id="messages missing"),
    pytest.param({"messages": HELLO, "temperature": "hot"}, 400, "body.temperature", id="field of invalid type"),
    pytest.param({"messages": HELLO, "max_tokens": -5}, 400, "max_tokens", id="negative max_tokens"),
    pytest.param({"messages": HELLO, "max_tokens": 5000}, 400, "max_tokens", id="max_tokens above context length"),
    pytest.param({"messages": HELLO, "n": 0}, 400, "n", id="zero choices"),
    pytest.param({"messages": HELLO, "model": "other"}, 404, "model", id="unknown model"),
    pytest.param(
        {"messages": [{"role": "user", "content": "word " * 6000}]}, 400, "input_tokens", id="prompt too long"
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "status", "param"), MISTAKES)
async def test_invalid_request_is_rejected_before_the_stream(
    body: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    async with an_engine() as engine, engine.post(**body, stream=stream) as answer:
        told = await answer.json()

    assert answer.status == status
    assert (told["error"]["param"], told["error"]["code"]) == (param, status)


async def test_invalid_json_returns_a_bad_request() -> None:
    async with an_engine() as engine, engine.http.post(engine.url + CHAT, data=b'{"model": ') as answer:
        assert answer.status == 400


async def test_images_are_counted_as_the_configured_number_of_tokens() -> None:
    picture = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    messages = [{"role": "user", "content": picture}]
    async with an_engine() as engine, engine.post(messages=messages, max_tokens=1) as answer:
        assert answer.status == 400
    async with an_engine(image_tokens=500) as engine, engine.post(messages=messages, max_tokens=1) as answer:
        assert (await answer.json())["usage"]["prompt_tokens"] == 505


async def test_other_paths_respond_as_in_vllm() -> None:
    async with an_engine(serves_embeddings=False) as engine:
        found: dict[str, tuple[int, str]] = {}
        for path in ("/health", "/version", "/v1/models", "/props", CHAT, "/v1/embeddings"):
            async with engine.http.get(engine.url + path) as answer:
                found[path] = (answer.status, await answer.text())

    assert found["/health"] == (200, "")
    assert found["/props"] == found["/v1/embeddings"] == (404, '{"detail":"Not Found"}')
    assert found[CHAT] == (405, '{"detail":"Method Not Allowed"}')
    assert json.loads(found["/version"][1])["version"].startswith("0.32")
    assert json.loads(found["/v1/models"][1])["data"][0]["max_model_len"] == TINY.context_tokens


async def test_metrics_have_the_same_names_and_values_as_in_vllm() -> None:
    long = "The same beginning of every prompt. " * 10
    async with an_engine() as engine:
        for content in (long + "one", long + "two"):
            async with engine.chat(content, max_tokens=4, ignore_eos=True) as answer:
                await answer.read()
        found = {
            name: await engine.metric(f"vllm:{name}")
            for name in (
                "prefix_cache_hits_total",
                "prefix_cache_queries_total",
                "prompt_tokens_total",
                "generation_tokens_total",
                "num_preemptions_total",
                "kv_cache_usage_perc",
                "request_queue_time_seconds_count",
                "time_to_first_token_seconds_count",
                "inter_token_latency_seconds_count",
                "cache_config_info",
            )
        }

    prompts = 2 * -(-(len("user\n" + long) + 3) // 4)
    assert found == {
        "prefix_cache_hits_total": (len("user\n" + long) // 64) * 16,
        "prefix_cache_queries_total": prompts,
        "prompt_tokens_total": prompts,
        "generation_tokens_total": 8,
        "num_preemptions_total": 0,
        "kv_cache_usage_perc": 0,
        "request_queue_time_seconds_count": 2,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 6,
        "cache_config_info": 1,
    }


async def test_prompts_with_different_cache_salts_share_no_blocks() -> None:
    async with an_engine() as engine:
        for salt in ("a", "b"):
            async with engine.chat("word " * 100, max_tokens=1, cache_salt=salt) as answer:
                await answer.read()

        assert await engine.metric("vllm:prefix_cache_hits_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_client_disconnect_frees_its_slot_and_blocks(stream: bool) -> None:
    async with an_engine(profile=slow()) as engine:
        asking = asyncio.create_task(engine.chat(stream=stream, max_tokens=1000, ignore_eos=True).__aenter__())
        await engine.until(RUNNING, 1)
        if stream:
            (await asking).close()
        else:
            asking.cancel()

        await engine.until(RUNNING, 0)
        assert await engine.metric("vllm:kv_cache_usage_perc") == 0


async def test_waiting_request_is_removed_after_its_client_disconnects() -> None:
    async with an_engine(profile=slow(sequences_max=1)) as engine:
        first = await engine.chat(stream=True, max_tokens=1000, ignore_eos=True).__aenter__()
        second = await engine.chat(stream=True, max_tokens=1000, ignore_eos=True).__aenter__()
        await engine.until(WAITING, 1)
        second.close()
        await engine.until(WAITING, 0)

        assert await engine.metric(RUNNING) == 1
        first.close()


async def test_two_hundred_concurrent_streams_are_complete() -> None:
    async def one(engine: Running, number: int) -> int:
        async with engine.chat(f"question {number}", stream=True, max_tokens=20, ignore_eos=True) as answer:
            events = events_of(await answer.read())
        assert events[-1] == "[DONE]"
        return len(text_of(events).split())

    async with an_engine(profile=replace(TINY, sequences_max=64)) as engine:
        counts = await asyncio.gather(*(one(engine, number) for number in range(200)))

    assert counts == [20] * 200


async def test_record_contains_the_outcome_and_times_of_each_request(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    async with an_engine(record_path=path) as engine:
        headers = {"x-request-id": "mine"}
        body = {"messages": HELLO, "max_tokens": 10, "ignore_eos": True, "stream": True}
        async with engine.http.post(engine.url + CHAT, json=body, headers=headers) as answer:
            await answer.read()
        async with engine.chat(stream=True, max_tokens=2000, ignore_eos=True) as answer:
            await answer.content.readany()
        await engine.until(RUNNING, 0)

    done, left = read_record(path)
    assert (done["outcome"], done["request_id"], done["output_tokens"], done["prompt_tokens"]) == (
        "finished",
        "mine",
        10,
        4,
    )
    assert left["outcome"] == "disconnected"
    arrived, begun, first, ended = (done[f"{each}_ns"] for each in ("arrived", "started", "first_token", "ended"))
    assert isinstance(arrived, int)
    assert arrived == begun
    # Ten steps of slightly more than a millisecond each, in engine time.
    assert isinstance(first, int)
    assert isinstance(ended, int)
    assert 1_000_000 < first - arrived < 1_100_000
    assert 10_000_000 < ended - arrived < 11_000_000


async def test_several_engines_run_in_one_process() -> None:
    options = [some_options(number=number, model=f"m{number}") for number in range(3)]
    async with run_engines(options, SystemClock()) as servers, aiohttp.ClientSession() as http:
        found: list[str] = []
        for server in servers:
            async with http.get(server.url + "/v1/models") as answer:
                found.append((await answer.json())["data"][0]["id"])

    assert found == ["m0", "m1", "m2"]


async def test_engine_requires_its_key_only_under_v1() -> None:
    async with an_engine(api_key="right") as engine:
        asked = {
            (path, key): (await engine.http.get(engine.url + path, headers={"authorization": f"Bearer {key}"})).status
            for path in ("/health", "/v1/models")
            for key in ("right", "wrong")
        }

    assert asked == {
        ("/health", "right"): 200,
        ("/health", "wrong"): 200,
        ("/v1/models", "right"): 200,
        ("/v1/models", "wrong"): 401,
    }
