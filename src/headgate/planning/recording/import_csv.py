"""Imports access logs in CSV: files with any columns, and exports of LiteLLM's spend logs.

Each field of a request is read from the first of its columns that has a value. `--columns` names other columns.
"""

import csv
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from headgate.planning.recording import imported_values as values
from headgate.planning.recording.bounded_text import bounded_lines, quoted
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.error import WorkloadError

ROW_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of a row, including line breaks in quotes. Spend logs may contain prompts."""
COLUMNS_MAX: Final = 1_000
_COLUMNS_SHOWN_MAX: Final = 20
FIELDS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = MappingProxyType(
    {
        "at": ("at_us", values.time_us),
        "prompt_tokens": ("prompt_tokens", values.tokens),
        "output_tokens": ("output_tokens", values.tokens),
        "cached_tokens": ("cached_tokens", values.tokens),
        "api": ("api", values.api),
        "model": ("model", str),
        "class": ("service_class", str),
        "tenant": ("tenant", str),
        "stream": ("stream", values.flag),
        "outcome": ("outcome", values.outcome),
        "retries": ("retries", values.tokens),
    }
)
"""Fields that can be imported: their name in a row, and the function that converts their value."""
REQUIRED: Final = ("at", "prompt_tokens", "output_tokens")

Columns = Mapping[str, Sequence[str]]
"""Columns of each field, the preferred one first."""
Adjust = Callable[[Mapping[str, str], dict[str, Any]], bool]
"""Completes the fields of a request from its columns. Returns whether the row is a request."""

PLAIN_COLUMNS: Final[Columns] = MappingProxyType(
    {
        "at": ("at", "at_s", "timestamp", "time", "start_time"),
        "prompt_tokens": ("prompt_tokens", "input_tokens"),
        "output_tokens": ("output_tokens", "completion_tokens"),
        **{name: (name,) for name in FIELDS if name not in REQUIRED},
    }
)


@dataclass(slots=True)
class ImportCounts:
    skipped: int = 0
    """Number of rows or spans that are not requests to a language model."""


def parse_columns(text: str) -> dict[str, tuple[str]]:
    """Parses `at=started,tenant=team`. Raises `WorkloadError`."""
    found: dict[str, tuple[str]] = {}
    for part in text.split(","):
        name, equals, column = (each.strip() for each in part.partition("="))
        if not equals or not column or name not in FIELDS:
            raise WorkloadError(
                f"--columns: {quoted(part)} is invalid; use FIELD=COLUMN with one of {', '.join(FIELDS)}"
            )
        if name in found:
            raise WorkloadError(f"--columns: {name} is repeated; name one column for each field")
        found[name] = (column,)
    return found


def csv_rows(path: Path, columns: Columns, counts: ImportCounts, adjust: Adjust | None = None) -> Iterator[TrafficRow]:
    with _field_limit(ROW_BYTES_MAX):
        lines = _Lines(path)
        table = csv.reader(lines)
        header = lines.next_row(table)
        if header is None:
            raise WorkloadError(f"{path} is empty; specify a file with a header line and one line per request")
        found = _found_columns(path, header, columns)
        while (row := lines.next_row(table)) is not None:
            if row:
                _check_length(header, row, f"{path}:{lines.number}")
                cells = dict(zip(header, row, strict=False))
                fields = _fields(cells, found, f"{path}:{lines.number}")
                if adjust is None or adjust(cells, fields):
                    yield TrafficRow(**fields)
                else:
                    counts.skipped += 1


class _Lines:
    """Lines of a CSV file, with a limit on the size of a row, whose quoted values may span lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = bounded_lines(path, line_bytes_max=ROW_BYTES_MAX)
        self._left = 0
        self.number = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        self.number, text = next(self._lines)
        self._left -= len(text)
        if self._left < 0:
            problem = f"the row is larger than {ROW_BYTES_MAX} bytes"
            raise WorkloadError(f"{self._path}:{self.number}: {problem}; check for a missing quotation mark")
        return text

    def next_row(self, table: "Iterator[list[str]]") -> list[str] | None:
        self._left = ROW_BYTES_MAX
        try:
            return next(table, None)
        except csv.Error as error:
            raise WorkloadError(f"{self._path}:{self.number}: {error}; check that the file is CSV") from None


def _found_columns(path: Path, header: Sequence[str], columns: Columns) -> dict[str, list[str]]:
    """Returns the columns of each field that the file has."""
    if len(header) > COLUMNS_MAX:
        raise WorkloadError(
            f"{path}:1: the file has {len(header)} columns, more than {COLUMNS_MAX}; export fewer columns"
        )
    known = frozenset(header)
    found = {name: [each for each in candidates if each in known] for name, candidates in columns.items()}
    for name, each in ((name, each) for name, columns_of in found.items() for each in columns_of):
        if header.count(each) > 1:
            hint = f"rename one, or name another with --columns {name}=COLUMN"
            raise WorkloadError(f"{path}:1: the column {quoted(each)} is repeated; {hint}")
    missing = [name for name in REQUIRED if not found.get(name)]
    if missing:
        shown = ", ".join(quoted(each) for each in header[:_COLUMNS_SHOWN_MAX])
        more = f" and {len(header) - _COLUMNS_SHOWN_MAX} more" if len(header) > _COLUMNS_SHOWN_MAX else ""
        wanted = "; ".join(f"{name} (looked for {', '.join(columns[name])})" for name in missing)
        hint = f"name them with --columns {','.join(f'{name}=COLUMN' for name in missing)}"
        raise WorkloadError(f"{path}:1: no column for {wanted}; {hint}; the file has {shown}{more}")
    return {name: each for name, each in found.items() if each}


def _check_length(header: Sequence[str], row: Sequence[str], place: str) -> None:
    """Rejects rows that were cut, or whose values contain a comma without quotation marks."""
    if len(row) < len(header) or any(row[len(header) :]):
        problem = f"the row has {len(row)} values, but the header has {len(header)} columns"
        raise WorkloadError(f"{place}: {problem}; check that the file is complete, and that it quotes commas")


def _fields(cells: Mapping[str, str], columns: Mapping[str, Sequence[str]], place: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, candidates in columns.items():
        column = next((each for each in candidates if cells.get(each)), candidates[0])
        text = cells.get(column, "")
        field, convert = FIELDS[name]
        try:
            fields[field] = convert(text)
        except ValueError as expected:
            raise WorkloadError(f"{place}: {column} is {quoted(text)}, not {expected}") from None
    return fields


@contextmanager
def _field_limit(size: int) -> Generator[None]:
    before = csv.field_size_limit(size)
    try:
        yield
    finally:
        csv.field_size_limit(before)
