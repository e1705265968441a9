"""How is one engine process of a pool started: by which command, in which surroundings, on which port?"""

import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.fleets.processes.options import ProcessOptions
from headgate.model.units import PoolName
from headgate.ports.fleet import PLACEHOLDERS

HOST: Final = "127.0.0.1"

_PLACEHOLDER: Final = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTerms:
    """What all engine processes of a pool have in common."""

    pool: PoolName
    model: str
    """What the engine is to call it."""
    logs: Path
    """The folder of the log files, one for each endpoint."""
    options: ProcessOptions

    def values(self, *, slot: int, port: int) -> dict[str, str]:
        return {"port": str(port), "model": self.model, "pool": self.pool, "slot": str(slot)}

    def log_of(self, slot: int) -> Path:
        return self.logs / f"{self.pool}-{slot}.log"


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced; other braces, such as those of JSON, stay."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


class NoPort(Exception):
    """No port is free. The message says in which range."""


class Ports:
    """Which ports are free, each given once around before any comes again."""

    def __init__(self, first: int, last: int, *, start: int) -> None:
        self._first, self._span = first, last - first + 1
        self._next = start % self._span
        """Gateways on one machine that begin at different places seldom meet."""

    def take(self, taken: Collection[int]) -> int:
        """A port that nobody has, by our own count and by the system's. Raises `NoPort`."""
        for _ in range(self._span):
            port = self._first + self._next
            self._next = (self._next + 1) % self._span
            if port not in taken and _is_free(port):
                return port
        raise NoPort(f"no port from {self._first} to {self._first + self._span - 1} is free; widen fleet.ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As engines do: a port whose last connections are only lingering is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
