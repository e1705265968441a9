"""Output of `headgate status`."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from headgate import __version__
from headgate.build import BUILD
from headgate.cli.output.status import (
    DatabaseState,
    EndpointStatus,
    EngineStatus,
    LedgerState,
    Load,
    OverrideState,
    StatusPage,
)
from headgate.cli.status import admin_url, lines
from headgate.cli.top import watch
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port
from tests.cli.conftest import Headgate, Said

BUSY = StatusPage(
    version="1.2.3",
    config_hash="0123456789abcdef",
    uptime_s=93_784.2,
    draining=True,
    requests_open=9,
    attempts_open=4,
    queued={"interactive": 3, "batch": 2},
    endpoints=(
        EndpointStatus("small/127.0.0.1:8081", "ready", leaving=False, in_flight=4, in_flight_max=4),
        EndpointStatus("small/gpu-2", "ejected", leaving=True, in_flight=0, in_flight_max=64),
    ),
    engines=(
        EngineStatus(
            "small/127.0.0.1:8081",
            "llamacpp",
            version="b6000",
            problems=("/metrics lacks x; check that this engine is llamacpp",),
            telemetry=Load(running=4, waiting=0, kv_used_fraction=0.254),
            telemetry_age_s=1.9,
        ),
    ),
    reload_problems=("headgate.yaml:3: drain: unknown key",),
    held_for_start={"small": 6},
)


def test_status_is_printed_as_text() -> None:
    assert "\n".join(lines(BUSY, "http://127.0.0.1:9090")) == (
        """\
headgate 1.2.3 at http://127.0.0.1:9090, configuration 0123456789abcdef, up 1 d 2 h
requests: 9 open, 4 on engines, 5 waiting
held: 6 requests that arrived while pool small had no endpoint
draining: not accepting new requests; stops once the open requests have ended
reload problem: headgate.yaml:3: drain: unknown key
  the configuration above stays active; fix the file and send SIGHUP again

CLASS        WAITING
interactive  3
batch        2

