"""A failed endpoint is not tried repeatedly, and retries do not amplify an outage.

Three consecutive failures eject an endpoint. While it is ejected, it gets no requests; afterwards one request at a time
tests whether it has recovered. Retries and fallbacks to a model's other pools share one budget: if every engine fails,
100 requests result in at most 120 attempts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headgate.config.schema import HealthSection, RetrySection
from headgate.model.policy import RetryRules
from headgate.model.units import SECOND
from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import NO_TARGETS, Config, GatewayInLoop, a_config, chat, gateway_in_loop

FAILURES_MAX = HealthSection().consecutive_failures_max
ATTEMPTS_MAX = RetrySection().attempts_max
AMPLIFICATION_MAX = 1.2
REQUESTS = 30
SECRET = "a secret of a test"
NEVER_EJECT = {"consecutive_failures_max": 1_000_000}
PATIENCE = {"interactive": {"priority_band": 0, **NO_TARGETS}}
LITTLE_PATIENCE = {"interactive": {"priority_band": 0, **NO_TARGETS, "first_token_timeout": "2s"}}
"""Classes for tests with hanging engines. A shorter timeout would also affect working engines on a busy machine."""


@dataclass
class Target:
    """One engine behind a proxy that can inject faults."""

    engine: FakeEngine
    proxy: FaultProxy

    @property
    def tried(self) -> int:
        """Number of generation requests that reached the engine's proxy."""
        return self.proxy.questions[b"POST"]


async def errs(target: Target) -> None:
    target.engine.behaviour = Behaviour(status=500)


async def resets(target: Target) -> None:
    target.proxy.fault = Fault(only=b"POST", reset_after=0)


async def refuses(target: Target) -> None:
    await target.proxy.stop_listening()
    target.proxy.break_all()


async def hangs(target: Target) -> None:
    target.proxy.fault = Fault(only=b"POST", lost="answer")


KINDS: tuple[Callable[[Target], Awaitable[None]], ...] = (errs, resets, refuses, hangs)


@asynccontextmanager
async def targets(count: int) -> AsyncIterator[list[Target]]:
    async with AsyncExitStack() as stack:
        found: list[Target] = []
        for _ in range(count):
            engine = await stack.enter_async_context(FakeEngine())
            found.append(Target(engine, await stack.enter_async_context(FaultProxy(engine.port))))
        yield found


@dataclass
class Tally:
    """Statuses and attempt counts of many requests, as reported by the gateway."""

    requests: int = 0
    attempts: int = 0
    statuses: list[int] = field(default_factory=list[int])

    @property
    def amplification(self) -> float:
        return self.attempts / self.requests

    async def ask(self, gateway: GatewayInLoop, headers: Mapping[str, str] | None = None, **fields: Any) -> bool:
        """Send a request and return whether its response allows a retry."""
        async with gateway.post(chat(stream=True, **fields), headers=headers) as answer:
            await answer.read()
        self.statuses.append(answer.status)
        self.attempts += int(answer.headers["x-headgate-attempts"])
        return answer.status >= 429 and answer.headers.get("x-should-retry") != "false"


# Ejection


@pytest.mark.parametrize("fail", KINDS)
async def test_failed_endpoint_is_not_tried_while_others_are_serving(
    tmp_path: Path, fail: Callable[[Target], Awaitable[None]]
) -> None:
    async with targets(2) as (dead, good):
        classes = LITTLE_PATIENCE if fail is hangs else PATIENCE
        config = a_config(dead.proxy.url, good.proxy.url, classes=classes)
        async with gateway_in_loop(config, tmp_path) as gateway:
            await fail(dead)
            tally = Tally()
            for _ in range(REQUESTS):
                tally.requests += 1
                await tally.ask(gateway)
            states = {each["id"]: each["state"] for each in (await gateway.status())["endpoints"]}

    assert tally.statuses == [200] * REQUESTS, "the other endpoint must serve every request"
    assert tally.attempts - tally.requests == FAILURES_MAX
    assert dead.tried == (0 if fail is refuses else FAILURES_MAX)
    assert good.tried == REQUESTS
    assert states[f"small/{dead.proxy.url[7:]}"] == "ejected"


