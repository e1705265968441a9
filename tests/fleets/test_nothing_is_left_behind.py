"""Engine processes exit with the gateway that started them, however it exits."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.fleets.processes.child_process import GATE_SCRIPT, ChildProcess
from testing.ports import free_port
from tests.fleets.builders import STUB, is_alive, until_dead

pytestmark = pytest.mark.process

OWNER = """
import asyncio, json, sys
from pathlib import Path
from headgate.fleets.processes.child_process import ChildProcess

async def main():
    command, log = json.loads(sys.argv[1]), Path(sys.argv[2])
    child = await ChildProcess.start(command, environment={}, folder=None, log=log)
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_engine_and_its_children_exit_with_their_owner(tmp_path: Path, ending: signal.Signals) -> None:
    command = [*STUB[:-1], str(free_port()), "--spawns", str(tmp_path / "child"), "--ignores-sigterm"]
    owner = subprocess.Popen(  # noqa: ASYNC220 (the event loop under test must not own this process)
        [sys.executable, "-c", OWNER, json.dumps(command), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(await asyncio.to_thread(owner.stdout.readline))
        async with asyncio.timeout(60):
            while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
                await asyncio.sleep(0.02)
        grandchild = int((tmp_path / "child").read_text())
        assert is_alive(pid)
        assert is_alive(grandchild)
        owner.send_signal(ending)
        await until_dead(pid)
        await until_dead(grandchild)
        await asyncio.to_thread(owner.wait)


def test_engine_does_not_start_if_its_owner_dies_before_the_watcher_runs(tmp_path: Path) -> None:
    """The gate reads end of file instead of a line."""
    gate = ["/bin/sh", "-c", GATE_SCRIPT, "gate"]
    process = subprocess.run(
        [*gate, "/bin/sh", "-c", f"touch {tmp_path / 'began'}"], stdin=subprocess.DEVNULL, check=False
    )

    assert process.returncode == 1
    assert not (tmp_path / "began").exists()


async def test_child_appends_to_its_log(tmp_path: Path) -> None:
    for word in ("one", "two"):
        command = ["/bin/sh", "-c", f"echo {word}"]
        child = await ChildProcess.start(command, environment={}, folder=None, log=tmp_path / "log")
        assert await child.wait() == 0
        await child.kill_group()

    assert (tmp_path / "log").read_text() == "one\ntwo\n"
