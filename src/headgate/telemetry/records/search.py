"""Finds records in the files of all processes that share a directory.

A lookup by request id scans all files, newest first. A search by attributes scans the files for the requested time
range. Both read the block headers first, and then only the rows of matching blocks. The caller sets a timeout. The
result shows whether the search was complete.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from pathlib import Path
from typing import Final

from headgate.model.units import SECOND
from headgate.telemetry.records.row import RecordKey, RecordRow
from headgate.telemetry.records.segment import Block, UnreadableSegment, blocks, id_hash, keys_of, row_index, rows_of
from headgate.telemetry.records.segment_writer import segments

_SLICE: Final = 8
"""Number of blocks scanned between two pauses. Scanning them takes a few milliseconds."""
_HEADS_SLICE: Final = 256
"""Number of block headers read between two pauses."""
_PAUSE_S: Final = 0.0005
_BLOCKS_MAX: Final = 200_000
"""Maximum number of blocks that one search considers."""
_CLOCK_SKEW_NS_MAX: Final = 60 * SECOND
"""Tolerance for files whose modification time is earlier than the arrival times in them."""
_OPEN_NS_MAX: Final = 86_400 * SECOND
"""Maximum time between a request's arrival and the writing of its record."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Search criteria. None matches any value."""

    since: int
    until: int
    """Range of arrival times, inclusive, as Unix times in nanoseconds."""
    tenant: str | None = None
    service_class: str | None = None
    outcome: str | None = None
    total_us_min: int | None = None
    limit: int = 20

    def matches(self, key: RecordKey) -> bool:
        return (
            self.since <= key.arrived_at <= self.until
            and self.tenant in (None, key.tenant)
            and self.service_class in (None, key.service_class)
            and self.outcome in (None, key.outcome)
            and (self.total_us_min is None or key.total_us > self.total_us_min)
        )


@dataclass(frozen=True, slots=True)
class SearchResult:
    rows: list[RecordRow]
    """Matching rows, newest first."""
    complete: bool
    """Whether the search was complete. False if it timed out, if a file could not be read, or if older records have
    been deleted.
    """


class SearchTimeout(Exception):
    """The timeout expired before all files had been searched."""


def find_by_id(
    folder: Path, request_id: str, *, seconds_max: float, clock: Callable[[], float] = time.monotonic
) -> tuple[RecordRow, Path] | None:
    """The request's latest row, and the directory of the process that wrote it. Raises `SearchTimeout`."""
    over = clock() + seconds_max
    wanted = id_hash(request_id)
    for path in sorted(segments(folder), key=lambda each: each.stem, reverse=True):
        latest: RecordRow | None = None
        for number, (block, hashes) in enumerate(_readable_blocks(path)):
            if (place := row_index(hashes, wanted)) is not None:
                latest = _row(block, place, request_id) or latest
            _check_deadline_and_yield(number, over, clock)
        if latest is not None:
            return latest, path.parent
        _check_deadline_and_yield(1, over, clock)
    return None


def _check_deadline_and_yield(number: int, over: float, clock: Callable[[], float]) -> None:
    """Checks the timeout, and pauses regularly so that the event loop is not delayed."""
    if clock() > over:
        raise SearchTimeout
    if number % _HEADS_SLICE == 0:
        time.sleep(_PAUSE_S)


def _readable_blocks(path: Path) -> Iterator[tuple[Block, bytes]]:
    try:
        yield from blocks(path)
    except UnreadableSegment:
        return


def _row(block: Block, place: int, request_id: str) -> RecordRow | None:
    try:
        [row] = rows_of(block, [place])
    except UnreadableSegment:
        return None
    return row if row.key.request_id == request_id else None


def search(
    folder: Path,
    record_filter: RecordFilter,
    *,
    seconds_max: float,
    only_folder: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Newest matching rows, up to `record_filter.limit`. `only_folder` restricts the search to one process."""
    over = clock() + seconds_max
    known, whole = _blocks_in_range(folder, record_filter, only_folder, over, clock)
    newest: list[tuple[int, int, int]] = []
    """Heap of (arrival, block number, row index), oldest first."""
    for number, block in enumerate(known):
        if len(newest) >= record_filter.limit and block.last_arrival < newest[0][0]:
            break
        if clock() > over:
            whole = False
            break
        keys = _keys(block)
        whole = whole and keys is not None
        for place, key in enumerate(keys or ()):
            if record_filter.matches(key):
                entry = key.arrived_at, number, place
                if len(newest) < record_filter.limit:
                    heappush(newest, entry)
                elif entry > newest[0]:
                    heapreplace(newest, entry)
        if number % _SLICE == 0:
            # Pause so that the event loop is not delayed.
            time.sleep(_PAUSE_S)
    rows = _fetch_rows(known, newest)
    return SearchResult(rows, whole and len(rows) == len(newest))


def _blocks_in_range(
    folder: Path, wanted: RecordFilter, only: Path | None, over: float, clock: Callable[[], float]
) -> tuple[list[Block], bool]:
    """Blocks that may contain matching rows, newest first, and whether the list is complete.

    Building this list may use half of the remaining time; the other half is for reading the blocks.
    """
    half = (clock() + over) / 2
    found: list[Block] = []
    whole = True
    try:
        for path in _segments_in_range(folder, wanted, only):
            try:
                for number, (block, _) in enumerate(blocks(path)):
                    if block.last_arrival >= wanted.since and block.first_arrival <= wanted.until:
                        found.append(block)
                    _check_deadline_and_yield(number, half, clock)
            except UnreadableSegment:
                whole = False
            if len(found) > _BLOCKS_MAX:
                raise SearchTimeout
    except SearchTimeout:
        whole = False
    return sorted(found, key=lambda each: each.last_arrival, reverse=True), whole


def _segments_in_range(folder: Path, wanted: RecordFilter, only: Path | None) -> list[Path]:
    """Files that may contain matching rows, newest first."""
    found: list[tuple[int, Path]] = []
    for path in segments(folder):
        begin = path.stem.partition("-")[0]
        if only not in (None, path.parent) or (begin.isdecimal() and int(begin) - _OPEN_NS_MAX > wanted.until):
            continue
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            continue
        if changed + _CLOCK_SKEW_NS_MAX >= wanted.since:
            found.append((changed, path))
    return [path for _, path in sorted(found, reverse=True)]


def _keys(block: Block) -> Sequence[RecordKey] | None:
    try:
        return keys_of(block)
    except UnreadableSegment:
        # A file deleted in the meantime was past its retention time.
        return None if block.path.exists() else ()


def _fetch_rows(known: Sequence[Block], newest: Sequence[tuple[int, int, int]]) -> list[RecordRow]:
    places: dict[int, list[int]] = {}
    for _, number, place in newest:
        places.setdefault(number, []).append(place)
    rows: list[RecordRow] = []
    for number, wanted in places.items():
        try:
            rows += rows_of(known[number], wanted)
        except UnreadableSegment:
            continue
    return sorted(rows, key=lambda row: row.key.arrived_at, reverse=True)
