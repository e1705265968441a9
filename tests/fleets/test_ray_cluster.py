"""The gateway's side of the Ray driver protocol, including driver failures.

The driver in these tests is a shell script in place of the Python interpreter. It does not need Ray and prints whatever
the test specifies.
"""

import asyncio
import gc
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.fleets.ray.cluster import EXIT_S_MAX, UNKNOWN_EXIT_STATUS, RayCluster
from headgate.fleets.ray.options import RayOptions

pytestmark = pytest.mark.process

UP = """echo '{"up": "2"}'"""
PLACED = """{"placed": 1, "host": "10.0.0.7", "port": 40001, "pid": 123, "actor": "a1"}"""


@asynccontextmanager
async def a_cluster(folder: Path, *says: str, leave_s_max: float = EXIT_S_MAX) -> AsyncIterator[RayCluster]:
    """Cluster whose driver runs these shell lines. A line can copy received commands to the file `orders`."""
    script = folder / "python"
    script.write_text("\n".join(["#!/bin/sh", f"cd {folder}", *says]) + "\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    options = RayOptions(python=str(script), address="10.0.0.1:6379", gpus=1)
    cluster = RayCluster(options, log=folder / "ray.log", leave_s_max=leave_s_max)
    try:
        yield cluster
    finally:
        await cluster.stop()


def is_there(pid: Path) -> bool:
    """Return whether the process whose pid is in this file is running."""
    return Path("/proc", pid.read_text().strip()).exists()


async def until_placed(child: object) -> None:
    async with asyncio.timeout(60):
        while not child.address:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)


async def test_run_sends_the_command_and_resources_and_gets_the_address(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, UP, "read -r order; echo $order > orders", f"echo '{PLACED}'", "cat") as cluster:
        child = await cluster.run(["vllm", "{port}"], {"KEY": "k"})
        unplaced = child.address
        await until_placed(child)
        orders = (tmp_path / "orders").read_text()
        has_driver = cluster.pid is not None

    assert unplaced == ""
    assert (child.address, child.pid, has_driver) == ("10.0.0.7:40001", 123, True)
    assert '"run":1,"command":["vllm","{port}"],"environment":{"KEY":"k"},"cpus":1.0,"gpus":1' in orders


async def test_ipv6_address_is_written_in_brackets(tmp_path: Path) -> None:
    placed = PLACED.replace("10.0.0.7", "fd00::7")
    async with a_cluster(tmp_path, UP, "read -r _", f"echo '{placed}'", "cat") as cluster:
        child = await cluster.run(["x"], {})
        await until_placed(child)

    assert child.address == "[fd00::7]:40001"


async def test_exited_process_reports_its_status(tmp_path: Path) -> None:
    ended = """{"ended": 1, "status": 3}"""
    async with a_cluster(tmp_path, UP, "read -r _", f"echo '{PLACED}'", f"echo '{ended}'", "cat") as cluster:
        child = await cluster.run(["x"], {})
        status = await asyncio.wait_for(child.wait(), 60)

    assert (status, child.problem) == (3, "")


async def test_process_lost_by_ray_reports_the_reason(tmp_path: Path) -> None:
    ended = """{"ended": 1, "problem": "Ray: the node died"}"""
    async with a_cluster(tmp_path, UP, "read -r _", f"echo '{ended}'", "cat") as cluster:
        child = await cluster.run(["x"], {})
        status = await asyncio.wait_for(child.wait(), 60)

    assert (status, child.problem) == (UNKNOWN_EXIT_STATUS, "Ray: the node died")


async def test_end_sends_a_command_and_waits_for_the_exit(tmp_path: Path) -> None:
    ended = """{"ended": 1, "status": 0}"""
    says = (UP, "read -r _", f"echo '{PLACED}'", "read -r order; echo $order > orders", f"echo '{ended}'", "cat")
    async with a_cluster(tmp_path, *says) as cluster:
        child = await cluster.run(["x"], {})
        await asyncio.wait_for(child.terminate(within_s=2.5), 60)
        await child.kill_group()

    assert (tmp_path / "orders").read_text() == '{"end":1,"within_s":2.5}\n'
    assert await child.wait() == 0


async def test_process_waiting_for_a_node_reports_the_reason(tmp_path: Path) -> None:
    waits = """{"waits": 1, "why": "no node has enough free capacity: 1 GPU"}"""
    async with a_cluster(tmp_path, UP, "read -r _", f"echo '{waits}'", f"echo '{PLACED}'", "cat") as cluster:
        child = await cluster.run(["x"], {})
        await until_placed(child)

    assert child.pending_reason == "no node has enough free capacity: 1 GPU"


