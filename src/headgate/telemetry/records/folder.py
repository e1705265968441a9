"""Where do records lie, and when do they go?

Each process writes to a folder of its own, below the one that is configured: one file at a time, which it closes when
it is large or old enough. Whoever shares the folder reads the files of all, also those of processes that are dead;
nothing is locked, since a file is only ever added to or deleted whole. Any process deletes what has been closed and is
too old or too much. A file that its process could not close any more, because it was killed, is taken for closed when
nothing has been added for much longer than a live process would keep it open.

A quiet process writes a block for each request. When it closes a file it puts such blocks together, so that a day of it
is as quick to search as a busy hour.

What is killed loses what it had not written, about a second.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.model.units import SECOND, Duration, Instant
from headgate.telemetry.records.row import Row
from headgate.telemetry.records.segment import BLOCK_ROWS_MAX, MAGIC, Unreadable, merged, packed, writable

SEGMENT_BYTES_MAX: Final = 8 * 1024 * 1024
SEGMENTS_OF_ALL: Final = 16
"""A file takes at most this part of what all may take, so that little goes at once."""
SEGMENT_NS_MAX: Final = Duration(600 * SECOND)
ABANDONED_S: Final = 1_800.0
"""Thrice as long as a live process adds to one file."""
OPEN: Final = ".open"
CLOSED: Final = ".rows"
_PART: Final = ".part"
"""Of a file that is put together anew; what is left of one whose process died is deleted."""
_FILES_MAX: Final = 20_000
"""More files than these are not looked at."""


@dataclass(frozen=True, slots=True)
class Usage:
    bytes: int
    oldest_s: float
    """Since the oldest file was closed, or last added to."""


class Writer:
    """Adds to the folder of this process. Used by one thread at a time; raises `OSError`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        retention_ns: Duration,
        bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        block_rows_max: int = BLOCK_ROWS_MAX,
    ) -> None:
        self._block_rows_max = block_rows_max
        self._all = folder
        self._clock = clock
        self._own = folder / name
        self._retention_s = retention_ns / SECOND
        self._bytes_max = bytes_max
        self._segment_bytes_max = min(segment_bytes_max, bytes_max // SEGMENTS_OF_ALL)
        self._segment_s_max = min(SEGMENT_NS_MAX, max(SECOND, retention_ns // SEGMENTS_OF_ALL)) / SECOND
        self._path: Path | None = None
        self._file: int | None = None
        self._size = 0
        self._began = 0.0
        """When the file was, by a clock that is never put forward."""
        self._begun = 0
        """How many files this process has begun."""

    def add(self, rows: Sequence[Row], now: Instant) -> int:
        """How many of them were written: all but those that cannot be."""
        count = 0
        for begin in range(0, len(rows), self._block_rows_max):
            some = rows[begin : begin + self._block_rows_max]
            try:
                block = packed(some)
            except (ValueError, OverflowError, TypeError):
                some = [row for row in some if writable(row)]
                if not some:
                    continue
                block = packed(some)
            self._write(block, now)
            count += len(some)
        return count

    def _write(self, block: bytes, now: Instant) -> None:
        if self._file is not None and self._size + len(block) > self._segment_bytes_max:
            self.close()
        if self._file is None:
            self._open(now)
        assert self._file is not None
        try:
            written = os.write(self._file, block)
        except OSError:
            self.close()
            raise
        self._size += written
        if written < len(block):
            # What follows a half block would not be read.
            self.close()
            raise OSError(28, "no room for a whole block")

    def _open(self, now: Instant) -> None:
        self._own.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Several may begin at one moment, or at an earlier one where the clock was put back.
        self._begun += 1
        path = self._own / f"{now:020d}-{self._begun:06d}{OPEN}"
        # A file without its mark would never be read: there is one with it, or none.
        self._file, self._size = _new(path, MAGIC), len(MAGIC)
        self._path, self._began = path, self._clock()

    def tidy(self) -> None:
        """Closes what is old enough."""
        if self._file is not None and self._clock() - self._began > self._segment_s_max:
            self.close()

    def close(self) -> None:
        if self._file is None or self._path is None:
            return
        path, self._path = self._path, None
        file, self._file = self._file, None
        os.close(file)
        try:
            if not _put_together(path):
                path.rename(path.with_suffix(CLOSED))
        except FileNotFoundError:
            # Somebody whose clock is far ahead has taken it for given up.
            pass

    def clean(self) -> Usage:
        """Deletes what is too old or too much, whoever wrote it; says what is left."""
        found: list[tuple[float, int, Path]] = []
        now = time.time()
        for path in _files(self._all, (OPEN, CLOSED, _PART)):
            try:
                told = path.stat()
            except OSError:
                continue
            found.append((told.st_mtime, told.st_size, path))
        found.sort()
        taken = sum(size for _, size, _ in found)
        left: list[float] = []
        for changed, size, path in found:
            closed = path.suffix == CLOSED or (now - changed > ABANDONED_S and path != self._path)
            goes = now - changed > self._retention_s or taken > self._bytes_max or path.suffix == _PART
            if closed and goes and _deleted(path):
                taken -= size
            else:
                left.append(changed)
        self._take_away_empty()
        return Usage(taken, max(0.0, now - min(left, default=now)))

    def _take_away_empty(self) -> None:
        for folder in _folders(self._all):
            if folder != self._own:
                try:
                    folder.rmdir()
                except OSError:
                    # It holds something, or somebody else was quicker.
                    continue


def _new(path: Path, content: bytes) -> int:
    """A file that begins so. Raises `OSError`, and then there is none."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.write(file, content) < len(content):
            raise OSError(28, "no room for a whole file")
    except OSError:
        os.close(file)
        path.unlink(missing_ok=True)
        raise
    return file


def _put_together(path: Path) -> bool:
    """Writes a file of many small blocks anew as a closed one of few; false where it may stay as it is."""
    try:
        content = merged(path)
        if content is None:
            return False
        part = path.with_suffix(_PART)
        os.close(_new(part, content))
        part.rename(path.with_suffix(CLOSED))
    except (OSError, Unreadable):
        return False
    path.unlink(missing_ok=True)
    return True


def _deleted(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # One that cannot be deleted does not keep the others.
        return False
    return True


def segments(folder: Path) -> Iterator[Path]:
    """Every file of records of every process."""
    return _files(folder, (OPEN, CLOSED))


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    seen = 0
    for each in _folders(folder):
        try:
            names = os.listdir(each)  # noqa: PTH208 (paths are made of few)
        except OSError:
            continue
        for name in names:
            if name.endswith(suffixes) and seen < _FILES_MAX:
                seen += 1
                yield each / name


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [Path(each.path) for each in found if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
