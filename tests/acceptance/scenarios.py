"""Scenarios that every real engine must pass through the gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import APIError, AsyncOpenAI

from testing.gateway import CHAT, NO_TARGETS, Config, RunningGateway, a_config, chat, gateway_process_with_client
from testing.real_engines import RealEngine

PROMPT = [{"role": "user", "content": "Count from one to fifty in words."}]
# Both engines accept this field, which the official client does not have. With it, output always reaches max_tokens.
TO_THE_LAST = {"ignore_eos": True}
# Greedy sampling makes the text reproducible.
SURE = {"temperature": 0}
Probe = Callable[[RealEngine], int]
"""Returns the number of requests that an engine reports as running."""


def config_for(*engines: RealEngine, dialect: str, in_flight_max: int = 4, **settings: object) -> Config:
    urls = [engine.url for engine in engines]
    return a_config(
        *urls, engine=dialect, served_model=engines[0].model, in_flight_max=in_flight_max, model="chat", **settings
    )


def sdk(gateway: RunningGateway, **options: object) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url + "/v1", api_key="unused", **options)


async def the_sdk_streams_a_chat(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_process_with_client(config_for(engine, dialect=dialect), folder) as (gateway, _):
        async with sdk(gateway) as client:
            stream = await client.chat.completions.create(
                model="chat",
                messages=PROMPT,
                stream=True,
                max_tokens=16,
                stream_options={"include_usage": True},
                extra_body=TO_THE_LAST | SURE,
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            whole = await client.chat.completions.create(
                model="chat", messages=PROMPT, max_tokens=16, extra_body=TO_THE_LAST
            )
            legacy = await client.completions.create(
                model="chat", prompt="One, two,", max_tokens=4, extra_body=TO_THE_LAST | SURE
            )
            models = [model.id async for model in client.models.list()]
        await gateway.wait_until_idle()

    assert text.strip()
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    assert legacy.choices[0].text
    assert models == ["chat"]


async def the_sdk_streams_a_response(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_process_with_client(config_for(engine, dialect=dialect), folder) as (gateway, _):
        async with sdk(gateway) as client:
            stream = await client.responses.create(
                model="chat", input="Count to fifty in words.", max_output_tokens=12, stream=True, extra_body=SURE
            )
            events = [event async for event in stream]
            whole = await client.responses.create(
                model="chat", input="Count to fifty.", max_output_tokens=12, extra_body=SURE
            )
        await gateway.wait_until_idle()
        counted = (await gateway.status())["counted"]["classes"]["interactive"]

    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text.strip()
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert whole.output_text.strip()
    assert whole.usage is not None
    assert 1 <= whole.usage.output_tokens <= 12
    assert counted["ended"] == {"completed": 2}


async def a_class_caps_what_is_asked_and_says_so(engine: RealEngine, dialect: str, folder: Path) -> None:
    config = config_for(engine, dialect=dialect)
    config["classes"] = {"interactive": {**NO_TARGETS, "priority_band": 0, "caps": {"output_tokens": 6, "n": 1}}}
    async with gateway_process_with_client(config, folder) as (gateway, _):
        async with sdk(gateway) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="chat", messages=PROMPT, max_tokens=64, n=3, extra_body=TO_THE_LAST | {"priority": 3}
            )
        answer = raw.parse()

    assert raw.headers["x-headgate-degraded"] == "output_tokens=6, n=1"
    assert len(answer.choices) == 1
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


async def sixteen_callers_on_four_slots_end_truthfully(engine: RealEngine, dialect: str, folder: Path) -> None:
    config = config_for(engine, dialect=dialect)
    config["classes"] = {"interactive": {**NO_TARGETS, "priority_band": 0, "queue_wait_max": "150s"}}
    in_flight: list[int] = []
    async with gateway_process_with_client(config, folder) as (gateway, _):

        async def watch() -> None:
            while True:
                [endpoint] = (await gateway.status())["endpoints"]
                in_flight.append(endpoint["in_flight"])
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        async with sdk(gateway, max_retries=0, timeout=200) as client:
            texts = await asyncio.gather(*(collect(client, max_tokens=12) for _ in range(16)))
            while max(in_flight, default=0) < 4:
                # This process did not poll often enough to see all four slots in use.
                texts += await asyncio.gather(*(collect(client, max_tokens=12) for _ in range(16)))
        watching.cancel()
        await gateway.wait_until_idle()

    assert {finish for _, finish in texts} == {"length"}
    assert max(in_flight) == 4


async def a_caller_who_leaves_frees_the_slot(engine: RealEngine, dialect: str, folder: Path, running: Probe) -> float:
    """Seconds from the disconnect until the engine reports no running requests."""
    async with gateway_process_with_client(config_for(engine, dialect=dialect), folder) as (gateway, _):
        async with gateway.post(
            chat("Tell a very long story.", model="chat", stream=True, max_tokens=1_500, **TO_THE_LAST)
        ) as answer:
            await answer.content.readany()
            assert await asyncio.to_thread(running, engine) == 1
            answer.close()
        took = await until_none_runs(engine, running)
        await gateway.wait_until_idle()
    return took


async def a_caller_who_leaves_frees_the_slot_beside_a_stream(
    engine: RealEngine, dialect: str, folder: Path, running: Probe, *, prompt: str, after_s: float, streamed: bool
) -> float:
    """Seconds from the disconnect until the engine is running only the stream. The client disconnects `after_s` seconds
    after the engine has started its request.
    """
    async with gateway_process_with_client(config_for(engine, dialect=dialect, in_flight_max=2), folder) as (
        gateway,
        _,
    ):
        story = chat("Tell a very long story.", model="chat", stream=True, max_tokens=1_500, **TO_THE_LAST)
        async with gateway.post(story) as stream:
            await stream.content.readany()
            asked = chat(prompt, model="chat", stream=streamed, max_tokens=400, **TO_THE_LAST)
            leaving = asyncio.create_task(gateway.http.post(gateway.url + CHAT, json=asked))
            await until_so_many_run(2, engine, running)
            await asyncio.sleep(after_s)
            leaving.cancel()
            took = await until_so_many_run(1, engine, running)
            await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
            assert await stream.content.readany(), "the other stream must continue"
            stream.close()
        await until_none_runs(engine, running)
    return took


async def until_none_runs(engine: RealEngine, running: Probe) -> float:
    return await until_so_many_run(0, engine, running)


async def until_so_many_run(count: int, engine: RealEngine, running: Probe) -> float:
    loop = asyncio.get_running_loop()
    left = loop.time()
    while await asyncio.to_thread(running, engine) != count:
        assert loop.time() - left < 60, f"the engine did not reach {count} running requests within 60 s"
        await asyncio.sleep(0.05)
    return loop.time() - left


async def an_engine_killed_mid_run_costs_only_what_it_was_sending(
    first: RealEngine, second: RealEngine, dialect: str, folder: Path
) -> None:
    config = config_for(first, second, dialect=dialect, in_flight_max=2)
    config["classes"] = {"interactive": {**NO_TARGETS, "priority_band": 0, "queue_wait_max": "150s"}}
    async with gateway_process_with_client(config, folder) as (gateway, _):
        async with sdk(gateway, max_retries=0, timeout=200) as client:
            killed, ends = False, list[str | None]()
            while not killed:
                async with frozen_in_streams(
                    client, gateway, 8, begun=4, max_tokens=96, engines=(first, second)
                ) as streams:
                    if killed := streams.under_way:
                        first.process.kill()
                ends = await asyncio.gather(*streams.calls)
        await gateway.wait_until_idle()
        async with gateway.http.get(gateway.admin_url + "/metrics") as page:
            metrics = await page.text()

    # The killed engine was sending two streams, which end with an error. The other engine serves the rest. Requests
    # that had not yet received a first token from the killed engine are retried.
    assert sorted(ends) == ["length"] * 6 + ["stream_interrupted"] * 2
    retried = [line for line in metrics.splitlines() if line.startswith("headgate_retries_total{")]
    assert sum(float(line.split()[-1]) for line in retried) >= 1


async def sigterm_severs_nothing(engine: RealEngine, dialect: str, folder: Path) -> None:
    config = config_for(engine, dialect=dialect, in_flight_max=2, drain_grace="150s")
    config["classes"] = {"interactive": {**NO_TARGETS, "priority_band": 0, "queue_wait_max": "150s"}}
    async with gateway_process_with_client(config, folder) as (gateway, process):
        async with sdk(gateway, max_retries=0, timeout=200) as client:
            terminated, ends = False, list[str | None]()
            while not terminated:
                async with frozen_in_streams(client, gateway, 4, begun=2, max_tokens=64, engines=(engine,)) as streams:
                    if terminated := streams.under_way:
                        await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 2)
                        process.terminate()
                        await gateway.wait_for_status(lambda status: status["draining"])
                        async with gateway.post(chat(model="chat")) as turned:
                            assert turned.status == 503
                ends = await asyncio.gather(*streams.calls)
        status = await asyncio.to_thread(process.wait_until_ended)

    assert ends == ["length"] * 4
    assert status == 0


async def an_image_for_a_model_without_eyes_is_refused(engine: RealEngine, dialect: str, folder: Path) -> None:
    """Check that an unsupported image is rejected but does not count against the engine's health."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    body = chat(model="chat", max_tokens=4)
    body["messages"][0]["content"] = [{"type": "text", "text": "What is this?"}, picture]
    async with gateway_process_with_client(config_for(engine, dialect=dialect), folder) as (gateway, _):
        for _ in range(5):
            async with gateway.post(body) as answer:
                assert answer.headers["x-headgate-attempts"] == "1"
                assert answer.headers["x-should-retry"] == "false"
        [endpoint] = (await gateway.status())["endpoints"]

    assert endpoint["state"] == "ready"