ENDPOINT              STATE             IN FLIGHT  ENGINE          RUNNING  WAITING  KV   METRICS AGE
small/127.0.0.1:8081  ready             4 of 4     llamacpp b6000  4        0        25%  1 s
small/gpu-2           ejected, leaving  0 of 64    -               -        -        -    -
small/127.0.0.1:8081: /metrics lacks x; check that this engine is llamacpp"""
    )


def test_database_and_ledger_state_are_shown() -> None:
    ledger = LedgerState(rows_written=1_234, rows_waiting=56, rows_lost=7, oldest_s=90.2, problem="connection failed")
    status = replace(BUSY, database=DatabaseState(tenants=3, keys=2), ledger=ledger)

    told = "\n".join(lines(status, "http://127.0.0.1:9090"))

    assert "database: 3 tenants, 2 keys" in told
    assert "ledger: 1,234 rows written, 56 waiting (oldest 90 s)" in told
    assert "database unreachable: connection failed; rows stay in the spool" in told
    assert "7 rows are lost; see the gateway's log" in told


async def test_running_gateway_is_found_by_its_file(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(hang_after=0)
        waiting = asyncio.create_task(gateway.post(chat()).__aenter__())
        await engine.next_request()
        await gateway.wait_for_status(lambda status: status["engines"][0]["telemetry_age_s"] is not None)
        said = await asyncio.to_thread(headgate, "status")
        waiting.cancel()
        await gateway.wait_until_idle()

    assert (said.code, said.err) == (0, "")
    out = re.sub(r"\d+ s", "N s", said.out)
    endpoint = f"small/{engine.url.removeprefix('http://')}"
    assert out.startswith(f"headgate {__version__} ({BUILD}) at {gateway.admin_url}, configuration ")
    assert "\nrequests: 1 open, 1 on engines, 0 waiting\n" in out
    assert "\ninteractive  0\n" in out
    assert f"\n{endpoint}  ready  1 of 8     vllm 0.0-fake  " in out


async def test_status_and_top_show_the_verdict_and_its_advice(
    headgate: Headgate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway_in_loop(a_config("http://127.0.0.1:1"), tmp_path, wait_for=0) as gateway:
        said = await asyncio.to_thread(headgate, "status")
        while "engine_down" not in said.out:
            await asyncio.sleep(0.02)
            said = await asyncio.to_thread(headgate, "status")
        capsys.readouterr()
        await asyncio.to_thread(watch, gateway.admin_url, seconds=0.1)

    assert re.search(r"\nverdict: engine_down for \d+ s: (Endpoint small/127.0.0.1:1 .*)\n  -> ", said.out)
    frame = " ".join(capsys.readouterr().out.split())
    assert re.search(r"verdict: engine_down for \d+ s: Endpoint small/127.0.0.1:1 .* -> Restart", frame)


async def test_json_output_is_the_gateways_response(headgate: Headgate, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for address in (gateway.admin_url, gateway.admin_url + "/status", gateway.admin_url.removeprefix("http://")):
            said = await asyncio.to_thread(headgate, "status", "--json", "--url", address)

            assert (said.code, said.err) == (0, "")
            assert json.loads(said.out)["endpoints"][0]["state"] == "ready"


def test_missing_gateway_is_reported_with_next_step(headgate: Headgate, file: Path) -> None:
    config = a_config("http://127.0.0.1:1")
    file.write_text(yaml.safe_dump(config))

    assert headgate("status") == Said(
        1,
        "",
        f"headgate: no gateway is responding at http://{config['admin_listen']}: GET /status failed: connection "
        "refused; start one with `headgate serve`, or specify its admin listener with --url\n",
    )


async def test_non_headgate_server_is_reported(headgate: Headgate) -> None:
    async with FakeEngine() as engine:
        said = await asyncio.to_thread(headgate, "status", "--url", engine.url)

    assert said.code == 1
    assert said.err.startswith(f"headgate: the server at {engine.url} is not the admin listener of a gateway; ")


@pytest.mark.parametrize(
    ("admin_listen", "asked"),
    [("0.0.0.0:{}", "http://127.0.0.1:{}"), ("'[::]:{}'", "http://[::1]:{}"), ("localhost:{}", "http://localhost:{}")],
)
def test_admin_address_is_found_without_secrets(headgate: Headgate, file: Path, admin_listen: str, asked: str) -> None:
    port = free_port()
    file.write_text(f"admin_listen: {admin_listen.format(port)}\nkey_secret: ${{NOT_SET_HERE}}\n")

    assert f"no gateway is responding at {asked.format(port)}: " in headgate("status").err


def test_file_without_fixed_admin_port_is_reported(headgate: Headgate, file: Path) -> None:
    assert headgate("status").err.startswith("headgate.yaml: does not exist; ")
    file.write_text("admin_listen: 127.0.0.1:0\n")
    assert headgate("status") == Said(
        1,
        "",
        "headgate: headgate.yaml sets no fixed port in admin_listen; set --url to the address in the gateway's log\n",
    )


def test_url_takes_precedence_over_the_file(headgate: Headgate) -> None:
    port = free_port()

    said = headgate("status", "--config", "missing.yaml", "--url", f"http://127.0.0.1:{port}")

    assert f"no gateway is responding at http://127.0.0.1:{port}: " in said.err
    assert "start one with `headgate serve --config missing.yaml`" in said.err


def test_active_overrides_are_listed_and_drained_endpoints_marked() -> None:
    orders = (OverrideState("drain", BUSY.endpoints[0].id, 125), OverrideState("hold", "batch", 7))
    told = list(lines(replace(BUSY, overrides=orders), "http://127.0.0.1:9090"))

    assert f"override active: drain {BUSY.endpoints[0].id}, 2 min 5 s left" in told
    assert "override active: hold batch, 7 s left" in told
    assert [line.split()[0] for line in told if ", drained" in line] == [BUSY.endpoints[0].id]


def test_admin_url_variable_is_used_if_neither_url_nor_file_is_given(
    headgate: Headgate, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_URL", "http://127.0.0.1:7777")
    file.write_text("admin_listen: 127.0.0.1:8888\n")

    assert admin_url(None, Path("headgate.yaml")) == "http://127.0.0.1:7777"
    assert admin_url("127.0.0.1:6666", Path("headgate.yaml")) == "http://127.0.0.1:6666"
    assert admin_url(None, file) == "http://127.0.0.1:8888"
