"""How are records found again, in the files of all who share the folder?

By id, every file is looked at, the newest first; by what they are, only those of the time in question. Of a file the
heads of its blocks are read, and the rest only where one is wanted. Both have an end: whoever asks says how long it may
take, and is told where that was not enough.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from pathlib import Path
from typing import Final

from headgate.model.units import SECOND
from headgate.telemetry.records.folder import segments
from headgate.telemetry.records.row import Key, Row
from headgate.telemetry.records.segment import Block, Unreadable, blocks, id_hash, keys_of, place_of, rows_of

_SLICE: Final = 8
"""Blocks that are looked at before others get their turn; a few milliseconds."""
_HEADS_SLICE: Final = 256
"""The same of blocks of which only the heads are."""
_PAUSE_S: Final = 0.0005
_BLOCKS_MAX: Final = 200_000
"""More blocks than these are not looked at by one search."""
_CLOCKS_APART_NS: Final = 60 * SECOND
"""So far a file's own time may be behind the arrivals in it."""
_OPEN_NS_MAX: Final = 86_400 * SECOND
"""No request is open for longer than this before it is written."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are looked for; what is None may be anything."""

    since: int
    until: int
    """Arrivals, by the calendar, in nanoseconds."""
    tenant: str | None = None
    service_class: str | None = None
    outcome: str | None = None
    slower_us: int | None = None
    limit: int = 20

    def fits(self, key: Key) -> bool:
        return (
            self.since <= key.arrived <= self.until
            and self.tenant in (None, key.tenant)
            and self.service_class in (None, key.service_class)
            and self.outcome in (None, key.outcome)
            and (self.slower_us is None or key.total_us > self.slower_us)
        )


@dataclass(frozen=True, slots=True)
class Found:
    rows: list[Row]
    """The newest first."""
    whole: bool
    """False if the search ran out of time, something could not be read, or older records are no longer kept."""


class TimeIsOver(Exception):
    """Not all could be looked at in the time that was given."""


def find(
    folder: Path, request_id: str, *, seconds_max: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Row, Path] | None:
    """The last row of this request, and the folder of the process that wrote it. Raises `TimeIsOver`."""
    over = clock() + seconds_max
    wanted = id_hash(request_id)
    for path in sorted(segments(folder), key=lambda each: each.stem, reverse=True):
        latest: Row | None = None
        for number, (block, hashes) in enumerate(_readable(path)):
            if (place := place_of(hashes, wanted)) is not None:
                latest = _row(block, place, request_id) or latest
            _give_way(number, over, clock)
        if latest is not None:
            return latest, path.parent
        _give_way(1, over, clock)
    return None


def _give_way(number: int, over: float, clock: Callable[[], float]) -> None:
    """Looks at the time, and now and then lets others have their turn: streams are not to wait for whoever looks."""
    if clock() > over:
        raise TimeIsOver
    if number % _HEADS_SLICE == 0:
        time.sleep(_PAUSE_S)


def _readable(path: Path) -> Iterator[tuple[Block, bytes]]:
    try:
        yield from blocks(path)
    except Unreadable:
        return


def _row(block: Block, place: int, request_id: str) -> Row | None:
    try:
        [row] = rows_of(block, [place])
    except Unreadable:
        return None
    return row if row.key.request_id == request_id else None


def search(
    folder: Path,
    wanted: Wanted,
    *,
    seconds_max: float,
    only: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """The newest rows that fit, up to the limit; `only` leaves out all processes but that of this folder."""
    over = clock() + seconds_max
    known, whole = _spanning(folder, wanted, only, over, clock)
    newest: list[tuple[int, int, int]] = []
    """Arrival, block and place, the oldest on top."""
    for number, block in enumerate(known):
        if len(newest) >= wanted.limit and block.last < newest[0][0]:
            break
        if clock() > over:
            whole = False
            break
        keys = _keys(block)
        whole = whole and keys is not None
        for place, key in enumerate(keys or ()):
            if wanted.fits(key):
                entry = key.arrived, number, place
                if len(newest) < wanted.limit:
                    heappush(newest, entry)
                elif entry > newest[0]:
                    heapreplace(newest, entry)
        if number % _SLICE == 0:
            # Streams are not to wait for whoever searches.
            time.sleep(_PAUSE_S)
    rows = _fetched(known, newest)
    return Found(rows, whole and len(rows) == len(newest))


def _spanning(
    folder: Path, wanted: Wanted, only: Path | None, over: float, clock: Callable[[], float]
) -> tuple[list[Block], bool]:
    """The blocks that may hold such rows, the newest first, and whether these are all of them.

    Half of the time is for this, so that some is left to look into them."""
    half = (clock() + over) / 2
    found: list[Block] = []
    whole = True
    try:
        for path in _of_the_time(folder, wanted, only):
            try:
                for number, (block, _) in enumerate(blocks(path)):
                    if block.last >= wanted.since and block.first <= wanted.until:
                        found.append(block)
                    _give_way(number, half, clock)
            except Unreadable:
                whole = False
            if len(found) > _BLOCKS_MAX:
                raise TimeIsOver
    except TimeIsOver:
        whole = False
    return sorted(found, key=lambda each: each.last, reverse=True), whole


def _of_the_time(folder: Path, wanted: Wanted, only: Path | None) -> list[Path]:
    """The files that may hold such rows, the newest first."""
    found: list[tuple[int, Path]] = []
    for path in segments(folder):
        begin = path.stem.partition("-")[0]
        if only not in (None, path.parent) or (begin.isdecimal() and int(begin) - _OPEN_NS_MAX > wanted.until):
            continue
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            continue
        if changed + _CLOCKS_APART_NS >= wanted.since:
            found.append((changed, path))
    return [path for _, path in sorted(found, reverse=True)]


def _keys(block: Block) -> Sequence[Key] | None:
    try:
        return keys_of(block)
    except Unreadable:
        # What was deleted meanwhile was too old.
        return None if block.path.exists() else ()


def _fetched(known: Sequence[Block], newest: Sequence[tuple[int, int, int]]) -> list[Row]:
    places: dict[int, list[int]] = {}
    for _, number, place in newest:
        places.setdefault(number, []).append(place)
    rows: list[Row] = []
    for number, wanted in places.items():
        try:
            rows += rows_of(known[number], wanted)
        except Unreadable:
            continue
    return sorted(rows, key=lambda row: row.key.arrived, reverse=True)
