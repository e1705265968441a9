"""Requests are not affected when a fleet's endpoints start and stop."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from testing.dns_server import A, DnsServer
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop, gateway_process
from tests.fleets.builders import is_alive, until_dead
from tests.fleets.scaled import (
    SIMULATED,
    Streams,
    a_scaled_config,
    a_scaled_gateway,
    frozen,
    gated,
    killed_and_replaced,
    out_and_in_again,
    pids,
    streaming,
)

QUIET = ("--profile", "tiny", "--speed-up", "1")


@pytest.mark.process
async def test_no_stream_is_truncated_while_the_fleet_scales(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET), in_flight_max=4)
    async with a_scaled_gateway(config, tmp_path) as gateway:
        streams = Streams(gateway, streaming(tokens=150))
        async with streams.going(6):
            ran = await out_and_in_again(gateway, streams, seconds_max=60)
        left = set(pids(gateway).values())

    assert set(streams.seen) == {"whole"}, streams.seen
    assert len(ran) == 3
    assert len(left) == 1
    assert not any(is_alive(pid) for pid in ran), "engine processes are still running"


@pytest.mark.process
async def test_killed_endpoint_is_replaced_and_its_unstarted_requests_are_retried(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET), endpoints=2, in_flight_max=4)
    async with a_scaled_gateway(config, tmp_path) as gateway:
        streams = Streams(gateway, streaming(tokens=100))
        async with streams.going(6):
            await killed_and_replaced(gateway, streams, seconds_max=60)
        status = await gateway.status()

    severed = sum(count for what, count in streams.seen.items() if what.startswith("severed"))
    assert severed <= 4, "only streams of the killed engine may be truncated"
    assert set(streams.seen) - {"whole"} == {what for what in streams.seen if what.startswith("severed")}, streams.seen
    assert {each["id"] for each in status["endpoints"]} == {"small/0", "small/1"}


@pytest.mark.process
async def test_requests_wait_for_the_first_endpoint_to_start(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, gated(tmp_path / "go", SIMULATED))
    async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
        [endpoint] = (await gateway.status())["endpoints"]
        assert (endpoint["id"], endpoint["state"]) == ("small/0", "warming")
        asked = asyncio.create_task(_status(gateway.post(chat())))
        await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
        (tmp_path / "go").touch()
        assert await asked == 200


@pytest.mark.process
async def test_removed_pool_stops_its_processes_once_idle(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET))
    async with FakeEngine() as other, a_scaled_gateway(config, tmp_path) as gateway:
        [pid] = pids(gateway).values()
        listed = a_config(other.url)
        listed |= {name: config[name] for name in ("listen", "admin_listen")}
        with frozen(pid):
            asked = asyncio.create_task(_text(gateway.post(streaming(tokens=300))))
            await gateway.wait_for_status(lambda status: status["endpoints"][0]["in_flight"] == 1)
            await gateway.rewrite(listed)
            assert is_alive(pid), "the engine still has a stream"
        assert (await asked).endswith("data: [DONE]\n\n")
        await until_dead(pid)
        await gateway.wait_until_ready(1)


@pytest.mark.process
async def test_new_bounds_apply_immediately_and_new_environment_applies_to_the_next_process(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET))
    async with a_scaled_gateway(config, tmp_path) as gateway:
        before = pids(gateway)
        pool = config["pools"]["small"]
        pool["scaling"] |= {"endpoints_min": 2, "warm_endpoints_min": 2}
        pool["fleet"] |= {"endpoint_count": 2, "environment": {"WHO": "{slot}"}}
        pool["in_flight_max"] = 3
        await gateway.rewrite(config)
        await gateway.wait_until_ready(2, seconds_max=60)
        status = await gateway.status()
        after = pids(gateway)

        assert status["reload_problems"] == []
        assert before.items() <= after.items()
        assert [each["in_flight_max"] for each in status["endpoints"]] == [3, 3]
        assert b"WHO=1" in _read(Path(f"/proc/{after['small/1']}/environ")).split(b"\0")


async def test_endpoints_follow_a_dns_name(tmp_path: Path) -> None:
    server = DnsServer({("engines.test", A): ["127.0.0.1"]})
    async with FakeEngine() as engine, server.serving():
        fleet = {"kind": "dns", "name": "engines.test", "port": engine.port, "resolve_interval": "50ms"}
        config = a_config()
        config["pools"]["small"]["fleet"] = {**fleet, "nameserver": f"127.0.0.1:{server.port}"}
        async with gateway_in_loop(config, tmp_path, wait_for=1) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200
            server.records[("engines.test", A)] = ["127.0.0.2"]
            await gateway.wait_for_status(
                lambda status: [each["id"] for each in status["endpoints"]] == [f"small/127.0.0.2:{engine.port}"]
            )


async def test_gateway_is_ready_once_it_has_tried_to_resolve_its_dns_names(tmp_path: Path) -> None:
    server = DnsServer(silent=True)
    async with server.serving():
        fleet = {"kind": "dns", "name": "engines.test", "port": 8000, "nameserver": f"127.0.0.1:{server.port}"}
        config = a_config()
        config["pools"]["small"]["fleet"] = fleet
        async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
            async with gateway.http.get(f"{gateway.admin_url}/ready") as page:
                before = page.status, await page.text()
            server.silent, server.error = False, 2
            async with asyncio.timeout(60):
                while (status := await _status(gateway.http.get(f"{gateway.admin_url}/ready"))) != 200:
                    assert status == 503

    assert before == (503, "resolving the endpoints of pool small for the first time\n")


@pytest.mark.process
@pytest.mark.parametrize("how", ["killed", "terminated"])
async def test_engines_exit_with_their_gateway(tmp_path: Path, how: str) -> None:
    config = a_scaled_config(tmp_path, SIMULATED, endpoints=2)
    with gateway_process(config, tmp_path) as process:
        engines = await _until_engines(process.pid, 2)
        process._popen.kill() if how == "killed" else process.terminate()
        process.wait_until_ended()
        for pid in engines:
            await until_dead(pid)


async def _status(request: Any) -> int:
    async with request as answer:
        return answer.status


async def _text(request: Any) -> str:
    async with request as answer:
        return await answer.text()


async def _until_engines(gateway: int, count: int) -> list[int]:
    """Wait for a gateway process's engine processes and return their pids."""
    async with asyncio.timeout(60):
        while len(found := _engines_of(gateway)) != count:
            await asyncio.sleep(0.05)
    return found


def _engines_of(gateway: int) -> list[int]:
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if _parent(process) == gateway and b"\0engine\0" in _read(process / "cmdline")
    ]


def _parent(process: Path) -> int:
    fields = _read(process / "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
