"""Looks up requests in memory and in record files.

Each query searches memory on the event loop, and returns a function that searches the files. That function may run in a
thread.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, RequestId
from headgate.ports.records import RequestRecord
from headgate.telemetry.decision_history import DecisionHistory, HistoryRetention, HistorySnapshot, RequestHistory
from headgate.telemetry.explanation import explain, unknown_request
from headgate.telemetry.records.record_explanation import explain_row, search_entry, timing
from headgate.telemetry.records.record_keeper import RecordKeeper
from headgate.telemetry.records.row import RecordKey, RecordRow, history_of, row_of
from headgate.telemetry.records.search import RecordFilter, SearchResult, SearchTimeout, find_by_id, search
from headgate.telemetry.stages.stage_budget import NO_STAGE_BUDGET, ClassStageBudget

FIND_S_MAX: Final = 2.0
"""Timeout for finding one request id in the files."""
LIMIT_MAX: Final = 200
"""Maximum number of requests in one search result."""
SEARCH_S_MAX: Final = 4.0
NEIGHBOURS_MAX: Final = 5_000
"""Maximum number of other requests examined to find those sent while one request was waiting."""
_NEIGHBOURS_S_MAX: Final = 2.0
_US: Final = 1_000

ExplainResult = tuple[bool, Mapping[str, object]]
"""Tuple of whether the request is known, and the response."""


class RecordArchive:
    def __init__(
        self,
        decisions: DecisionHistory,
        keeper: RecordKeeper,
        *,
        folder: Path | None = None,
        retention_ns: Duration = Duration(0),
    ) -> None:
        """`folder` is None if records are not written to files."""
        self._decisions = decisions
        self._keeper = keeper
        self._folder = folder
        self._retention_ns = retention_ns
        self.budgets: Mapping[str, ClassStageBudget] = {}
        """Time budgets by class."""

    # One request

    def is_in_memory(self, name: str) -> bool:
        """Whether `explain` can answer for this request without reading files."""
        request_id = RequestId(name)
        known = self._decisions.history(request_id) is not None or self._keeper.recent(request_id) is not None
        return known or self._folder is None

    def explain(self, name: str, now: Instant) -> Callable[[], ExplainResult]:
        request_id = RequestId(name)
        picture, record = self._decisions.snapshot(request_id), self._keeper.recent(request_id)
        reach = self._decisions.retention()
        return partial(self._explain, request_id, picture, record, reach, now)

    def _explain(
        self,
        request_id: RequestId,
        picture: HistorySnapshot | None,
        record: RequestRecord | None,
        reach: HistoryRetention,
        now: Instant,
    ) -> ExplainResult:
        if picture is not None:
            told = explain(picture, now)
            return True, told if record is None else told | self._timing(row_of(record, None))
        if record is not None:
            row = row_of(record, None)
            return True, explain_row(row, (), incomplete=False) | self._timing(row)
        longer = None if self._folder is None else self._retention_ns
        try:
            found = None if self._folder is None else find_by_id(self._folder, request_id, seconds_max=FIND_S_MAX)
        except SearchTimeout:
            told = unknown_request(request_id, reach, now, file_retention_ns=longer)
            over = f"The search timed out after {FIND_S_MAX:g} s before it had read all files; try again."
            return False, {**told, "error": f"{told['error']} {over}"}
        if found is None:
            return False, unknown_request(request_id, reach, now, file_retention_ns=longer)
        row, folder = found
        return True, self._explain_from_files(row, folder)

    def _explain_from_files(self, row: RecordRow, folder: Path) -> Mapping[str, object]:
        others: Sequence[RecordRow] = ()
        whole = True
        if row.waited_us * _US >= MILLISECOND:
            found = _neighbours(row, folder)
            others, whole = found.rows, found.complete and len(found.rows) < NEIGHBOURS_MAX
        histories = _histories(others, row.key)
        return explain_row(row, histories, incomplete=not whole) | self._timing(row)

    def _timing(self, row: RecordRow) -> dict[str, object]:
        return timing(row, self._budget(row))

    # Search

    def search(self, record_filter: RecordFilter) -> Callable[[], Mapping[str, object]]:
        known_since = self._keeper.complete_since
        return partial(self._search, record_filter, self._keeper.recent_records(), known_since)

    def _search(self, wanted: RecordFilter, recents: Sequence[RequestRecord], known_since: int) -> Mapping[str, object]:
        """Runs the search. Without files, requests that arrived before `known_since` may be missing."""
        if self._folder is None:
            found = SearchResult([], complete=wanted.since >= known_since)
        else:
            found = search(self._folder, wanted, seconds_max=SEARCH_S_MAX)
        rows = {row.key.request_id: row for row in found.rows}
        for record in recents:
            if wanted.matches(_key(record)):
                rows.setdefault(record.request_id, row_of(record, None))
        newest = sorted(rows.values(), key=lambda row: row.key.arrived_at, reverse=True)[: wanted.limit]
        return {"requests": [search_entry(row, self._budget(row)) for row in newest], "complete": found.complete}

    def _budget(self, row: RecordRow) -> ClassStageBudget:
        return self.budgets.get(row.key.service_class, NO_STAGE_BUDGET)


def _key(record: RequestRecord) -> RecordKey:
    """Key of the record's row, computed without creating the row."""
    outcome = "" if record.outcome is None else record.outcome.value
    total_us = max(0, record.ended_at - record.started_at) // _US
    return RecordKey(
        record.request_id, record.tenant or "", record.class_name or "", outcome, record.arrived_at, total_us
    )


def _neighbours(row: RecordRow, folder: Path) -> SearchResult:
    """Requests in the same process that may have been sent while `row` was waiting."""
    over = row.key.arrived_at + row.key.total_us * _US
    # A request that arrived long before may have been waiting at that time.
    wanted = RecordFilter(row.key.arrived_at - 600 * SECOND, over, limit=NEIGHBOURS_MAX)
    return search(folder.parent, wanted, seconds_max=_NEIGHBOURS_S_MAX, only_folder=folder)


def _histories(rows: Sequence[RecordRow], key: RecordKey) -> list[RequestHistory]:
    found = (history_of(row) for row in reversed(rows) if row.key.request_id != key.request_id)
    return [each for each in found if each is not None]