async def test_driver_exit_ends_its_processes_and_the_next_run_starts_a_new_driver(tmp_path: Path) -> None:
    says = ("echo started >> starts", UP, "read -r _", "[ -e second ] && cat", "touch second; echo oops >&2")
    async with a_cluster(tmp_path, *says) as cluster:
        child = await cluster.run(["x"], {})
        status = await asyncio.wait_for(child.wait(), 60)
        none = cluster.pid
        another = await cluster.run(["x"], {})
        starts = (tmp_path / "starts").read_text()
        waits = another.address == ""

    assert (status, none, waits) == (UNKNOWN_EXIT_STATUS, None, True)
    assert child.problem.startswith("the Ray driver exited; end of the log ")
    assert child.problem.endswith(": oops")
    assert starts == "started\nstarted\n"


async def test_unreachable_cluster_is_reported_with_advice(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, """echo '{"failed": "no Ray cluster at x: refused"}'""") as cluster:
        with pytest.raises(OSError, match=r"^no Ray cluster at x: refused; check the address, and that .* has"):
            await cluster.run(["x"], {})


async def test_interpreter_without_ray_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, "echo No module named ray >&2; exit 1") as cluster:
        with pytest.raises(OSError, match=r"the driver exited; end of the log .*: No module named ray"):
            await cluster.run(["x"], {})


async def test_missing_interpreter_is_reported(tmp_path: Path) -> None:
    cluster = RayCluster(RayOptions(python=str(tmp_path / "none")), log=tmp_path / "ray.log")

    with pytest.raises(OSError, match="none"):
        await cluster.run(["x"], {})


async def test_driver_that_fails_to_exit_is_killed(tmp_path: Path) -> None:
    lines = UP, "trap '' TERM; while true; do sleep 0.1; done"
    async with a_cluster(tmp_path, *lines, leave_s_max=0.2) as cluster:
        child = await cluster.run(["x"], {})
        await asyncio.wait_for(cluster.stop(), 60)

    assert cluster.pid is None
    assert await child.wait() == UNKNOWN_EXIT_STATUS


async def test_driver_sending_an_invalid_message_is_killed(tmp_path: Path) -> None:
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["message"]))
    async with a_cluster(tmp_path, "echo $$ > pid", UP, "read -r _", "echo '{}'", "exec sleep 60") as cluster:
        child = await cluster.run(["x"], {})
        status = await asyncio.wait_for(child.wait(), 60)
        async with asyncio.timeout(60):
            while is_there(tmp_path / "pid"):
                await asyncio.sleep(0.01)
        has_driver = cluster.pid is not None

    gc.collect()
    assert (status, has_driver) == (UNKNOWN_EXIT_STATUS, False)
    assert heard == ["Task exception was never retrieved"], (
        "the internal error must reach the event loop's exception handler"
    )


async def test_concurrent_runs_share_one_driver_start_despite_cancellation(tmp_path: Path) -> None:
    waits = "while [ ! -e go ]; do sleep 0.05; done"
    async with a_cluster(tmp_path, "echo started >> starts", waits, UP, "cat > orders") as cluster:
        impatient = asyncio.create_task(cluster.run(["x"], {}))
        async with asyncio.timeout(60):
            while not (tmp_path / "starts").exists():
                await asyncio.sleep(0.01)
        impatient.cancel()
        (tmp_path / "go").touch()
        children = await asyncio.wait_for(asyncio.gather(cluster.run(["y"], {}), cluster.run(["z"], {})), 60)
        starts = (tmp_path / "starts").read_text()

    assert (impatient.cancelled(), len(children), starts) == (True, 2, "started\n")


async def test_stop_cancels_a_pending_driver_start(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, "echo $$ > pid", "exec sleep 60") as cluster:
        seeking = asyncio.create_task(cluster.run(["x"], {}))
        async with asyncio.timeout(60):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
        await asyncio.wait_for(cluster.stop(), 60)
        with pytest.raises(asyncio.CancelledError):
            await seeking

    assert not is_there(tmp_path / "pid")


def test_ray_fleet_does_not_import_ray() -> None:
    program = "import sys, headgate.fleets.ray.fleet; print('ray' in sys.modules)"

    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
