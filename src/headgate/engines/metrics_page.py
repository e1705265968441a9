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
_REST: Final = re.compile(rb'(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)')
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
    """Those of the wanted metrics that the page has."""
    page = b"\n" + page
    found = ((name, _values(page, name.encode())) for name in wanted)
    return {name: Metric(math.fsum(values), len(values)) for name, values in found if values}


def _values(page: bytes, name: bytes) -> list[float]:
    values: list[float] = []
    line_start = b"\n" + name
    at = page.find(line_start)
    while at >= 0:
        at += len(line_start)
        # No match if the name goes on: it is another metric's then.
        if rest := _REST.match(page, at):
            value = _number(rest[1])
            if value is not None:
                values.append(value)
        at = page.find(line_start, at)
    return values


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Beyond this no whole number is certain, so it is no count; and the sum of two such might be no number at all.
    return value if abs(value) <= _VALUE_MAX else None
