"""What do ServeGen's files say of each client? Its rates every ten minutes, and its lengths every six hours."""

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.quantiles import LEVELS, Quantiles, pooled
from headgate.simulation.workload.traces import UNREADABLE, check_printable, open_text, unknown_columns, unreadable

WINDOW_S: Final = 600
"""How long one measured rate holds."""
SIX_HOURS_S: Final = 21_600
"""How long measured quantiles of lengths hold."""

_COLUMNS: Final = ("client", "window_start_s", "rate_rps", "iat_dist", "shape")
_RATES: Final = f"ServeGen's rates, a CSV file with {','.join(_COLUMNS)}"
_LENGTHS: Final = (
    "ServeGen's lengths, JSON lines with client, window_start_s, input_tokens and output_tokens, "
    f"the last two {len(LEVELS)} rising quantiles each"
)


@dataclass(frozen=True, slots=True)
class Process:
    """One client in one window."""

    client: str
    window_s: int
    rate: float
    """Requests a second."""
    is_weibull: bool
    """Otherwise the gaps between its requests follow a Gamma distribution."""
    shape: float


@dataclass(frozen=True, slots=True)
class TextLengths:
    prompt: Quantiles
    output: Quantiles


class _LengthsLine(msgspec.Struct):
    client: int | str
    window_start_s: int
    input_tokens: list[float]
    output_tokens: list[float]


Book = Mapping[str, Mapping[int, TextLengths]]
"""By client, then by the six hours' start."""


def read_rates(path: Path) -> list[Process]:
    """By window, and in each window in the order of the file."""
    try:
        with open_text(path) as text:
            processes = list(_processes(path, text))
    except UNREADABLE as error:
        raise unreadable(path, error, _RATES) from None
    if not processes:
        raise Problem(f"{path} holds no rates; name {_RATES}")
    return sorted(processes, key=lambda each: each.window_s)


def _processes(path: Path, text: Iterable[str]) -> Iterator[Process]:
    table = csv.reader(text)
    header = next(table, list[str]())
    if not set(_COLUMNS) <= set(header):
        raise unknown_columns(path, header, _RATES)
    places = [header.index(column) for column in _COLUMNS]
    for fields in table:
        try:
            process = _process(*(fields[place] for place in places))
        except (ValueError, IndexError) as error:
            raise Problem(f"{path}:{table.line_num}: {error}; name {_RATES}") from None
        if process is not None:
            check_printable(process.client, "client", f"{path}:{table.line_num}")
            yield process


def _process(client: str, window_start_s: str, rate_rps: str, iat_dist: str, shape: str) -> Process | None:
    window_s, rate = int(window_start_s), float(rate_rps or 0)
    if not (rate >= 0 and isfinite(rate)):
        raise ValueError(f'"{rate_rps}" is no rate')
    if window_s < 0 or window_s % WINDOW_S:
        raise ValueError(f"a window begins at {window_s} s, which is no multiple of {WINDOW_S}")
    if rate == 0:
        return None
    if iat_dist not in {"Gamma", "Weibull"}:
        raise ValueError(f'gaps of the kind "{iat_dist}" are not known, only Gamma and Weibull')
    if not (float(shape) > 0 and isfinite(float(shape))):
        raise ValueError(f'"{shape}" is no shape')
    return Process(client, window_s, rate, iat_dist == "Weibull", float(shape))


def read_lengths(path: Path) -> Book:
    decoder = msgspec.json.Decoder(_LengthsLine)
    book = defaultdict[str, dict[int, TextLengths]](dict)
    try:
        with open_text(path) as text:
            for number, line in enumerate(text, start=1):
                try:
                    said = decoder.decode(line)
                    lengths = TextLengths(_quantiles(said.input_tokens), _quantiles(said.output_tokens))
                except (msgspec.DecodeError, ValueError) as error:
                    raise Problem(f"{path}:{number}: {error}; name {_LENGTHS}") from None
                book[str(said.client)][said.window_start_s] = lengths
    except UNREADABLE as error:
        raise unreadable(path, error, _LENGTHS) from None
    if not book:
        raise Problem(f"{path} holds no lengths; name {_LENGTHS}")
    return book


def _quantiles(lengths: Sequence[float]) -> Quantiles:
    if len(lengths) != len(LEVELS) or list(lengths) != sorted(lengths):
        raise ValueError(f"these are not {len(LEVELS)} rising quantiles")
    if lengths[0] < 0:
        raise ValueError(f"{lengths[0]:g} is no number of tokens")
    return Quantiles(lengths)


class ClientLengths:
    """Each client's lengths at a given time, borrowed where it has none of its own.

    A client without any takes those of all clients over the whole file, each counted by its requests. Pooled over six
    hours instead, one other client's burst would turn its lengths about: the median swings from 76 to 1,197.
    """

    def __init__(self, book: Book, processes: Iterable[Process]) -> None:
        self._book = book
        self._starts = {client: sorted(windows) for client, windows in book.items()}
        self._rates = defaultdict[tuple[str, int], float](float)
        for process in processes:
            self._rates[process.client, _six_hours(process.window_s)] += process.rate
        self._pool: TextLengths | None = None

    def at(self, client: str, window_s: int) -> TextLengths:
        starts = self._starts.get(client)
        if starts is not None:
            return self._book[client][_nearest(starts, _six_hours(window_s))]
        if self._pool is None:
            self._pool = self._pooled()
        return self._pool

    def _pooled(self) -> TextLengths:
        parts = [
            (self._rates.get((client, start), 0.0), lengths)
            for client, windows in self._book.items()
            for start, lengths in windows.items()
        ]
        if not any(rate > 0 for rate, _ in parts):
            parts = [(1.0, lengths) for _, lengths in parts]
        return TextLengths(
            pooled((rate, lengths.prompt) for rate, lengths in parts),
            pooled((rate, lengths.output) for rate, lengths in parts),
        )


def _six_hours(window_s: int) -> int:
    return window_s - window_s % SIX_HOURS_S


def _nearest(starts: Sequence[int], wanted: int) -> int:
    """Of two equally near the earlier."""
    place = bisect_left(starts, wanted)
    return min(starts[max(0, place - 1) : place + 1], key=lambda start: abs(start - wanted))
