"""Is the scheduler told what engines say of themselves, and nothing else?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from headgate.core.events import EndpointMeasured, EndpointProbed, EndpointReadied, EndpointUnreadied, Event
from headgate.engines.dialects import DIALECTS
from headgate.engines.probe import OBJECTS_MAX
from headgate.engines.watch import READS_MAX, EngineWatch
from headgate.model.endpoint import EndpointTrouble
from headgate.model.units import EndpointId
from headgate.ports.engine import Capabilities, ProbeState, Telemetry
from testing.fake_engine import FakeEngine
from testing.ports import free_port
from tests.engines.listeners import listening, say_nothing

E1 = EndpointId("e1")
QUICK_S = 0.01


class Told:
    """Queue of events from the watch. Measurements and probe results are stored separately."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.loads: list[EndpointMeasured] = []
        self.probes: asyncio.Queue[EndpointProbed] = asyncio.Queue()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        if isinstance(event, EndpointMeasured):
            self.loads.append(event)
        elif isinstance(event, EndpointProbed):
            self.probes.put_nowait(event)
        else:
            self.events.append(event)
            self._queue.put_nowait(event)

    async def next(self) -> Event:
        return await self._queue.get()


@pytest.fixture
def told() -> Told:
    return Told()


@asynccontextmanager
async def a_watch(
    session: aiohttp.ClientSession, told: Told, *, interval_s: float = QUICK_S, **settings: float
) -> AsyncIterator[EngineWatch]:
    limits = {name: int(value) for name, value in settings.items() if name in ("page_bytes_max", "concurrent_max")}
    watch = EngineWatch(
        session,
        told,
        interval_s=interval_s,
        unready_interval_s=QUICK_S,
        timeout_s=settings.get("timeout_s", 30.0),
        **limits,
    )
    try:
        yield watch
    finally:
        await watch.stop()


def look_at(
    watch: EngineWatch,
    url: str,
    *,
    endpoint_id: EndpointId = E1,
    dialect: str = "vllm",
    served_model: str = "fake",
    api_key: str | None = None,
) -> None:
    watch.watch(endpoint_id, url, dialect=DIALECTS[dialect], served_model=served_model, api_key=api_key)


async def rounds(engine: FakeEngine, count: int = 2, *, path: str = "/health") -> None:
    """Waits until so many looks have begun from here on; all but the last one are over then."""
    while not engine._probed.empty():
        engine._probed.get_nowait()
    for _ in range(count + 1):
        await engine.next_probe(path)


def only(watch: EngineWatch) -> Capabilities:
    (found,) = watch.capabilities()
    return found


async def test_kv_capacity_of_a_ready_engine_is_reported_with_its_load(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.metrics = (
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
        b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\nvllm:kv_cache_usage_perc 0.5\n"
    )
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine, 3)

    assert set(told.loads) == {EndpointMeasured(E1, 2, 1, 50, 1_600)}


async def test_a_ready_engine_is_told_once_and_its_capabilities_are_shown(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine, 3)
        found = only(watch)

    assert told.events == [EndpointReadied(E1)]
    assert len(told.loads) >= 2
    assert set(told.loads) == {EndpointMeasured(E1, running=0, waiting=0, kv_percent=25)}
    assert found == Capabilities(
        endpoint_id=E1,
        dialect="vllm",
        state=ProbeState.READY,
        version="0.0-fake",
        models=("fake",),
        signals={
            "running": "vllm:num_requests_running",
            "waiting": "vllm:num_requests_waiting",
            "kv_used_fraction": "vllm:kv_cache_usage_perc",
            "preemptions": "vllm:num_preemptions_total",
        },
        signals_missing=(),
        problems=(),
        telemetry=Telemetry(running=0, waiting=0, kv_used_fraction=0.25, preemptions=0),
        telemetry_age_s=found.telemetry_age_s,
    )
    assert found.telemetry_age_s is not None
    assert 0 <= found.telemetry_age_s < 5


async def test_loading_is_waited_for(engine: FakeEngine, session: aiohttp.ClientSession, told: Told) -> None:
    engine.loading = True
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)
        assert only(watch).state is ProbeState.LOADING
        assert only(watch).problems == ("GET /health answered 503: Loading model",)
        assert told.events == []

        engine.loading = False
        assert await told.next() == EndpointReadied(E1)


