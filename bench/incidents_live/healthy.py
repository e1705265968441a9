"""Healthy runs, in which every verdict other than healthy is a false alarm.

The traffic looks unusual for a moment but affects no caller. The traffic shapes are the ones from the simulated suite
(`bench/diagnosis/healthy.py`) that real processes can produce.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from bench.incidents_live.incidents import KNOWN_S, SHORT_S, LiveIncident, restore_traffic, start_all
from bench.incidents_live.settings import ENGINES, LOAD, POOL, TENANTS, rate
from bench.incidents_live.world import World

RAMP_S: Final = 120.0
"""Period of a ramp."""
LOAD_MAX: Final = 0.5
"""Maximum load as a share of the predicted capacity. Because requests arrive at random, a few are rejected within 20
minutes at a load of 0.6.
"""


def _repeat(world: World, every_s: float, step: Callable[[float], None]) -> None:
    """Call `step` periodically with the seconds since the start, until the end of the run."""

    async def loop() -> None:
        began = asyncio.get_running_loop().time()
        while True:
            step(asyncio.get_running_loop().time() - began)
            await asyncio.sleep(every_s)

    world.tasks.append(asyncio.create_task(loop(), name="shape"))


async def _stop(world: World) -> None:
    world.tasks.pop().cancel()
    await restore_traffic(world)


async def bursts(world: World) -> None:
    """Repeated two-second bursts at twice the normal load."""
    more = world.callers["more"]

    def step(at_s: float) -> None:
        more.rate = rate(LOAD) if at_s % 10 < 2 else 0.0

    _repeat(world, 0.5, step)


async def ramp(world: World) -> None:
    """The load rises from normal to `LOAD_MAX` and falls again, repeatedly."""

    def step(at_s: float) -> None:
        part = 1 - abs(2 * (at_s % RAMP_S) / RAMP_S - 1)
        _set_load(world, LOAD + part * (LOAD_MAX - LOAD))

    _repeat(world, 1.0, step)


async def morning(world: World) -> None:
    """The load rises from a tenth of normal to `LOAD_MAX` within five minutes and stays there."""

    def step(at_s: float) -> None:
        _set_load(world, LOAD / 10 + min(1.0, at_s / 300) * (LOAD_MAX - LOAD / 10))

    _repeat(world, 1.0, step)


def _set_load(world: World, load: float) -> None:
    for name in TENANTS:
        world.callers[name].rate = rate(load) / len(TENANTS)


async def quiet(world: World) -> None:
    """One request arrives every few seconds."""
    for name in TENANTS:
        world.callers[name].rate = 0.2


async def night(world: World) -> None:
    """Only batch requests arrive, with prompts twice as long."""
    for name in TENANTS:
        world.callers[name].rate = 0.0
    batch = world.callers["batch"]
    batch.rate, batch.prompt_tokens = rate(LOAD / 2), 4_000


async def start_whole(world: World) -> None:
    """All responses are non-streaming."""
    for each in world.callers.values():
        each.stream = False
    await start_all(world)


async def start_embeddings(world: World) -> None:
    for each in world.callers.values():
        each.path, each.stream, each.rate = "/v1/embeddings", False, min(each.rate, 5.0)
    await start_all(world)


async def start_mixed(world: World) -> None:
    """Prompt and response lengths vary severalfold."""
    for each in world.callers.values():
        each.spread = 0.8
        each.prompt_tokens //= 2
    await start_all(world)


async def start_conversations(world: World) -> None:
    """All requests share three quarters of their prompt, which the engines have cached."""
    for each in world.callers.values():
        each.shared_tokens = 3 * each.prompt_tokens // 4
    await start_all(world)


async def start_books(world: World) -> None:
    """Few requests arrive, and one in thirty has a prompt of 100,000 tokens."""
    for name in TENANTS:
        world.callers[name].rate = 0.25
    more = world.callers["more"]
    more.rate, more.prompt_tokens, more.service_class = 0.5 / 30, 100_000, "batch"
    await start_all(world)


async def start_without_targets(world: World) -> None:
    for name in ("ttft", "tpot"):
        del world.config["classes"]["interactive"][name]
    await start_all(world)


async def start_with_a_rush(world: World) -> None:
    """One in ten requests has a deadline that no engine can meet."""
    more = world.callers["more"]
    more.rate, more.deadline_ms = rate(LOAD) / 9, 5
    await start_all(world)


async def start_one(world: World) -> None:
    """The pool has only one endpoint, at the same relative load."""
    del world.engines[1:]
    del world.config["pools"][POOL]["endpoints"][1:]
    for name in TENANTS:
        world.callers[name].rate /= ENGINES
    await start_all(world)


async def reload(world: World) -> None:
    """The configuration is changed and reloaded every half minute."""

    def step(at_s: float) -> None:
        config = world.config
        config["classes"]["batch"]["queue_wait_max"] = f"{120 + int(at_s)}s"
        world.reload(config)

    _repeat(world, 30.0, step)


async def hiccups(world: World) -> None:
    """The first engine stalls for half a second every half minute."""

    async def loop() -> None:
        while True:
            world.engines[0].freeze()
            await asyncio.sleep(0.5)
            world.engines[0].thaw()
            await asyncio.sleep(29.5)

    world.tasks.append(asyncio.create_task(loop(), name="shape"))


async def end_hiccups(world: World) -> None:
    await _stop(world)
    world.engines[0].thaw()


HEALTHY: Final[Mapping[str, LiveIncident]] = MappingProxyType(
    {
        each.name: each
        for each in (
            LiveIncident("healthy-steady", ()),
            LiveIncident("healthy-bursts", (), bursts, _stop, usual_s=KNOWN_S),
            LiveIncident("healthy-ramp", (), ramp, _stop, usual_s=KNOWN_S),
            LiveIncident("healthy-morning", (), morning, _stop, usual_s=SHORT_S),
            LiveIncident("healthy-quiet", (), quiet, restore_traffic),
            LiveIncident("healthy-night", (), night, restore_traffic, usual_s=KNOWN_S),
            LiveIncident("healthy-whole-answers", (), prepare=start_whole),
            LiveIncident("healthy-embeddings", (), prepare=start_embeddings),
            LiveIncident("healthy-mixed-lengths", (), prepare=start_mixed),
            LiveIncident("healthy-conversations", (), prepare=start_conversations),
            LiveIncident("healthy-books", (), prepare=start_books),
            LiveIncident("healthy-no-targets", (), prepare=start_without_targets),
            LiveIncident("healthy-impossible-deadline", (), prepare=start_with_a_rush),
            LiveIncident("healthy-one-endpoint", (), prepare=start_one),
            LiveIncident("healthy-reload", (), reload, _stop, usual_s=KNOWN_S),
            LiveIncident("healthy-hiccups", (), hiccups, end_hiccups, usual_s=KNOWN_S),
        )
    }
)
