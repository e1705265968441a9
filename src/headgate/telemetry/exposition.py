"""Renders metrics in the Prometheus text exposition format.

A family is one metric from the catalogue with its samples; the page contains the text of all families. Most lines are
histogram buckets whose names and labels do not change between scrapes, so the text before each number is cached.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import Final

from headgate.telemetry.catalogue import BY_NAME
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.metric_definition import MetricDefinition, MetricType

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class MetricFamily:
    """One metric with its samples for one scrape."""

    __slots__ = ("_lines", "definition")

    def __init__(self, described: MetricDefinition) -> None:
        self.definition = described
        self._lines: list[str] = []

    def add(self, label_values: Sequence[str], value: float) -> None:
        """Adds a sample. `label_values` are the label values, in the order of the metric's labels."""
        described = self.definition
        assert described.type is not MetricType.HISTOGRAM, described.name
        self._lines.append(f"{described.name}{_labels(described, label_values)} {_number(value)}")

    def add_histogram(self, label_values: Sequence[str], histogram: Histogram) -> None:
        described = self.definition
        assert described.type is MetricType.HISTOGRAM, described.name
        # Copy first, because another thread may update the counts.
        counts = list(accumulate(list(histogram.counts)))
        total = _number(quotient(histogram.total, histogram.unit))
        self._lines.append(_template(described, tuple(label_values), histogram) % (*counts, total, counts[-1]))

    def text(self) -> str:
        name = self.definition.name
        return "\n".join(
            (f"# HELP {name} {self.definition.help}", f"# TYPE {name} {self.definition.type}", *self._lines)
        )


def family(name: str) -> MetricFamily:
    """An empty family for a metric in the catalogue."""
    return MetricFamily(BY_NAME[name])


def unlabelled(name: str, value: float) -> MetricFamily:
    """A family with one sample and no labels."""
    made = family(name)
    made.add((), value)
    return made


def quotient(whole: int, unit: int) -> float:
    """`whole / unit`, or infinity if the result is too large for a float, so that one value cannot break the page."""
    try:
        return whole / unit
    except OverflowError:
        return inf if whole > 0 else -inf


def exposition_text(families: Iterable[MetricFamily]) -> bytes:
    return "".join(f"{each.text()}\n" for each in families).encode()


def _template(described: MetricDefinition, values: tuple[str, ...], histogram: Histogram) -> str:
    """Format string for all lines of a histogram. Its arguments are the bucket counts, the sum and the total count.

    Most of a page consists of histograms, and only the numbers change between scrapes. Each histogram therefore caches
    its own format string.
    """
    key = (described.name, values)
    if histogram.template is None or histogram.template[0] != key:
        name, labels = described.name, _labels(described, values).replace("%", "%%")
        inner = f"{labels[1:-1]}," if labels else ""
        buckets = [f'{name}_bucket{{{inner}le="{bound}"}} %d' for bound in histogram.bucket_labels]
        histogram.template = key, "\n".join((*buckets, f"{name}_sum{labels} %s", f"{name}_count{labels} %d"))
    return histogram.template[1]


def _labels(described: MetricDefinition, values: Sequence[str]) -> str:
    if len(values) != len(described.labels):
        raise AssertionError(f"{described.name} needs values for the labels {described.labels}, got {len(values)}")
    if not values:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(described.labels, values, strict=True))
    return f"{{{','.join(pairs)}}}"


def _number(value: float) -> str:
    """Formats a number in full precision and in Prometheus syntax."""
    shown = quotient(value, 1) if isinstance(value, int) else value
    return "+Inf" if shown == inf else repr(float(shown))
