"""Does an engine outlive the gateway that started it, however that one ends?"""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.fleets.processes.child import GATE, Child
from testing.ports import free_port
from tests.fleets.builders import STUB, is_alive, until_dead

pytestmark = pytest.mark.process

OWNER = """
import asyncio, json, sys
from pathlib import Path
from headgate.fleets.processes.child import Child

async def main():
    command, log = json.loads(sys.argv[1]), Path(sys.argv[2])
    child = await Child.start(command, environment={}, folder=None, log=log)
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_the_engine_and_its_children_end_with_their_owner(tmp_path: Path, ending: signal.Signals) -> None:
    command = [*STUB[:-1], str(free_port()), "--spawns", str(tmp_path / "child"), "--ignores-sigterm"]
    owner = subprocess.Popen(  # noqa: ASYNC220 (it must be no child of the loop that is tested)
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


def test_an_owner_that_dies_before_the_watcher_stands_leaves_an_engine_that_never_began(tmp_path: Path) -> None:
    """The gate hears the end of its input instead of a word."""
    gate = ["/bin/sh", "-c", GATE, "gate"]
    process = subprocess.run(
        [*gate, "/bin/sh", "-c", f"touch {tmp_path / 'began'}"], stdin=subprocess.DEVNULL, check=False
    )

    assert process.returncode == 1
    assert not (tmp_path / "began").exists()


async def test_the_log_is_appended_to(tmp_path: Path) -> None:
    for word in ("one", "two"):
        command = ["/bin/sh", "-c", f"echo {word}"]
        child = await Child.start(command, environment={}, folder=None, log=tmp_path / "log")
        assert await child.wait() == 0
        await child.bury()

    assert (tmp_path / "log").read_text() == "one\ntwo\n"
