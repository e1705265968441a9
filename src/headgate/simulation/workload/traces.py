"""What traffic did someone record? Times and sizes from a trace file.

Four shapes are read, told apart by the first line:

- our own CSV: `at_s,prompt_tokens,output_tokens` and, if wanted, `class` and `tenant`;
- the CSV of Azure's 2023 traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, the time as a date with 100 ns;
- the CSV of the LMSYS arena trace: `timestamp_s,client,prompt_tokens,output_tokens`; its client is a tenant here;
- the JSON lines of Mooncake's traces: `timestamp` in milliseconds, `input_length`, `output_length` and, if wanted,
  `hash_ids`, one for each 512 tokens of the prompt and one for the rest. An id names its block together with all
  that stands before it: in the published traces none occurs behind two different others.

Columns may stand in any order and others may stand beside them. A file whose name ends in .gz is unpacked.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping
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
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise unreadable(path, error, SHAPES) from None


def open_text(path: Path) -> TextIO:
    """A text file, unpacked where its name ends in .gz."""
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


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
        yield Row(round(said.timestamp * 1e6), said.input_length, said.output_length, prefix=said.hash_ids)


def _csv_rows(path: Path, text: TextIO) -> Iterator[Row]:
    table = csv.DictReader(text)
    columns = frozenset(table.fieldnames or ())
    read = next((read for needed, read in _CSV_SHAPES.items() if columns.issuperset(needed)), None)
    if read is None:
        raise Problem(f"{path}:1: its columns are not known; name {SHAPES}")
    for fields in table:
        try:
            yield read(fields)
        except (ValueError, TypeError):
            raise Problem(f"{path}:{table.line_num}: a time or a number of tokens is missing or no number") from None


def _own(fields: Mapping[str, str]) -> Row:
    return Row(
        at_ns=round(float(fields["at_s"]) * 1e9),
        prompt_tokens=int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        service_class=fields.get("class") or None,
        tenant=fields.get("tenant") or None,
    )


def _azure(fields: Mapping[str, str]) -> Row:
    return Row(_instant_ns(fields["TIMESTAMP"]), int(fields["ContextTokens"]), int(fields["GeneratedTokens"]))


def _lmsys(fields: Mapping[str, str]) -> Row:
    return Row(
        at_ns=round(float(fields["timestamp_s"]) * 1e9),
        prompt_tokens=int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        tenant=fields["client"] or None,
    )


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
