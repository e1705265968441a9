"""Live incidents: how each starts and ends, and the expected verdicts."""

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench import mock_upstream
from bench.incidents_live.settings import LOAD, POOL, rate
from bench.incidents_live.world import START_S_MAX, LiveEngine, World
from testing.dns_server import SRV, DnsServer
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import CHAT, chat, urls_of
from testing.ports import free_port
from testing.postgres import Postgres
from testing.processes import ChildProcess
from testing.stores import Server

Step = Callable[[World], Awaitable[None]]
KNOWN_S: Final = 50.0
"""Time until the gateway has learned its baseline, in seconds."""
SHORT_S: Final = 10.0
SLOW_BYTES_PER_S: Final = 700.0
"""Transfer rate of a slowed response. One token is about 250 bytes."""
NAMED: Final = "_http._tcp.engines.test"
"""DNS name of the engines."""
FLOOD_CONNECTIONS: Final = 1_200
"""Number of connections opened by each of the two flooding processes."""
FLOOD_CHUNKS: Final = 4
ENGINE_KEY: Final = "the-key-of-the-engines"


async def _do_nothing(world: World) -> None:
    del world


async def start_all(world: World) -> None:
    for engine in world.engines:
        engine.start(wait=False)
    world.start_gateway()
    for engine in world.engines:
        assert engine.process is not None
        engine.process.wait_until_ok(f"{engine.url}/health", 40.0)


@dataclass(frozen=True, slots=True)
class LiveIncident:
    name: str
    right: tuple[str, ...]
    """Correct verdicts. Empty if the gateway should report healthy."""
    begin: Step = _do_nothing
    end: Step = _do_nothing
    """Step that starts the recovery."""
    prepare: Step = start_all
    """Step that starts the engines and the gateway."""
    usual_s: float = SHORT_S
    """Seconds of normal traffic before the incident. 0 if the incident is present from the start."""
    pool: dict[str, Any] = field(default_factory=dict[str, Any])
    """Additional pool settings."""
    real: bool = False
    """Whether the engines are real llama.cpp processes."""


# Unavailable engines


async def freeze(world: World) -> None:
    world.engines[0].freeze()


async def thaw(world: World) -> None:
    await asyncio.to_thread(world.engines[0].thaw)


async def kill_one(world: World) -> None:
    await asyncio.to_thread(world.engines[0].kill)


async def kill_all(world: World) -> None:
    for engine in world.engines:
        await asyncio.to_thread(engine.kill)


async def start_missing(world: World) -> None:
    for engine in world.engines:
        if engine.process is None:
            await asyncio.to_thread(engine.start)


async def gateway_alone(world: World) -> None:
    world.start_gateway()


async def one_engine_down(world: World) -> None:
    """One of two engines is not running when the gateway starts."""
    world.engines[1].start()
    world.start_gateway()


async def wrong_address(world: World) -> None:
    """Nothing is listening at the second endpoint's address."""
    world.engines[0].start()
    world.start_gateway()


def _with_pool(world: World, **settings: Any) -> dict[str, Any]:
    config = deepcopy(world.config)
    config["pools"][POOL] |= settings
    return config


async def fix_address(world: World) -> None:
    world.reload(_with_pool(world, endpoints=[world.engines[0].url]))


async def engines_with_a_key(world: World) -> None:
    for engine in world.engines:
        engine.start("--api-key", ENGINE_KEY)
    world.start_gateway()


async def fix_key(world: World) -> None:
    world.reload(_with_pool(world, api_key=ENGINE_KEY))


async def fix_model(world: World) -> None:
    world.reload(_with_pool(world, served_model="sim"))


async def restart_in_a_loop(world: World) -> None:
    """The first engine is killed and restarted every few seconds."""

    async def loop() -> None:
        while True:
            await asyncio.to_thread(world.engines[0].kill)
            await asyncio.sleep(3.0)
            await asyncio.to_thread(world.engines[0].start)
            await asyncio.sleep(5.0)

    world.tasks.append(asyncio.create_task(loop(), name="restarts"))


async def stop_restarting(world: World) -> None:
    task = world.tasks.pop()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await start_missing(world)


# The gateway and its dependencies


