"""Does `headgate doctor --live` say what a running gateway thinks is wrong?"""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from headgate.cli.checkup.live import AffectedSaid, Said, Scheduler, VerdictSaid, ask, lines, summary
from headgate.cli.output.status import NotAGateway
from headgate.engines.page import open_session
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from tests.cli.conftest import Headgate
from tests.engines.listeners import listening, say_nothing

WELL = VerdictSaid("small", "healthy", "healthy", 5, "Pool small is healthy.")
ILL = VerdictSaid(
    "small",
    "client",
    "noisy_tenant",
    12,
    "Tenant bolt asks for 400 requests in 10 s, usually 50.",
    ("bolt: 400 requests in 10 s, usually 50",),
    (AffectedSaid("interactive", "acme", "7 requests late"), AffectedSaid(None, None, "waits")),
    "Set limits of tenant bolt.",
    "docs/operations/runbooks/noisy_tenant.md",
)


def test_a_verdict_is_told_with_its_evidence_who_is_affected_and_what_to_do() -> None:
    assert list(lines(Said((ILL, WELL)))) == [
        "client        Tenant bolt asks for 400 requests in 10 s, usually 50.",
        "              since 12 s (noisy_tenant)",
        "              - bolt: 400 requests in 10 s, usually 50",
        "              affected: class interactive, tenant acme: 7 requests late",
        "              affected: all: waits",
        "              -> Set limits of tenant bolt.",
        "              -> read docs/operations/runbooks/noisy_tenant.md",
        "healthy       Pool small is healthy.",
    ]


def test_a_gateway_that_does_not_decide_says_who_does() -> None:
    said = list(lines(Said((WELL,), decides=False, scheduler=Scheduler("g2", "10.0.0.2:9090"))))

    assert said[-1] == "  -> headgate doctor --live --gateway 10.0.0.2:9090   (g2 is the scheduler)"
    assert list(lines(Said((), decides=False)))[-1].endswith("nobody knows it at the moment")


def test_a_summary_has_each_verdict_that_is_not_healthy_and_its_advice() -> None:
    assert list(summary(Said((ILL, WELL)))) == [
        "verdict: noisy_tenant for 12 s: Tenant bolt asks for 400 requests in 10 s, usually 50.",
        "  -> Set limits of tenant bolt.",
    ]
    assert list(summary(Said((WELL, WELL)))) == ["verdict: healthy"]
    assert list(summary(Said(()))) == ["verdict: not known yet"]


def test_summary_of_a_gateway_that_does_not_know_the_pools_does_not_call_them_healthy() -> None:
    here = VerdictSaid(None, "healthy", "healthy", 5, "The gateway is healthy.")
    scheduler = Scheduler("g2", "10.0.0.2:9090")

    assert list(summary(Said((here,), decides=False, scheduler=scheduler))) == [
        "verdict: this gateway is healthy; the state of the pools is unknown here, ask the scheduler at 10.0.0.2:9090"
    ]
    assert "no scheduler is known" in next(summary(Said((here,), decides=False)))
    assert list(summary(Said((WELL, here), decides=False, scheduler=scheduler))) == ["verdict: healthy"]


async def test_a_running_gateway_is_asked(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        said = await asyncio.to_thread(headgate, "doctor", "--live", "--gateway", gateway.admin_url)
        while "yet to look" in said.out:
            await asyncio.sleep(0.02)
            said = await asyncio.to_thread(headgate, "doctor", "--live", "--gateway", gateway.admin_url)
        told = await asyncio.to_thread(headgate, "doctor", "--live", "--gateway", gateway.admin_url, "--json")

    assert (said.code, said.out) == (0, "healthy       Pool small is healthy.\nhealthy       The gateway is healthy.\n")
    page = json.loads(told.out)
    assert [each["pool"] for each in page["verdicts"]] == ["small", None]
    assert (page["decides"], page["scheduler"]) == (True, None)


def test_where_no_gateway_answers_it_is_told_how_to_go_on(headgate: Headgate) -> None:
    with socket.socket() as nobody:
        # The port is taken, and nobody listens on it.
        nobody.bind(("127.0.0.1", 0))
        said = headgate("doctor", "--live", "--gateway", f"http://127.0.0.1:{nobody.getsockname()[1]}")

    assert said.code == 1
    assert "name its admin listener with --gateway" in said.err


async def test_a_gateway_that_says_nothing_is_given_up() -> None:
    async with listening(say_nothing) as url, open_session() as session:
        with pytest.raises(NotAGateway, match="no gateway answers"):
            await ask(session, url, timeout_s=0.05)


async def test_what_is_no_gateway_is_told_as_such(headgate: Headgate) -> None:
    async with FakeEngine() as engine:
        said = await asyncio.to_thread(headgate, "doctor", "--live", "--gateway", engine.url)

    assert said.code == 1
    assert "is not the admin listener of a gateway" in said.err


def test_a_gateway_is_named_only_for_a_live_look(headgate: Headgate) -> None:
    assert headgate("doctor", "--gateway", "http://127.0.0.1:1").code == 2


def test_a_live_look_without_a_file_or_a_gateway_has_nobody_to_ask(headgate: Headgate) -> None:
    assert headgate("doctor", "--live").code == 1