async def test_endpoint_recovers_after_one_trial(tmp_path: Path) -> None:
    async with targets(2) as (dead, good):
        config = a_config(dead.proxy.url, good.proxy.url, in_flight_max=4, health={"ejection_time": "300ms"})
        async with gateway_in_loop(config, tmp_path) as gateway:
            await errs(dead)
            while dead.tried < FAILURES_MAX:
                await Tally().ask(gateway)

            # The endpoint has recovered but is slow. While the first request is testing it, it gets no others.
            dead.engine.behaviour = Behaviour(hang_after=0)
            await until_state(gateway, dead, "trial")
            tally = Tally()
            calls = [asyncio.create_task(tally.ask(gateway)) for _ in range(12)]
            held = dead.engine.requests[-1]
            while len(tally.statuses) < 11:
                held = dead.engine.requests[-1]
                await asyncio.sleep(0.01)
            assert dead.tried == FAILURES_MAX + 1
            held.resume.set()
            await asyncio.gather(*calls)
            await until_state(gateway, dead, "ready")
            dead.engine.behaviour = Behaviour()
            for _ in range(6):
                await tally.ask(gateway)

    assert tally.statuses == [200] * 18
    assert dead.tried > FAILURES_MAX + 2, "the endpoint must get its share of requests again"


async def test_failed_trial_costs_one_attempt_and_extends_the_ejection(tmp_path: Path) -> None:
    async with targets(2) as (dead, good):
        config = a_config(dead.proxy.url, good.proxy.url, health={"ejection_time": "200ms", "ejection_time_max": "60s"})
        async with gateway_in_loop(config, tmp_path) as gateway:
            await errs(dead)
            tally, tried = Tally(), list[tuple[float, float]]()
            while len(tried) < FAILURES_MAX + 3:
                tried_before, asked_at = dead.tried, asyncio.get_running_loop().time()
                await tally.ask(gateway)
                if dead.tried > tried_before:
                    tried.append((asked_at, asyncio.get_running_loop().time()))

    # Time from before one failure until after the next, which is longer than the ejection between them.
    waits_s = [ended_at - asked_at for (asked_at, _), (_, ended_at) in pairwise(tried[FAILURES_MAX - 1 :])]
    assert all(wait_s >= least_s for wait_s, least_s in zip(waits_s, (0.2, 0.4, 0.8), strict=True)), waits_s
    assert set(tally.statuses) == {200}


async def until_state(gateway: GatewayInLoop, target: Target, state: str) -> None:
    name = f"small/{target.proxy.url[7:]}"
    await gateway.wait_for_status(
        lambda status: {each["id"]: each["state"] for each in status["endpoints"]}[name] == state
    )


# Retry budget


def many_tenants(config: Config, count: int) -> list[dict[str, str]]:
    """Add `count` tenants to the configuration and return a header for each."""
    names = [f"t{number}" for number in range(count)]
    config["key_secret"] = SECRET
    config["tenants"] |= {name: {"keys": [format_digest(digest(SECRET.encode(), name))]} for name in names}
    return [{"authorization": f"Bearer {name}"} for name in names]


def pools_of(found: list[Target], pools: int, **settings: Any) -> Config:
    """Configuration for one model served by several pools, with the targets spread over them."""
    config = a_config(in_flight_max=100, **settings)
    shape = config["pools"].pop("small")
    for number in range(pools):
        config["pools"][f"p{number}"] = shape | {"endpoints": [each.proxy.url for each in found[number::pools]]}
    config["models"]["m"] = list(config["pools"])
    return config


async def sustained(gateway: GatewayInLoop, tenants: list[dict[str, str]], *, requests: int, per_s: int) -> Tally:
    """Send requests at a fixed rate, regardless of earlier ones, rotating through the tenants."""
    tally, loop = Tally(), asyncio.get_running_loop()
    started, calls = loop.time(), set[asyncio.Task[bool]]()
    for number in range(requests):
        await asyncio.sleep(max(0.0, started + number / per_s - loop.time()))
        tally.requests += 1
        calls.add(asyncio.create_task(tally.ask(gateway, tenants[number % len(tenants)])))
    await asyncio.gather(*calls)
    return tally


