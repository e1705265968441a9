"""Worker processes of `headgate serve --workers`."""

import asyncio
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.config.workers import worker_settings
from headgate.control.workers.supervisor import reserve_exclusive
from headgate.edge.listener import bind
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, events_of
from testing.ports import free_port
from tests.cli.conftest import Headgate, Said
from tests.cli.workers import Workers, command, end, is_alive, running_workers, until_gone, workers_config
from tests.config.builders import settings_of, small_with

NOWHERE = "http://127.0.0.1:1"
CELL = "cell: {store: 'redis://cache', member_count: 2}"
WAIT_S_MAX = 90.0
# The kernel assigns each connection to a random worker. All forty go to the same one of two once in 5e11 runs.
STREAMS_MAX = 40


def refused(headgate: Headgate, file: Path, config: dict[str, Any]) -> Said:
    """Error message for a configuration with which no worker starts."""
    file.write_text(yaml.safe_dump(config))
    return headgate("serve", "--config", str(file), "--workers=2")


# Sharing a port


@pytest.mark.process
async def test_workers_share_one_port_and_have_their_own_admin_ports(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with running_workers(workers_config(engine.url, 3), tmp_path, 3, "--log-format=text") as workers:
            host, _, port = workers.config["listen"].rpartition(":")
            before = [status["held"]["connections"] for status in await workers.statuses()]
            callers = [socket.create_connection((host, int(port))) for _ in range(60)]
            held = before
            async with asyncio.timeout(WAIT_S_MAX):
                while sum(held) < sum(before) + 60:
                    await asyncio.sleep(0.02)
                    held = [status["held"]["connections"] for status in await workers.statuses()]
            for caller in callers:
                caller.close()
            await workers.until_answered()
            log = workers.parent.log()

    taken = [now - then for now, then in zip(held, before, strict=True)]
    assert sum(taken) == 60
    # One of three workers gets none of sixty connections once in ten billion runs.
    assert all(taken)
    assert len({*workers_pids(log)}) == 3
    for worker in range(3):
        assert re.search(rf"serving on http://{host}:{port}/v1 worker={worker}$", log, re.MULTILINE), log


def workers_pids(log: str) -> list[str]:
    return re.findall(r"worker is ready worker=\d pid=(\d+)", log)


@pytest.mark.process
async def test_killed_worker_is_replaced_while_others_serve(tmp_path: Path) -> None:
    async with FakeEngine() as engine, running_workers(workers_config(engine.url), tmp_path) as workers:
        await workers.until_endpoints_ready()
        first, other = workers.pid(0), workers.pid(1)
        end(first)
        await workers.until(lambda: workers.told("worker exited unexpectedly", 0))
        async with workers.ask() as answer:
            answered = answer.status
        await workers.until(lambda: len(workers.told("worker is ready", 0)) == 2)

        assert answered == 200
        assert workers.pid(0) != first
        assert workers.pid(1) == other
        assert is_alive(workers.pid(0))
        workers.parent.terminate()
        assert workers.parent.wait_until_ended() == 0


@pytest.mark.process
async def test_reload_reaches_all_workers(tmp_path: Path) -> None:
    async with running_workers(workers_config(NOWHERE), tmp_path) as workers:
        workers.file.write_text(yaml.safe_dump(workers.config | {"heath": {}}))
        workers.signal(signal.SIGHUP)
        async with asyncio.timeout(WAIT_S_MAX):
            while not all(status["reload_problems"] for status in await workers.statuses()):
                await asyncio.sleep(0.02)
        problems = [problem for status in await workers.statuses() for problem in status["reload_problems"]]

    assert len(problems) == 2
    assert all('did you mean "health"?' in problem for problem in problems)


# Shutdown


async def read(call: Any) -> bytes:
    async with call as answer:
        return await answer.read()


@pytest.mark.process
async def test_sigterm_drains_streams_and_exits_with_0(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with running_workers(workers_config(engine.url, drain_grace="100s"), tmp_path) as workers:
            await workers.until_answered()
            await engine.next_request()
            engine.script.append(Behaviour(tokens=5, hang_after=2))
            stream = asyncio.create_task(read(workers.ask(stream=True)))
            held = await engine.next_request()
            await held.hung.wait()
            workers.parent.terminate()
            # The worker without an open stream exits first.
            await workers.until(lambda: workers.told("worker exited"))
            held.resume.set()
            whole = events_of(await stream)
            code = await asyncio.to_thread(workers.parent.wait_until_ended)

    assert whole[-1] == "[DONE]"
    assert code == 0


@pytest.mark.process
async def test_second_sigterm_stops_immediately_with_the_worst_exit_code(tmp_path: Path) -> None:
    config = workers_config(NOWHERE, drain_grace="100s")
    async with FakeEngine() as engine:
        config["pools"]["small"]["endpoints"] = [engine.url]
        async with running_workers(config, tmp_path) as workers:
            await workers.until_answered()
            await engine.next_request()
            engine.script.extend([Behaviour(tokens=5, hang_after=2)] * STREAMS_MAX)
            streams = await streams_on_both(workers)
            workers.parent.terminate()
            await workers.until_draining()
            pids = [workers.pid(0), workers.pid(1)]
            waiting = [is_alive(pid) for pid in pids]
            end(pids[0])
            workers.parent.terminate()
            # Well before the drain grace period of 100 s ends.
            code = await asyncio.to_thread(workers.parent.wait_until_ended, WAIT_S_MAX)
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    assert waiting == [True, True]
    assert code == 128 + signal.SIGKILL


async def streams_on_both(workers: Workers) -> list["asyncio.Task[bytes]"]:
    """Open streams until each of two workers has at least one."""
    streams: list[asyncio.Task[bytes]] = []
    async with asyncio.timeout(WAIT_S_MAX):
        while not all(status["requests_open"] for status in await workers.statuses()):
            if len(streams) < STREAMS_MAX:
                streams.append(asyncio.create_task(read(workers.ask(stream=True))))
            await asyncio.sleep(0.02)
    return streams


@pytest.mark.process
async def test_workers_exit_if_the_parent_is_killed(tmp_path: Path) -> None:
    async with running_workers(workers_config(NOWHERE), tmp_path) as workers:
        pids = [workers.pid(0), workers.pid(1)]
        end(workers.parent.pid)
        await until_gone(pids)

        assert [is_alive(pid) for pid in pids] == [False, False]
        assert workers.parent.log().count("the parent process of this worker has exited; draining") == 2


# Rolling restart


@pytest.mark.process
async def test_sigusr2_restarts_workers_in_turn_without_interrupting_streams(tmp_path: Path) -> None:
    config = workers_config(NOWHERE, drain_grace="100s")
    async with FakeEngine() as engine:
        config["pools"]["small"]["endpoints"] = [engine.url]
        async with running_workers(config, tmp_path) as workers:
            await workers.until_answered()
            await engine.next_request()
            engine.script.append(Behaviour(tokens=5, hang_after=2))
            stream = asyncio.create_task(read(workers.ask(stream=True)))
            held = await engine.next_request()
            await held.hung.wait()
            before = [workers.pid(0), workers.pid(1)]
            workers.signal(signal.SIGUSR2)
            await workers.until(lambda: "rolling restart started" in workers.parent.log())
            await workers.until_draining(1)
            held.resume.set()
            whole = events_of(await stream)
            await workers.until(lambda: "rolling restart finished" in workers.parent.log())
            await workers.until_answered()
            after = [workers.pid(0), workers.pid(1)]
            log = workers.parent.log().partition("rolling restart started")[2]

    assert whole[-1] == "[DONE]"
    assert not {*before} & {*after}
    assert re.findall(r"worker (exited|started|is ready) worker=(\d)", log) == [
        (what, worker) for worker in "01" for what in ("exited", "started", "is ready")
    ]


@pytest.mark.process
async def test_no_worker_is_restarted_if_the_file_is_invalid(tmp_path: Path) -> None:
    async with running_workers(workers_config(NOWHERE), tmp_path) as workers:
        workers.file.write_text(yaml.safe_dump(workers.config | {"heath": {}}))
        workers.signal(signal.SIGUSR2)
        await workers.until(lambda: "no worker was restarted; correct the file" in workers.parent.log())
        alone = {key: value for key, value in workers.config.items() if key != "cell"}
        workers.file.write_text(yaml.safe_dump(alone))
        workers.signal(signal.SIGUSR2)
        await workers.until(lambda: "has no cell" in workers.parent.log())

        assert 'did you mean \\"health\\"?' in workers.parent.log()
        assert workers.told("worker exited") == []


# Errors


def test_file_without_cell_is_reported_with_next_step(headgate: Headgate, file: Path) -> None:
    said = refused(headgate, file, a_config(NOWHERE))

    assert said.code == 1
    assert "has no cell, so the workers could not share slots and limits; add cell:" in (said.err)


def test_invalid_file_is_reported_once(headgate: Headgate, file: Path) -> None:
    said = refused(headgate, file, workers_config(NOWHERE) | {"heath": {}})

    assert said.code == 1
    assert said.err.count('did you mean "health"?') == 1
    assert "not started; fix" in said.err


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"listen": "127.0.0.1:9091", "admin_listen": "127.0.0.1:9090"},
            "the admin listeners of 2 workers need the ports 9090 to 9091, which include listen; choose another",
        ),
        (
            {"scaler_listen": "127.0.0.1:9091", "admin_listen": "127.0.0.1:9090"},
            "the admin listeners of 2 workers need the ports 9090 to 9091, which include scaler_listen; choose",
        ),
        (
            {"admin_listen": "127.0.0.1:65535"},
            (
                "the admin listeners of 2 workers need the ports 65535 to 65536, but the highest port is 65535; "
                "choose a lower"
            ),
        ),
    ],
)
def test_overlapping_ports_are_reported(headgate: Headgate, file: Path, settings: dict[str, str], problem: str) -> None:
    said = refused(headgate, file, workers_config(NOWHERE) | settings)

    assert said.code == 1
    assert problem in said.err


