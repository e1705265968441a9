"""What does a metrics page say of the few metrics that we want?

The page is Prometheus' text format. An engine's page has a thousand lines and we want four of them, from hundreds of
engines every few seconds, so the lines are found by searching for their names; the rest is not looked at.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Labels may hold any character inside quotes. After the value may come a timestamp or an exemplar.
_REST: Final = re.compile(rb'(\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)')
_LABEL: Final = re.compile(rb'[{,][ \t]*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
_ESCAPE: Final = re.compile(rb"\\(.)")
_ESCAPED: Final = {b"n": b"\n", b'"': b'"', b"\\": b"\\"}
_VALUE_MAX: Final = 2.0**53


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric over all its series, such as one per data-parallel part of an engine."""

    total: float
    series: int

    @property
    def mean(self) -> float:
        return self.total / self.series


def read_metrics(page: bytes, wanted: Iterable[str]) -> dict[str, Metric]:
    """Those of the wanted metrics that the page has; `name{label="value"}` wants only the series with that label."""
    page = b"\n" + page
    found = ((name, _values(page, name.encode())) for name in wanted)
    return {name: Metric(math.fsum(values), len(values)) for name, values in found if values}


def label_values(page: bytes, name: str, label: str) -> tuple[str, ...]:
    """The values of one label over all series of a metric, each once, in the order of the page."""
    values = [
        labels.get(label.encode(), b"").decode(errors="replace") for labels, _ in _series(b"\n" + page, name.encode())
    ]
    return tuple(dict.fromkeys(value for value in values if value))


def read_series(page: bytes, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series of a metric, in the order of the page."""
    return [
        ({key.decode(): _unescaped(text) for key, text in labels.items()}, value)
        for labels, value in _series(b"\n" + page, name.encode())
    ]


def _unescaped(text: bytes) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), text).decode(errors="replace")


def _values(page: bytes, wanted: bytes) -> list[float]:
    name, _, label = wanted.partition(b"{")
    only = dict(_LABEL.findall(b"{" + label))
    return [value for labels, value in _series(page, name) if only.items() <= labels.items()]


def _series(page: bytes, name: bytes) -> list[tuple[dict[bytes, bytes], float]]:
    series: list[tuple[dict[bytes, bytes], float]] = []
    line_start = b"\n" + name
    at = page.find(line_start)
    while at >= 0:
        at += len(line_start)
        # No match if the name goes on: it is another metric's then.
        if rest := _REST.match(page, at):
            value = _number(rest[2])
            if value is not None:
                series.append((dict(_LABEL.findall(rest[1] or b"")), value))
        at = page.find(line_start, at)
    return series


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Beyond this no whole number is certain, so it is no count; and the sum of two such might be no number at all.
    return value if abs(value) <= _VALUE_MAX else None
