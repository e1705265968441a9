"""LoRA adapters of engines: observed, loaded and unloaded, and served through a gateway."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.core.events import EndpointNotReady, EndpointReady
from headgate.engines.dialects import DIALECTS
from headgate.engines.endpoint_adapters import AdapterApi, AdapterLoader, AdapterOptions, EndpointAdapters
from headgate.engines.engine_watch import EngineWatch
from headgate.model.units import EndpointId
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop

E1, E2 = EndpointId("e1"), EndpointId("e2")
QUICK_S = 0.01


class Reports:
    """Reports of an endpoint's adapters and readiness, in order."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.problems: list[tuple[str, str]] = []
        self.in_use: set[str] = set()
        self._changed = asyncio.Event()

    def add(self, report: object) -> None:
        self.seen.append(report)
        self._changed.set()

    async def until(self, report: object) -> None:
        while report not in self.seen:
            self._changed.clear()
            await self._changed.wait()


def adapters_of(
    engine: FakeEngine,
    session: aiohttp.ClientSession,
    reports: Reports,
    loader: AdapterLoader,
    *,
    endpoint_id: EndpointId = E1,
) -> EndpointAdapters:
    return EndpointAdapters(
        endpoint_id,
        AdapterApi(session, engine.url, api_key=None),
        loader,
        lambda held, limit: reports.add((held, limit)),
        lambda name, problem: reports.problems.append((name, problem)),
    )


async def watched(
    engine: FakeEngine, session: aiohttp.ClientSession, options: AdapterOptions
) -> tuple[EngineWatch, EndpointAdapters, Reports]:
    reports = Reports()
    watch = EngineWatch(session, reports.add, interval_s=QUICK_S, unready_interval_s=QUICK_S, timeout_s=30.0)
    adapters = adapters_of(engine, session, reports, AdapterLoader(lambda _: reports.in_use))
    adapters.change(options)
    watch.watch(E1, engine.url, dialect=DIALECTS["vllm"], served_model="fake", api_key=None, adapters=adapters)
    return watch, adapters, reports


@pytest.mark.parametrize(
    ("options", "held"),
    [
        (AdapterOptions({"a": None, "missing": None}), ("a",)),
        (AdapterOptions(discover=True), ("a", "b")),
        (AdapterOptions({"a": None}, discover=True), ("a", "b")),
    ],
)
async def test_held_adapters_are_reported_before_the_endpoint_is_ready(
    engine: FakeEngine, session: aiohttp.ClientSession, options: AdapterOptions, held: tuple[str, ...]
) -> None:
    engine.adapters = {"b": "/b", "a": "/a"}
    watch, _, reports = await watched(engine, session, options)
    await reports.until(EndpointReady(E1))
    await watch.stop()

    assert reports.seen[:2] == [(held, None), EndpointReady(E1)]


