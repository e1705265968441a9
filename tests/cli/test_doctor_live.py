"""Verdicts from `headgate doctor --live`."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from headgate.cli.checkup.live import (
    CellScheduler,
    ReportedAffected,
    ReportedVerdict,
    VerdictPage,
    fetch_verdicts,
    lines,
    summary,
)
from headgate.cli.output.status import GatewayNotFound
from headgate.engines.page import open_session
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from tests.cli.conftest import Headgate
from tests.engines.listeners import listening, say_nothing

URL = "http://10.0.0.1:9090"
WELL = ReportedVerdict("small", "healthy", "healthy", 5, "Pool small is healthy.")
ILL = ReportedVerdict(
    "small",
    "client",
    "noisy_tenant",
    12,
    "Tenant bolt asks for 400 requests in 10 s, usually 50.",
    ("bolt: 400 requests in 10 s, usually 50",),
    (ReportedAffected("interactive", "acme", "7 requests late"), ReportedAffected(None, None, "waits")),
    "Set limits of tenant bolt.",
    "docs/operations/runbooks/noisy_tenant.md",
)


def test_verdict_is_printed_with_evidence_affected_and_action() -> None:
    assert list(lines(VerdictPage((ILL, WELL)), URL)) == [
        "client        Tenant bolt asks for 400 requests in 10 s, usually 50.",
        "              for 12 s (noisy_tenant)",
        "              - bolt: 400 requests in 10 s, usually 50",
        "              affected: class interactive, tenant acme: 7 requests late",
        "              affected: all: waits",
        "              -> Set limits of tenant bolt.",
        "              -> see http://10.0.0.1:9090/docs/operations/runbooks/noisy_tenant",
        "healthy       Pool small is healthy.",
    ]


def test_follower_identifies_the_scheduler() -> None:
    said = list(lines(VerdictPage((WELL,), decides=False, scheduler=CellScheduler("g2", "10.0.0.2:9090")), URL))

    assert said[-1] == "  -> headgate doctor --live --url 10.0.0.2:9090   (scheduler g2)"
    assert list(lines(VerdictPage((), decides=False), URL))[-1].endswith("none is known")


def test_summary_lists_unhealthy_verdicts_with_advice() -> None:
    assert list(summary(VerdictPage((ILL, WELL)))) == [
        "verdict: noisy_tenant for 12 s: Tenant bolt asks for 400 requests in 10 s, usually 50.",
        "  -> Set limits of tenant bolt.",
    ]
    assert list(summary(VerdictPage((ILL,)), URL))[1:] == [
        "  -> Set limits of tenant bolt.",
        "  -> see http://10.0.0.1:9090/docs/operations/runbooks/noisy_tenant",
    ]
    assert list(summary(VerdictPage((WELL, WELL)))) == ["verdict: healthy"]
    assert list(summary(VerdictPage(()))) == ["verdict: none yet"]


def test_follower_summary_does_not_report_pools_as_healthy() -> None:
    here = ReportedVerdict(None, "healthy", "healthy", 5, "The gateway is healthy.")
    scheduler = CellScheduler("g2", "10.0.0.2:9090")

    assert list(summary(VerdictPage((here,), decides=False, scheduler=scheduler))) == [
        "verdict: this gateway is healthy; the state of the pools is unknown here, see the scheduler at 10.0.0.2:9090"
    ]
    assert "no scheduler is known" in next(summary(VerdictPage((here,), decides=False)))
    assert list(summary(VerdictPage((WELL, here), decides=False, scheduler=scheduler))) == ["verdict: healthy"]


async def test_verdicts_from_a_running_gateway_are_printed(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        said = await asyncio.to_thread(headgate, "doctor", "--live", "--url", gateway.admin_url)
        while "no verdict yet" in said.out:
            await asyncio.sleep(0.02)
            said = await asyncio.to_thread(headgate, "doctor", "--live", "--url", gateway.admin_url)
        told = await asyncio.to_thread(headgate, "doctor", "--live", "--url", gateway.admin_url, "--json")

    assert (said.code, said.out) == (0, "healthy       Pool small is healthy.\nhealthy       The gateway is healthy.\n")
    page = json.loads(told.out)
    assert [each["pool"] for each in page["verdicts"]] == ["small", None]
    assert (page["decides"], page["scheduler"]) == (True, None)


def test_missing_gateway_is_reported_with_next_step(headgate: Headgate) -> None:
    with socket.socket() as nobody:
        # The port is bound, but no server is listening on it.
        nobody.bind(("127.0.0.1", 0))
        said = headgate("doctor", "--live", "--url", f"http://127.0.0.1:{nobody.getsockname()[1]}")

    assert said.code == 1
    assert "specify its admin listener with --url" in said.err


async def test_unresponsive_gateway_times_out() -> None:
    async with listening(say_nothing) as url, open_session() as session:
        with pytest.raises(GatewayNotFound, match="no gateway is responding"):
            await fetch_verdicts(session, url, timeout_s=0.05)


async def test_non_headgate_server_is_reported(headgate: Headgate) -> None:
    async with FakeEngine() as engine:
        said = await asyncio.to_thread(headgate, "doctor", "--live", "--url", engine.url)

    assert said.code == 1
    assert "is not the admin listener of a gateway" in said.err


def test_url_requires_live(headgate: Headgate) -> None:
    assert headgate("doctor", "--url", "http://127.0.0.1:1").code == 2


def test_live_requires_a_file_or_url(headgate: Headgate) -> None:
    assert headgate("doctor", "--live").code == 1
