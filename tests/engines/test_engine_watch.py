"""The engine watch reports readiness, load and probe results to the scheduler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from headgate.core.events import EndpointMetricsReported, EndpointNotReady, EndpointProbed, EndpointReady, Event
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_watch import READS_MAX, STALE_AFTER_S, EngineWatch
from headgate.engines.probe import OBJECTS_MAX, PROBES_PER_MODEL_LIST
from headgate.model.endpoint import EndpointProblem
from headgate.model.units import EndpointId
from headgate.ports.engine import Capabilities, ProbeState, Telemetry
from testing.fake_engine import FakeEngine
from testing.ports import free_port
from tests.engines.listeners import listening, say_nothing

E1 = EndpointId("e1")
QUICK_S = 0.01


class Told:
    """Queue of events from the watch. Measurements and probe results are kept separately."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.loads: list[EndpointMetricsReported] = []
        self.probes: asyncio.Queue[EndpointProbed] = asyncio.Queue()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        if isinstance(event, EndpointMetricsReported):
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
        stale_after_s=settings.get("stale_after_s", STALE_AFTER_S),
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
    """Wait until `count` probes have finished and another one has started."""
    while not engine._probed.empty():
        engine._probed.get_nowait()
    for _ in range(count + 1):
        await engine.next_probe(path)


def only(watch: EngineWatch) -> Capabilities:
    (found,) = watch.capabilities()
    return found


async def test_kv_capacity_is_reported_with_the_load_of_a_ready_engine(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.metrics = (
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
        b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\nvllm:kv_cache_usage_perc 0.5\n"
    )
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine, 3)

    assert set(told.loads) == {EndpointMetricsReported(E1, 2, 1, 50, 1_600)}


async def test_ready_engine_is_reported_once_with_its_capabilities(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine, 3)
        found = only(watch)

    assert told.events == [EndpointReady(E1)]
    assert len(told.loads) >= 2
    assert set(told.loads) == {EndpointMetricsReported(E1, running=0, waiting=0, kv_percent=25)}
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


async def test_loading_engine_becomes_ready_when_loaded(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.loading = True
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)
        assert only(watch).state is ProbeState.LOADING
        assert only(watch).problems == ("GET /health returned 503: Loading model",)
        assert told.events == []

        engine.loading = False
        assert await told.next() == EndpointReady(E1)


