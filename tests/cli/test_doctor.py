"""Does `headgate doctor` find what does not fit between a configuration and reality?"""

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

from headgate.cli.checkup.clock import Heard, clock_findings, heard_at
from headgate.cli.checkup.endpoints import look_at_all
from headgate.cli.checkup.finding import Finding, Level, note, ok, problem
from headgate.cli.checkup.machine import open_files, records_folder, secret_strength, state_folder
from headgate.config.settings import Settings
from headgate.engines.page import open_session
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from testing.ports import free_port
from tests.cli.conftest import Headgate, Said
from tests.config.builders import settings_of, small_with
from tests.engines.listeners import listening, say_nothing

RECORDED = Path(__file__).parents[1] / "engines" / "recorded"
COST = "its load does not show in status and metrics, and dispatch goes by our own counts alone"
UNCHECKED = note(
    "small/it",
    "in_flight_max 8 cannot be checked: no page of vLLM tells its --max-num-seqs",
    then="compare it with the engine's own limit yourself",
)


def a_file(file: Path, url: str, **settings: Any) -> None:
    config = a_config(**settings)
    config["pools"]["small"]["endpoints"] = [{"url": url, "name": "it"}]
    # One connection fits into any limit of files, so that it is not the machine that is tested.
    config.setdefault("limits", {"requests_open_max": 1, "connections_open_max": 1})
    file.write_text(yaml.safe_dump(config))


async def found(headgate: Headgate, about: str | None = None) -> list[Finding]:
    """What the doctor finds about this thing; the code tells whether any of all is a problem."""
    said = await asyncio.to_thread(headgate, "doctor", "--json")
    told = json.loads(said.out)
    findings = [
        Finding(Level(each["level"]), each["about"], each["message"], each["next"]) for each in told["findings"]
    ]
    assert told["ok"] is (said.code == 0) is not any(each.level is Level.PROBLEM for each in findings)
    return [each for each in findings if about in (None, each.about)]


# The endpoints


