"""What traffic did someone record? Times and sizes from a trace file.

Four shapes are read, told apart by the first line:

- our own CSV: `at_s,prompt_tokens,output_tokens` and, if wanted, `class` and `tenant`;
- the CSV of Azure's 2023 traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, the time as a date with 100 ns;
- the CSV of the LMSYS arena trace: `timestamp_s,client,prompt_tokens,output_tokens`; its client is a tenant here;
- the JSON lines of Mooncake's traces: `timestamp` in milliseconds, `input_length`, `output_length` and, if wanted,
  `hash_ids`, one for each 512 tokens of the prompt and one for the rest. An id names its block together with all
  that stands before it: in the published traces none occurs behind two different others.

Columns may stand in any order and others may stand beside them. A file whose name ends in .gz is unpacked. Names of
classes and tenants go to terminals and pages, so all of their characters must be printable. A mark of the byte order
at its start, as spreadsheets write, is no part of the text.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

import msgspec

from headgate.simulation.workload.problem import Problem

SHAPES: Final = (
    "a CSV file with at_s,prompt_tokens,output_tokens[,class][,tenant], "
    "or with TIMESTAMP,ContextTokens,GeneratedTokens, "
    "or with timestamp_s,client,prompt_tokens,output_tokens, "
    "or JSON lines with timestamp, input_length, output_length[, hash_ids]"
)

UNREADABLE: Final = (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error)
"""What a file may raise that is not the text that it should be."""

_AT_NS_MAX: Final = 2**63
"""Three centuries from whatever a trace counts from."""

_NO_VALUE: Final = (ValueError, TypeError, OverflowError, AttributeError)
"""What reading a column raises where a row ends before it, or holds something else there."""

_COLUMNS_SHOWN_MAX: Final = 12
_SHOWN_MAX: Final = 80
"""How much of a file a message quotes."""


@dataclass(frozen=True, slots=True)
class Row:
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    service_class: str | None = None
    tenant: str | None = None
    prefix: tuple[int, ...] = ()
    """Names of the prompt's blocks from its start, chained."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> Iterator[Row]:
    try:
        with open_text(path) as text:
            first = text.readline()
            text.seek(0)
            yield from _json_rows(path, text) if first.lstrip().startswith("{") else _csv_rows(path, text)
    except UNREADABLE as error:
        raise unreadable(path, error, SHAPES) from None


def open_text(path: Path) -> TextIO:
    """A text file, unpacked where its name ends in .gz."""
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def unreadable(path: Path, error: Exception, shapes: str) -> Problem:
    reason = getattr(error, "strerror", None) or error
    if isinstance(error, FileNotFoundError):
        hint = "HEADGATE_DATA must be the folder that holds traces/, or the path one from where you stand"
        return Problem(f"{path} cannot be read: {reason}; {hint}")
    return Problem(f"{path} cannot be read: {reason}; name {shapes}")


def _json_rows(path: Path, text: TextIO) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        try:
            said = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise Problem(f"{path}:{number}: {error}") from None
        try:
            row = Row(round(said.timestamp * 1e6), said.input_length, said.output_length, prefix=said.hash_ids)
        except OverflowError:
            raise Problem(f"{path}:{number}: the time is no number that a clock shows") from None
        yield _checked(row, f"{path}:{number}")


def _csv_rows(path: Path, text: TextIO) -> Iterator[Row]:
    table = csv.DictReader(text)
    columns = frozenset(table.fieldnames or ())
    shape = next((shape for shape in _CSV_SHAPES.items() if columns.issuperset(shape[0])), None)
    if shape is None:
        raise unknown_columns(path, table.fieldnames or (), SHAPES)
    needed, read = shape
    for fields in table:
        try:
            row = read(fields)
        except _NO_VALUE:
            raise Problem(f"{path}:{table.line_num}: {_unreadable_value(fields, needed)}") from None
        yield _checked(row, f"{path}:{table.line_num}")


