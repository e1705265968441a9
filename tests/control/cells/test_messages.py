"""Messages between a controller and processes of adjacent versions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import aiohttp
import msgspec
import pytest

from headgate.compose.cell_shares import routes_of
from headgate.control.cells.admin_access import AdminAccess
from headgate.control.cells.controller_service import ProcessUnavailable, SharesClient
from headgate.control.cells.messages import AccountDemand, LeasedShare, ProcessReport, ShareMessage
from headgate.control.cells.options import CellFleet
from headgate.control.cells.share_leases import ShareLeases
from headgate.edge.admin.shares import ShareQuery
from headgate.model.units import SECOND
from headgate.ports.directory import Actor
from testing.builders import at
from tests.control.cells.admin_listener import REPORT, AdminListener

OLD_REPORT = (
    b'{"session":"s1","stamp_ns":7,"epoch":1,"version":2,"floor_ppm":250000,'
    b'"shares":{"acme":{"ppm":500000,"left_ns":9}},"demand":{"acme":{"arrived":3,"open":1,"held_ppm":0}}}'
)
"""Report of a process before revision 2."""


@dataclass
class OldShare:
    ppm: int
    left_ns: int


@dataclass
class OldDemand:
    arrived: int
    open: int
    held_ppm: int = 0


@dataclass
class OldReport:
    """Report as a controller before revision 2 reads it."""

    session: str
    stamp_ns: int
    epoch: int
    version: int
    floor_ppm: int
    shares: Mapping[str, OldShare] = field(default_factory=dict[str, OldShare])
    demand: Mapping[str, OldDemand] = field(default_factory=dict[str, OldDemand])


def test_report_of_an_old_process_has_no_token_shares_and_no_token_demand() -> None:
    report = msgspec.json.decode(OLD_REPORT, type=ProcessReport)
    assert report.revision == 1
    assert report.shares == {"acme": LeasedShare(500_000, 9)}
    assert report.shares["acme"].tokens == 500_000
    assert report.demand == {"acme": AccountDemand(3, 1)}
    assert report.demand["acme"].tokens is None


async def test_old_controller_reads_the_report_of_a_new_process() -> None:
    leases = ShareLeases(
        "s1", 250_000, lambda: at(100), lambda _: None, lambda: {"acme": AccountDemand(3, 1, 0, 90, 30)}
    )
    leases.handle(ShareMessage("", 1, 1, "s1", at(100), 15 * SECOND, {"acme": 500_000}, {"acme": 100_000}))
    route = routes_of(leases)[b"/admin/v1/shares/report"]
    said = msgspec.json.encode(await route.handler(ShareQuery(), Actor("controller", "")))
    report = msgspec.json.decode(said, type=OldReport)
    assert report.shares == {"acme": OldShare(500_000, 15 * SECOND)}
    assert report.demand == {"acme": OldDemand(3, 1)}


async def test_message_contains_token_shares_only_if_they_differ() -> None:
    async with AdminListener().run() as listener, aiohttp.ClientSession() as session:
        client = SharesClient(session, AdminAccess(CellFleet(()), "hg"), timeout_s=5)
        shares = {f"t{number}": 250_000 for number in range(600)}
        await client.assign(ShareMessage(listener.url, 1, 1, "s1", 7, 9, shares))
        assert [sorted(body) for body in listener.bodies] == [
            ["epoch", "lease_ns", "session", "shares", "stamp_ns", "version"]
        ] * 2
        listener.bodies.clear()
        await client.assign(ShareMessage(listener.url, 1, 1, "s1", 7, 9, shares, {"t599": 100_000}))
        assert [body["token_shares"] for body in listener.bodies] == [{}, {"t599": 100_000}]


async def test_client_requests_the_report_of_a_process_that_rejects_token_shares() -> None:
    async with AdminListener().run() as listener, aiohttp.ClientSession() as session:
        client = SharesClient(session, AdminAccess(CellFleet(()), "hg"), timeout_s=5)
        listener.rejected_field = "token_shares"
        message = ShareMessage(listener.url, 1, 1, "s1", 7, 9, {"acme": 250_000}, {"acme": 100_000})
        assert await client.assign(message) == REPORT
        assert listener.bodies[-1] == {}

        listener.rejected_field = "epoch"
        with pytest.raises(ProcessUnavailable, match="unknown field"):
            await client.assign(replace(message, token_shares={}))
