"""Reads selected metrics from a Prometheus text exposition.

An engine's page has about a thousand lines, and the gateway needs a few of them, from hundreds of engines every few
seconds. The reader therefore searches for all metric names at once and skips all other lines.

The page may come from a hostile or broken engine, so the row size and the number of series are limited. A long page is
read in slices, and the event loop can run other tasks between them (`run_in_turns`).
"""

import asyncio
import math
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

SLICE_BYTES: Final = 64 * 1024
"""Approximate slice size. Most pages fit into one slice."""
ROW_BYTES_MAX: Final = 8 * 1024
"""Maximum row size after the metric name. Longer rows are skipped. Real rows have a few hundred bytes."""
LABELS_MAX: Final = 64
"""Maximum labels per row. Rows with more labels are skipped. GPU exporters write about 20."""
SERIES_MAX: Final = 4096
"""Maximum series per metric. A metric with more series counts as missing, because a partial sum would be wrong."""

# Quoted label values may contain any character. A timestamp or an exemplar may follow the value.
_REST: Final = re.compile(rb'(\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)')
_LABEL: Final = re.compile(rb'[{,][ \t]*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
_ESCAPE: Final = re.compile(rb"\\(.)")
_ESCAPED: Final = {b"n": b"\n", b'"': b'"', b"\\": b"\\"}
_VALUE_MAX: Final = 2.0**53

PATTERNS_MAX: Final = 256
"""Maximum number of compiled patterns. Each engine type needs one or two."""

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Generator that reads one slice of a page per step and returns the result."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric across all its series, for example one series per data-parallel rank."""

    total: float
    series: int

    @property
    def mean(self) -> float:
        return self.total / self.series


async def run_in_turns(steps: Steps[_T]) -> _T:
    """Runs `steps`, yields to the event loop after each step, and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)


def _run_at_once(steps: Steps[_T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def read_metrics(page: bytes, wanted: Iterable[str]) -> dict[str, Metric]:
    """Returns the wanted metrics that the page contains. `name{label="value"}` selects only the series with that
    label."""
    return _run_at_once(metrics_steps(page, wanted))


def metrics_steps(page: bytes, wanted: Iterable[str]) -> Steps[dict[str, Metric]]:
    """Like `read_metrics`, for use with `run_in_turns`."""
    found: dict[str, list[float]] = {name: [] for name in wanted}
    by_metric = _selectors(tuple(found))
    starts = _line_starts(tuple(by_metric))
    page = b"\n" + page
    for start, end in _slices(page):
        for metric, row, value in _rows(page, starts, start, end):
            for name, only in by_metric[metric]:
                if len(found[name]) <= SERIES_MAX and (not only or only.items() <= _labels(row).items()):
                    found[name].append(value)
        if end < len(page):
            yield
    return {
        name: Metric(math.fsum(values), len(values)) for name, values in found.items() if 0 < len(values) <= SERIES_MAX
    }


@lru_cache(PATTERNS_MAX)
def _selectors(wanted: tuple[str, ...]) -> dict[bytes, tuple[tuple[str, dict[bytes, bytes]], ...]]:
    """Returns, for each metric, the wanted names that refer to it with the labels that they select."""
    found: dict[bytes, tuple[tuple[str, dict[bytes, bytes]], ...]] = {}
    for name in wanted:
        metric, _, label = name.encode().partition(b"{")
        found[metric] = (*found.get(metric, ()), (name, _labels(b"{" + label) if label else {}))
    return found


@lru_cache(PATTERNS_MAX)
def _line_starts(metrics: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Returns a pattern for the start of a metric's row, including the name. It does not match a longer name."""
    return re.compile(rb"\n(" + b"|".join(map(re.escape, metrics)) + rb")(?=[{ \t])")


def label_values(page: bytes, name: str, label: str) -> tuple[str, ...]:
    """Returns the distinct values of one label across all series of a metric, in page order."""
    return _run_at_once(label_steps(page, name, label))


def label_steps(page: bytes, name: str, label: str) -> Steps[tuple[str, ...]]:
    """Like `label_values`, for use with `run_in_turns`."""
    page, starts = b"\n" + page, _line_starts((name.encode(),))
    found: dict[str, None] = {}
    for start, end in _slices(page):
        for _, row, _ in _rows(page, starts, start, end):
            if value := _labels(row).get(label.encode(), b"").decode(errors="replace"):
                found[value] = None
        if end < len(page):
            yield
    return tuple(found)


def read_series(page: bytes, name: str) -> list[tuple[dict[str, str], float]]:
    """Returns the labels and value of each series of a metric, in page order."""
    page = b"\n" + page
    return [
        ({key.decode(): _unescaped(text) for key, text in _labels(row).items()}, value)
        for _, row, value in _rows(page, _line_starts((name.encode(),)), 0, len(page))
    ]


def _unescaped(text: bytes) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), text).decode(errors="replace")


def _slices(page: bytes) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each slice of complete lines.

    A slice starts with the line feed before its first line.
    """
    start = 0
    while start < len(page):
        end = page.find(b"\n", start + SLICE_BYTES)
        end = len(page) if end < 0 else end
        yield start, end
        start = end


def _rows(page: bytes, starts: re.Pattern[bytes], start: int, end: int) -> Iterator[tuple[bytes, bytes, float]]:
    """Yields the metric, the unparsed labels and the value of each series in this part of the page."""
    for found in starts.finditer(page, start, end):
        row_end = min(end, found.end() + ROW_BYTES_MAX + 1)
        rest = _REST.match(page, found.end(), row_end)
        # A value that ends at the row size limit may be truncated.
        is_whole = rest and (rest.end() < row_end or row_end == end) and (rest[1] or b"").count(b'="') <= LABELS_MAX
        if rest and is_whole and (value := _number(rest[2])) is not None:
            yield found[1], rest[1] or b"", value


def _labels(row: bytes) -> dict[bytes, bytes]:
    return dict(_LABEL.findall(row))


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Larger floats cannot represent every integer, so they are not counts, and their sum could overflow.
    return value if abs(value) <= _VALUE_MAX else None
