"""Contract tests for the engine port, against fake, simulated and real engines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from headgate.core.events import EndpointMetricsReported, EndpointProbed, EndpointReady, Event
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_watch import EngineWatch
from headgate.engines.http_engine import HttpResponse
from headgate.model.ticket import Api
from headgate.model.units import EndpointId
from headgate.model.usage import UsageSource
from headgate.ports.engine import Call, Engine, EngineFault, EngineResponse, ProbeState
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import UsageFinder
from testing.fake_engine import Behaviour
from testing.real_engines import RealEngine
from tests.contracts.engines.subjects import Kind, Subject, a_real_engine, a_subject
from tests.engines.calls import a_call, read_all

E1 = EndpointId("e1")
KINDS = [
    pytest.param("fake"),
    pytest.param("simulated"),
    pytest.param("fake_triton"),
    # Starting a real engine counts towards the timeout of the first test that needs it.
    pytest.param("llamacpp", marks=[pytest.mark.llamacpp, pytest.mark.timeout(600)]),
    pytest.param("triton", marks=[pytest.mark.triton, pytest.mark.timeout(600)]),
    pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(1200)]),
]
LONG = {"max_tokens": 1500, "ignore_eos": True}
EARLY_S = 10.0
"""Timeout in seconds. Much longer than an engine needs to stop, and shorter than a `LONG` response."""
TRIES = 4
"""Number of attempts. If the machine stalls, `EARLY_S` may pass or a response may complete before it is cancelled."""
PATIENT_S = 60.0
"""Probe timeout in seconds, long enough that a stall on the machine does not count as a failed probe."""
IMAGE = {
    "type": "image_url",
    "image_url": {
        "url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
        "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    },
}


@pytest.fixture(scope="module", params=KINDS)
def kind_and_real(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, RealEngine | None]]:
    if request.param == "vllm":
        yield request.param, request.getfixturevalue("shared_vllm")
        return
    with a_real_engine(request.param) as real:
        yield request.param, real


@pytest.fixture
async def subject(kind_and_real: tuple[Kind, RealEngine | None]) -> AsyncIterator[Subject]:
    kind, real = kind_and_real
    async with a_subject(kind, real) as subject:
        yield subject
        await until_none_is_in_use(subject)


async def until_none_is_in_use(subject: Subject) -> None:
    """Waits until closed and drained connections are released."""
    async with asyncio.timeout(60):
        while subject.engines.in_use:
            await asyncio.sleep(0.01)


async def scanned(answer: EngineResponse) -> StreamScanner:
    scanner = StreamScanner(keep_usage_chunk=False)
    while data := await answer.read():
        scanner.feed(data)
    answer.close()
    return scanner


async def test_http_adapter_implements_the_engine_port(subject: Subject) -> None:
    engine: Engine = subject.engine
    asks: type[EngineResponse] = HttpResponse

    assert engine.ask
    assert asks.read


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
async def test_stream_ends_with_done_and_reports_usage(subject: Subject, api: Api) -> None:
    answer = await subject.engine.ask(a_call(api, stream=True, max_tokens=8, temperature=0, ignore_eos=True))
    scanner = await scanned(answer)

    assert answer.status == 200
    assert answer.content_type.startswith("text/event-stream")
    assert (scanner.done, scanner.error) == (True, None)
    assert scanner.usage is not None
    assert (scanner.usage.output_tokens, scanner.usage.source) == (8, UsageSource.ENGINE)
    assert scanner.events >= 1


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
async def test_streaming_and_non_streaming_responses_report_the_same_tokens(subject: Subject, api: Api) -> None:
    settings = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    streamed = (await scanned(await subject.engine.ask(a_call(api, stream=True, **settings)))).usage
    answer = await subject.engine.ask(a_call(api, **settings))
    finder = UsageFinder()
    finder.feed(await read_all(answer))
    whole = finder.usage

    assert answer.content_type.startswith("application/json")
    assert streamed is not None
    assert whole is not None
    assert (streamed.prompt_tokens, streamed.output_tokens) == (whole.prompt_tokens, whole.output_tokens)


async def test_relayed_stream_is_complete_and_its_connection_is_reused(subject: Subject) -> None:
    for _ in range(3):
        scanner = StreamScanner(keep_usage_chunk=False)

        def take(data: bytes, scanner: StreamScanner = scanner) -> bool:
            scanner.feed(data)
            return scanner.closed

        answer = await subject.engine.ask(a_call(stream=True, max_tokens=8, temperature=0, ignore_eos=True))
        await answer.stream_to(take)
        answer.drain()
        assert (scanner.done, scanner.error) == (True, None)
        assert scanner.usage is not None
        assert scanner.usage.output_tokens == 8
        await until_none_is_in_use(subject)

    kept = 1 if DIALECTS[subject.dialect].keeps_connection_after_stream else 0
    assert subject.engines.idle == kept


async def test_sequential_requests_reuse_kept_connections(subject: Subject) -> None:
    for stream in (True, True, False, True, True, False, False, True):
        answer = await subject.engine.ask(a_call(stream=stream, max_tokens=2))
        await read_all(answer)
        answer.close()

    kept = 1 if DIALECTS[subject.dialect].keeps_connection_after_stream else 0
    assert subject.engines.idle == kept


MISTAKES = [
    pytest.param(a_call(stream=True, temperature="hot"), Behaviour(status=400), id="wrong-field-type"),
    pytest.param(
        a_call(messages=[{"role": "user", "content": [IMAGE]}]), Behaviour(status=400), id="unsupported-image"
    ),
    pytest.param(
        a_call(messages=[{"role": "user", "content": "word " * 6000}]), Behaviour(status=400), id="prompt-too-long"
    ),
    pytest.param(
        a_call(Api.EMBEDDINGS), Behaviour(status=404, body=b'{"detail":"Not Found"}'), id="embeddings-of-chat-model"
    ),
]


@pytest.mark.parametrize(("call", "behaviour"), MISTAKES)
async def test_invalid_request_rejection_is_attributed_to_the_request(
    subject: Subject, call: Call, behaviour: Behaviour
) -> None:
    subject.would_answer(behaviour)

    answer = await subject.engine.ask(call)
    body = await read_all(answer)

    assert answer.status >= 400
    assert answer.is_request_error(body), (answer.status, body)


async def in_one_of_some_tries(subject: Subject, attempt: Callable[[], Awaitable[None]]) -> None:
    for left in reversed(range(TRIES)):
        subject.would_answer(Behaviour(tokens=1500, pace_s=0.02))
        try:
            return await attempt()
        except TimeoutError:
            if not left:
                raise
            await subject.until_running(0, seconds_max=120)
    return None


async def test_closing_a_stream_stops_generation_early(subject: Subject) -> None:
    async def attempt() -> None:
        answer = await subject.engine.ask(a_call(stream=True, **LONG))
        try:
            while b"content" not in await answer.read():
                pass
            await subject.until_running(1, seconds_max=30)
        finally:
            answer.close()

        await subject.until_running(0, seconds_max=EARLY_S)
        assert subject.engines.idle == 0

    await in_one_of_some_tries(subject, attempt)


async def test_cancelling_a_request_stops_generation(subject: Subject) -> None:
    async def attempt() -> None:
        asking = asyncio.create_task(subject.engine.ask(a_call(**LONG)))
        try:
            await subject.until_running(1, seconds_max=30)
        finally:
            asking.cancel()
            [ended] = await asyncio.gather(asking, return_exceptions=True)
            if not isinstance(ended, BaseException):
                ended.close()
        if not isinstance(ended, asyncio.CancelledError):
            raise TimeoutError(f"the request completed before it was cancelled: {ended!r}")

        await until_none_is_in_use(subject)
        assert subject.engines.idle == 0
        # llama.cpp checks for disconnected clients only once it has been idle for a second.
        await subject.until_running(0, seconds_max=EARLY_S, every_s=1.5 if subject.kind == "llamacpp" else 0.05)

    await in_one_of_some_tries(subject, attempt)


# vLLM takes a minute to start, and the acceptance tests already kill a vLLM engine.
@pytest.mark.parametrize("kind", KINDS[:-1])
async def test_engine_killed_during_a_stream_raises_engine_fault(kind: Kind) -> None:
    with a_real_engine(kind) as real:
        async with a_subject(kind, real) as subject:
            subject.would_answer(Behaviour(tokens=1500, pace_s=0.02))
            answer = await subject.engine.ask(a_call(stream=True, max_tokens=1500, ignore_eos=True))
            while b"content" not in await answer.read():
                pass
            if real is not None:
                real.process.kill()
            else:
                assert subject.in_process is not None
                await subject.in_process.kill()

            with pytest.raises(EngineFault, match="the engine's response was truncated"):
                await scanned(answer)
            answer.close()
            await until_none_is_in_use(subject)


async def test_watch_reports_a_ready_engine_and_its_signals(subject: Subject) -> None:
    told: asyncio.Queue[Event] = asyncio.Queue()
    dialect = DIALECTS[subject.dialect]
    watch = EngineWatch(subject.session, told.put_nowait, interval_s=0.2, timeout_s=PATIENT_S)
    watch.watch(E1, subject.url, dialect=dialect, served_model=subject.model, api_key=None)

    assert await told.get() == EndpointReady(E1)
    # The first scrape may still show requests from an earlier test.
    while (
        (found := watch.capabilities()[0]).telemetry_age_s is None or found.telemetry.running or found.telemetry.waiting
    ):
        await asyncio.sleep(0.01)
    await watch.stop()

    assert (found.state, found.models, found.problems) == (ProbeState.READY, (subject.model,), ())
    assert found.version
    assert found.signals == {signal.value: names[0] for signal, names in dialect.metrics.items()}
    assert (found.telemetry.running, found.telemetry.waiting) == (0, 0)


async def test_watch_reports_the_served_model_on_a_mismatch(subject: Subject) -> None:
    told: list[Event] = []
    watch = EngineWatch(subject.session, told.append, timeout_s=PATIENT_S)
    watch.watch(E1, subject.url, dialect=DIALECTS[subject.dialect], served_model="another", api_key=None)
    while not (found := watch.capabilities()[0]).models:
        await asyncio.sleep(0.01)
    await watch.stop()

    assert found.problems == (f'the engine serves {subject.model}, not "another"; correct served_model',)
    assert told == []


async def test_frozen_engine_is_unreachable_but_its_endpoint_stays_ready(
    kind_and_real: tuple[Kind, RealEngine | None], subject: Subject
) -> None:
    _, real = kind_and_real
    told: list[Event] = []
    watch = EngineWatch(subject.session, told.append, interval_s=0.2, timeout_s=0.5)
    watch.watch(E1, subject.url, dialect=DIALECTS[subject.dialect], served_model=subject.model, api_key=None)

    async def until(state: ProbeState) -> None:
        while watch.capabilities()[0].state is not state:
            await asyncio.sleep(0.05)

    await until(ProbeState.READY)
    await freeze(subject, real)
    try:
        await until(ProbeState.UNREACHABLE)
    finally:
        await thaw(subject, real)
    await until(ProbeState.READY)
    await watch.stop()

    assert [each for each in told if not isinstance(each, EndpointMetricsReported | EndpointProbed)] == [
        EndpointReady(E1)
    ]


async def freeze(subject: Subject, real: RealEngine | None) -> None:
    if real is not None:
        real.process.freeze()
    elif subject.in_process is not None:
        # An engine in this process cannot be frozen separately from the test, so it is killed instead.
        await subject.in_process.kill()


async def thaw(subject: Subject, real: RealEngine | None) -> None:
    if real is not None:
        real.process.thaw()
    elif subject.in_process is not None:
        await subject.in_process.start()