async def test_limit_is_reported_as_soon_as_the_engine_reports_it(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.adapters = {"a": "/a"}
    watch, _, reports = await watched(engine, session, AdapterOptions({"a": None}))
    await reports.until((("a",), None))
    engine.max_lora = 4
    await reports.until((("a",), 4))
    await watch.stop()


async def test_engine_without_configured_adapters_reports_none(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.adapters, engine.max_lora = {"a": "/a"}, 2
    watch, _, reports = await watched(engine, session, AdapterOptions())
    await reports.until(EndpointReady(E1))
    for _ in range(3):
        await engine.next_probe("/metrics")
    await watch.stop()

    assert [each for each in reports.seen if isinstance(each, tuple)] == []


async def test_adapter_with_source_is_loaded_and_unloaded_once_it_is_no_longer_in_use(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    watch, adapters, reports = await watched(engine, session, AdapterOptions({"a": "/a", "kept": "/kept"}))
    await reports.until((("a", "kept"), None))
    assert engine.adapters == {"a": "/a", "kept": "/kept"}

    reports.in_use.add("a")
    adapters.change(AdapterOptions({"kept": "/kept"}))
    watch.probe_now(E1, models=True)
    await reports.until((("kept",), None))
    for _ in range(3):
        await engine.next_probe("/metrics")
    assert "a" in engine.adapters

    reports.in_use.clear()
    watch.probe_now(E1)
    unloaded = await engine.next_probe("/v1/unload_lora_adapter")
    await unloaded.ended.wait()
    await watch.stop()

    assert engine.adapters == {"kept": "/kept"}
    assert reports.problems == []


async def test_adapter_that_cannot_be_loaded_is_logged_with_the_next_step(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.allows_loading = False
    watch, _, reports = await watched(engine, session, AdapterOptions({"a": "/a"}))
    first = await engine.next_probe("/v1/load_lora_adapter")
    await first.ended.wait()
    # The engine is probed several times before the next attempt.
    for _ in range(4):
        await engine.next_probe("/metrics")
    assert len([each for each in engine.probes if each.path == "/v1/load_lora_adapter"]) == 1
    await engine.next_probe("/v1/load_lora_adapter")
    await watch.stop()

    name, problem = reports.problems[0]
    assert name == "a"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in problem


async def test_engine_is_probed_while_it_loads_an_adapter(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    watch, adapters, reports = await watched(engine, session, AdapterOptions({"a": "/slow/a", "b": "/b"}))
    other = adapters_of(engine, session, reports, adapters.loader, endpoint_id=E2)
    watch.watch(E2, engine.url, dialect=DIALECTS["vllm"], served_model="fake", api_key=None, adapters=other)
    await engine.next_probe("/v1/load_lora_adapter")
    for path in ("/health", "/metrics") * 10:
        await engine.next_probe(path)
    assert len([each for each in engine.probes if each.path == "/v1/load_lora_adapter"]) == 1
    engine.loading = True
    await reports.until(EndpointNotReady(E1))
    await reports.until(EndpointNotReady(E2))
    engine.loading = False
    engine.slow_loads_end.set()
    await reports.until((("a", "b"), None))
    await watch.stop()

    assert reports.problems == []


async def test_adapter_is_reported_as_soon_as_it_is_loaded(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    watch, _, reports = await watched(engine, session, AdapterOptions({"a": "/a", "b": "/slow/b"}))
    await reports.until((("a",), None))
    engine.slow_loads_end.set()
    await reports.until((("a", "b"), None))
    await watch.stop()


async def test_loading_ends_with_the_watch_of_the_endpoint(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    watch, _, _ = await watched(engine, session, AdapterOptions({"a": "/slow/a"}))
    loading = await engine.next_probe("/v1/load_lora_adapter")
    watch.pause()
    await loading.client_left.wait()
    watch.resume([E1])
    again = await engine.next_probe("/v1/load_lora_adapter")
    watch.unwatch(E1)
    await again.client_left.wait()
    await watch.stop()

    assert engine.adapters == {}


async def test_adapter_is_loaded_once_and_unloaded_when_no_pool_of_the_engine_has_it(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    watch, adapters, reports = await watched(engine, session, AdapterOptions({"a": "/a"}))
    other = adapters_of(engine, session, reports, adapters.loader, endpoint_id=E2)
    other.change(AdapterOptions({"a": "/a", "b": "/b"}))
    watch.watch(E2, engine.url, dialect=DIALECTS["vllm"], served_model="fake", api_key=None, adapters=other)
    await reports.until((("a", "b"), None))

    adapters.change(AdapterOptions())
    for _ in range(10):
        await engine.next_probe("/metrics")
    assert engine.adapters == {"a": "/a", "b": "/b"}
    watch.unwatch(E2)
    other.close()
    while engine.adapters:
        await engine.next_probe()
    await watch.stop()

    assert len([each for each in engine.probes if each.path == "/v1/load_lora_adapter"]) == 2


async def test_adapter_is_loaded_from_a_changed_source(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    watch, adapters, reports = await watched(engine, session, AdapterOptions({"a": "/old"}))
    await reports.until((("a",), None))
    adapters.change(AdapterOptions({"a": "/new"}))
    watch.probe_now(E1, models=True)
    while engine.adapters != {"a": "/new"}:
        await engine.next_probe()
    await watch.stop()

    assert reports.problems == []


# Through a gateway


def config_with(*urls: str, adapters: list[Any], **pool: Any) -> Config:
    config = a_config(*urls)
    config["pools"]["small"] |= {"adapters": adapters, **pool}
    return config


async def ask(gateway: GatewayInLoop, model: str) -> tuple[int, Any]:
    async with gateway.post(chat(model=model)) as answer:
        return answer.status, await answer.json()


async def test_gateway_lists_adapters_and_sends_their_names_to_the_engine(engine: FakeEngine, tmp_path: Path) -> None:
    engine.adapters = {"sql-lora": "/sql", "chat-lora": "/chat"}
    config = config_with(engine.url, adapters=["sql-lora", {"name": "chat-lora", "model": "talk"}], max_lora=2)
    async with gateway_in_loop(config, tmp_path) as gateway:
        async with gateway.http.get(gateway.url + "/v1/models") as answer:
            listed = [each["id"] for each in (await answer.json())["data"]]
        statuses = [(await ask(gateway, model))[0] for model in ("m", "sql-lora", "talk", "chat-lora")]

    assert listed == ["m", "sql-lora", "talk"]
    assert statuses == [200, 200, 200, 404]
    assert [each.json["model"] for each in engine.requests] == ["fake", "sql-lora", "chat-lora"]


async def test_gateway_lists_and_serves_discovered_adapters(engine: FakeEngine, tmp_path: Path) -> None:
    engine.adapters = {"found": "/f", "declared": "/d"}
    config = config_with(engine.url, adapters=["declared"], discover_adapters=True)
    config["tenants"] = {"laptop": {}, "limited": {"models": ["found"]}}
    async with gateway_in_loop(config, tmp_path) as gateway:
        async with gateway.http.get(gateway.url + "/v1/models") as answer:
            listed = [each["id"] for each in (await answer.json())["data"]]
        statuses = [(await ask(gateway, model))[0] for model in ("found", "declared", "m", "lost")]

    assert listed == ["m", "declared", "found"]
    assert statuses == [200, 200, 200, 404]


async def test_adapters_on_different_engines_are_found_there(tmp_path: Path) -> None:
    async with FakeEngine() as one, FakeEngine() as other:
        one.adapters, other.adapters = {"a": "/a"}, {"b": "/b"}
        config = config_with(one.url, other.url, adapters=["a", "b", "c"])
        async with gateway_in_loop(config, tmp_path) as gateway:
            statuses = [(await ask(gateway, model))[0] for model in ("a", "b", "a", "b", "c")]

    assert statuses == [200, 200, 200, 200, 503]
    assert {each.json["model"] for each in one.requests} == {"a"}
    assert {each.json["model"] for each in other.requests} == {"b"}


async def test_engine_never_has_more_adapters_than_slots(engine: FakeEngine, tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    engine.adapters = {name: f"/{name}" for name in names}
    engine.max_lora = 2
    engine.behaviour = Behaviour(tokens=4, pace_s=0.002)
    config = config_with(engine.url, adapters=names, max_lora=2, in_flight_max=8)
    config["routing"] = {"adapter_load_penalty": "1ms"}
    async with gateway_in_loop(config, tmp_path) as gateway:
        answers = await asyncio.gather(*(ask(gateway, names[number % 4]) for number in range(40)))

    assert {status for status, _ in answers} == {200}
    assert engine.adapters_running_max == 2
    assert engine.running_max > 2


async def test_reload_loads_new_adapters_and_unloads_removed_ones(engine: FakeEngine, tmp_path: Path) -> None:
    config = config_with(engine.url, adapters=[{"name": "old", "source": "/old"}])
    async with gateway_in_loop(config, tmp_path) as gateway:
        await engine.next_probe("/v1/load_lora_adapter")
        while (await ask(gateway, "old"))[0] != 200:
            await asyncio.sleep(0)
        config["pools"]["small"]["adapters"] = [{"name": "new", "source": "/new"}]
        await gateway.rewrite(config)
        while (await ask(gateway, "new"))[0] != 200:
            await asyncio.sleep(0)
        assert (await ask(gateway, "old"))[0] == 404
        while "old" in engine.adapters:
            await engine.next_probe()

    assert engine.adapters == {"new": "/new"}


async def test_adapter_stays_loaded_while_another_pool_of_the_engine_has_it(engine: FakeEngine, tmp_path: Path) -> None:
    engine.models = ("fake", "other")
    config = config_with(engine.url, adapters=[{"name": "a", "source": "/a"}])
    other = config["pools"]["small"] | {"served_model": "other", "api_key": "k"}
    config["pools"]["second"] = other | {"adapters": [{"name": "a", "model": "b", "source": "/a"}, "c"]}
    config["models"]["n"] = "second"
    async with gateway_in_loop(config, tmp_path) as gateway:
        while (await ask(gateway, "a"))[0] != 200 or (await ask(gateway, "b"))[0] != 200:
            await asyncio.sleep(0)
        config["pools"]["small"]["adapters"] = [{"name": "new", "source": "/new"}]
        await gateway.rewrite(config)
        while (await ask(gateway, "new"))[0] != 200:
            await asyncio.sleep(0)
        # The adapter would be unloaded before the other one is loaded.
        assert engine.adapters == {"a": "/a", "new": "/new"}
        assert ((await ask(gateway, "a"))[0], (await ask(gateway, "b"))[0]) == (404, 200)

        config["pools"]["second"]["adapters"] = ["c"]
        await gateway.rewrite(config)
        while "a" in engine.adapters:
            await engine.next_probe()

    assert engine.adapters == {"new": "/new"}
