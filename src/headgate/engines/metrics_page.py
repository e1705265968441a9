"""Reads a few metrics from a metrics page.

The page has Prometheus' text format. An engine's page has a thousand lines, of which the gateway needs four, from
hundreds of engines every few seconds. So the reader searches for the names of the metrics and skips all other lines.

A page may come from a hostile or broken engine. The size of rows and the number of series are bounded, and a long page
is read in slices, with a turn of the event loop between them (`in_turns`).
"""

import asyncio
import math
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

SLICE_BYTES: Final = 64 * 1024
"""Approximate size of a slice of a page. Most pages fit into one."""
ROW_BYTES_MAX: Final = 8 * 1024
"""Maximum size of one row after the name of its metric. Longer rows are skipped; real ones have some hundred bytes."""
LABELS_MAX: Final = 64
"""Maximum number of labels of one row. Rows with more are skipped; GPU exporters write about 20."""
SERIES_MAX: Final = 4096
"""Maximum number of series of one metric. A metric with more counts as missing, since a partial sum would be wrong."""

# Labels may hold any character inside quotes. After the value may come a timestamp or an exemplar.
_REST: Final = re.compile(rb'(\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)')
_LABEL: Final = re.compile(rb'[{,][ \t]*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
_ESCAPE: Final = re.compile(rb"\\(.)")
_ESCAPED: Final = {b"n": b"\n", b'"': b'"', b"\\": b"\\"}
_VALUE_MAX: Final = 2.0**53

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Generator that reads one slice of a page per step and returns the result."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric over all its series, such as one per data-parallel part of an engine."""

    total: float
    series: int

    @property
    def mean(self) -> float:
        return self.total / self.series


async def in_turns(steps: Steps[_T]) -> _T:
    """Runs `steps` with a turn of the event loop after each step, and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)


def _at_once(steps: Steps[_T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def read_metrics(page: bytes, wanted: Iterable[str]) -> dict[str, Metric]:
    """Those of the wanted metrics that the page has; `name{label="value"}` wants only the series with that label."""
    return _at_once(metrics_steps(page, wanted))


def metrics_steps(page: bytes, wanted: Iterable[str]) -> Steps[dict[str, Metric]]:
    """`read_metrics` for `in_turns`."""
    page = b"\n" + page
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for start, end in _slices(page):
        for name, values in found.items():
            if len(values) <= SERIES_MAX:
                values.extend(_values(page, name.encode(), start, end))
        if end < len(page):
            yield
    return {
        name: Metric(math.fsum(values), len(values)) for name, values in found.items() if 0 < len(values) <= SERIES_MAX
    }


def label_values(page: bytes, name: str, label: str) -> tuple[str, ...]:
    """The values of one label over all series of a metric, each once, in the order of the page."""
    return _at_once(label_steps(page, name, label))


def label_steps(page: bytes, name: str, label: str) -> Steps[tuple[str, ...]]:
    """`label_values` for `in_turns`."""
    page = b"\n" + page
    found: dict[str, None] = {}
    for start, end in _slices(page):
        for row, _ in _rows(page, name.encode(), start, end):
            if value := _labels(row).get(label.encode(), b"").decode(errors="replace"):
                found[value] = None
        if end < len(page):
            yield
    return tuple(found)


def read_series(page: bytes, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series of a metric, in the order of the page."""
    page = b"\n" + page
    return [
        ({key.decode(): _unescaped(text) for key, text in _labels(row).items()}, value)
        for row, value in _rows(page, name.encode(), 0, len(page))
    ]


def _unescaped(text: bytes) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), text).decode(errors="replace")


def _slices(page: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each slice of whole lines. Each begins with the line feed before its first line."""
    start = 0
    while start < len(page):
        end = page.find(b"\n", start + SLICE_BYTES)
        end = len(page) if end < 0 else end
        yield start, end
        start = end


def _values(page: bytes, wanted: bytes, start: int, end: int) -> list[float]:
    name, _, label = wanted.partition(b"{")
    only = _labels(b"{" + label) if label else {}
    rows = _rows(page, name, start, end)
    return [value for row, value in rows if not only or only.items() <= _labels(row).items()]


def _rows(page: bytes, name: bytes, start: int, end: int) -> Iterator[tuple[bytes, float]]:
    """The labels, unparsed, and the value of each series in this part of the page."""
    line_start = b"\n" + name
    at = page.find(line_start, start, end)
    while at >= 0:
        at += len(line_start)
        row_end = min(end, at + ROW_BYTES_MAX + 1)
        # No match if the name goes on: it is another metric's then.
        rest = _REST.match(page, at, row_end)
        # A value that ends at the size limit of a row may be cut off.
        if rest and (rest.end() < row_end or row_end == end) and (rest[1] or b"").count(b'="') <= LABELS_MAX:
            value = _number(rest[2])
            if value is not None:
                yield rest[1] or b"", value
        at = page.find(line_start, at, end)


def _labels(row: bytes) -> dict[bytes, bytes]:
    return dict(_LABEL.findall(row))


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Beyond this no whole number is certain, so it is no count; and the sum of two such might be no number at all.
    return value if abs(value) <= _VALUE_MAX else None
