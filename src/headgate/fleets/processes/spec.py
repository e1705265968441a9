"""Start parameters of a pool's engine processes: command, environment and ports."""

import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.fleets.processes.options import ProcessOptions
from headgate.model.units import PoolName
from headgate.ports.fleet import COMMAND_PLACEHOLDERS

HOST: Final = "127.0.0.1"

_PLACEHOLDER: Final = re.compile(r"\{(" + "|".join(COMMAND_PLACEHOLDERS) + r")\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """Start parameters shared by all of a pool's engine processes."""

    pool: PoolName
    model: str
    """Name under which the engine serves the model."""
    log_directory: Path
    """Directory for the log files, one per endpoint."""
    options: ProcessOptions

    def values(self, *, slot: int, port: int) -> dict[str, str]:
        return {"port": str(port), "model": self.model, "pool": self.pool, "slot": str(slot)}

    def log_of(self, slot: int) -> Path:
        return self.log_directory / f"{self.pool}-{slot}.log"


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replaces the placeholders in a text. Other braces, such as those in JSON, are left unchanged."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


class NoFreePort(Exception):
    """No port is free. The message gives the range."""


class PortAllocator:
    """Allocates free ports. Every port in the range is used once before any is reused."""

    def __init__(self, first: int, last: int, *, start: int) -> None:
        self._first, self._span = first, last - first + 1
        self._next = start % self._span
        """Offset of the next port. Gateways on one machine start at different offsets to avoid collisions."""

    def allocate(self, taken: Collection[int]) -> int:
        """Returns a port that is neither in `taken` nor bound by any process. Raises `NoFreePort`."""
        for _ in range(self._span):
            port = self._first + self._next
            self._next = (self._next + 1) % self._span
            if port not in taken and _is_free(port):
                return port
        last = self._first + self._span - 1
        raise NoFreePort(f"no port from {self._first} to {last} is free; widen fleet.port_range")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Engines set this option too. It allows ports whose old connections are in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