def _repeat(world: World, stop: Callable[[], None], stopped_s: float, go_on: Callable[[], None], runs_s: float) -> None:
    """Alternate between stopping a process for `stopped_s` and letting it run for `runs_s`."""

    async def loop() -> None:
        while True:
            stop()
            await asyncio.sleep(stopped_s)
            go_on()
            await asyncio.sleep(runs_s)

    world.tasks.append(asyncio.create_task(loop(), name="repeats"))


async def _end_repeats(world: World, go_on: Callable[[], None]) -> None:
    task = world.tasks.pop()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    go_on()


async def start_behind_a_proxy(world: World) -> None:
    """The gateway reaches the first engine through a proxy that can slow its responses."""
    world.proxy = FaultProxy(world.engines[0].port)
    await world.proxy.listen()
    world.config["pools"][POOL]["endpoints"][0] = world.proxy.url
    await start_all(world)


async def slow(world: World) -> None:
    """The first engine's tokens arrive at a tenth of their normal speed."""
    assert world.proxy is not None
    world.proxy.fault = Fault(only=b"POST", bytes_per_s=SLOW_BYTES_PER_S)


async def restore_speed(world: World) -> None:
    assert world.proxy is not None
    world.proxy.fault = Fault()


async def throttle_gateway(world: World) -> None:
    """The gateway gets very little CPU time, because it is repeatedly suspended for more than a second."""
    assert world.gateway is not None
    _repeat(world, world.gateway.freeze, 1.3, world.gateway.thaw, 0.5)


async def resume_gateway(world: World) -> None:
    assert world.gateway is not None
    await _end_repeats(world, world.gateway.thaw)


async def start_with_a_second_pool(world: World) -> None:
    """Add a second pool with an engine that does no computation, so that requests to it cost only gateway CPU time."""
    port = free_port()
    engine = ChildProcess("upstream", [sys.executable, "-m", "bench.mock_upstream", str(port)])
    world.parts.callback(engine.stop)
    engine.wait_until_ok(f"http://127.0.0.1:{port}/health", START_S_MAX)
    pool = {key: value for key, value in world.config["pools"][POOL].items() if key != "speed"}
    pool |= {"endpoints": [f"http://127.0.0.1:{port}"], "served_model": mock_upstream.MODEL, "in_flight_max": 2_000}
    world.config["pools"][mock_upstream.MODEL] = pool
    world.config["models"][mock_upstream.MODEL] = mock_upstream.MODEL
    await start_all(world)


