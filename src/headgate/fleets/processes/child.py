"""How does an engine's process run so that nothing of it is left behind, however we end?

Each process leads a session and a group of its own, because engines start children of theirs: what is ended is always
the group. Beside it a watcher is blocked on a pipe that only we hold. When we die, however we die, the pipe ends and
the watcher kills the group; so a gateway that is killed with SIGKILL leaves no engine behind. The engine begins behind
a gate that opens when its watcher stands, and that falls shut for good if we die before: there is no moment in between.

A parent-death signal would reach the process but not its children. Neither reaches a child that has left the group by a
session of its own; nor is there help where somebody kills the watcher as well as us, unless it is the system that ends
everything in a container or a systemd unit, which then ends the engines too.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SHELL: Final = "/bin/sh"
GATE: Final = 'read -r _ || exit 1; exec "$@" </dev/null'
"""Becomes the engine once something is said to it."""
WATCHER: Final = 'read -r _; kill -s KILL -- "-$1"'
"""Ends the group whose leader is $1 once nobody can say anything to it any more."""
GONE_S_MAX: Final = 2.0
"""How long the rest of a group that was killed may take to free what it holds."""
_POLL_S: Final = 0.05


class Child:
    """One process, from `start` to `end`."""

    def __init__(self, process: asyncio.subprocess.Process, watcher: asyncio.subprocess.Process) -> None:
        self._process = process
        self._watcher = watcher

    @classmethod
    async def start(
        cls, command: Sequence[str], *, environment: Mapping[str, str], folder: Path | None, log: Path
    ) -> "Child":
        """Its output goes to the end of the log, where it may be cut short from outside. Raises `OSError`."""
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(SHELL, "-c", GATE, "gate", *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
            )
        try:
            watcher = await asyncio.create_subprocess_exec(
                *(SHELL, "-c", WATCHER, "watcher", str(process.pid)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            _signal_group(process.pid, signal.SIGKILL)
            raise
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        return cls(process, watcher)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status: minus the signal's number when a signal ended it."""
        return await self._process.wait()

    async def end(self, *, within_s: float) -> None:
        """Asks the process to end, as a supervisor does, and after so long ends all of its group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._process.wait()
        await self.bury()

    async def bury(self) -> None:
        """Ends what is left of the group, and the watcher."""
        _signal_group(self.pid, signal.SIGKILL)
        await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_S_MAX):
                while _is_alive(self.pid):  # noqa: ASYNC110 (the system tells of the children of others only if asked)
                    await asyncio.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            self._watcher.kill()
        await self._watcher.wait()


def _signal_group(leader: int, number: int) -> None:
    # A member that has taken other rights is beyond ours; what it leaves behind cannot be helped from here.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _is_alive(leader: int) -> bool:
    """Whether anybody of the group still runs. Who only waits to be collected by its parent holds nothing any more."""
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    seen = False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        seen = True
        with contextlib.suppress(OSError):
            # After the name, which ends with the last parenthesis: state, parent, group.
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state not in "ZX":
                return True
    return not seen
