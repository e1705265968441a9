"""Writes record files and deletes old ones.

Each process has its own subdirectory and writes one file at a time, which it closes once the file is large or old
enough. All processes that share the directory read all files, including those left by dead processes. No locks are
needed, because files are only appended to or deleted. Any process deletes closed files that exceed the retention time
or the size limit. If a process was killed before it closed its file, the file counts as closed once nothing has been
appended for much longer than a running process keeps a file open.

A process with little traffic writes one block per request. It merges such blocks when it closes the file, so that
searches stay fast.

A process that is killed loses about one second of records.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.model.units import SECOND, Duration, Instant
from headgate.telemetry.records.row import RecordRow
from headgate.telemetry.records.segment import (
    BLOCK_ROWS_MAX,
    MAGIC,
    UnreadableSegment,
    compacted,
    is_packable,
    pack_block,
)

SEGMENT_BYTES_MAX: Final = 8 * 1024 * 1024
SEGMENTS_MIN: Final = 16
"""Minimum number of files within the size limit, so that deleting one file removes only a small part of the records."""
SEGMENT_NS_MAX: Final = Duration(600 * SECOND)
ABANDONED_AFTER_S: Final = 1_800.0
"""Time in seconds after which an unclosed file counts as closed. It is three times as long as a running process keeps a
file open.
"""
OPEN_SUFFIX: Final = ".open"
CLOSED_SUFFIX: Final = ".rows"
_PARTIAL_SUFFIX: Final = ".part"
"""Suffix of an incomplete merged file. Files left behind by dead processes are deleted."""
_FILES_MAX: Final = 20_000
"""Maximum number of files considered."""


@dataclass(frozen=True, slots=True)
class FolderUsage:
    bytes: int
    oldest_age_s: float
    """Time since the oldest file was last written to."""


class SegmentWriter:
    """Writes to this process's subdirectory. Not thread-safe. Methods raise `OSError`."""

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
        self._root = folder
        self._clock = clock
        self._own_folder = folder / name
        self._retention_s = retention_ns / SECOND
        self._bytes_max = bytes_max
        self._segment_bytes_max = min(segment_bytes_max, bytes_max // SEGMENTS_MIN)
        self._segment_s_max = min(SEGMENT_NS_MAX, max(SECOND, retention_ns // SEGMENTS_MIN)) / SECOND
        self._path: Path | None = None
        self._file: int | None = None
        self._size = 0
        self._opened_at = 0.0
        """Creation time of the current file, on the monotonic clock."""
        self._files_opened = 0
        """Number of files that this process has created."""

    def add(self, rows: Sequence[RecordRow], now: Instant) -> int:
        """Writes the rows and returns their number. Rows that cannot be encoded are skipped."""
        count = 0
        for begin in range(0, len(rows), self._block_rows_max):
            some = rows[begin : begin + self._block_rows_max]
            try:
                block = pack_block(some)
            except (ValueError, OverflowError, TypeError):
                some = [row for row in some if is_packable(row)]
                if not some:
                    continue
                block = pack_block(some)
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
            # A block after an incomplete one could not be read.
            self.close()
            raise OSError(28, "no space for a complete block")

    def _open(self, now: Instant) -> None:
        self._own_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The number keeps names unique and ordered if two files start at the same time or the clock is set back.
        self._files_opened += 1
        path = self._own_folder / f"{now:020d}-{self._files_opened:06d}{OPEN_SUFFIX}"
        # A file without the magic bytes would never be read, so create both together or neither.
        self._file, self._size = _create(path, MAGIC), len(MAGIC)
        self._path, self._opened_at = path, self._clock()

    def close_if_old(self) -> None:
        """Closes the current file if it is old enough."""
        if self._file is not None and self._clock() - self._opened_at > self._segment_s_max:
            self.close()

    def close(self) -> None:
        if self._file is None or self._path is None:
            return
        path, self._path = self._path, None
        file, self._file = self._file, None
        os.close(file)
        try:
            if not _compact(path):
                path.rename(path.with_suffix(CLOSED_SUFFIX))
        except FileNotFoundError:
            # Another process, whose clock is far ahead, has deleted it as abandoned.
            pass

    def delete_expired(self) -> FolderUsage:
        """Deletes all processes' files that are past the retention time or beyond the size limit. Returns statistics
        about the remaining files.
        """
        found: list[tuple[float, int, Path]] = []
        now = time.time()
        for path in _files(self._root, (OPEN_SUFFIX, CLOSED_SUFFIX, _PARTIAL_SUFFIX)):
            try:
                told = path.stat()
            except OSError:
                continue
            found.append((told.st_mtime, told.st_size, path))
        found.sort()
        taken = sum(size for _, size, _ in found)
        left: list[float] = []
        for changed, size, path in found:
            closed = path.suffix == CLOSED_SUFFIX or (now - changed > ABANDONED_AFTER_S and path != self._path)
            goes = now - changed > self._retention_s or taken > self._bytes_max or path.suffix == _PARTIAL_SUFFIX
            if closed and goes and _try_delete(path):
                taken -= size
            else:
                left.append(changed)
        self._remove_empty_folders()
        return FolderUsage(taken, max(0.0, now - min(left, default=now)))

    def _remove_empty_folders(self) -> None:
        for folder in _folders(self._root):
            if folder != self._own_folder:
                try:
                    folder.rmdir()
                except OSError:
                    # The directory is not empty, or another process has removed it.
                    continue


def _create(path: Path, content: bytes) -> int:
    """Creates a file with this content and returns its descriptor. If it raises `OSError`, no file is left behind."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.write(file, content) < len(content):
            raise OSError(28, "no space for a complete file")
    except OSError:
        os.close(file)
        path.unlink(missing_ok=True)
        raise
    return file


def _compact(path: Path) -> bool:
    """Replaces a file of many small blocks with a closed file of fewer blocks.

    Returns False if the file was left unchanged.
    """
    try:
        content = compacted(path)
        if content is None:
            return False
        part = path.with_suffix(_PARTIAL_SUFFIX)
        os.close(_create(part, content))
        part.rename(path.with_suffix(CLOSED_SUFFIX))
    except (OSError, UnreadableSegment):
        return False
    path.unlink(missing_ok=True)
    return True


def _try_delete(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # A file that cannot be deleted must not prevent the deletion of others.
        return False
    return True


def segments(folder: Path) -> Iterator[Path]:
    """Record files of all processes."""
    return _files(folder, (OPEN_SUFFIX, CLOSED_SUFFIX))


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    seen = 0
    for each in _folders(folder):
        try:
            names = os.listdir(each)  # noqa: PTH208 (only some names become paths)
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
