"""Reads ServeGen's files: each client's rates per ten minutes and length quantiles per six hours."""

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.quantiles import QUANTILE_LEVELS, Quantiles, pool_quantiles
from headgate.simulation.workload.trace_files import (
    READ_ERRORS,
    open_text,
    read_error,
    unknown_columns_error,
)
from headgate.simulation.workload.trace_row import check_printable

WINDOW_S: Final = 600
"""Window for each measured rate, in seconds."""
LENGTHS_WINDOW_S: Final = 21_600
"""Window for measured length quantiles, in seconds."""

_FILES_KEPT: Final = 4
"""Maximum number of rates files in memory. A scenario reads each of its files several times."""
_COLUMNS: Final = ("client", "window_start_s", "rate_rps", "iat_dist", "shape")
_RATES: Final = f"a ServeGen rates file (CSV with {','.join(_COLUMNS)})"
_LENGTHS: Final = (
    "a ServeGen lengths file (JSON lines with client, window_start_s, input_tokens and output_tokens; "
    f"the last two have {len(QUANTILE_LEVELS)} increasing quantiles each)"
)


@dataclass(frozen=True, slots=True)
class ClientWindow:
    """One client's arrival process in one window."""

    client: str
    window_s: int
    rate: float
    """Requests per second."""
    is_weibull: bool
    """Whether the gaps between requests follow a Weibull rather than a Gamma distribution."""
    shape: float


@dataclass(frozen=True, slots=True)
class LengthQuantiles:
    prompt: Quantiles
    output: Quantiles


class _LengthsLine(msgspec.Struct):
    client: int | str
    window_start_s: int
    input_tokens: list[float]
    output_tokens: list[float]


LengthsByClient = Mapping[str, Mapping[int, LengthQuantiles]]
"""Lengths by client and by the start of the six-hour window."""


def read_rates(path: Path) -> Sequence[ClientWindow]:
    """Returns the processes by window, then by file order. A file is read again only if it has changed."""
    try:
        modified_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise read_error(path, error, _RATES) from None
    return _read_rates(path, modified_ns)


@lru_cache(maxsize=_FILES_KEPT)
def _read_rates(path: Path, modified_ns: int) -> tuple[ClientWindow, ...]:
    """`modified_ns` is part of the key."""
    del modified_ns
    try:
        with open_text(path) as text:
            processes = list(_processes(path, text))
    except READ_ERRORS as error:
        raise read_error(path, error, _RATES) from None
    if not processes:
        raise WorkloadError(f"{path} contains no rates; expected {_RATES}")
    return tuple(sorted(processes, key=lambda each: each.window_s))


def _processes(path: Path, text: Iterable[str]) -> Iterator[ClientWindow]:
    table = csv.reader(text)
    header = next(table, list[str]())
    if not set(_COLUMNS) <= set(header):
        raise unknown_columns_error(path, header, _RATES)
    places = [header.index(column) for column in _COLUMNS]
    for fields in table:
        try:
            process = _process(*(fields[place] for place in places))
        except (ValueError, IndexError) as error:
            raise WorkloadError(f"{path}:{table.line_num}: {error}; expected {_RATES}") from None
        if process is not None:
            check_printable(process.client, "client", f"{path}:{table.line_num}")
            yield process


def _process(client: str, window_start_s: str, rate_rps: str, iat_dist: str, shape: str) -> ClientWindow | None:
    window_s, rate = int(window_start_s), float(rate_rps or 0)
    if not (rate >= 0 and isfinite(rate)):
        raise ValueError(f'"{rate_rps}" is not a valid rate')
    if window_s < 0 or window_s % WINDOW_S:
        raise ValueError(f"window_start_s is {window_s}; it must be 0 or a multiple of {WINDOW_S}")
    if rate == 0:
        return None
    if iat_dist not in {"Gamma", "Weibull"}:
        raise ValueError(f'unknown iat_dist "{iat_dist}"; use Gamma or Weibull')
    if not (float(shape) > 0 and isfinite(float(shape))):
        raise ValueError(f'"{shape}" is not a valid shape')
    return ClientWindow(client, window_s, rate, iat_dist == "Weibull", float(shape))


def read_lengths(path: Path) -> LengthsByClient:
    decoder = msgspec.json.Decoder(_LengthsLine)
    book = defaultdict[str, dict[int, LengthQuantiles]](dict)
    try:
        with open_text(path) as text:
            for number, line in enumerate(text, start=1):
                try:
                    said = decoder.decode(line)
                    lengths = LengthQuantiles(_quantiles(said.input_tokens), _quantiles(said.output_tokens))
                except (msgspec.DecodeError, ValueError) as error:
                    raise WorkloadError(f"{path}:{number}: {error}; expected {_LENGTHS}") from None
                book[str(said.client)][said.window_start_s] = lengths
    except READ_ERRORS as error:
        raise read_error(path, error, _LENGTHS) from None
    if not book:
        raise WorkloadError(f"{path} contains no lengths; expected {_LENGTHS}")
    return book


def _quantiles(lengths: Sequence[float]) -> Quantiles:
    if len(lengths) != len(QUANTILE_LEVELS) or list(lengths) != sorted(lengths):
        raise ValueError(f"the quantiles are not {len(QUANTILE_LEVELS)} increasing values")
    if lengths[0] < 0:
        raise ValueError(f"{lengths[0]:g} is not a valid number of tokens")
    return Quantiles(lengths)


class ClientLengths:
    """Each client's lengths at a given time, with a fallback for missing data.

    A client without data uses the lengths of all clients over the whole file, weighted by requests. Pooling only six
    hours would be unstable: a single burst from another client moves the median from 76 to 1,197.
    """

    def __init__(self, book: LengthsByClient, processes: Iterable[ClientWindow]) -> None:
        self._by_client = book
        self._starts = {client: sorted(windows) for client, windows in book.items()}
        self._rates = defaultdict[tuple[str, int], float](float)
        for process in processes:
            self._rates[process.client, _lengths_window(process.window_s)] += process.rate
        self._pool: LengthQuantiles | None = None

    def at(self, client: str, window_s: int) -> LengthQuantiles:
        starts = self._starts.get(client)
        if starts is not None:
            return self._by_client[client][_nearest(starts, _lengths_window(window_s))]
        if self._pool is None:
            self._pool = self._pooled()
        return self._pool

    def _pooled(self) -> LengthQuantiles:
        parts = [
            (self._rates.get((client, start), 0.0), lengths)
            for client, windows in self._by_client.items()
            for start, lengths in windows.items()
        ]
        if not any(rate > 0 for rate, _ in parts):
            parts = [(1.0, lengths) for _, lengths in parts]
        return LengthQuantiles(
            pool_quantiles((rate, lengths.prompt) for rate, lengths in parts),
            pool_quantiles((rate, lengths.output) for rate, lengths in parts),
        )


def _lengths_window(window_s: int) -> int:
    return window_s - window_s % LENGTHS_WINDOW_S


def _nearest(starts: Sequence[int], wanted: int) -> int:
    """Returns the nearest window start. If two are equally near, returns the earlier one."""
    place = bisect_left(starts, wanted)
    return min(starts[max(0, place - 1) : place + 1], key=lambda start: abs(start - wanted))
