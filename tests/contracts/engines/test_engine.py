"""Does every engine, real or fake, keep what the port promises?"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from headgate.core.events import EndpointMeasured, EndpointProbed, EndpointReadied, Event
from headgate.engines.dialects import DIALECTS
from headgate.engines.http import HttpAnswer
from headgate.engines.watch import EngineWatch
from headgate.model.ticket import Api
from headgate.model.units import EndpointId
from headgate.model.usage import UsageSource
from headgate.ports.engine import Answer, Call, Engine, EngineFault, ProbeState
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
    # The start of a real engine counts as time of the first test that needs it.
    pytest.param("llamacpp", marks=[pytest.mark.llamacpp, pytest.mark.timeout(600)]),
    pytest.param("triton", marks=[pytest.mark.triton, pytest.mark.timeout(600)]),
    pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(1200)]),
]
LONG = {"max_tokens": 1500, "ignore_eos": True}
EARLY_S = 10.0
"""Much more than an engine takes to stop, and less than a long answer takes."""
TRIES = 4
"""A pause of the machine may use up `EARLY_S`, or let an answer end before the test leaves it."""
PATIENT_S = 60.0
"""Time limit for a page, long enough that a pause does not count as a failed probe."""
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
    """A connection that was cut, or let end, is gone a moment later."""
    async with asyncio.timeout(60):
        while subject.engines.in_use:
            await asyncio.sleep(0.01)


async def scanned(answer: Answer) -> StreamScanner:
    scanner = StreamScanner(keep_usage_chunk=False)
    while data := await answer.read():
        scanner.feed(data)
    answer.close()
    return scanner


async def test_the_adapter_is_what_the_port_asks_for(subject: Subject) -> None:
    engine: Engine = subject.engine
    asks: type[Answer] = HttpAnswer

    assert engine.ask
    assert asks.read


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
async def test_a_stream_ends_with_done_and_says_its_usage(subject: Subject, api: Api) -> None:
    answer = await subject.engine.ask(a_call(api, stream=True, max_tokens=8, temperature=0, ignore_eos=True))
    scanner = await scanned(answer)

    assert answer.status == 200
    assert answer.content_type.startswith("text/event-stream")
    assert (scanner.done, scanner.error) == (True, None)
    assert scanner.usage is not None
    assert (scanner.usage.output_tokens, scanner.usage.source) == (8, UsageSource.ENGINE)
    assert scanner.events >= 1


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
async def test_the_same_request_uses_the_same_tokens_streamed_or_not(subject: Subject, api: Api) -> None:
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


async def test_a_stream_that_is_poured_is_whole_and_leaves_its_connection_to_the_next(subject: Subject) -> None:
    for _ in range(3):
        scanner = StreamScanner(keep_usage_chunk=False)

        def take(data: bytes, scanner: StreamScanner = scanner) -> bool:
            scanner.feed(data)
            return scanner.closed

        answer = await subject.engine.ask(a_call(stream=True, max_tokens=8, temperature=0, ignore_eos=True))
        await answer.pour(take)
        answer.let_end()
        assert (scanner.done, scanner.error) == (True, None)
        assert scanner.usage is not None
        assert scanner.usage.output_tokens == 8
        await until_none_is_in_use(subject)

    kept = 1 if DIALECTS[subject.dialect].keeps_connection_after_stream else 0
    assert subject.engines.idle == kept


async def test_requests_follow_each_other_at_once_on_the_connections_that_are_kept(subject: Subject) -> None:
    for stream in (True, True, False, True, True, False, False, True):
        answer = await subject.engine.ask(a_call(stream=stream, max_tokens=2))
        await read_all(answer)
        answer.close()

    kept = 1 if DIALECTS[subject.dialect].keeps_connection_after_stream else 0
    assert subject.engines.idle == kept


MISTAKES = [
    pytest.param(a_call(stream=True, temperature="hot"), Behaviour(status=400), id="a field of another type"),
    pytest.param(a_call(messages=[{"role": "user", "content": [IMAGE]}]), Behaviour(status=400), id="an image"),
    pytest.param(a_call(messages=[{"role": "user", "content": "word " * 6000}]), Behaviour(status=400), id="too long"),
    pytest.param(
        a_call(Api.EMBEDDINGS), Behaviour(status=404, body=b'{"detail":"Not Found"}'), id="embeddings of a chat model"
    ),
]


@pytest.mark.parametrize(("call", "behaviour"), MISTAKES)
async def test_a_mistake_in_the_request_is_blamed_on_the_request(
    subject: Subject, call: Call, behaviour: Behaviour
) -> None:
    subject.would_answer(behaviour)

    answer = await subject.engine.ask(call)
    body = await read_all(answer)

    assert answer.status >= 400
    assert answer.blames_request(body), (answer.status, body)


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


async def test_closing_a_stream_stops_the_engine_before_its_answer_is_complete(subject: Subject) -> None:
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


async def test_cancelling_a_question_stops_the_engine(subject: Subject) -> None:
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
            raise TimeoutError(f"it was answered before it was cancelled: {ended!r}")

        await until_none_is_in_use(subject)
        assert subject.engines.idle == 0
        # llama.cpp checks for clients that have left only after a second without requests.
        await subject.until_running(0, seconds_max=EARLY_S, every_s=1.5 if subject.kind == "llamacpp" else 0.05)

    await in_one_of_some_tries(subject, attempt)


# vLLM takes a minute to start; that its death shows likewise is seen by the acceptance tests, which kill one too.
@pytest.mark.parametrize("kind", KINDS[:-1])
async def test_an_engine_killed_in_the_middle_is_a_fault(kind: Kind) -> None:
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

            with pytest.raises(EngineFault, match="the engine's answer broke off"):
                await scanned(answer)
            answer.close()
            await until_none_is_in_use(subject)


async def test_the_watch_readies_it_and_finds_its_signals(subject: Subject) -> None:
    told: asyncio.Queue[Event] = asyncio.Queue()
    dialect = DIALECTS[subject.dialect]
    watch = EngineWatch(subject.session, told.put_nowait, interval_s=0.2, timeout_s=PATIENT_S)
    watch.watch(E1, subject.url, dialect=dialect, served_model=subject.model, api_key=None)

    assert await told.get() == EndpointReadied(E1)
    # What an earlier test asked of the engine may still be on its first page.
    while (
        (found := watch.capabilities()[0]).telemetry_age_s is None or found.telemetry.running or found.telemetry.waiting
    ):
        await asyncio.sleep(0.01)
    await watch.stop()

    assert (found.state, found.models, found.problems) == (ProbeState.READY, (subject.model,), ())
    assert found.version
    assert found.signals == {signal.value: names[0] for signal, names in dialect.metrics.items()}
    assert (found.telemetry.running, found.telemetry.waiting) == (0, 0)


async def test_the_watch_says_what_it_serves_instead_of_our_model(subject: Subject) -> None:
    told: list[Event] = []
    watch = EngineWatch(subject.session, told.append, timeout_s=PATIENT_S)
    watch.watch(E1, subject.url, dialect=DIALECTS[subject.dialect], served_model="another", api_key=None)
    while not (found := watch.capabilities()[0]).models:
        await asyncio.sleep(0.01)
    await watch.stop()

    assert found.problems == (f'it serves {subject.model}, not "another"; set served_model to a name it serves',)
    assert told == []


async def test_an_engine_that_stands_still_is_unreachable_but_stays_ready(
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

    assert [each for each in told if not isinstance(each, EndpointMeasured | EndpointProbed)] == [EndpointReadied(E1)]


async def freeze(subject: Subject, real: RealEngine | None) -> None:
    if real is not None:
        real.process.freeze()
    elif subject.in_process is not None:
        # It cannot stand still without this test; being away is the next best.
        await subject.in_process.kill()


async def thaw(subject: Subject, real: RealEngine | None) -> None:
    if real is not None:
        real.process.thaw()
    elif subject.in_process is not None:
        await subject.in_process.start()
