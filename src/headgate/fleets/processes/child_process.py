"""Child process that never outlives the gateway.

Each engine process leads its own session and process group, because engines start children of their own. The gateway
always signals the group. A watcher process blocks on a pipe that only the gateway holds. When the gateway dies for any
reason, the pipe closes and the watcher kills the group. Even a gateway killed with SIGKILL therefore leaves no engine
behind. The engine starts behind a gate that opens once its watcher is running. If the gateway dies before that, the
gate never opens, so the engine is never unprotected.

A parent-death signal would reach the process, but not its children. Neither mechanism reaches a child that has started
its own session. The watcher does not help if it is killed together with the gateway. In a container or a systemd unit,
the system then kills the engines as well.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SHELL: Final = "/bin/sh"
GATE_SCRIPT: Final = 'read -r _ || exit 1; exec "$@" </dev/null'
"""Shell script that becomes the engine once it reads a line."""
WATCHDOG_SCRIPT: Final = 'read -r _; kill -s KILL -- "-$1"'
"""Shell script that kills the process group of leader $1 when its input closes."""
GROUP_EXIT_S_MAX: Final = 2.0
"""Maximum time in seconds to wait for a killed process group to release its resources."""
_POLL_S: Final = 0.05


class ChildProcess:
    """One process, from `start` until `terminate`."""

    def __init__(self, process: asyncio.subprocess.Process, watcher: asyncio.subprocess.Process) -> None:
        self._process = process
        self._watcher = watcher

    @classmethod
    async def start(
        cls, command: Sequence[str], *, environment: Mapping[str, str], folder: Path | None, log: Path
    ) -> "ChildProcess":
        """Starts a process whose output is appended to the log. Raises `OSError`.

        Other programs may truncate the log while the process is running.
        """
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(SHELL, "-c", GATE_SCRIPT, "gate", *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
            )
        try:
            watcher = await asyncio.create_subprocess_exec(
                *(SHELL, "-c", WATCHDOG_SCRIPT, "watcher", str(process.pid)),
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
        """Returns the exit status, or the negated signal number if a signal ended the process."""
        return await self._process.wait()

    async def terminate(self, *, within_s: float) -> None:
        """Sends SIGTERM to the process, and SIGKILL to its group after `within_s` seconds."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._process.wait()
        await self.kill_group()

    async def kill_group(self) -> None:
        """Kills the rest of the group, and the watcher."""
        _signal_group(self.pid, signal.SIGKILL)
        await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GROUP_EXIT_S_MAX):
                while _is_alive(self.pid):  # noqa: ASYNC110 (there is no notification for processes of others)
                    await asyncio.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            self._watcher.kill()
        await self._watcher.wait()


def _signal_group(leader: int, number: int) -> None:
    # A group member that has changed its user cannot be signalled from here.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _is_alive(leader: int) -> bool:
    """Returns whether a process in the group is still running. Zombies are excluded, because they hold no resources."""
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    seen = False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        seen = True
        with contextlib.suppress(OSError):
            # State, parent and group come after the name, which ends at the last parenthesis.
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state not in "ZX":
                return True
    return not seen
