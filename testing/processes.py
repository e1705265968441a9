"""A test's child processes: start, readiness, signals and guaranteed cleanup.

Each child leads its own process group, because engines start children of their own. Signals always go to the group. A
watcher process is blocked on a pipe that this process holds open. It kills the group when this process dies for any
reason, so a killed test run leaves no engine behind. A parent-death signal would not reach the child's children, and it
would fire as soon as the thread that started the child exits.
"""

import contextlib
import http.client
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOG_TAIL_BYTES = 8_000
POLL_SECONDS = 0.05
REQUEST_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 10.0
"""Time between SIGTERM and SIGKILL, in seconds."""
END_SECONDS_MAX = 60.0
"""Maximum time in seconds to wait for a program to exit. Only a program that hangs takes this long."""

# Kill the process group led by $1 as soon as the other end of standard input is closed.
WATCHER = 'read -r _; kill -s KILL -- "-$1"'


class MissingProgram(Exception):
    """A program that a test or benchmark needs is not installed. The message explains how to install it."""


class ProcessFailedError(Exception):
    """A program exited or did not respond. The message includes the end of its log."""


class ChildProcess:
    """One program with its log file and process group, from construction to `stop`."""

    def __init__(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix=f"headgate-{name}-", ignore_cleanup_errors=True)
        self.log_path = Path(self._folder.name) / "log"
        try:
            self._popen = self._start(command, environment or {})
        except OSError:
            self._folder.cleanup()
            raise
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "watcher", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log_path.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status; None while the program is running, and the negative signal number if a signal terminated it."""
        return self._popen.poll()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_ok(self, url: str, seconds_max: float) -> None:
        """Wait until `url` returns 200."""
        give_up_at = time.monotonic() + seconds_max
        while not _answers_ok(url):
            if self.exit_status is not None:
                raise self._failed(f"exited with status {self.exit_status} before {url} returned 200")
            if time.monotonic() > give_up_at:
                raise self._failed(f"did not return 200 at {url} within {seconds_max:.0f} s")
            time.sleep(POLL_SECONDS)

    def wait_until_ended(self, seconds_max: float = END_SECONDS_MAX) -> int:
        try:
            return self._popen.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not exit within {seconds_max:.0f} s") from None

    def terminate(self) -> None:
        """Send SIGTERM only to the program itself, as a supervisor would. The program stops its own children."""
        self._popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group. Return without waiting for the processes to exit."""
        self._signal_group(signal.SIGKILL)

    def freeze(self) -> None:
        """Send SIGSTOP to simulate a hung engine: connections stay open but carry no data."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_group(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the program with SIGTERM, then SIGKILL, and remove the complete group. A second call has no effect."""
        if not self.log_path.exists():
            return
        if self.exit_status is None:
            self.thaw()
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(STOP_SECONDS_MAX)
        self.kill()
        self._popen.wait()
        self._wait_until_group_is_gone()
        self._dismiss_watcher()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _wait_until_group_is_gone(self) -> None:
        """Wait for the leader's children, which may need time to free gigabytes of memory after SIGKILL."""
        give_up_at = time.monotonic() + STOP_SECONDS_MAX
        while _group_is_alive(self.pid) and time.monotonic() < give_up_at:
            time.sleep(POLL_SECONDS)

    def _dismiss_watcher(self) -> None:
        self._watcher.kill()
        self._watcher.wait()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()

    def _failed(self, what: str) -> ProcessFailedError:
        tail = self.log()[-LOG_TAIL_BYTES:]
        return ProcessFailedError(f"{self.name} {what}. End of its log:\n{tail}")


def _answers_ok(url: str) -> bool:
    # A configured HTTP proxy cannot reach our loopback ports.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=REQUEST_SECONDS_MAX) as answer:
            return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False


def _group_is_alive(group: int) -> bool:
    """Whether any process in the group is still running. Zombies do not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Fields after the name, which ends with the last parenthesis: state, parent, group.
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                return True
    return False
