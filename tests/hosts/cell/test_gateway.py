"""Tests for a complete gateway in a cell whose real store fails."""

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from zlib import crc32

import pytest

from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.shares import places_of
from headgate.hosts.cell.redis import connector, name_lease
from headgate.hosts.cell.redis.name_lease import LEASE_S, NameLease, NameTaken
from headgate.model.units import EndpointId
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop, gateway_process_with_client
from testing.processes import MissingProgram
from testing.stores import Server, redis
from tests.hosts.cell.store_places import absent

MEMBERS = 64


@contextlib.contextmanager
def a_redis() -> Generator[Server]:
    try:
        with redis() as server:
            yield server
    except MissingProgram as missing:
        absent(missing)


def without_a_part_of(url: str) -> str:
    """Returns the name of a member whose island share includes no slot on this endpoint, which has one slot."""
    endpoint = EndpointId(f"small/{url.removeprefix('http://')}")
    names = (f"m{number}" for number in range(MEMBERS))
    return next(name for name in names if not places_of(Share(crc32(name.encode()) % MEMBERS, MEMBERS), endpoint, 1))


async def answered(gateway: GatewayInLoop) -> int:
    async with asyncio.timeout(60), gateway.post(chat()) as answer:
        return answer.status


@pytest.mark.process
async def test_island_without_a_slot_on_an_endpoint_uses_it_after_rejoining(tmp_path: Path) -> None:
    with a_redis() as server:
        server.kill()
        async with FakeEngine() as engine:
            cell = {"store": server.url, "member_count": MEMBERS, "member_name": without_a_part_of(engine.url)}
            config = a_config(engine.url, in_flight_max=1, cell=cell)
            async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
                await gateway.wait_for_status(lambda status: status["cell"]["mode"] == "island")
                await gateway.rewrite(config | {"drain_grace": "4s"})
                await asyncio.to_thread(server.restart)
                await gateway.wait_for_status(
                    lambda status: status["cell"]["leads"] and status["cell"]["mode"] == "following"
                )
                await gateway.wait_until_ready(1)

                assert await answered(gateway) == 200


NAME = "{headgate:headgate}:name:gw"
LONG_S = 60.0
"""Time in seconds, longer than the machine ever stalls."""


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps a stall on the machine from expiring a name or making the store count as lost."""
    monkeypatch.setitem(NameLease.__init__.__kwdefaults__, "lease_s", LONG_S)
    for module, name in ((name_lease, "_CONNECT_S_MAX"), (name_lease, "_ANSWER_S_MAX"), (connector, "CONNECT_S_MAX")):
        monkeypatch.setattr(module, name, LONG_S)


def a_member_config(server: Server, engine: FakeEngine) -> dict[str, object]:
    return a_config(engine.url, cell={"store": server.url, "member_count": 2, "member_name": "gw"})


@pytest.mark.process
@pytest.mark.usefixtures("long_leases")
async def test_second_gateway_with_the_same_name_does_not_start_and_the_first_keeps_serving(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with a_redis() as server:
        async with FakeEngine() as engine, gateway_in_loop(a_member_config(server, engine), tmp_path) as first:
            with pytest.raises(NameTaken, match=r"different cell\.member"):
                async with gateway_in_loop(a_member_config(server, engine), tmp_path / "second", wait_for=0):
                    pass

            assert await answered(first) == 200


@pytest.mark.process
async def test_settings_of_one_process_are_applied_without_the_rest_of_the_cell(tmp_path: Path) -> None:
    with a_redis() as server:
        async with FakeEngine() as engine:
            config = a_member_config(server, engine)
            async with gateway_in_loop(config, tmp_path) as gateway:
                await gateway.rewrite(config | {"reload": "signal", "admin_allowed_hosts": ["headgate.internal"]})
                status = await gateway.status()
                headers = {"host": "headgate.internal"}
                async with gateway.http.get(gateway.admin_url + "/status", headers=headers) as answer:
                    assert answer.status == 200

    assert (status["reload"], status["cell"]["staged"]) == ("signal", None)


@pytest.mark.process
async def test_killed_gateway_rejoins_under_its_name_within_one_lease(tmp_path: Path) -> None:
    with a_redis() as server:
        async with FakeEngine() as engine:
            config = a_member_config(server, engine)
            async with gateway_process_with_client(config, tmp_path) as (_, process):
                process.kill()
                left_ms = server.client().pttl(NAME)
            # Redis returns -2 for an expired key and -1 for a key without an expiry.
            assert left_ms == -2 or 0 < left_ms <= LEASE_S * 1_000
            async with gateway_in_loop(config, tmp_path) as again:
                assert await answered(again) == 200


@pytest.mark.process
@pytest.mark.usefixtures("long_leases")
async def test_gateway_losing_its_name_finishes_its_requests_and_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_redis() as server:
        async with FakeEngine() as engine:
            engine.script.append(Behaviour(tokens=4, hang_after=2))
            config = a_member_config(server, engine)
            async with gateway_in_loop(config, tmp_path, exit_code=1) as first:
                async with first.post(chat(stream=True)) as answer:
                    asked = await engine.next_request()
                    with server.client() as client:
                        client.set(NAME, b"2", px=int(LONG_S * 1_000))
                    twin = NameLease(server.url, cell="headgate", member="gw", incarnation="2", on_lost=pytest.fail)
                    keeping = asyncio.create_task(twin.run())
                    async with asyncio.timeout(60):
                        while "leaving the cell: another running process" not in caplog.text:
                            await asyncio.sleep(0.01)
                    assert not first.running.done()
                    asked.resume.set()
                    assert (await answer.read()).endswith(b"data: [DONE]\n\n")
                assert await first.running == 1
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
