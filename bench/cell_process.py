"""A child process with members or a scheduler of a cell, which takes orders and gives results as lines of JSON."""

import subprocess
import sys

import msgspec

from bench.cpu_cores import started_on
from bench.targets import ROOT


class CellProcessFailed(Exception):
    """A process exited or stopped responding, so the results would be meaningless."""


class CellProcess:
    """`python -m MODULE PLAN`. It writes a line once it is ready."""

    def __init__(self, module: str, plan: object, core: int) -> None:
        command = [sys.executable, "-m", module, msgspec.json.encode(plan).decode()]
        with started_on(core):
            self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_until_ready(self) -> None:
        self.line()

    def send(self, order: object) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(msgspec.json.encode(order) + b"\n")
        self._popen.stdin.flush()

    def line(self) -> bytes:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise CellProcessFailed(f"a cell process exited with status {self._popen.wait()}; its output is above")
        return line

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
