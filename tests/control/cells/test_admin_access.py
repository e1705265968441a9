"""Keys and certificates that the controller uses for the admin listeners of each cell."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from headgate.control.cells.admin_access import AdminAccess, cells_without_key
from headgate.control.cells.controller_service import ProcessUnavailable, SharesClient, read_reports
from headgate.control.cells.options import CellFleet, FleetCell
from headgate.ports.tls import ClientTlsOptions
from testing.certificates import Authority
from tests.control.cells.admin_listener import AdminListener


def a_cell(name: str, url: str, *, key: str | None = None, tls: ClientTlsOptions | None = None) -> FleetCell:
    return FleetCell(name, f"http://{name}", (url,), admin_key=key, admin_tls=tls)


async def problem_of(access: AdminAccess, url: str) -> str:
    async with aiohttp.ClientSession() as session:
        found = (await read_reports(SharesClient(session, access, timeout_s=5), [url]))[url]
    return str(found) if isinstance(found, ProcessUnavailable) else ""


async def test_controller_uses_each_cells_own_key_or_the_default_key() -> None:
    async with AdminListener().run() as east, AdminListener().run() as west:
        fleet = CellFleet((a_cell("east", east.url, key="hg-east"), a_cell("west", west.url)))
        access = AdminAccess(fleet, "hg-common")
        for url in (east.url, west.url):
            assert await problem_of(access, url) == ""
        assert (east.keys, west.keys) == (["Bearer hg-east"], ["Bearer hg-common"])

        access.change_fleet(replace(fleet, cells=(a_cell("east", east.url, key="hg-new"),)))
        assert await problem_of(access, east.url) == ""
        assert east.keys[-1] == "Bearer hg-new"


def test_cells_without_a_key_of_their_own_need_the_default_key() -> None:
    cells = (a_cell("east", "http://e", key="hg-east"), a_cell("west", "http://w"), FleetCell("north", "http://n"))
    assert cells_without_key(CellFleet(cells)) == ["west"]
    assert "hg-east" not in repr(cells)


async def test_controller_verifies_a_private_authority_and_presents_its_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "own")
    async with AdminListener().run(authority.server(client_ca=authority.file)) as east:
        own = AdminAccess(CellFleet((a_cell("east", east.url, tls=authority.client()),)), "hg")
        assert await problem_of(own, east.url) == ""

        without = AdminAccess(CellFleet((a_cell("east", east.url, tls=ClientTlsOptions(authority.file)),)), "hg")
        assert await problem_of(without, east.url) != ""
        system = AdminAccess(CellFleet((a_cell("east", east.url),)), "hg")
        assert "certificate" in await problem_of(system, east.url)
        assert len(east.keys) == 1


def test_renewed_certificate_is_read_and_an_unusable_one_is_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = authority.client()
    access = AdminAccess(CellFleet((a_cell("east", "https://east:9090", tls=options),)), "hg")
    first = access.context("https://east:9090")
    assert isinstance(first, ssl.SSLContext)
    assert access.context("https://east:9090") is first

    authority.client()
    assert access.context("https://east:9090") is not first

    Path(options.files[1]).write_text("no certificate")
    assert options.files[1] in asyncio.run(problem_of(access, "https://east:9090"))


@pytest.mark.parametrize("url", ["http://east:9090", "https://other:9090"])
def test_other_listeners_are_verified_with_the_system_authorities(url: str) -> None:
    fleet = CellFleet((a_cell("east", "https://east:9090", tls=ClientTlsOptions("ca.pem")),))
    assert AdminAccess(fleet, "hg").context(url) is None
