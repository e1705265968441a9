"""Containers of a check. They share one network without outside access, like the containers of a pod."""

import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.image.build import ImageError, podman

PROGRAMS = Path(__file__).parent / "programs"
"""Python programs that run inside containers, with the interpreter and the packages of the image."""
_MOUNTED = "/checks"
_POLL_S = 0.1
_HARDENED = ("--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp", "--cap-drop=all")
_HARDENED_USER = ("--security-opt=no-new-privileges",)


@dataclass
class Containers:
    """Containers that run with a read-only root file system and without capabilities. They are removed at the end."""

    image: str
    config: Path
    """Directory that is mounted at /etc/headgate."""
    _prefix: str = field(default_factory=lambda: f"headgate-check-{secrets.token_hex(4)}")
    _names: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The first container owns the network of the others.
        for name in reversed(self._names):
            subprocess.run(["podman", "rm", "--force", "--time", "0", name], capture_output=True, check=False)

    def full_name(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def start(self, name: str, *command: str, python: bool = False, config: str = "ro") -> None:
        """Start a container with this command for the entrypoint of the image, or for Python."""
        podman("run", "--detach", *self._options(name, python=python, config=config), self.image, *command)

    def run(self, name: str, *command: str, config: str = "ro") -> str:
        """Run a command of the image to its end and return its output."""
        return podman("run", *self._options(name, python=False, config=config), self.image, *command)

    def _options(self, name: str, *, python: bool, config: str) -> list[str]:
        network = f"container:{self._names[0]}" if self._names else "none"
        self._names.append(self.full_name(name))
        options = [f"--name={self._names[-1]}", f"--network={network}", "--health-interval=disable", "--pull=never"]
        volumes = [f"--volume={self.config}:/etc/headgate:{config}", f"--volume={PROGRAMS}:{_MOUNTED}:ro"]
        return [*options, *_HARDENED, *_HARDENED_USER, *volumes, *(["--entrypoint=python"] if python else [])]

    def execute(self, name: str, *command: str) -> str:
        """Run a command in a running container and return its output."""
        return podman("exec", self.full_name(name), *command)

    def program(self, name: str, program: str, *arguments: str) -> str:
        return self.execute(name, "python", f"{_MOUNTED}/{program}.py", *arguments)

    @contextmanager
    def streaming(self, name: str, program: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Start a program in a running container, with its output as a pipe."""
        command = ["podman", "exec", self.full_name(name), "python", f"{_MOUNTED}/{program}.py", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def is_healthy(self, name: str) -> bool:
        """Run the health check of the image once."""
        command = ["podman", "healthcheck", "run", self.full_name(name)]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0

    def wait_until_healthy(self, name: str, *, seconds_max: float = 60.0) -> None:
        give_up_at = time.monotonic() + seconds_max
        while not self.is_healthy(name):
            self._give_up(name, give_up_at, f"was not healthy within {seconds_max:.0f} s")

    def wait_for_log(self, name: str, text: str, *, seconds_max: float = 60.0) -> str:
        give_up_at = time.monotonic() + seconds_max
        while text not in (log := self.log(name)):
            self._give_up(name, give_up_at, f"did not log {text!r} within {seconds_max:.0f} s")
        return log

    def _give_up(self, name: str, give_up_at: float, message: str) -> None:
        running = podman("inspect", "--format", "{{.State.Running}}", self.full_name(name)).strip() == "true"
        if not running or time.monotonic() > give_up_at:
            raise ImageError(f"container {name} {message}. Its log:\n{self.log(name)}")
        time.sleep(_POLL_S)

    def log(self, name: str) -> str:
        command = ["podman", "logs", self.full_name(name)]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout

    def signal(self, name: str, signal: str) -> None:
        podman("kill", "--signal", signal, self.full_name(name))

    def exit_status(self, name: str) -> int:
        """Wait until the container has stopped and return its exit status."""
        return int(podman("wait", self.full_name(name), seconds_max=120))