async def flood(world: World) -> None:
    """Two processes send short streamed requests on many connections, as fast as the gateway responds."""
    body = json.dumps(chat(f"chunks={FLOOD_CHUNKS} pace_ms=0", model=mock_upstream.MODEL, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {world.keys.of['bolt']}\r\n"
    head += f"x-headgate-class: batch\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    file = world.folder / "request"
    file.write_bytes(head.encode() + body)
    port = urls_of(world.config)[0].rpartition(":")[2]
    command = [sys.executable, "-m", "bench.incidents_live.flood", port, str(FLOOD_CONNECTIONS), str(file)]
    world.floods = [ChildProcess("flood", command) for _ in range(2)]


async def end_flood(world: World) -> None:
    for process in world.floods:
        await asyncio.to_thread(process.stop)
    world.floods = []


async def start_with_store(world: World) -> None:
    world.store = Server()
    world.config["cell"] = {"store": world.store.url}
    await start_all(world)


async def kill_store(world: World) -> None:
    assert world.store is not None
    world.store.kill()


async def restart_store(world: World) -> None:
    assert world.store is not None
    await asyncio.to_thread(world.store.restart)


async def slow_store(world: World) -> None:
    assert world.store is not None
    _repeat(world, world.store.pause, 0.4, world.store.resume, 0.02)


async def restore_store(world: World) -> None:
    assert world.store is not None
    await _end_repeats(world, world.store.resume)


async def start_with_database(world: World) -> None:
    world.database = Postgres()
    world.config["database"] = {"url": world.database.url}
    world.config["ledger"] = {"spool_directory": str(world.folder / "spool")}
    world.migrate()
    await start_all(world)


async def kill_database(world: World) -> None:
    assert world.database is not None
    world.database.kill()


async def restart_database(world: World) -> None:
    assert world.database is not None
    await asyncio.to_thread(world.database.restart)


async def use_up_descriptors(world: World) -> None:
    """The gateway exceeds its open file limit, and each request uses a new connection."""
    assert world.gateway is not None
    assert world.traffic is not None
    world.traffic.keeps_connections = False
    _limit_open_files(world.gateway.pid, 3 * _open_files(world.gateway.pid) // 4)


async def free_descriptors(world: World) -> None:
    assert world.gateway is not None
    assert world.traffic is not None
    world.traffic.keeps_connections = True
    _limit_open_files(world.gateway.pid, None)


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _limit_open_files(pid: int, most: int | None) -> None:
    """Set the open file limit. None restores the hard limit."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard if most is None else most, hard))


async def fill_disk(world: World) -> None:
    """The gateway's files cannot grow. Writes fail with `File too large` instead of `No space left on device`."""
    _limit_file_size(world, 0)


async def empty_disk(world: World) -> None:
    _limit_file_size(world, resource.RLIM_INFINITY)


def _limit_file_size(world: World, most: int) -> None:
    assert world.gateway is not None
    _, hard = resource.prlimit(world.gateway.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(world.gateway.pid, resource.RLIMIT_FSIZE, (most, hard))


def _target(engine: LiveEngine) -> str:
    return f"engine-{engine.port}.{NAMED}"


def _services(world: World) -> dict[tuple[str, int], list[Any]]:
    return {(NAMED, SRV): [(0, each.port, _target(each)) for each in world.engines]}


async def start_with_names(world: World) -> None:
    """The gateway discovers the engines through SRV records served by a name server on loopback."""
    world.names = DnsServer(_services(world), beside={_target(each): ["127.0.0.1"] for each in world.engines})
    await world.parts.enter_async_context(world.names.serving())
    pool = world.config["pools"][POOL]
    del pool["endpoints"]
    pool["fleet"] = {"kind": "dns", "name": NAMED, "nameserver": f"127.0.0.1:{world.names.port}"}
    await start_all(world)


async def silence_names(world: World) -> None:
    assert world.names is not None
    world.names.silent = True


async def fail_names(world: World) -> None:
    """The name server responds with SERVFAIL."""
    assert world.names is not None
    world.names.error = 2


async def restore_names(world: World) -> None:
    assert world.names is not None
    world.names.silent, world.names.error, world.names.records = False, None, _services(world)


async def start_with_little_memory(world: World) -> None:
    """Each engine's KV cache holds about seven requests."""
    for engine in world.engines:
        engine.start("--kv-tokens", "16000")
    world.start_gateway()


# Changes in traffic


async def overload(world: World) -> None:
    for name in ("acme", "bolt"):
        world.callers[name].rate = rate(1.4) / 2


async def backlog(world: World) -> None:
    """Batch load exceeds the capacity of the engines, while interactive requests meet their targets."""
    world.callers["batch"].rate = rate(1.4 - LOAD)


async def restore_traffic(world: World) -> None:
    for name in ("acme", "bolt"):
        callers = world.callers[name]
        callers.rate, callers.prompt_tokens, callers.timeout_s, callers.retries = rate(LOAD) / 2, 2_000, 20.0, 0
        callers.output_tokens = 20
    world.callers["more"].rate = world.callers["batch"].rate = 0.0


async def clear_backlog(world: World) -> None:
    """Restore normal traffic and cancel the backlog."""
    await restore_traffic(world)
    assert world.traffic is not None
    world.traffic.cancel_open("batch")


async def clear_long_answers(world: World) -> None:
    """Restore normal traffic and cancel the long responses."""
    await restore_traffic(world)
    assert world.traffic is not None
    world.traffic.cancel_open("interactive")


async def noisy_tenant(world: World) -> None:
    world.callers["more"].rate = rate(1.6 - LOAD)


async def long_prompts(world: World) -> None:
    """All prompts are four times as long, at the same request rate."""
    for name in ("acme", "bolt"):
        world.callers[name].prompt_tokens = 8_000


async def long_answers(world: World) -> None:
    """The same requests get 200-token responses. Compute capacity is sufficient, but requests hold KV memory longer."""
    for name in ("acme", "bolt"):
        world.callers[name].output_tokens, world.callers[name].timeout_s = 200, 60.0


async def retry_storm(world: World) -> None:
    """Callers time out before responses complete and retry immediately."""
    for name in ("acme", "bolt"):
        world.callers[name].timeout_s, world.callers[name].retries = 0.6, 5


async def short_client_timeouts(world: World) -> None:
    for name in ("acme", "bolt"):
        world.callers[name].timeout_s = 0.5


INCIDENTS: Final[Mapping[str, LiveIncident]] = MappingProxyType(
    {
        each.name: each
        for each in (
            LiveIncident("hang", ("engine_hang",), freeze, thaw),
            LiveIncident("kill-one", ("engine_down",), kill_one, start_missing),
            LiveIncident("kill-all", ("engine_down",), kill_all, start_missing),
            LiveIncident("down-from-start", ("engine_down",), end=start_missing, prepare=gateway_alone, usual_s=0),
            LiveIncident(
                "one-down-from-start", ("engine_down",), end=start_missing, prepare=one_engine_down, usual_s=0
            ),
            LiveIncident("wrong-address", ("engine_down",), end=fix_address, prepare=wrong_address, usual_s=0),
            LiveIncident(
                "wrong-model", ("engine_misconfigured",), end=fix_model, usual_s=0, pool={"served_model": "other"}
            ),
            LiveIncident(
                "wrong-key",
                ("engine_misconfigured",),
                end=fix_key,
                prepare=engines_with_a_key,
                usual_s=0,
                pool={"api_key": "another-key"},
            ),
            LiveIncident("slow-engine", ("slow_endpoint",), slow, restore_speed, start_behind_a_proxy, KNOWN_S),
            LiveIncident("restart-loop", ("engine_down",), restart_in_a_loop, stop_restarting),
            LiveIncident("overload", ("overload",), overload, restore_traffic, usual_s=KNOWN_S),
            LiveIncident("batch-backlog", ("overload",), backlog, clear_backlog, usual_s=KNOWN_S),
            LiveIncident(
                "out-of-kv", ("kv_exhausted",), long_answers, clear_long_answers, start_with_little_memory, KNOWN_S
            ),
            LiveIncident("noisy-tenant", ("noisy_tenant",), noisy_tenant, restore_traffic, usual_s=KNOWN_S),
            LiveIncident(
                "retry-storm", ("retry_storm", "client_timeouts"), retry_storm, restore_traffic, usual_s=KNOWN_S
            ),
            LiveIncident(
                "long-prompts", ("long_prompts", "prompt_drift"), long_prompts, restore_traffic, usual_s=KNOWN_S
            ),
            LiveIncident(
                "client-timeouts", ("client_timeouts",), short_client_timeouts, restore_traffic, usual_s=KNOWN_S
            ),
            LiveIncident("gateway-starved", ("scheduler_behind",), throttle_gateway, resume_gateway),
            LiveIncident("gateway-flooded", ("scheduler_behind",), flood, end_flood, start_with_a_second_pool, KNOWN_S),
            LiveIncident("redis-gone", ("store_slow",), kill_store, restart_store, start_with_store, KNOWN_S),
            LiveIncident("redis-slow", ("store_slow",), slow_store, restore_store, start_with_store, KNOWN_S),
            LiveIncident("descriptors", ("gateway_resources",), use_up_descriptors, free_descriptors),
            LiveIncident("disk-full", ("gateway_resources",), fill_disk, empty_disk, start_with_database),
            LiveIncident("postgres-gone", ("store_slow",), kill_database, restart_database, start_with_database),
            LiveIncident("dns-gone", ("gateway_resources",), silence_names, restore_names, start_with_names),
            LiveIncident("dns-errors", ("gateway_resources",), fail_names, restore_names, start_with_names),
            LiveIncident("llamacpp-hang", ("engine_hang",), freeze, thaw, real=True),
            LiveIncident("llamacpp-kill-one", ("engine_down",), kill_one, start_missing, real=True),
            LiveIncident("llamacpp-kill-all", ("engine_down",), kill_all, start_missing, real=True),
            LiveIncident(
                "llamacpp-down-from-start",
                ("engine_down",),
                end=start_missing,
                prepare=one_engine_down,
                usual_s=0,
                real=True,
            ),
        )
    }
)
