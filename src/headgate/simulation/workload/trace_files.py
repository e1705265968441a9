"""Reads recorded traces: arrival times and request sizes.

Five formats are recognized from the first line:

- JSON lines written by `headgate record` (`recorded_trace.py`).
- CSV of this project: `at_s,prompt_tokens,output_tokens` and optionally `class` and `tenant`.
- CSV of Azure's 2023 traces: `TIMESTAMP,ContextTokens,GeneratedTokens`. The time is a date with a resolution of 100 ns.
- CSV of the LMSYS arena trace: `timestamp_s,client,prompt_tokens,output_tokens`. The client becomes the tenant.
- JSON lines of Mooncake's traces: `timestamp` in milliseconds, `input_length`, `output_length` and optionally
  `hash_ids`, one for each 512 tokens of the prompt and one for the rest. An id identifies its block together with all
  blocks before it. In the published traces, no id follows two different ids.

Columns can be in any order, and other columns are ignored. Files ending in .gz are decompressed, and a byte order mark
is skipped. Class and tenant names are shown in terminals and web pages, so all their characters must be printable.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, TextIO

import msgspec

from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.recorded_trace import is_header, recorded_rows
from headgate.simulation.workload.trace_row import TraceRow, validated

FORMATS: Final = (
    "a CSV file with at_s,prompt_tokens,output_tokens[,class][,tenant], "
    "or with TIMESTAMP,ContextTokens,GeneratedTokens, "
    "or with timestamp_s,client,prompt_tokens,output_tokens, "
    "or JSON lines with timestamp, input_length, output_length[, hash_ids], or from headgate record"
)

LINE_CHARS_MAX: Final = 4 * 1024 * 1024
"""Maximum length of a line. A request with a prompt of a million tokens has 2,000 blocks, about 20 kB."""
READ_ERRORS: Final = (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error)
"""Exceptions raised if a file is missing, unreadable or not text."""

_PARSE_ERRORS: Final = (ValueError, TypeError, OverflowError, AttributeError)
"""Exceptions raised when a value is missing or has the wrong format."""

_COLUMNS_SHOWN_MAX: Final = 12
_QUOTED_CHARS_MAX: Final = 80
"""Maximum number of characters from a file that a message quotes."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    """Time in milliseconds."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> Iterator[TraceRow]:
    try:
        with open_text(path) as text:
            lines = _bounded_lines(path, text)
            first = next(lines, "")
            lines = chain((first,), lines)
            if is_header(first):
                yield from recorded_rows(path, lines)
            else:
                yield from _json_rows(path, lines) if first.lstrip().startswith("{") else _csv_rows(path, lines)
    except READ_ERRORS as error:
        raise read_error(path, error, FORMATS) from None


def open_text(path: Path) -> TextIO:
    """Opens a text file, decompressing it if its name ends in .gz."""
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _bounded_lines(path: Path, text: TextIO) -> Iterator[str]:
    """Yields the lines. A file of unknown origin could consist of a single line of any length."""
    number = 0
    while line := text.readline(LINE_CHARS_MAX + 1):
        number += 1
        if len(line) > LINE_CHARS_MAX:
            raise WorkloadError(f"{path}:{number}: the line is longer than {LINE_CHARS_MAX} characters; check the file")
        yield line


def read_error(path: Path, error: Exception, shapes: str) -> WorkloadError:
    reason = getattr(error, "strerror", None) or error
    if isinstance(error, FileNotFoundError):
        hint = "set HEADGATE_DATA to the directory that contains traces/, or use a path to an existing file"
        return WorkloadError(f"{path} cannot be read: {reason}; {hint}")
    return WorkloadError(f"{path} cannot be read: {reason}; expected {shapes}")


def _json_rows(path: Path, text: Iterable[str]) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        try:
            said = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WorkloadError(f"{path}:{number}: {error}") from None
        try:
            row = TraceRow(round(said.timestamp * 1e6), said.input_length, said.output_length, prefix=said.hash_ids)
        except OverflowError:
            raise WorkloadError(f"{path}:{number}: the time is out of range") from None
        yield validated(row, f"{path}:{number}")