async def test_an_engine_that_says_it_is_loading_again_is_unreadied(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await told.next()
        engine.loading = True
        assert await told.next() == EndpointUnreadied(E1)
        await rounds(engine)
        engine.loading = False
        assert await told.next() == EndpointReadied(E1)

    assert len(told.events) == 3


async def test_silence_does_not_unready(engine: FakeEngine, session: aiohttp.ClientSession, told: Told) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)
        await engine.kill()
        while only(watch).state is not ProbeState.UNREACHABLE:
            await asyncio.sleep(QUICK_S)
        found = only(watch)
        await engine.start()
        await rounds(engine)

        assert only(watch).state is ProbeState.READY

    assert found.problems == ("GET /health failed: connection refused",)
    assert found.telemetry.running == 0, "what was last known is still shown, with its age"
    assert told.events == [EndpointReadied(E1)]


async def test_an_engine_that_was_never_heard_stays_unready_until_it_is(
    session: aiohttp.ClientSession, told: Told
) -> None:
    port = free_port()
    async with a_watch(session, told) as watch:
        look_at(watch, f"http://127.0.0.1:{port}")
        assert only(watch).state is ProbeState.UNREACHABLE
        async with FakeEngine(port=port):
            assert await told.next() == EndpointReadied(E1)


async def test_a_hung_engine_is_given_up_in_time(session: aiohttp.ClientSession, told: Told) -> None:
    async with listening(say_nothing) as url, a_watch(session, told, timeout_s=0.05) as watch:
        look_at(watch, url)
        while only(watch).problems != ("GET /health failed: no answer in time",):
            await asyncio.sleep(QUICK_S)


async def test_an_engine_that_serves_another_model_is_not_ready(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.models = ("other", "third")
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)

        assert only(watch).problems == ('it serves other, third, not "fake"; set served_model to a name it serves',)
        assert only(watch).models == ("other", "third")
        assert told.events == []

        engine.models = ("fake",)
        assert await told.next() == EndpointReadied(E1)
        engine.models = ()
        assert await told.next() == EndpointUnreadied(E1)


async def test_model_list_with_too_many_objects_is_not_parsed(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.models = ("fake",) * OBJECTS_MAX
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)

        assert only(watch).problems == (f"GET /v1/models lists more than {OBJECTS_MAX} objects",)
        assert only(watch).models == ()


async def test_a_key_is_sent_and_a_wrong_one_is_named(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.api_key = "right"
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, api_key="wrong")
        await rounds(engine)
        assert only(watch).problems == (
            "GET /health answered 401: a valid key is required; set api_key to the engine's key",
        )
        watch.unwatch(E1)

        look_at(watch, engine.url, api_key="right")
        assert await told.next() == EndpointReadied(E1)


async def test_an_unclear_answer_neither_readies_nor_unreadies(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.api_key = "key"
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, api_key="key")
        await told.next()
        engine.api_key = "another"
        await rounds(engine)

        assert "answered 401" in only(watch).problems[0]
        assert told.events == [EndpointReadied(E1)]


EVERY_SIGNAL = ("running", "waiting", "kv_used_fraction", "preemptions")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            (200, b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n"),
            (
                ("kv_used_fraction", "preemptions"),
                "/metrics lacks vllm:kv_cache_usage_perc, vllm:num_preemptions_total; is this engine really vllm?",
            ),
        ),
        (
            (404, b'{"detail":"Not Found"}'),
            (EVERY_SIGNAL, "GET /metrics answered 404: Not Found; start vLLM without --disable-log-stats"),
        ),
        ((200, b"x" * 5000), (EVERY_SIGNAL, "GET /metrics answers with more than 4096 bytes")),
    ],
)
async def test_missing_metrics_are_a_problem_but_no_hindrance(
    engine: FakeEngine,
    session: aiohttp.ClientSession,
    told: Told,
    said: tuple[int, bytes],
    shown: tuple[tuple[str, ...], str],
) -> None:
    engine.metrics_status, engine.metrics = said
    missing, problem = shown
    async with a_watch(session, told, page_bytes_max=4096) as watch:
        look_at(watch, engine.url)
        await rounds(engine)
        found = only(watch)

    assert told.events == [EndpointReadied(E1)]
    assert found.state is ProbeState.READY
    assert found.signals_missing == missing
    assert found.problems == (problem,)


async def test_older_names_serve_where_the_newest_are_absent(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.metrics = (
        b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 4.0\n'
        b'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:gpu_cache_usage_perc{engine="1"} 0.7\n'
    )
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)
        found = only(watch)

    assert found.signals["kv_used_fraction"] == "vllm:gpu_cache_usage_perc"
    assert found.telemetry.running == 7
    assert found.telemetry.kv_used_fraction == pytest.approx(0.6)


async def test_a_version_that_was_not_told_is_asked_for_again(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.version = None
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)
        before = only(watch).version
        engine.version = "1.2"
        async with asyncio.timeout(60):
            while only(watch).version is None:
                await asyncio.sleep(QUICK_S)
        found = only(watch)

    assert before is None
    assert found.version == "1.2"


