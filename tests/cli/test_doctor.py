"""Findings from `headgate doctor`."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from headgate.cli.checkup.clock import ClockReading, clock_findings, clock_reading
from headgate.cli.checkup.endpoints import check_endpoints
from headgate.cli.checkup.finding import CheckFinding, Level, note, ok, problem
from headgate.cli.checkup.machine import check_records_directory, check_state_directory, open_files, secret_strength
from headgate.config.settings import Settings
from headgate.engines.page import open_session
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from testing.ports import free_port
from tests.cli.conftest import Headgate, Said
from tests.config.builders import settings_of, small_with
from tests.engines.listeners import listening, say_nothing

RECORDED = Path(__file__).parents[1] / "engines" / "recorded"
COST = "its load is missing from status and metrics, and dispatch uses the gateway's own counts"
UNCHECKED = note(
    "small/it",
    "in_flight_max 8 cannot be checked: the vLLM API does not report --max-num-seqs",
    next_step="compare in_flight_max with the engine's own limit",
)


def a_file(file: Path, url: str, **settings: Any) -> None:
    config = a_config(**settings)
    config["pools"]["small"]["endpoints"] = [{"url": url, "name": "it"}]
    # One connection is below any file limit, so the result does not depend on the machine.
    config.setdefault("limits", {"requests_open_max": 1, "connections_open_max": 1})
    file.write_text(yaml.safe_dump(config))


async def found(headgate: Headgate, about: str | None = None) -> list[CheckFinding]:
    """Findings about this subject. The exit code shows whether any finding is a problem."""
    said = await asyncio.to_thread(headgate, "doctor", "--json")
    told = json.loads(said.out)
    findings = [
        CheckFinding(Level(each["level"]), each["about"], each["message"], each["next_step"])
        for each in told["findings"]
    ]
    assert told["ok"] is (said.code == 0) is not any(each.level is Level.PROBLEM for each in findings)
    return [each for each in findings if about in (None, each.about)]


# Endpoints


async def test_matching_configuration_is_reported_line_by_line(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": 8, "build_info": "b6000"}
        a_file(file, engine.url, engine="llamacpp")
        config = yaml.safe_load(text_of(file))
        said = await asyncio.to_thread(headgate, "doctor")

    findings, _, protections = said.out.partition("protections:\n")
    first, second, *rest = findings.splitlines()
    assert (said.code, said.err) == (0, "0 problems, 0 notes\n")
    assert "  on        in-flight limit, pool small: an endpoint gets at most 8 concurrent requests" in protections
    assert first.startswith("ok      headgate.yaml: is valid; configuration ")
    assert second.startswith("ok      small/it: llamacpp b6000 serves fake; response time ")
    assert rest == [
        "ok      small/it: metrics: running, waiting",
        "ok      small/it: runs 8 requests concurrently, equal to in_flight_max",
        f"ok      admin_listen: {config['admin_listen']} is free",
        f"ok      listen: {config['listen']} is free",
        "ok      open files: the limit allows 1 connections and 8 requests in flight",
    ]


def text_of(file: Path) -> str:
    return file.read_text()


async def test_vllm_in_flight_limit_is_not_compared(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url)
        serves, *rest = await found(headgate, "small/it")

    assert serves.message.startswith("vllm 0.0-fake serves fake; response time ")
    assert rest == [ok("small/it", "metrics: running, waiting, kv_used_fraction, preemptions"), UNCHECKED]


@pytest.mark.parametrize(
    ("given", "finding"),
    [
        (
            9,
            problem(
                "small/it",
                "in_flight_max is 9; the engine runs 8 requests concurrently and queues the rest",
                next_step="set in_flight_max to 8",
            ),
        ),
        (
            7,
            note(
                "small/it",
                "in_flight_max is 7; the engine runs up to 8 requests concurrently",
                next_step="raise in_flight_max to 8, unless others use the engine too",
            ),
        ),
    ],
)
async def test_in_flight_limit_is_compared_with_the_engines_slots(
    headgate: Headgate, file: Path, given: int, finding: CheckFinding
) -> None:
    async with FakeEngine() as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": 8, "build_info": "b6000"}
        a_file(file, engine.url, engine="llamacpp", in_flight_max=given)
        findings = await found(headgate, "small/it")

    assert findings[-1] == finding


async def test_unresolvable_endpoint_host_name_is_reported_as_a_problem(headgate: Headgate, file: Path) -> None:
    a_file(file, "http://engine.invalid:8000")

    assert await found(headgate, "small/it") == [
        problem(
            "small/it",
            "GET /health failed: the host name does not resolve",
            next_step="check the DNS record of its host, or correct its url; it gets no requests until it responds",
        )
    ]


async def test_unreachable_endpoint_is_reported_as_a_problem(headgate: Headgate, file: Path) -> None:
    a_file(file, f"http://127.0.0.1:{free_port()}")

    assert await found(headgate, "small/it") == [
        problem(
            "small/it",
            "GET /health failed: connection refused",
            next_step="start the engine, or correct its url; it gets no requests until it responds",
        )
    ]


async def test_loading_engine_is_reported_as_a_note(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.loading = True
        a_file(file, engine.url)
        findings = await found(headgate, "small/it")

    assert findings == [
        problem(
            "small/it",
            "GET /health returned 503: Loading model",
            next_step="wait until the engine has loaded its model, then run this again",
        )
    ]


async def test_unknown_served_model_is_reported_with_available_models(headgate: Headgate, file: Path) -> None:
    async with FakeEngine(models=("a", "b")) as engine:
        a_file(file, engine.url)
        findings = await found(headgate, "small/it")

    assert findings == [
        problem("small/it", 'serves a, b, not "fake"', next_step="set pools.small.served_model to one of these names")
    ]


async def test_different_engine_is_detected(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url, engine="llamacpp")
        findings = await found(headgate, "small/it")

    assert problem("small/it", "is vllm, not llamacpp", next_step="set pools.small.engine to vllm") in findings


async def test_missing_metrics_are_reported_with_their_consequence(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.metrics_status, engine.metrics, engine.version = 404, b"", None
        a_file(file, engine.url)
        _, *findings = await found(headgate, "small/it")

    assert findings == [
        note("small/it", "does not report its version", next_step="no action needed; messages are less specific"),
        note(
            "small/it",
            f"metrics are missing (GET /metrics returned 404): {COST}",
            next_step="start vLLM without --disable-log-stats",
        ),
        UNCHECKED,
    ]


async def test_openai_compatible_engine_is_reported_without_metrics(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url, engine="openai_compatible")
        _, load, places = await found(headgate, "small/it")

    assert load.message == f"engine type openai_compatible has no metrics: {COST}"
    assert load.next_step.startswith("if it is one of vllm, ")
    assert places.message == (
        "in_flight_max 8 cannot be checked: the engine does not report how many requests it runs concurrently"
    )


def two_endpoints(url: str) -> Settings:
    """Settings with two endpoint names for one server."""
    port = url.rpartition(":")[2]
    config = a_config()
    config["pools"]["small"]["endpoints"] = [
        {"url": f"http://{host}:{port}", "name": host} for host in ("127.0.0.1", "localhost")
    ]
    return settings_of(yaml.safe_dump(config))


async def test_unresponsive_endpoint_times_out() -> None:
    async with listening(say_nothing) as url, open_session() as session:
        looks = await check_endpoints(two_endpoints(url), session, seconds_max=0.1)

    assert [[finding.level for finding in look.findings] for look in looks] == [[Level.PROBLEM]] * 2
    assert [look.findings[0].about for look in looks] == ["small/127.0.0.1", "small/localhost"]


async def test_endpoints_are_checked_concurrently() -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(None)
        await say_nothing(reader, writer)

    async with listening(hear) as url, open_session() as session:
        looking = asyncio.create_task(check_endpoints(two_endpoints(url), session, seconds_max=600))
        async with asyncio.timeout(30):
            for _ in range(2):
                await asked.get()
        assert not looking.done(), "no endpoint has answered"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def write(file: Path, config: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(config))


# File


def test_invalid_file_is_the_only_finding(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("drain: 30s"))

    assert headgate("doctor") == Said(
        1,
        'problem headgate.yaml:8: drain: unknown key\n          -> did you mean "drain_grace"?\n',
        "1 problem, 0 notes\n",
    )


async def test_file_warnings_are_reported_as_notes(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, tenants={"laptop": {}, "idle": {}})
        write(file, config)
        findings = await found(headgate)

    line = next(number for number, text in enumerate(text_of(file).splitlines(), 1) if text.startswith("  idle:"))
    assert findings[1] == note(
        f"headgate.yaml:{line}",
        "tenants.idle: has no key and is not the anonymous tenant, so no request can belong to it",
        next_step="`headgate keys new --tenant idle` creates one",
    )


# Addresses


async def test_running_gateway_is_compared_with_the_file(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, file.parent) as gateway:
            same = await found(headgate, "running gateway")
            listen = await found(headgate, "listen")
            clock = await found(headgate, "clock")
            write(file, config | {"drain_grace": "6s"})
            [other] = await found(headgate, "running gateway")
            write(file, config | {"nonsense": "6s"})
            await gateway.gateway.reload()
            write(file, config)
            refused, after = await found(headgate, "running gateway")

    assert [each.level for each in same] == [Level.OK]
    assert listen == [ok("listen", f"{config['listen']} is served by a gateway")]
    assert clock == [ok("clock", "within 2 s of the clocks of other servers (compared: 1)")]
    assert other.level is Level.NOTE
    assert other.message.startswith("has configuration ")
    assert (refused.level, after.level) == (Level.PROBLEM, Level.OK)
    assert "nonsense: unknown key" in refused.message
    assert refused.next_step == "fix the file, then send SIGHUP"


async def test_engine_with_fewer_slots_than_in_flight_max_is_reported(headgate: Headgate, file: Path) -> None:
    endpoint = {"id": "small/it", "state": "ready", "leaving": False, "in_flight": 35, "in_flight_max": 64}
    others = ({"id": "small/unknown", "sequences_max": None}, {"id": "small/fits", "sequences_max": 64})
    status = {
        "version": "0",
        "config_hash": "abc",
        "uptime_s": 60.0,
        "draining": False,
        "requests_open": 35,
        "attempts_open": 35,
        "queued": {},
        "endpoints": [endpoint | {"sequences_max": 32}, *(endpoint | each for each in others)],
    }
    async with FakeEngine() as engine, a_server("/status", status) as admin:
        a_file(file, engine.url, admin_listen=admin.removeprefix("http://"))
        findings = await found(headgate)

    message = "requests queued in its engine while 32 were running, so the gateway sends only a few more"
    then = "compare in_flight_max with the engine's own limit (vLLM: --max-num-seqs)"
    assert note("small/it", message, next_step=then) in findings
    assert not [each for each in findings if each.about in ("small/unknown", "small/fits")]


async def test_address_in_use_is_reported_as_a_problem(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        address = engine.url.removeprefix("http://")
        a_file(file, engine.url, listen=address)
        findings = await found(headgate, "listen")
        a_file(file, engine.url, admin_listen=address)
        admin = await found(headgate, "admin_listen")

    why, then = f"cannot listen on {address}: another process is using it", "stop it, or choose another address"
    assert findings == [problem("listen", why, next_step=then)]
    assert admin == [problem("admin_listen", why, next_step=then)]


async def test_address_on_another_host_is_reported_as_a_problem(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url, listen="192.0.2.1:8080", anonymous_tenant="laptop")
        findings = await found(headgate, "listen")

    assert findings == [
        problem(
            "listen",
            "cannot listen on 192.0.2.1:8080: this machine has no such address",
            next_step="use an address of this machine, or 0.0.0.0 for all",
        )
    ]


# Clock


def test_clock_difference_above_two_seconds_is_reported() -> None:
    def skew(seconds: float) -> ClockReading:
        return ClockReading("e", 1_000.0 + seconds, 1_000.5)

    assert list(clock_findings([None])) == []
    assert list(clock_findings([skew(2), skew(-2), None])) == [
        ok("clock", "within 2 s of the clocks of other servers (compared: 2)")
    ]
    assert list(clock_findings([skew(3)])) == [
        note(
            "e",
            "its clock is 3 s ahead of the local clock; timestamps cannot be compared",
            next_step="synchronize both with NTP",
        )
    ]
    assert next(clock_findings([skew(-60)])).message.startswith("its clock is 60 s behind the local clock")


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}])
def test_clock_is_not_compared_without_a_date_header(headers: dict[str, str]) -> None:
    assert clock_reading("e", headers) is None


@asynccontextmanager
async def a_server(path: str, body: object, *, clock_off_s: float = 0.0) -> AsyncIterator[str]:
    """URL of a server that serves this page."""

    async def page(_: web.Request) -> web.Response:
        headers = {"date": formatdate(time.time() + clock_off_s, usegmt=True)}
        return web.json_response(body, headers=headers)

    app = web.Application()
    app.router.add_get(path, page)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def test_engine_with_wrong_clock_is_reported(headgate: Headgate, file: Path) -> None:
    async with a_server("/v1/models", {"data": [{"id": "fake"}]}, clock_off_s=-600) as url:
        a_file(file, url, engine="openai_compatible")
        findings = await found(headgate, "small/it")

    assert findings[-1].level is Level.NOTE
    assert findings[-1].message.startswith("its clock is 600 s behind the local clock; ")


# Machine


def a_settings(*lines: str) -> Settings:
    return settings_of(small_with(*lines))


def test_open_file_limit_is_compared_with_connection_limits() -> None:
    settings = a_settings("limits: {requests_open_max: 900, connections_open_max: 1000}")

    assert open_files(settings, 1068) == ok("open files", "the limit allows 1,000 connections and 4 requests in flight")
    assert open_files(settings, 1067) == note(
        "open files",
        "the limit is 1,067, enough for 999 connections; connections_open_max is 1,000",
        next_step="raise the hard limit (`ulimit -Hn`) to 1068, or lower connections_open_max",
    )
    assert open_files(settings, 71).level is Level.PROBLEM


@pytest.mark.parametrize(
    ("secret", "level"),
    [
        (b"changemechangeme", Level.PROBLEM),
        (b"a" * 60, Level.PROBLEM),
        (b"correct horse battery staple", Level.NOTE),
        (b"kQ3vR8tYw1ZxC5nB7mL0pJ2hG4fD6sA9uI-oE_qWeRt", Level.OK),
    ],
)
def test_weak_secret_is_reported(secret: bytes, level: Level) -> None:
    [finding] = secret_strength(secret)

    assert finding.level is level
    assert secret.decode() not in json.dumps(asdict(finding))


def test_unwritable_records_directory_is_reported_as_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    there, new, in_a_file = (check_records_directory(tmp_path / part) for part in ("", "a/b", "file/records"))

    assert (there.level, new.level, in_a_file.level) == (Level.OK, Level.OK, Level.PROBLEM)
    assert new.message == f"{tmp_path / 'a/b'} can be created"
    assert in_a_file.message == f"{tmp_path / 'file'} is not a directory, so no records are stored"
    assert not (tmp_path / "a").exists()


def test_unwritable_state_directory_is_reported_as_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert check_state_directory(tmp_path / "new").level is Level.OK
    in_a_file = check_state_directory(tmp_path / "file/state")
    assert (in_a_file.level, in_a_file.about) == (Level.PROBLEM, "state_directory")
    assert in_a_file.message == f"{tmp_path / 'file'} is not a directory, so learned speeds are lost on restart"