def _csv_rows(path: Path, text: Iterable[str]) -> Iterator[TraceRow]:
    table = csv.DictReader(text)
    columns = frozenset(table.fieldnames or ())
    shape = next((shape for shape in _CSV_FORMATS.items() if columns.issuperset(shape[0])), None)
    if shape is None:
        raise unknown_columns_error(path, table.fieldnames or (), FORMATS)
    needed, read = shape
    for fields in table:
        try:
            row = read(fields)
        except _PARSE_ERRORS:
            raise WorkloadError(f"{path}:{table.line_num}: {_value_error(fields, needed)}") from None
        yield validated(row, f"{path}:{table.line_num}")


def unknown_columns_error(path: Path, found: Sequence[str], shapes: str) -> WorkloadError:
    if not found:
        return WorkloadError(f"{path}:1: the file has no columns; expected {shapes}")
    separator = next((each for each in (";", "\t") if len(found) == 1 and each in found[0]), None)
    if separator is not None:
        kind = "tabs" if separator == "\t" else separator
        hint = f"separate columns with commas, not with {kind}, and use a decimal point in numbers"
        return WorkloadError(f"{path}:1: unknown column {_quoted(found[0])}; {hint}")
    listed = ", ".join(_quoted(each) for each in found[:_COLUMNS_SHOWN_MAX])
    more = f" and {len(found) - _COLUMNS_SHOWN_MAX} more" if len(found) > _COLUMNS_SHOWN_MAX else ""
    return WorkloadError(f"{path}:1: unknown columns: {listed}{more}; expected {shapes}")


def _value_error(fields: Mapping[str, str | None], needed: Sequence[str]) -> str:
    """Describes the first required column whose value is missing or invalid."""
    for column in needed:
        if column not in _COLUMN_PARSERS:
            continue
        read, kind = _COLUMN_PARSERS[column]
        value = fields[column]
        if not value:
            return f"{column} is missing; expected {kind}"
        try:
            read(value)
        except _PARSE_ERRORS:
            return f"{column} is {_quoted(value)}, not {kind}"
    raise AssertionError(f"the values of {needed} are all valid")


def _quoted(text: str) -> str:
    text = text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "…"
    return f'"{text}"' if text.isprintable() else ascii(text)


def _parse_native(fields: Mapping[str, str]) -> TraceRow:
    return TraceRow(
        at_ns=_seconds_ns(fields["at_s"]),
        prompt_tokens=int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        service_class=fields.get("class") or None,
        tenant=fields.get("tenant") or None,
    )


def _parse_azure(fields: Mapping[str, str]) -> TraceRow:
    return TraceRow(_instant_ns(fields["TIMESTAMP"]), int(fields["ContextTokens"]), int(fields["GeneratedTokens"]))


def _parse_lmsys(fields: Mapping[str, str]) -> TraceRow:
    return TraceRow(
        at_ns=_seconds_ns(fields["timestamp_s"]),
        prompt_tokens=int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        tenant=fields["client"] or None,
    )


def _seconds_ns(text: str) -> int:
    return round(float(text) * 1e9)


def _instant_ns(text: str) -> int:
    """Converts `2023-11-16 18:15:46.6805900` to nanoseconds. `fromisoformat` supports only microseconds."""
    whole, _, fraction = text.strip().partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int(fraction[:9].ljust(9, "0") or "0")


_CSV_FORMATS: Final[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], TraceRow]]] = {
    ("at_s", "prompt_tokens", "output_tokens"): _parse_native,
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _parse_azure,
    ("timestamp_s", "client", "prompt_tokens", "output_tokens"): _parse_lmsys,
}

_TOKENS: Final = (int, "a whole number of tokens")
_COLUMN_PARSERS: Final[Mapping[str, tuple[Callable[[str], int], str]]] = {
    "at_s": (_seconds_ns, "a time in seconds, such as 0.5"),
    "timestamp_s": (_seconds_ns, "a time in seconds, such as 0.5"),
    "TIMESTAMP": (_instant_ns, "a time such as 2023-11-16 18:15:46.6805900"),
    "prompt_tokens": _TOKENS,
    "output_tokens": _TOKENS,
    "ContextTokens": _TOKENS,
    "GeneratedTokens": _TOKENS,
}
"""Parser and description of each column."""