async def test_an_engine_without_a_version_is_not_asked_for_it_for_ever(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.version = None
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        for _ in range(READS_MAX + 5):
            await rounds(engine)

    assert sum(probe.path == "/version" for probe in engine.probes) == READS_MAX


async def test_an_engine_of_unknown_kind_is_ready_when_it_lists_the_model(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, dialect="openai_compatible")
        await rounds(engine, path="/v1/models")
        found = only(watch)

    assert {probe.path for probe in engine.probes} == {"/v1/models"}
    assert (found.state, found.version, found.problems) == (ProbeState.READY, None, ())
    assert found.signals_missing == EVERY_SIGNAL


async def test_llamacpp_is_not_read_more_often_than_it_bears(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.metrics = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"
    async with a_watch(session, told, interval_s=QUICK_S) as watch:
        look_at(watch, engine.url, dialect="llamacpp")
        await engine.next_probe("/metrics")
        await asyncio.sleep(20 * QUICK_S)
        found = only(watch)

    assert [probe.path for probe in engine.probes].count("/metrics") == 1
    assert (found.telemetry.running, found.telemetry.waiting) == (1, 2)


async def test_nothing_is_told_of_an_endpoint_after_unwatch(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await engine.next_probe("/v1/models")
        watch.unwatch(E1)
        await asyncio.gather(*watch._ending, return_exceptions=True)

        assert watch.capabilities() == ()
    assert told.events == []


async def test_silent_endpoints_do_not_keep_others_waiting(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with listening(say_nothing) as silent, a_watch(session, told, timeout_s=30.0, concurrent_max=4) as watch:
        look_at(watch, engine.url)
        await told.next()
        for number in range(20):
            look_at(watch, silent, endpoint_id=EndpointId(f"silent{number}"))
        await rounds(engine, 5)


async def test_so_many_looks_at_most_go_on_at_once(session: aiohttp.ClientSession, told: Told) -> None:
    connected = connected_max = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected, connected_max
        connected += 1
        connected_max = max(connected, connected_max)
        await reader.read()
        connected -= 1

    async with listening(count) as url, a_watch(session, told, timeout_s=0.02, concurrent_max=6) as watch:
        for number in range(40):
            look_at(watch, url, endpoint_id=EndpointId(f"e{number}"))
        while not all("no answer in time" in str(found.problems) for found in watch.capabilities()):
            await asyncio.sleep(QUICK_S)

    assert 0 < connected_max <= 6


async def test_a_mistake_of_ours_is_not_swallowed(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    reported: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.put_nowait(context))

    def tell(event: Event) -> None:
        raise AssertionError("mistake")

    watch = EngineWatch(session, tell)
    look_at(watch, engine.url)

    assert str((await reported.get())["exception"]) == "mistake"
    await watch.stop()


# Reasons for failed probes


async def test_probe_result_is_reported_when_it_changes(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        assert await told.probes.get() == EndpointProbed(E1, None)
        await engine.kill()
        refused = "GET /health failed: connection refused"
        assert await told.probes.get() == EndpointProbed(E1, EndpointTrouble.REFUSED, refused)
        await engine.start()
        assert await told.probes.get() == EndpointProbed(E1, None)
        await rounds(engine)

    assert told.probes.empty()


async def test_probe_reports_how_an_engine_fails(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.api_key, engine.models = "right", ("other",)
    names = {name: EndpointId(name) for name in ("silent", "key", "model")}
    async with (
        listening(say_nothing) as url,
        a_watch(session, told) as watch,
        a_watch(session, told, timeout_s=0.05) as impatient,
    ):
        look_at(impatient, url, endpoint_id=names["silent"])
        look_at(watch, engine.url, endpoint_id=names["key"], api_key="wrong")
        look_at(watch, engine.url, endpoint_id=names["model"], api_key="right")
        results = [await told.probes.get() for _ in names]

    assert {each.endpoint_id: each.trouble for each in results} == {
        names["silent"]: EndpointTrouble.SILENT,
        names["key"]: EndpointTrouble.KEY_REJECTED,
        names["model"]: EndpointTrouble.MODEL_UNKNOWN,
    }


async def test_hurried_probe_does_not_wait_for_the_interval(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told, interval_s=3600.0) as watch:
        look_at(watch, engine.url)
        assert await told.probes.get() == EndpointProbed(E1, None)
        await engine.kill()
        watch.hurry(EndpointId("unknown"))
        watch.hurry(E1)
        assert (await told.probes.get()).trouble is EndpointTrouble.REFUSED
