"""Format of the traces that `headgate record` writes: JSON lines with a header, one line per request, and an end line.

docs/reference/traces.md describes the format. Lines are in the order in which requests ended, so readers sort them. A
trace without an end line was truncated, and can be read nevertheless.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.trace_row import TraceRow, validated

VERSION: Final = 1
HEADER_FIELD: Final = "headgate_trace"
_COMPLETED: Final = Outcome.COMPLETED.value
NOT_REPLAYED: Final = frozenset(
    each.value
    for each in (
        Outcome.INVALID_REQUEST,
        Outcome.MODEL_NOT_FOUND,
        Outcome.REQUEST_TOO_LARGE,
        Outcome.UNAUTHORIZED,
        Outcome.FORBIDDEN,
        Outcome.KEY_UNVERIFIED,
    )
)
"""Outcomes of requests that no gateway would accept. Readers skip them."""
_APIS: Final = frozenset(each.value for each in Api)
_END_START: Final = '{"end":'


class TraceHeader(Struct, frozen=True, kw_only=True):
    headgate_trace: int = VERSION
    """Version of the format."""
    time_unit: str = "us"
    prefix_block_tokens: int = PREFIX_BLOCK_TOKENS
    """Number of prompt tokens per id in `prefix`."""
    source: str = ""
    tenants: str = "hashed"
    """`hashed` or `named`."""
    start: str | UnsetType = UNSET
    """Calendar time of the start, if it is kept."""


class TraceLine(Struct, frozen=True, omit_defaults=True, rename={"service_class": "class"}):
    at_us: int
    """Arrival time in microseconds since the start of the trace."""
    prompt_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    api: str = Api.CHAT.value
    model: str = ""
    service_class: str = ""
    tenant: str = ""
    stream: bool = True
    outcome: str = _COMPLETED
    retries: int = 0
    stages: tuple[tuple[str, int], ...] = ()
    """Number and duration in microseconds of each stage that the caller reported."""
    prefix: tuple[int, ...] = ()
    """Ids of the prompt's blocks. Equal ids mean equal prompts up to and including that block."""


class TraceTotals(Struct, frozen=True, kw_only=True):
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    last_at_us: int = 0
    """Arrival time of the last request."""
    prefix_ids: int = 0
    """Number of different ids in `prefix`."""
    dropped: int = 0
    """Number of requests that are missing because a gateway's buffer was full."""
    unfinished: int = 0
    """Number of requests that are missing because they had not ended when the recording did."""
    complete: bool = True
    """Whether every source was read to its end. False if one became unavailable or the trace reached its limit."""


class TraceEnd(Struct, frozen=True):
    end: TraceTotals


_header_decoder: Final = msgspec.json.Decoder(TraceHeader)
_line_decoder: Final = msgspec.json.Decoder(TraceLine)
_end_decoder: Final = msgspec.json.Decoder(TraceEnd)


def is_header(line: str) -> bool:
    return line.lstrip().startswith("{") and f'"{HEADER_FIELD}"' in line[:200]


def recorded_rows(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    """Yields the requests of a trace. The first line is the header.

    A request that did not complete has no output, or only a part of it. It gets the output length of the previous
    completed request of the same kind, because a replay may complete it.
    """
    numbered = enumerate(lines, start=1)
    _check_header(path, next(numbered)[1])
    lengths: dict[tuple[str, str, str], int] = {}
    for number, text in numbered:
        if not text.strip():
            continue
        try:
            if text.startswith(_END_START):
                _end_decoder.decode(text)
                continue
            line = _line_decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WorkloadError(f"{path}:{number}: {error}") from None
        if line.api not in _APIS:
            raise WorkloadError(f"{path}:{number}: unknown api {line.api!a}; use one of {', '.join(sorted(_APIS))}")
        if line.outcome in NOT_REPLAYED:
            continue
        kind = line.api, line.service_class, line.model
        if line.outcome == _COMPLETED:
            lengths[kind] = line.output_tokens
        row = TraceRow(
            line.at_us * 1_000,
            line.prompt_tokens,
            line.output_tokens if line.outcome == _COMPLETED else max(line.output_tokens, lengths.get(kind, 0)),
            line.service_class or None,
            line.tenant or None,
            line.prefix,
            line.model or None,
            line.api,
            line.stream,
            line.retries,
        )
        yield validated(row, f"{path}:{number}")


def _check_header(path: Path, text: str) -> None:
    try:
        header = _header_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WorkloadError(f"{path}:1: {error}") from None
    if header.headgate_trace != VERSION:
        problem = f"version {header.headgate_trace} of the trace format is not supported, only {VERSION}"
        raise WorkloadError(f"{path}:1: {problem}; use a newer headgate, or record the trace again")
    if header.time_unit != "us" or header.prefix_block_tokens != PREFIX_BLOCK_TOKENS:
        problem = f'time_unit must be "us" and prefix_block_tokens {PREFIX_BLOCK_TOKENS}'
        raise WorkloadError(f"{path}:1: {problem}; convert the trace")
