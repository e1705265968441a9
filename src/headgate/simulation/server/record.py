"""Record file of the simulated engine: one line of JSON per request, in completion order."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from headgate.model.units import Instant

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLine:
    id: str
    """Response id."""
    request_id: str
    """The client's `x-request-id`."""
    engine: int
    api: str
    stream: bool
    outcome: str
    """One of finished, disconnected, error, reset or truncated."""
    arrived_ns: Instant
    started_ns: Instant | None
    """Time at which the request's first sequence left the queue."""
    first_token_ns: Instant | None
    ended_ns: Instant
    queue_ns: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int


class RecordFile:
    """Appends lines to a file. Does nothing without a path."""

    def __init__(self, path: Path | None) -> None:
        # Unbuffered, so that concurrent readers see complete lines.
        self._file = None if path is None else path.open("ab", buffering=0)

    def write(self, line: RecordLine) -> None:
        if self._file is not None:
            self._file.write(_ENCODER.encode(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_record(path: Path) -> list[Mapping[str, object]]:
    return [msgspec.json.decode(line, type=dict[str, object]) for line in path.read_bytes().splitlines()]
