"""Reads lines of text from files of unknown origin, in bounded memory."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate.simulation.workload.error import WorkloadError

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum length of a line. The OpenTelemetry collector writes up to 8,192 spans to one line."""
_QUOTED_CHARS_MAX: Final = 60


def bounded_lines(path: Path, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line. Files that end in .gz are decompressed."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            number = 0
            while raw := file.readline(line_bytes_max + 1):
                number += 1
                if len(raw) > line_bytes_max:
                    problem = f"the line is longer than {line_bytes_max} bytes"
                    raise WorkloadError(f"{path}:{number}: {problem}; check that the file has this format")
                yield number, _decoded(raw, path, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(f"{path} cannot be decompressed: {error}; check that it is a complete .gz file") from None
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}; specify an existing file") from None


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        problem = "the line is not UTF-8 text"
        raise WorkloadError(f"{path}:{number}: {problem}; check that the file has this format") from None


def quoted(text: str) -> str:
    """Returns the beginning of a value from a file, for messages."""
    text = text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "…"
    return f'"{text}"' if text.isprintable() else ascii(text)