@pytest.mark.parametrize("shared", [False, True])
def test_port_in_use_is_reported_even_if_workers_could_share_it(headgate: Headgate, file: Path, shared: bool) -> None:
    with bind("127.0.0.1", 0, shared=shared) as taken:
        config = workers_config(NOWHERE) | {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        said = refused(headgate, file, config)

    assert said.code == 1
    assert f"cannot listen on {config['listen']}" in said.err
    assert "choose another address" in said.err


@pytest.mark.process
def test_parent_exits_if_no_worker_starts(tmp_path: Path) -> None:
    config = workers_config(NOWHERE)
    host, _, port = config["admin_listen"].rpartition(":")
    file = tmp_path / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    with bind(host, int(port)), bind(host, int(port) + 1):
        run = subprocess.run(command(file, 2), capture_output=True, text=True, timeout=110, check=False)

    assert run.returncode == 1
    assert "no worker could start; exiting; fix the problems logged above" in run.stderr
    assert f"cannot listen on {config['admin_listen']}" in run.stderr


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_worker_count_must_be_positive(headgate: Headgate, number: str) -> None:
    said = headgate("serve", "--config", "headgate.yaml", f"--workers={number}")

    assert said.code == 2
    assert "argument --workers" in said.err


# Worker settings


def test_workers_have_their_own_admin_ports_and_one_scaler_listener() -> None:
    settings = settings_of(small_with("scaler_listen: 127.0.0.1:7000", CELL))
    first, third = (worker_settings(settings, worker=each, workers=4, port=0) for each in (0, 2))

    assert first.cell is not None
    assert (first.admin_listen.port, third.admin_listen.port) == (9090, 9092)
    assert (first.listen, third.listen) == (settings.listen, settings.listen)
    assert (first.scaler_listen, third.scaler_listen) == (("127.0.0.1", 7000), None)
    assert (first.cell.member_count, first.hash) == (4, settings.hash)


def test_port_0_selects_one_api_port_and_separate_admin_ports() -> None:
    settings = settings_of(small_with("listen: 127.0.0.1:0", "admin_listen: 127.0.0.1:0", CELL))
    worker = worker_settings(settings, worker=1, workers=2, port=7001)

    assert (worker.listen.port, worker.admin_listen.port) == (7001, 0)


def test_reserved_port_accepts_no_connections_and_cannot_be_used_by_other_processes() -> None:
    port = free_port()
    with reserve_exclusive("127.0.0.1", port) as kept:
        assert kept.getsockname()[1] == port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with bind("127.0.0.1", port, shared=True), bind("127.0.0.1", port, shared=True):
            socket.create_connection(("127.0.0.1", port)).close()
            for taken in (bind, reserve_exclusive):
                with pytest.raises(OSError, match="cannot listen"):
                    taken("127.0.0.1", port)
