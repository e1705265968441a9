"""What does the engine itself say became of each request? One line of JSON per request, in the order of their ends."""

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
    """The answer's id."""
    request_id: str
    """What the caller said in `x-request-id`."""
    engine: int
    api: str
    stream: bool
    outcome: str
    """finished, left, error, reset or truncated."""
    arrived_ns: Instant
    begun_ns: Instant | None
    """When the first of its sequences left the queue."""
    first_token_ns: Instant | None
    ended_ns: Instant
    queue_ns: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int


class Record:
    """Appends to a file; to none if there is none."""

    def __init__(self, path: Path | None) -> None:
        # Whoever reads it while the engine runs finds whole lines.
        self._file = None if path is None else path.open("ab", buffering=0)

    def write(self, line: RecordLine) -> None:
        if self._file is not None:
            self._file.write(_ENCODER.encode(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_record(path: Path) -> list[Mapping[str, object]]:
    return [msgspec.json.decode(line, type=dict[str, object]) for line in path.read_bytes().splitlines()]
