"""`headgate drill` as a process, against gateways with simulated engines: refusals, results, and the act undone."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.wire.keys import digest, format_digest
from testing.cell_processes import cell_processes
from testing.gateway import Config, RunningGateway, a_config, gateway_process_with_client
from testing.simulated_engines import HEADGATE, simulated_engines, start_loadtest
from tests.fleets.scaled import SIMULATED, a_scaled_config

SECRET = "only-for-tests-0123456789"
KEYS = {name: f"hg-{name}" for name in ("ops", "viewer", "drill", "acme")}
SHORT = ("--before", "2s", "--for", "2s", "--after", "2s")


def hashed(name: str) -> str:
    return format_digest(digest(SECRET.encode(), KEYS[name]))


def settings(**more: Any) -> Config:
    promised = {"ttft": "20s", "tpot": "unlimited", "objectives": {"ttft_percent": 50}}
    return {
        "key_secret": SECRET,
        "admin_keys": {
            "ops": {"key": hashed("ops"), "permissions": ["read", "operate"]},
            "viewer": {"key": hashed("viewer"), "permissions": ["read"]},
        },
        "tenants": {name: {"keys": [hashed(name)]} for name in ("acme", "drill")},
        "anonymous_tenant": None,
        "classes": {"interactive": promised, "batch": {"ttft": "60s", "tpot": "unlimited"}},
        **more,
    }


def environment(key: str | None = "ops") -> dict[str, str]:
    told = {**os.environ, "HEADGATE_DRILL_KEY": KEYS["drill"], "ACME": KEYS["acme"]}
    return told if key is None else {**told, "HEADGATE_ADMIN_KEY": KEYS[key]}


async def start_drill(gateway: RunningGateway, *arguments: str, key: str | None = "ops") -> Process:
    command = [*HEADGATE, "drill", *arguments, "--config", str(gateway.file), "--json"]
    return await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment(key))


async def result_of(process: Process) -> tuple[int | None, dict[str, Any], str]:
    out, errors = await asyncio.wait_for(process.communicate(), 100)
    lines = out.decode().splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, errors.decode()


async def drilled(gateway: RunningGateway, *arguments: str, key: str | None = "ops") -> tuple[int | None, Any, str]:
    return await result_of(await start_drill(gateway, *arguments, key=key))


@contextmanager
def traffic(gateway: RunningGateway, rate: int = 10) -> Iterator[None]:
    sizes = ("--prompt-tokens", "50", "--output-tokens", "10")
    mix = ("--mix", "class=interactive,key=env:ACME,tenant=acme")
    process = start_loadtest(
        gateway.url, "--model", "m", "--rate", str(rate), "--duration", "300", *sizes, *mix, environment=environment()
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@asynccontextmanager
async def a_fleet(folder: Path) -> AsyncIterator[RunningGateway]:
    with simulated_engines(2, "--profile", "tiny", model="fake") as urls:
        async with gateway_process_with_client(a_config(*urls, **settings()), folder) as (gateway, _):
            with traffic(gateway):
                await gateway.wait_for_status(lambda status: status["attempts_open"])
                yield gateway


def drained(status: Config) -> bool:
    return any(each["drained"] for each in status["endpoints"])


@pytest.mark.process
async def test_endpoint_loss_is_refused_without_permission_and_otherwise_performed_and_undone(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as gateway:
        # Refusals. None of them changes anything.
        plan = await drilled(gateway, "endpoint-loss", *SHORT)
        no_key = await drilled(gateway, "endpoint-loss", "--yes", key=None)
        viewer = await drilled(gateway, "endpoint-loss", "--yes", *SHORT, key="viewer")
        scaled = await drilled(gateway, "cold-start", "--yes")
        alone = await drilled(gateway, "cell-failover", "--yes")
        before = await gateway.status()

        loss = await drilled(gateway, "endpoint-loss", "--yes", "--interrupt", *SHORT)
        after = await gateway.status()

    assert [code for code, *_ in (plan, no_key, viewer, scaled, alone)] == [2] * 5
    assert "drain" in plan[1]["would"]
    assert "HEADGATE_ADMIN_KEY is not set" in no_key[1]["reason"]
    assert 'lacks the permission "operate"' in viewer[1]["reason"]
    assert "no pool is autoscaled" in scaled[1]["reason"]
    assert "does not belong to a cell" in alone[1]["reason"]
    assert before["overrides"] == after["overrides"] == []

    assert (loss[0], loss[1]["verdict"], loss[1]["objectives"]) == (0, "held", {"interactive ttft": "held"}), loss
    assert loss[1]["undone"].startswith("ended ovr_")
    assert min(each["requests"] for each in loss[1]["phases"].values()) > 0


@pytest.mark.process
@pytest.mark.nightly
async def test_overload_adds_requests_of_its_own_tenant(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as gateway:
        code, result, errors = await drilled(gateway, "overload", "--yes", *SHORT)
        after = await gateway.status()

    assert (code, result.get("verdict")) == (0, "held"), (result, errors)
    assert result["measured"]["sent"] > 0
    assert after["overrides"] == []


@pytest.mark.process
async def test_killed_or_interrupted_drill_leaves_no_override_behind(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as gateway:
        interrupted = await start_drill(gateway, "endpoint-loss", "--yes", "--before", "1s", "--for", "60s")
        await gateway.wait_for_status(drained)
        interrupted.send_signal(signal.SIGINT)
        told = await result_of(interrupted)
        restored = await gateway.status()

        killed = await start_drill(gateway, "endpoint-loss", "--yes", "--before", "1s", "--for", "1s")
        await gateway.wait_for_status(drained)
        killed.kill()
        await killed.communicate()
        # The override lasts for the time of the drill and five seconds more.
        await gateway.wait_for_status(lambda status: not drained(status), seconds_max=30)

    assert (told[0], told[1]["verdict"], told[1]["stopped"]) == (1, "missed", "interrupted by SIGINT")
    assert not drained(restored)


@pytest.mark.process
@pytest.mark.nightly
async def test_cold_start_adds_an_endpoint_and_removes_it_again(tmp_path: Path) -> None:
    command = (*SIMULATED, "--profile", "tiny")
    scaling = {"period": "10s", "cold_start": "60s"}
    config = a_scaled_config(tmp_path, command, most=2, scaling=scaling, **settings())
    async with gateway_process_with_client(config, tmp_path, wait_for=1) as (gateway, _):
        with traffic(gateway):
            told = await drilled(gateway, "cold-start", "--yes", "--before", "2s", "--after", "5s")
        await gateway.wait_until_ready(1)

    code, result, _ = told
    assert (code, result["objectives"]["cold-start"]) == (0, "held"), told
    assert result["measured"]["endpoint"] == "small/1"
    assert 0 < result["measured"]["ready after (s)"] <= 60
    assert result["measured"]["count restored after (s)"] is not None


@pytest.mark.cell
@pytest.mark.process
@pytest.mark.timeout(300)
async def test_scheduler_of_a_cell_hands_over_without_losing_a_request(tmp_path: Path) -> None:
    with simulated_engines(2, "--profile", "tiny", model="fake") as urls:
        config = a_config(*urls) | settings()
        async with cell_processes(config, tmp_path) as cell:
            number = await cell.leader()
            leader, follower = cell.gateways[number], cell.gateways[1 - number]
            await leader.wait_until_ready(2)
            await follower.wait_for_status(lambda status: len(status["cell"]["admin_addresses"]) == 2)
            with traffic(leader), traffic(follower):
                # The key is sent only to the gateway that was given, so the command refuses the follower.
                refused = await drilled(follower, "cell-failover", "--yes", "--before", "1s")
                code, told, errors = await drilled(
                    leader, "cell-failover", "--yes", "--before", "2s", "--after", "3s", "--gap-max", "5"
                )
                assert await cell.leader() == 1 - number

    assert refused[0] == 2
    assert f"is not the cell's scheduler, but gateway-{number}; use --url 127.0.0.1" in refused[1]["reason"]
    assert (code, told.get("verdict")) == (0, "held"), (told, errors)
    assert told["objectives"]["lost requests"] == "held"
    assert told["measured"]["new scheduler"] == f"gateway-{1 - number}"
    assert told["measured"]["without decisions (s)"] < 5
