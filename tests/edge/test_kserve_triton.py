"""Tests for tensors and text from a real Triton server, using the Triton and OpenAI clients."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_watch import EngineWatch
from headgate.engines.http_engine import metrics_url
from headgate.engines.metrics_page import read_metrics
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop, text_of
from testing.real_engines import ROOT, RealEngine, environment_of
from testing.real_triton import triton

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]

CLIENT = ROOT / "testing/kserve_client.py"
DELAY_MS = 400
EARLY_S = 10.0
"""Timeout in seconds. Much longer than the model takes to stop, and shorter than a long response."""
TRIES = 4
"""Number of attempts. If the machine stalls, `EARLY_S` may pass, or a response may end before the disconnect."""

patient_gateway = partial(gateway_in_loop, open_watch=partial(EngineWatch, timeout_s=60.0))
"""A gateway that tolerates probes delayed by up to 60 s."""


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with triton("embed", "llm", "text") as engine:
        yield engine


def config(engine: RealEngine, model: str, dialect: str = "triton", **settings: Any) -> Config:
    return a_config(engine.url, engine=dialect, served_model=model, **settings)


def tensors(text: str = "hello", **parameters: object) -> dict[str, object]:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return {"inputs": [tensor]} | ({"parameters": parameters} if parameters else {})


async def infer(gateway: GatewayInLoop, **parameters: object) -> int:
    async with gateway.post(tensors(**parameters), "/v2/models/m/infer") as answer:
        await answer.read()
        return answer.status


async def figures(gateway: GatewayInLoop, engine: RealEngine) -> dict[str, float]:
    async with gateway.http.get(metrics_url(engine.url, DIALECTS["triton"]) + "/metrics") as answer:
        page = await answer.read()
    names = {f'nv_inference_{what}{{model="embed"}}': what for what in ("count", "exec_count", "pending_request_count")}
    return {names[name]: found.total for name, found in read_metrics(page, names).items()}


async def test_triton_client_works_through_the_gateway(engine: RealEngine, tmp_path: Path) -> None:
    async with gateway_in_loop(config(engine, "embed"), tmp_path) as gateway:
        python = environment_of("triton") / "bin/python"
        address = gateway.url.removeprefix("http://")
        process = await asyncio.create_subprocess_exec(
            python, CLIENT, address, "m", "a", "ab", stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
    seen = json.loads(printed)

    embeddings = [[97.0, *[0.0] * 7], [97.0, 98.0, *[0.0] * 6]]
    assert (seen["binary"], seen["json"]) == (embeddings, embeddings)
    assert (seen["server"], seen["live"], seen["ready"]) == ("headgate", True, True)
    assert (seen["model_ready"], seen["other_ready"], seen["inputs"]) == (True, False, ["text"])
    assert "unexpected inference input 'nothing' for model 'embed'" in seen["refusal"]


async def test_concurrent_requests_are_run_in_batches(engine: RealEngine, tmp_path: Path) -> None:
    async with gateway_in_loop(config(engine, "embed", in_flight_max=16), tmp_path) as gateway:
        before = await figures(gateway, engine)
        # A run lasts long enough for the other requests to arrive, even on a busy machine.
        statuses = await asyncio.gather(*(infer(gateway, delay_ms=DELAY_MS) for _ in range(64)))
        async with asyncio.timeout(60):
            while (after := await figures(gateway, engine))["count"] < before["count"] + 64:
                await asyncio.sleep(0.02)

    inferences, runs = (after[each] - before[each] for each in ("count", "exec_count"))
    print(f"{runs:.0f} runs for {inferences:.0f} requests")
    assert statuses == [200] * 64
    assert inferences == 64
    assert runs <= 64 / 2, f"{runs} runs for 64 requests, 16 at a time"


async def test_gateway_sees_requests_queued_in_triton(engine: RealEngine, tmp_path: Path) -> None:
    settings = config(engine, "embed", in_flight_max=32)
    async with patient_gateway(settings, tmp_path) as gateway:

        async def waiting() -> int:
            async with gateway.http.get(metrics_url(engine.url, DIALECTS["triton"]) + "/metrics") as answer:
                found = read_metrics(await answer.read(), ["nv_inference_pending_request_count"])
            return int(found["nv_inference_pending_request_count"].total)

        asked, seen = 0, False
        async with asyncio.timeout(120):
            while not seen:
                asking = [asyncio.create_task(infer(gateway, delay_ms=DELAY_MS)) for _ in range(24)]
                asked += 24
                # All requests may end while this process is stalled.
                while not (seen := await waiting() > 0) and not all(each.done() for each in asking):
                    await asyncio.sleep(0.02)
                assert await asyncio.gather(*asking) == [200] * 24
        status = await gateway.wait_for_status(
            lambda found: found["engines"][0]["telemetry"]["extra"].get("requests_succeeded", 0) >= asked,
        )

    told = status["engines"][0]
    assert told["signals"] == {"waiting": "nv_inference_pending_request_count"}
    assert told["telemetry"]["extra"]["queue_us"] > 0
    assert told["problems"] == []
    assert told["version"] == "2.51.0"


async def test_openai_client_chats_with_a_text_model(engine: RealEngine, tmp_path: Path) -> None:
    async with gateway_in_loop(config(engine, "llm", "triton_trtllm"), tmp_path) as gateway:
        client = openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)
        async with client:
            whole = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=4
            )
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            completion = await client.completions.create(model="m", prompt="once upon", max_tokens=2)

    assert whole.choices[0].message.content == " w0 w1 w2 w3"
    assert whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == " w0 w1 w2 w3"
    assert completion.choices[0].text == " w0 w1"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (2, 2)


async def test_model_without_usage_gets_an_estimate(engine: RealEngine, tmp_path: Path) -> None:
    async with gateway_in_loop(config(engine, "text"), tmp_path) as gateway:
        async with gateway.post(chat("hi", max_tokens=5, temperature=0.5)) as answer:
            whole = await answer.json()
        async with gateway.post(chat("hi", stream=True)) as answer:
            streamed = await answer.read()

    said = whole["choices"][0]["message"]["content"]
    assert said.startswith("User: hi\n\nAssistant: {")
    assert json.loads(said.removeprefix("User: hi\n\nAssistant:")) == {
        "max_tokens": 5,
        "temperature": 0.5,
        "stream": True,
    }
    assert whole["usage"]["usage_source"] == "estimated"
    assert text_of(streamed).startswith("User: hi")


@pytest.mark.parametrize(("word", "status"), [("refuse", 400), ("fail", 502)])
async def test_model_rejections_and_failures_are_distinguished(
    word: str, status: int, engine: RealEngine, tmp_path: Path
) -> None:
    patient = config(engine, "llm", "triton_trtllm", health={"consecutive_failures_max": 100})
    async with gateway_in_loop(patient, tmp_path) as gateway:
        async with gateway.post(chat(f"please {word} this", max_tokens=8)) as answer:
            assert answer.status == status
            whole = await answer.json()
        async with gateway.post(chat(f"please {word} this", max_tokens=8, stream=True)) as answer:
            streamed = await answer.text()

    if word == "refuse":
        assert (answer.status, whole["error"]["type"]) == (400, "invalid_request_error")
        assert whole["error"]["message"].endswith("exceeds maximum input length (2048)")
        assert "data:" not in streamed
    else:
        assert whole["error"]["code"] == "engine_error"
        assert "stream_interrupted" in streamed
        assert "[DONE]" not in streamed


async def test_disconnecting_client_frees_the_engine_before_the_response_is_complete(
    engine: RealEngine, tmp_path: Path
) -> None:
    async with gateway_in_loop(config(engine, "llm", "triton_trtllm"), tmp_path) as gateway:

        async def running() -> int:
            name = 'nv_trt_llm_request_metrics{request_type="scheduled"}'
            async with gateway.http.get(metrics_url(engine.url, DIALECTS["triton"]) + "/metrics") as answer:
                return int(read_metrics(await answer.read(), [name])[name].total)

        async def until(count: int, *, seconds_max: float) -> None:
            async with asyncio.timeout(seconds_max):
                while await running() != count:
                    await asyncio.sleep(0.02)

        async def attempt(*, stream: bool) -> None:
            asking = asyncio.create_task(_ask(gateway, stream=stream))
            try:
                await until(before + 1, seconds_max=30)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await until(before, seconds_max=EARLY_S)

        # The counter may start above zero, because several threads update it and earlier tests used this model.
        before = await running()
        for stream in (True, False):
            for left in reversed(range(TRIES)):
                try:
                    await attempt(stream=stream)
                    break
                except TimeoutError:
                    if not left:
                        raise
                    await until(before, seconds_max=120)
        await gateway.wait_until_idle()


async def _ask(gateway: GatewayInLoop, *, stream: bool) -> None:
    async with gateway.post(chat(max_tokens=3000, stream=stream)) as answer:
        await answer.read()
