"""What does this process know of requests: those it remembers, and those that stand in its folder?

Each question is taken on the event loop, where memory is read, and answered by a function that may run in a thread,
where files are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, RequestId
from headgate.ports.records import RequestRecord
from headgate.telemetry.decisions import Decisions, History, Picture, Reach
from headgate.telemetry.explanation import explained, unknown
from headgate.telemetry.records.keeper import Keeper
from headgate.telemetry.records.row import Key, Row, history_of, row_of
from headgate.telemetry.records.search import Found, TimeIsOver, Wanted, find, search
from headgate.telemetry.records.telling import listed, time_spent, told_by_row
from headgate.telemetry.stages.budget import NOTHING_SAID, ClassBudget

FIND_S_MAX: Final = 2.0
"""To look for one id among the files."""
LIMIT_MAX: Final = 200
"""More requests than these are not listed at once."""
SEARCH_S_MAX: Final = 4.0
NEIGHBOURS_MAX: Final = 5_000
"""Others that are looked at to tell who was sent while one waited."""
_NEIGHBOURS_S_MAX: Final = 2.0
_US: Final = 1_000

Told = tuple[bool, Mapping[str, object]]
"""Whether the request is known, and what is said of it."""


class Archive:
    def __init__(
        self,
        decisions: Decisions,
        keeper: Keeper,
        *,
        folder: Path | None = None,
        retention_ns: Duration = Duration(0),
    ) -> None:
        """`folder` is None where records end with the process."""
        self._decisions = decisions
        self._keeper = keeper
        self._folder = folder
        self._retention_ns = retention_ns
        self.budgets: Mapping[str, ClassBudget] = {}
        """By class."""

    # One request

    def remembers(self, name: str) -> bool:
        """Whether it is told of memory alone, without a look at any file."""
        request_id = RequestId(name)
        known = self._decisions.history(request_id) is not None or self._keeper.recent(request_id) is not None
        return known or self._folder is None

    def explain(self, name: str, now: Instant) -> Callable[[], Told]:
        request_id = RequestId(name)
        picture, record = self._decisions.picture(request_id), self._keeper.recent(request_id)
        reach = self._decisions.reach()
        return partial(self._told, request_id, picture, record, reach, now)

    def _told(
        self, request_id: RequestId, picture: Picture | None, record: RequestRecord | None, reach: Reach, now: Instant
    ) -> Told:
        if picture is not None:
            told = explained(picture, now)
            return True, told if record is None else told | self._spent(row_of(record, None))
        if record is not None:
            row = row_of(record, None)
            return True, told_by_row(row, (), forgotten=False) | self._spent(row)
        longer = None if self._folder is None else self._retention_ns
        try:
            found = None if self._folder is None else find(self._folder, request_id, seconds_max=FIND_S_MAX)
        except TimeIsOver:
            told = unknown(request_id, reach, now, longer_ns=longer)
            over = f"{FIND_S_MAX:g} s were over before all files had been looked at, so it may be there; ask again"
            return False, {**told, "error": f"{told['error']}; {over}"}
        if found is None:
            return False, unknown(request_id, reach, now, longer_ns=longer)
        row, folder = found
        return True, self._told_from_files(row, folder)

    def _told_from_files(self, row: Row, folder: Path) -> Mapping[str, object]:
        others: Sequence[Row] = ()
        whole = True
        if row.waited_us * _US >= MILLISECOND:
            found = _neighbours(row, folder)
            others, whole = found.rows, found.whole and len(found.rows) < NEIGHBOURS_MAX
        histories = _histories(others, row.key)
        return told_by_row(row, histories, forgotten=not whole) | self._spent(row)

    def _spent(self, row: Row) -> dict[str, object]:
        return time_spent(row, self._budget(row))

    # Many

    def search(self, wanted: Wanted) -> Callable[[], Mapping[str, object]]:
        known_since = self._keeper.known_since
        return partial(self._searched, wanted, self._keeper.recents(), known_since)

    def _searched(self, wanted: Wanted, recents: Sequence[RequestRecord], known_since: int) -> Mapping[str, object]:
        """Without files, what arrived before `known_since` may have been forgotten."""
        if self._folder is None:
            found = Found([], whole=wanted.since >= known_since)
        else:
            found = search(self._folder, wanted, seconds_max=SEARCH_S_MAX)
        rows = {row.key.request_id: row for row in found.rows}
        for record in recents:
            if wanted.fits(_key(record)):
                rows.setdefault(record.request_id, row_of(record, None))
        newest = sorted(rows.values(), key=lambda row: row.key.arrived, reverse=True)[: wanted.limit]
        return {"requests": [listed(row, self._budget(row)) for row in newest], "whole": found.whole}

    def _budget(self, row: Row) -> ClassBudget:
        return self.budgets.get(row.key.service_class, NOTHING_SAID)


def _key(record: RequestRecord) -> Key:
    """As its row would have it, without the rest of the row."""
    outcome = "" if record.outcome is None else record.outcome.value
    total_us = max(0, record.ended_at - record.started_at) // _US
    return Key(record.request_id, record.tenant or "", record.class_name or "", outcome, record.arrived, total_us)


def _neighbours(row: Row, folder: Path) -> Found:
    """Requests of the same process that may have been sent while this one waited."""
    over = row.key.arrived + row.key.total_us * _US
    # One that came long before may still have waited then.
    wanted = Wanted(row.key.arrived - 600 * SECOND, over, limit=NEIGHBOURS_MAX)
    return search(folder.parent, wanted, seconds_max=_NEIGHBOURS_S_MAX, only=folder)


def _histories(rows: Sequence[Row], key: Key) -> list[History]:
    found = (history_of(row) for row in reversed(rows) if row.key.request_id != key.request_id)
    return [each for each in found if each is not None]