async def test_a_configuration_that_fits_is_told_line_by_line(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": 8, "build_info": "b6000"}
        a_file(file, engine.url, engine="llamacpp")
        config = yaml.safe_load(text_of(file))
        said = await asyncio.to_thread(headgate, "doctor")

    findings, _, protections = said.out.partition("protections:\n")
    first, second, *rest = findings.splitlines()
    assert (said.code, said.err) == (0, "0 problems, 0 notes\n")
    assert "  on        in-flight limit, pool small: an endpoint gets 8 requests at once" in protections
    assert first.startswith("ok      headgate.yaml: is right; configuration ")
    assert second.startswith("ok      small/it: llamacpp b6000 serves fake; it answers in ")
    assert rest == [
        "ok      small/it: metrics: running, waiting",
        "ok      small/it: runs 8 requests at once, as many as in_flight_max gives it",
        f"ok      admin_listen: {config['admin_listen']} is free",
        f"ok      listen: {config['listen']} is free",
        "ok      open files: the limit here allows 1 connections and 8 in flight",
    ]


def text_of(file: Path) -> str:
    return file.read_text()


async def test_vllm_does_not_say_what_it_runs_at_once(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url)
        serves, *rest = await found(headgate, "small/it")

    assert serves.message.startswith("vllm 0.0-fake serves fake; it answers in ")
    assert rest == [ok("small/it", "metrics: running, waiting, kv_used_fraction, preemptions"), UNCHECKED]


@pytest.mark.parametrize(
    ("given", "finding"),
    [
        (
            9,
            problem(
                "small/it",
                "is given up to 9 requests but runs 8 at once: the rest waits there, out of order",
                then="set in_flight_max to 8",
            ),
        ),
        (
            7,
            note(
                "small/it",
                "runs 8 requests at once and is given 7 at most",
                then="raise in_flight_max to 8, unless others use the engine too",
            ),
        ),
    ],
)
async def test_places_are_compared(headgate: Headgate, file: Path, given: int, finding: Finding) -> None:
    async with FakeEngine() as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": 8, "build_info": "b6000"}
        a_file(file, engine.url, engine="llamacpp", in_flight_max=given)
        findings = await found(headgate, "small/it")

    assert findings[-1] == finding


async def test_endpoint_whose_host_name_does_not_resolve_is_a_problem(headgate: Headgate, file: Path) -> None:
    a_file(file, "http://engine.invalid:8000")

    assert await found(headgate, "small/it") == [
        problem(
            "small/it",
            "GET /health failed: its host name does not resolve",
            then="check the DNS record of its host, or correct its url; nothing is sent there until it answers",
        )
    ]


async def test_an_endpoint_that_is_not_there_is_a_problem(headgate: Headgate, file: Path) -> None:
    a_file(file, f"http://127.0.0.1:{free_port()}")

    assert await found(headgate, "small/it") == [
        problem(
            "small/it",
            "GET /health failed: connection refused",
            then="start the engine, or correct its url; nothing is sent there until it answers",
        )
    ]


async def test_an_engine_that_loads_is_to_be_waited_for(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.loading = True
        a_file(file, engine.url)
        findings = await found(headgate, "small/it")

    assert findings == [
        problem(
            "small/it",
            "GET /health answered 503: Loading model",
            then="wait until the engine has loaded its model, and look again",
        )
    ]


async def test_another_model_is_named_with_what_there_is(headgate: Headgate, file: Path) -> None:
    async with FakeEngine(models=("a", "b")) as engine:
        a_file(file, engine.url)
        findings = await found(headgate, "small/it")

    assert findings == [
        problem("small/it", 'serves a, b, not "fake"', then="set served_model of pool small to a name that it serves")
    ]


async def test_another_engine_than_the_file_says_is_seen(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url, engine="llamacpp")
        findings = await found(headgate, "small/it")

    assert problem("small/it", "is vllm, not llamacpp", then="set engine of pool small to vllm") in findings


async def test_missing_metrics_are_told_with_what_they_cost(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.metrics_status, engine.metrics, engine.version = 404, b"", None
        a_file(file, engine.url)
        _, *findings = await found(headgate, "small/it")

    assert findings == [
        note("small/it", "does not say its version", then="nothing; only messages about it are less exact"),
        note(
            "small/it",
            f"metrics are missing (GET /metrics answered 404): {COST}",
            then="start vLLM without --disable-log-stats",
        ),
        UNCHECKED,
    ]


async def test_an_engine_of_no_known_kind_shows_nothing(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url, engine="openai_compatible")
        _, load, places = await found(headgate, "small/it")

    assert load.message == f"shows no metrics that openai_compatible could read: {COST}"
    assert load.next.startswith("if it is one of vllm, ")
    assert places.message == ("in_flight_max 8 cannot be checked: the engine does not say how many it runs at once")


def two_endpoints(url: str) -> Settings:
    """Two endpoints of different names at one address."""
    port = url.rpartition(":")[2]
    config = a_config()
    config["pools"]["small"]["endpoints"] = [
        {"url": f"http://{host}:{port}", "name": host} for host in ("127.0.0.1", "localhost")
    ]
    return settings_of(yaml.safe_dump(config))


async def test_silent_endpoints_are_given_up() -> None:
    async with listening(say_nothing) as url, open_session() as session:
        looks = await look_at_all(two_endpoints(url), session, seconds_max=0.1)

    assert [[finding.level for finding in look.findings] for look in looks] == [[Level.PROBLEM]] * 2
    assert [look.findings[0].about for look in looks] == ["small/127.0.0.1", "small/localhost"]


async def test_all_endpoints_are_asked_at_once() -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(None)
        await say_nothing(reader, writer)

    async with listening(hear) as url, open_session() as session:
        looking = asyncio.create_task(look_at_all(two_endpoints(url), session, seconds_max=600))
        async with asyncio.timeout(30):
            for _ in range(2):
                await asked.get()
        assert not looking.done(), "no endpoint has answered"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def write(file: Path, config: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(config))


# The file


def test_a_file_that_is_wrong_is_all_that_is_told(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("drain: 30s"))

    assert headgate("doctor") == Said(
        1,
        'problem headgate.yaml:8: drain: unknown key\n          -> did you mean "drain_grace"?\n',
        "1 problem, 0 notes\n",
    )


async def test_warnings_of_the_file_are_notes(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, tenants={"laptop": {}, "idle": {}})
        write(file, config)
        findings = await found(headgate)

    line = next(number for number, text in enumerate(text_of(file).splitlines(), 1) if text.startswith("  idle:"))
    assert findings[1] == note(
        f"headgate.yaml:{line}",
        "tenants.idle: has no key and is not the anonymous tenant, so nobody can call as it",
        then="`headgate keys new --tenant idle` makes one",
    )


# The addresses


async def test_a_gateway_that_runs_there_is_compared_with_the_file(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, file.parent) as gateway:
            same = await found(headgate, "running gateway")
            listen = await found(headgate, "listen")
            clock = await found(headgate, "clock")
            write(file, config | {"drain_grace": "6s"})
            [other] = await found(headgate, "running gateway")
            write(file, config | {"drain": "6s"})
            await gateway.gateway.reload()
            write(file, config)
            refused, after = await found(headgate, "running gateway")

    assert [each.level for each in same] == [Level.OK]
    assert listen == [ok("listen", f"{config['listen']} is served by a gateway")]
    assert clock == [ok("clock", "agrees within 2 s with 1 of those that were asked")]
    assert other.level is Level.NOTE
    assert other.message.startswith("has configuration ")
    assert (refused.level, after.level) == (Level.PROBLEM, Level.OK)
    assert "drain: unknown key" in refused.message
    assert refused.next == "mend the file, then send SIGHUP"


async def test_a_running_gateway_says_which_engine_runs_fewer_requests_than_it_is_given(
    headgate: Headgate, file: Path
) -> None:
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

    message = "requests waited in its engine while 32 ran, so it gets only some more than that at once"
    then = "compare in_flight_max with the engine's own limit (vLLM: --max-num-seqs)"
    assert note("small/it", message, then=then) in findings
    assert not [each for each in findings if each.about in ("small/unknown", "small/fits")]


async def test_an_address_that_another_program_has_is_a_problem(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        address = engine.url.removeprefix("http://")
        a_file(file, engine.url, listen=address)
        findings = await found(headgate, "listen")
        a_file(file, engine.url, admin_listen=address)
        admin = await found(headgate, "admin_listen")

    why, then = f"cannot listen on {address}: another program listens there", "stop it, or choose another address"
    assert findings == [problem("listen", why, then=then)]
    assert admin == [problem("admin_listen", why, then=then)]


async def test_an_address_of_another_machine_is_a_problem(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        a_file(file, engine.url, listen="192.0.2.1:8080", anonymous_tenant="laptop")
        findings = await found(headgate, "listen")

    assert findings == [
        problem(
            "listen",
            "cannot listen on 192.0.2.1:8080: no network of this machine has it",
            then="use an address of this machine, or 0.0.0.0 for all",
        )
    ]


# The clock


def test_clocks_are_told_apart_beyond_two_seconds() -> None:
    def skew(seconds: float) -> Heard:
        return Heard("e", 1_000.0 + seconds, 1_000.5)

    assert list(clock_findings([None])) == []
    assert list(clock_findings([skew(2), skew(-2), None])) == [
        ok("clock", "agrees within 2 s with 2 of those that were asked")
    ]
    assert list(clock_findings([skew(3)])) == [
        note(
            "e", "its clock is 3 s ahead of ours: times in logs and records cannot be compared", then="set both by NTP"
        )
    ]
    assert next(clock_findings([skew(-60)])).message.startswith("its clock is 60 s behind ours")


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}])
def test_who_does_not_say_the_time_is_not_compared(headers: dict[str, str]) -> None:
    assert heard_at("e", headers) is None


@asynccontextmanager
async def a_server(path: str, body: object, *, clock_off_s: float = 0.0) -> AsyncIterator[str]:
    """The address of a server with this one page."""

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


async def test_an_engine_whose_clock_is_wrong_is_named(headgate: Headgate, file: Path) -> None:
    async with a_server("/v1/models", {"data": [{"id": "fake"}]}, clock_off_s=-600) as url:
        a_file(file, url, engine="openai_compatible")
        findings = await found(headgate, "small/it")

    assert findings[-1].level is Level.NOTE
    assert findings[-1].message.startswith("its clock is 600 s behind ours: ")


# The machine


def a_settings(*lines: str) -> Settings:
    return settings_of(small_with(*lines))


def test_open_files_are_compared_with_what_may_be_open() -> None:
    settings = a_settings("limits: {requests_open_max: 900, connections_open_max: 1000}")

    assert open_files(settings, 1068) == ok("open files", "the limit here allows 1,000 connections and 4 in flight")
    assert open_files(settings, 1067) == note(
        "open files",
        "1,067 may be open here: room for 999 connections, not for connections_open_max 1,000",
        then="raise the hard limit (`ulimit -Hn`) to 1068, or lower connections_open_max",
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
def test_a_secret_is_worth_its_length_and_variety(secret: bytes, level: Level) -> None:
    [finding] = secret_strength(secret)

    assert finding.level is level
    assert secret.decode() not in json.dumps(asdict(finding))


def test_where_there_is_no_secret_nothing_is_said_of_it() -> None:
    assert list(secret_strength(None)) == []


def test_a_folder_of_records_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    there, new, in_a_file = (records_folder(tmp_path / part) for part in ("", "a/b", "file/records"))

    assert (there.level, new.level, in_a_file.level) == (Level.OK, Level.OK, Level.PROBLEM)
    assert new.message == f"{tmp_path / 'a/b'} can be made"
    assert in_a_file.message == f"{tmp_path / 'file'} is no folder, so no records are kept"
    assert not (tmp_path / "a").exists()


def test_state_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert state_folder(tmp_path / "new").level is Level.OK
    in_a_file = state_folder(tmp_path / "file/state")
    assert (in_a_file.level, in_a_file.about) == (Level.PROBLEM, "state_folder")
    assert in_a_file.message == f"{tmp_path / 'file'} is no folder, so learned speeds are lost with a restart"
