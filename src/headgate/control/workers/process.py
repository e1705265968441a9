"""One run of a worker process.

A worker is `headgate serve` with the same configuration file and its own index. Its standard input is a pipe that the
supervisor never writes to. If the supervisor dies for any reason, the pipe closes and the worker exits. The worker
prints the address of its admin listener to standard output once its signal handlers are installed. Each worker leads
its own session, so that Ctrl-C in a terminal reaches only the supervisor, which forwards it once.
"""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Final

_POLL_S: Final = 0.1
_ANSWER_S_MAX: Final = 2.0
_LINE_BYTES_MAX: Final = 1024
_LOOPBACK_FOR: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (wildcard addresses to connect to)


class WorkerProcess:
    """One run of a worker."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reload_pending = False
        self.is_terminating = False
        self.admin: str | None = None
        """Address of the admin listener. Set once the worker handles signals."""

    @classmethod
    async def start(cls, command: Sequence[str]) -> "WorkerProcess":
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_ready(self) -> bool:
        """Waits until the worker reports that it is ready. Returns false if the worker exits first."""
        assert self._process.stdout is not None
        said = (await self._process.stdout.readline()).decode().strip()
        if not said:
            return False
        self.admin = said
        if self._reload_pending:
            self._signal(signal.SIGHUP)
        while self._process.returncode is None:
            if await _is_ready(said):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    def reload(self) -> None:
        """Reloads the worker, as soon as it handles signals. Before that, SIGHUP would terminate it."""
        if self.admin is None:
            self._reload_pending = True
        else:
            self._signal(signal.SIGHUP)

    def terminate(self) -> None:
        """Asks the worker to exit. A second call makes it exit faster."""
        self.is_terminating = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Returns the exit code, following the shell convention."""
        status = await self._process.wait()
        if status == -signal.SIGTERM and self.is_terminating:
            # The worker received SIGTERM before its handler was installed, so there was nothing to drain.
            return 0
        return status if status >= 0 else 128 - status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


async def _is_ready(admin: str) -> bool:
    host, _, port = admin.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(_ANSWER_S_MAX):
            heard, said = await asyncio.open_connection(_LOOPBACK_FOR.get(host, host), int(port))
            try:
                said.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return b" 200 " in await heard.readline()
            finally:
                said.close()
    except (OSError, ValueError):
        return False