def unknown_columns(path: Path, found: Sequence[str], shapes: str) -> Problem:
    if not found:
        return Problem(f"{path}:1: its columns are not known, for it has none; name {shapes}")
    separator = next((each for each in (";", "\t") if len(found) == 1 and each in found[0]), None)
    if separator is not None:
        kind = "tabs" if separator == "\t" else separator
        hint = f"columns are separated by commas, not by {kind}: save it so, numbers with a point"
        return Problem(f"{path}:1: its columns are not known; {hint}; {_shown(found[0])} is read as one column")
    listed = ", ".join(_shown(each) for each in found[:_COLUMNS_SHOWN_MAX])
    more = f" and {len(found) - _COLUMNS_SHOWN_MAX} more" if len(found) > _COLUMNS_SHOWN_MAX else ""
    return Problem(f"{path}:1: its columns are not known: {listed}{more}; name {shapes}")


def _unreadable_value(fields: Mapping[str, str | None], needed: Sequence[str]) -> str:
    """Which of the columns that are needed has no value, or one that cannot be read."""
    for column in needed:
        if column not in _VALUES:
            continue
        read, kind = _VALUES[column]
        value = fields[column]
        if not value:
            return f"{column} is missing; give {kind}"
        try:
            read(value)
        except _NO_VALUE:
            return f"{column} is {_shown(value)}, not {kind}"
    raise AssertionError(f"every one of {needed} can be read")


def _shown(text: str) -> str:
    text = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    return f'"{text}"' if text.isprintable() else ascii(text)


def _checked(row: Row, place: str) -> Row:
    if row.prompt_tokens < 0 or row.output_tokens < 0:
        least = min(row.prompt_tokens, row.output_tokens)
        raise Problem(f"{place}: {least} is no number of tokens; give 0 or more")
    if abs(row.at_ns) >= _AT_NS_MAX:
        raise Problem(f"{place}: a time of {row.at_ns / 1e9:g} s is no time that a clock shows")
    for kind, name in (("class", row.service_class), ("tenant", row.tenant)):
        if name is not None:
            check_printable(name, kind, place)
    return row


def check_printable(name: str, kind: str, place: str) -> None:
    if not name.isprintable():
        raise Problem(f"{place}: {kind} {name!a} has characters that cannot be printed; call it otherwise")


def _own(fields: Mapping[str, str]) -> Row:
    return Row(
        at_ns=_seconds_ns(fields["at_s"]),
        prompt_tokens=int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        service_class=fields.get("class") or None,
        tenant=fields.get("tenant") or None,
    )


def _azure(fields: Mapping[str, str]) -> Row:
    return Row(_instant_ns(fields["TIMESTAMP"]), int(fields["ContextTokens"]), int(fields["GeneratedTokens"]))


def _lmsys(fields: Mapping[str, str]) -> Row:
    return Row(
        at_ns=_seconds_ns(fields["timestamp_s"]),
        prompt_tokens=int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        tenant=fields["client"] or None,
    )


def _seconds_ns(text: str) -> int:
    return round(float(text) * 1e9)


def _instant_ns(text: str) -> int:
    """`2023-11-16 18:15:46.6805900` in nanoseconds; the library's own parser stops at microseconds."""
    whole, _, fraction = text.strip().partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int(fraction[:9].ljust(9, "0") or "0")


_CSV_SHAPES: Final[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], Row]]] = {
    ("at_s", "prompt_tokens", "output_tokens"): _own,
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("timestamp_s", "client", "prompt_tokens", "output_tokens"): _lmsys,
}

_TOKENS: Final = (int, "a whole number of tokens")
_VALUES: Final[Mapping[str, tuple[Callable[[str], int], str]]] = {
    "at_s": (_seconds_ns, "a time in seconds, such as 0.5"),
    "timestamp_s": (_seconds_ns, "a time in seconds, such as 0.5"),
    "TIMESTAMP": (_instant_ns, "a time such as 2023-11-16 18:15:46.6805900"),
    "prompt_tokens": _TOKENS,
    "output_tokens": _TOKENS,
    "ContextTokens": _TOKENS,
    "GeneratedTokens": _TOKENS,
}
"""How a column is read, and what stands in it."""
