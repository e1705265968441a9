"""What is one worker, from its start to its end?

A worker is `headgate serve` by the same file, told which one it is. Its standard input is a pipe that nobody ever
writes to: it ends when this process dies, however it dies, and the worker leaves then. On its standard output it says
once where its admin listener is, which is when it hears signals. Each leads a session of its own, so that Ctrl-C in a
terminal reaches this process alone, which hands it on once.
"""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Final

_POLL_S: Final = 0.1
_ANSWER_S_MAX: Final = 2.0
_LINE_BYTES_MAX: Final = 1024
_EVERY_NETWORK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (that nobody can connect to these is the point)


class WorkerProcess:
    """One run of a worker."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reloads = False
        self.asked_to_leave = False
        self.admin: str | None = None
        """Where its admin listener is, from the moment at which it hears signals."""

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

    async def ready(self) -> bool:
        """True when its admin listener says that it is; False when it ended before."""
        assert self._process.stdout is not None
        said = (await self._process.stdout.readline()).decode().strip()
        if not said:
            return False
        self.admin = said
        if self._reloads:
            self._signal(signal.SIGHUP)
        while self._process.returncode is None:
            if await _is_ready(said):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    def reload(self) -> None:
        """One that does not hear signals yet would end by this one, and may have read the file already."""
        if self.admin is None:
            self._reloads = True
        else:
            self._signal(signal.SIGHUP)

    def leave(self) -> None:
        """Asked once more, it hurries."""
        self.asked_to_leave = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code, as a shell would tell it."""
        status = await self._process.wait()
        if status == -signal.SIGTERM and self.asked_to_leave:
            # It was asked before it heard, and had nothing to bring to an end.
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
            heard, said = await asyncio.open_connection(_EVERY_NETWORK.get(host, host), int(port))
            try:
                said.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return b" 200 " in await heard.readline()
            finally:
                said.close()
    except (OSError, ValueError):
        return False