@pytest.mark.parametrize("fail", KINDS)
async def test_retry_budget_limits_attempts_if_every_engine_fails(
    tmp_path: Path, fail: Callable[[Target], Awaitable[None]]
) -> None:
    """Tests the default retry budget without ejections, so that every request reaches an engine."""
    async with targets(4) as found:
        config = pools_of(found, 2, classes=LITTLE_PATIENCE if fail is hangs else PATIENCE, health=NEVER_EJECT)
        tenants = many_tenants(config, 20)
        async with gateway_in_loop(config, tmp_path) as gateway:
            for target in found:
                await fail(target)
            started = time.monotonic()
            tally = await sustained(gateway, tenants, requests=150, per_s=300)
            await gateway.wait_until_idle()

    # The test should finish within one window of the budget. On a slow machine, each further window allows the minimum
    # number of extra attempts per pool.
    further_windows = (time.monotonic() - started) * SECOND // RetryRules().pool_budget_window_ns
    extra = further_windows * 2 * RetryRules().pool_retries_min / tally.requests
    seen = sum(target.tried for target in found)
    print(f"{fail.__name__}: {tally.requests} requests, {tally.attempts} attempts: {tally.amplification:.3f}")
    assert set(tally.statuses) == ({504} if fail is hangs else {502})
    if fail is not refuses:
        # The proxy does not see an attempt that timed out before its request was sent.
        assert 0.95 * tally.attempts <= seen <= tally.attempts, (
            "the proxies must count the attempts that the gateway reports"
        )
    assert tally.attempts > tally.requests, "the gateway must retry"
    assert tally.amplification <= AMPLIFICATION_MAX + extra


async def test_all_endpoints_are_ejected_with_default_settings(tmp_path: Path) -> None:
    async with targets(10) as found:
        config = pools_of(found, 2, classes={"interactive": {"priority_band": 0, **NO_TARGETS, "queue_wait_max": "1s"}})
        tenants = many_tenants(config, 20)
        async with gateway_in_loop(config, tmp_path) as gateway:
            for number, target in enumerate(found):
                await (errs, resets)[number % 2](target)
            started = asyncio.get_running_loop().time()
            tally = await sustained(gateway, tenants, requests=300, per_s=1_000_000)
            at_once = sum(target.tried for target in found)
            later = await sustained(gateway, tenants, requests=50, per_s=200)
            took_s = asyncio.get_running_loop().time() - started

    seen = sum(target.tried for target in found)
    print(f"{tally.requests} concurrent requests: {at_once} attempts; {later.requests} more: {seen - at_once}")
    # On a slow machine, an attempt can time out before its request is sent, and the proxy does not see it.
    assert 0.9 * tally.attempts <= at_once <= tally.attempts
    assert tally.amplification <= AMPLIFICATION_MAX
    # On a slow machine, ejections can end during the test, which allows one trial per endpoint.
    trials_max = len(found) * int(took_s * SECOND // HealthSection().ejection_time)
    assert seen - at_once <= trials_max, "every endpoint must be ejected"
    assert set(later.statuses) == {503} or trials_max > 0


async def test_pools_for_a_model_share_the_attempts_of_a_request(tmp_path: Path) -> None:
    async with targets(5) as found:
        async with gateway_in_loop(pools_of(found, 5), tmp_path) as gateway:
            for target in found:
                await errs(target)
            tally = Tally()
            await tally.ask(gateway)

    assert tally.statuses == [502]
    assert tally.attempts == ATTEMPTS_MAX
    assert sum(target.tried for target in found) == ATTEMPTS_MAX, "the limit applies to the request, not to each pool"
    assert sum(target.tried > 0 for target in found) > 1, "the attempts must go to more than one endpoint"


async def test_client_retries_use_the_same_budget(tmp_path: Path) -> None:
    """The callers retry twice and send the retry-count header, as the official client does."""
    async with targets(2) as found:
        async with gateway_in_loop(pools_of(found, 2, health=NEVER_EJECT), tmp_path) as gateway:
            for target in found:
                await errs(target)
            tally = Tally()

            async def caller() -> None:
                tally.requests += 1
                for retries in range(3):
                    if not await tally.ask(gateway, {"x-stainless-retry-count": str(retries)}):
                        return

            for _ in range(20):
                await asyncio.gather(*(caller() for _ in range(10)))

    print(f"{tally.requests} callers, {len(tally.statuses)} requests, {tally.attempts} attempts")
    assert len(tally.statuses) > tally.requests, "the callers must retry"
    assert sum(target.tried for target in found) == tally.attempts
    assert tally.attempts <= AMPLIFICATION_MAX * tally.requests