async def embeddings_pass_through(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_process_with_client(config_for(engine, dialect=dialect), folder) as (gateway, _):
        async with sdk(gateway) as client:
            found = await client.embeddings.create(model="chat", input=["a cat", "a dog"])

    assert len(found.data) == 2
    assert len(found.data[0].embedding) > 100
    assert found.usage.prompt_tokens > 0


@dataclass(frozen=True, slots=True)
class Streams:
    calls: list[asyncio.Task[str | None]]
    under_way: bool
    """Whether exactly the expected streams had started, and none had ended, when the engines were frozen."""


@asynccontextmanager
async def frozen_in_streams(
    client: AsyncOpenAI,
    gateway: RunningGateway,
    count: int,
    *,
    begun: int,
    max_tokens: int,
    engines: Sequence[RealEngine],
) -> AsyncIterator[Streams]:
    """Start `count` streams and freeze the engines once `begun` of them have started.

    If this process stalls, streams may end before the engines are frozen, and the caller has to try again.
    """
    started = asyncio.Semaphore(0)
    calls = [asyncio.create_task(outcome(client, started, max_tokens=max_tokens)) for _ in range(count)]
    for _ in range(begun):
        await started.acquire()
    for engine in engines:
        engine.process.freeze()
    try:
        # Let the gateway and then this process read everything that the engines sent before the freeze.
        await gateway.status()
        await asyncio.sleep(0.3)
        yield Streams(calls, started.locked() and not any(call.done() for call in calls))
    finally:
        for engine in engines:
            engine.process.thaw()


async def collect(client: AsyncOpenAI, *, max_tokens: int) -> tuple[str, str | None]:
    stream = await client.chat.completions.create(
        model="chat", messages=PROMPT, stream=True, max_tokens=max_tokens, extra_body=TO_THE_LAST
    )
    text, finish = "", None
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    return text, finish


async def outcome(client: AsyncOpenAI, started: asyncio.Semaphore, *, max_tokens: int) -> str | None:
    """A stream's finish reason, or the error code it contains."""
    try:
        stream = await client.chat.completions.create(
            model="chat", messages=PROMPT, stream=True, max_tokens=max_tokens, extra_body=TO_THE_LAST
        )
        finish, first = None, True
        async for chunk in stream:
            if first:
                started.release()
                first = False
            finish = chunk.choices[0].finish_reason or finish
        return finish
    except APIError as error:
        return error.code
