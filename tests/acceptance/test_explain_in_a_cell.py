"""Every gateway in a cell can explain a request, including requests that another gateway served."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.certificates import Authority
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, chat
from tests.lessons.cells import a_cell

pytestmark = [pytest.mark.cell, pytest.mark.timeout(400)]


Explained = tuple[int, dict[str, Any]]


async def page(gateway: GatewayInLoop, path: str) -> tuple[int, dict[str, Any]]:
    async with gateway.http.get(f"{gateway.admin_url}{path}") as answer:
        return answer.status, await answer.json()


async def until_found(gateway: GatewayInLoop, count: int) -> dict[str, Any]:
    """Wait until all requests are found. Gateways discover each other, and records appear, after a short delay."""
    async with asyncio.timeout(60):
        while True:
            _, found = await page(gateway, "/requests?tenant=laptop&since=10m")
            if len(found["requests"]) >= count and found["complete"] and not found["unreachable_members"]:
                return found
            await asyncio.sleep(0.05)


async def until_told(gateway: GatewayInLoop, request_id: str, reached: Callable[[dict[str, Any]], bool]) -> Explained:
    """The first explanation for which `reached` is true. A stalled process may use up the three seconds a gateway waits
    for the others.
    """
    async with asyncio.timeout(60):
        while True:
            status, told = await page(gateway, f"/explain/{request_id}")
            if reached(told):
                return status, told
            await asyncio.sleep(0.05)


async def test_gateway_finds_and_explains_another_gateways_requests(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url) as cell:
        one, other = cell.gateways
        names: list[str] = []
        for gateway in (one, other):
            await gateway.wait_until_ready(1)
            async with gateway.post(chat()) as answer:
                assert answer.status == 200
                names.append(answer.headers["x-request-id"])
        found = [await until_found(gateway, 2) for gateway in (one, other)]
        status, told = await until_told(other, names[0], lambda told: "reported_by" in told)
        here, told_here = await page(one, f"/explain/{names[0]}")
        alone, _ = await page(other, f"/explain/{names[0]}?local=1")
        _, by_itself = await page(other, "/requests?local=1")
        missing, unknown = await until_told(other, "req_of_nobody", lambda told: told.get("unreachable_members") == [])

    assert (status, here, alone, missing) == (200, 200, 404, 404)
    assert told.pop("reported_by") == "gateway-0"
    assert told == told_here
    for each in found:
        assert {row["request_id"] for row in each["requests"]} == set(names)
        assert (each["complete"], each["unreachable_members"]) == (True, [])
    assert [row["request_id"] for row in by_itself["requests"]] == [names[1]]
    assert "cell member gateway-0 does not have it either" in unknown["error"]


async def test_explanation_identifies_unresponsive_gateway(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(1, tmp_path, engine.url) as cell:
        [gateway] = cell.gateways
        nobody = "99999999999999 0 127.0.0.1:1"
        found, unknown = dict[str, Any](), dict[str, Any]()
        async with asyncio.timeout(60):
            while not found.get("unreachable_members") or not unknown.get("unreachable_members"):
                # All entries that are not renewed within ten seconds expire.
                with cell.store.client() as client:
                    client.hset("{headgate:headgate}:admin", "gateway-9", nobody)
                await asyncio.sleep(0.05)
                _, found = await page(gateway, "/requests")
                _, unknown = await page(gateway, "/explain/req_of_nobody")

    assert found["unreachable_members"] == ["gateway-9"]
    assert unknown["error"].endswith("; no response from gateway-9")
    assert unknown["unreachable_members"] == ["gateway-9"]


async def test_every_gateway_returns_the_scheduler_verdicts(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url) as cell:
        for gateway in cell.gateways:
            await gateway.wait_until_ready(1)
        async with asyncio.timeout(60):
            while True:
                told = [(await page(gateway, "/verdict"))[1] for gateway in cell.gateways]
                # If this process stalled, it takes a moment before one gateway leads again.
                leaders = sum(each["decides"] for each in told)
                causes = [[verdict["cause"] for verdict in each["verdicts"]] for each in told]
                known = all(each["scheduler"] for each in told)
                if leaders == 1 and known and causes == [["healthy"] * 2] * 2:
                    break
                await asyncio.sleep(0.05)

    for each in told:
        assert {verdict["pool"] for verdict in each["verdicts"]} == {None, "small"}
        assert each["scheduler"]["admin"].startswith("127.0.0.1:")


@pytest.mark.parametrize("name", ["127.0.0.1", "gateway.internal"])
async def test_gateways_query_each_other_over_tls_with_client_certificates(name: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    files = authority.issue("tls", name)
    tls = {**files._asdict(), "client_ca": authority.file, "ca": authority.file, "server_name": name}
    client = authority.client_context(files)
    client.check_hostname = False
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url, tls=client, admin_listen_tls=tls) as cell:
        one, other = cell.gateways
        async with one.post(chat()) as answer:
            assert answer.status == 200
            request_id = answer.headers["x-request-id"]
        status, told = await until_told(other, request_id, lambda told: "reported_by" in told)
        found = await until_found(other, 1)

    assert (status, told["reported_by"]) == (200, "gateway-0")
    assert found["unreachable_members"] == []