async def test_engine_becomes_unready_while_loading_again(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await told.next()
        engine.loading = True
        assert await told.next() == EndpointNotReady(E1)
        await rounds(engine)
        engine.loading = False
        assert await told.next() == EndpointReady(E1)

    assert len(told.events) == 3


async def test_unreachable_engine_stays_ready(engine: FakeEngine, session: aiohttp.ClientSession, told: Told) -> None:
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
    assert found.telemetry.running == 0, "the last known values are still reported, with their age"
    assert told.events == [EndpointReady(E1)]


async def test_engine_is_unready_until_its_first_response(session: aiohttp.ClientSession, told: Told) -> None:
    port = free_port()
    async with a_watch(session, told) as watch:
        look_at(watch, f"http://127.0.0.1:{port}")
        assert only(watch).state is ProbeState.UNREACHABLE
        async with FakeEngine(port=port):
            assert await told.next() == EndpointReady(E1)


async def test_probing_a_hung_engine_times_out(session: aiohttp.ClientSession, told: Told) -> None:
    async with listening(say_nothing) as url, a_watch(session, told, timeout_s=0.05) as watch:
        look_at(watch, url)
        while only(watch).problems != ("GET /health failed: no response in time",):
            await asyncio.sleep(QUICK_S)


async def test_engine_serving_another_model_is_not_ready(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.models = ("other", "third")
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)

        assert only(watch).problems == ('the engine serves other, third, not "fake"; correct served_model',)
        assert only(watch).models == ("other", "third")
        assert told.events == []

        engine.models = ("fake",)
        assert await told.next() == EndpointReady(E1)
        engine.models = ()
        assert await told.next() == EndpointNotReady(E1)


async def test_model_list_with_too_many_objects_is_not_parsed(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.models = ("fake",) * OBJECTS_MAX
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await rounds(engine)

        assert only(watch).problems == (f"GET /v1/models lists more than {OBJECTS_MAX} objects",)
        assert only(watch).models == ()


async def test_rejected_key_is_reported_as_a_problem(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.api_key = "right"
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, api_key="wrong")
        await rounds(engine)
        assert only(watch).problems == (
            "GET /health returned 401: a valid key is required; set api_key to the engine's key",
        )
        watch.unwatch(E1)

        look_at(watch, engine.url, api_key="right")
        assert await told.next() == EndpointReady(E1)


async def test_ambiguous_response_does_not_change_readiness(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.api_key = "key"
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, api_key="key")
        await told.next()
        engine.api_key = "another"
        await rounds(engine)

        assert "returned 401" in only(watch).problems[0]
        assert told.events == [EndpointReady(E1)]


EVERY_SIGNAL = ("running", "waiting", "kv_used_fraction", "preemptions")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            (200, b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n"),
            (
                ("kv_used_fraction", "preemptions"),
                "/metrics lacks vllm:kv_cache_usage_perc, vllm:num_preemptions_total; check that this engine is vllm",
            ),
        ),
        (
            (404, b'{"detail":"Not Found"}'),
            (EVERY_SIGNAL, "GET /metrics returned 404: Not Found; start vLLM without --disable-log-stats"),
        ),
        ((200, b"x" * 5000), (EVERY_SIGNAL, "the response to GET /metrics exceeds 4096 bytes")),
    ],
)
async def test_missing_metrics_are_reported_but_do_not_prevent_readiness(
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

    assert told.events == [EndpointReady(E1)]
    assert found.state is ProbeState.READY
    assert found.signals_missing == missing
    assert found.problems == (problem,)


async def test_older_metric_names_are_used_if_newer_ones_are_missing(
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


async def test_missing_version_is_queried_again(engine: FakeEngine, session: aiohttp.ClientSession, told: Told) -> None:
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


async def test_version_queries_are_bounded(engine: FakeEngine, session: aiohttp.ClientSession, told: Told) -> None:
    engine.version = None
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        for _ in range(READS_MAX + 5):
            await rounds(engine)

    assert sum(probe.path == "/version" for probe in engine.probes) == READS_MAX


async def test_openai_compatible_engine_is_ready_when_it_lists_the_model(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, dialect="openai_compatible")
        await rounds(engine, path="/v1/models")
        found = only(watch)

    assert {probe.path for probe in engine.probes} == {"/v1/models"}
    assert (found.state, found.version, found.problems) == (ProbeState.READY, None, ())
    assert found.signals_missing == EVERY_SIGNAL


async def test_llamacpp_metrics_are_scraped_at_its_minimum_interval(
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


async def test_stale_load_of_a_dead_engine_is_omitted(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told, stale_after_s=0.3) as watch, asyncio.timeout(60):
        look_at(watch, engine.url)
        while only(watch).telemetry == Telemetry():
            await asyncio.sleep(QUICK_S)
        await engine.kill()
        while not any("has reported no load" in each for each in only(watch).problems):
            await asyncio.sleep(QUICK_S)
        found = only(watch)

    refused, silence = found.problems
    assert "connection refused" in refused
    assert silence.endswith("; routing uses the gateway's own in-flight counts")
    assert found.telemetry == Telemetry()
    assert found.telemetry_age_s is not None
    assert found.telemetry_age_s > 0.3


async def test_unwatched_endpoint_is_no_longer_reported(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        await engine.next_probe("/v1/models")
        watch.unwatch(E1)
        await asyncio.gather(*watch._ending, return_exceptions=True)

        assert watch.capabilities() == ()
    assert told.events == []


async def test_silent_endpoints_do_not_delay_other_probes(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with listening(say_nothing) as silent, a_watch(session, told, timeout_s=30.0, concurrent_max=4) as watch:
        look_at(watch, engine.url)
        await told.next()
        for number in range(20):
            look_at(watch, silent, endpoint_id=EndpointId(f"silent{number}"))
        await rounds(engine, 5)


async def test_concurrent_probes_are_bounded(session: aiohttp.ClientSession, told: Told) -> None:
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
        while not all("no response in time" in str(found.problems) for found in watch.capabilities()):
            await asyncio.sleep(QUICK_S)

    assert 0 < connected_max <= 6


async def test_internal_error_is_not_suppressed(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    reported: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.put_nowait(context))

    def tell(event: Event) -> None:
        raise AssertionError("internal error")

    watch = EngineWatch(session, tell)
    look_at(watch, engine.url)

    assert str((await reported.get())["exception"]) == "internal error"
    await watch.stop()


# Reasons why probes fail


async def test_probe_result_is_reported_when_it_changes(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        assert await told.probes.get() == EndpointProbed(E1, None)
        await engine.kill()
        refused = "GET /health failed: connection refused"
        assert await told.probes.get() == EndpointProbed(E1, EndpointProblem.CONNECTION_REFUSED, refused)
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
        names["silent"]: EndpointProblem.UNRESPONSIVE,
        names["key"]: EndpointProblem.KEY_REJECTED,
        names["model"]: EndpointProblem.MODEL_UNKNOWN,
    }


async def test_hurried_probe_does_not_wait_for_the_interval(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told, interval_s=3600.0) as watch:
        look_at(watch, engine.url)
        assert await told.probes.get() == EndpointProbed(E1, None)
        await engine.kill()
        watch.probe_now(EndpointId("unknown"))
        watch.probe_now(E1)
        assert (await told.probes.get()).trouble is EndpointProblem.CONNECTION_REFUSED


async def test_list_of_models_is_read_less_often_than_the_health_of_a_ready_engine(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url)
        assert await told.next() == EndpointReady(E1)
        await rounds(engine, 3 * PROBES_PER_MODEL_LIST)
        paths = [probe.path for probe in engine.probes]

        # The list is also read to find the limits of an engine that does not report its KV capacity.
        listed = paths.count("/v1/models") - READS_MAX
        assert 3 <= listed <= paths.count("/health") // PROBES_PER_MODEL_LIST + 2
        engine.models = ("another",)
        await rounds(engine, 1, path="/v1/models")
        assert only(watch).problems == ('the engine serves another, not "fake"; correct served_model',)


# Engines of several pools


async def test_endpoints_with_one_address_share_probes_and_scrapes(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    engine.models = ["fake", "other"]
    engine.metrics = (
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
        b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\nvllm:kv_cache_usage_perc 0.5\n"
    )
    names = [EndpointId("a/e"), EndpointId("b/e")]
    async with a_watch(session, told) as watch:
        for name, model in zip(names, engine.models, strict=True):
            look_at(watch, engine.url, endpoint_id=name, served_model=model)
        await rounds(engine, 3)
        readings = watch.telemetry()
        states = {each.endpoint_id: each.state for each in watch.capabilities()}
        while not engine._probed.empty():
            engine._probed.get_nowait()
        seen = [(await engine.next_probe()).path for _ in range(12)]

    assert told.events == [EndpointReady(name) for name in names]
    assert states == dict.fromkeys(names, ProbeState.READY)
    assert list(readings) == names[:1]
    assert abs(seen.count("/health") - seen.count("/metrics")) <= 1
    assert {each.endpoint_id for each in told.loads} == set(names)


async def test_only_the_endpoint_of_a_missing_model_is_not_ready(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    first, second = EndpointId("a/e"), EndpointId("b/e")
    async with a_watch(session, told) as watch:
        look_at(watch, engine.url, endpoint_id=first, served_model="missing")
        look_at(watch, engine.url, endpoint_id=second)
        ready, trouble = await told.next(), await told.probes.get()
        while trouble.trouble is None:
            trouble = await told.probes.get()

    assert ready == EndpointReady(second)
    assert (trouble.endpoint_id, trouble.trouble) == (first, EndpointProblem.MODEL_UNKNOWN)


async def test_engine_that_does_not_respond_is_reported_for_all_its_endpoints(
    session: aiohttp.ClientSession, told: Told
) -> None:
    names = {EndpointId("a/e"), EndpointId("b/e")}
    async with a_watch(session, told) as watch:
        url = f"http://127.0.0.1:{free_port()}"
        for name in names:
            look_at(watch, url, endpoint_id=name)
        results = [await told.probes.get() for _ in names]

    assert {(each.endpoint_id, each.trouble) for each in results} == {
        (name, EndpointProblem.CONNECTION_REFUSED) for name in names
    }


async def test_remaining_endpoint_is_probed_after_the_other_one_leaves(
    engine: FakeEngine, session: aiohttp.ClientSession, told: Told
) -> None:
    first, second = EndpointId("a/e"), EndpointId("b/e")
    async with a_watch(session, told) as watch:
        for name in (first, second):
            look_at(watch, engine.url, endpoint_id=name)
        await rounds(engine)
        watch.unwatch(first)
        told.loads.clear()
        await rounds(engine, 3)
        watched = only(watch)

    assert watched.endpoint_id == second
    assert {each.endpoint_id for each in told.loads} == {second}
