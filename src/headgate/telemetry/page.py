"""How do figures become the page that Prometheus reads?

A family is one metric of the catalogue with its samples; the page is their text, one after another. Most lines are
buckets of histograms whose names and labels stay the same from scrape to scrape, so what stands before the number is
made once and kept.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import Final

from headgate.telemetry.catalogue import BY_NAME
from headgate.telemetry.described import Described, Kind
from headgate.telemetry.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Family:
    """One metric as it is told at one scrape."""

    __slots__ = ("_lines", "described")

    def __init__(self, described: Described) -> None:
        self.described = described
        self._lines: list[str] = []

    def add(self, values: Sequence[str], value: float) -> None:
        """One sample, by the values of its labels in their order."""
        described = self.described
        assert described.kind is not Kind.HISTOGRAM, described.name
        self._lines.append(f"{described.name}{_labels(described, values)} {_number(value)}")

    def add_histogram(self, values: Sequence[str], histogram: Histogram) -> None:
        described = self.described
        assert described.kind is Kind.HISTOGRAM, described.name
        # Copied first: it is counted on in another thread.
        counts = list(accumulate(list(histogram.counts)))
        total = _number(quotient(histogram.total, histogram.unit))
        self._lines.append(_form(described, tuple(values), histogram) % (*counts, total, counts[-1]))

    def text(self) -> str:
        name = self.described.name
        return "\n".join((f"# HELP {name} {self.described.help}", f"# TYPE {name} {self.described.kind}", *self._lines))


def family(name: str) -> Family:
    """A metric that the catalogue does not have is a mistake of ours."""
    return Family(BY_NAME[name])


def single(name: str, value: float) -> Family:
    """A metric without labels."""
    made = family(name)
    made.add((), value)
    return made


def quotient(whole: int, unit: int) -> float:
    """How many units the whole is; without end where no float is as large. One figure must not cost the page."""
    try:
        return whole / unit
    except OverflowError:
        return inf if whole > 0 else -inf


def page(families: Iterable[Family]) -> bytes:
    return "".join(f"{each.text()}\n" for each in families).encode()


def _form(described: Described, values: tuple[str, ...], histogram: Histogram) -> str:
    """All lines of a histogram, to be filled in with its counts, their sum and their number.

    Most of a page is of these, and from one scrape to the next only the figures differ. So each histogram keeps its
    own, and there are no more of them than there are histograms.
    """
    key = (described.name, values)
    if histogram.form is None or histogram.form[0] != key:
        name, labels = described.name, _labels(described, values).replace("%", "%%")
        inner = f"{labels[1:-1]}," if labels else ""
        buckets = [f'{name}_bucket{{{inner}le="{bound}"}} %d' for bound in histogram.shown_bounds]
        histogram.form = key, "\n".join((*buckets, f"{name}_sum{labels} %s", f"{name}_count{labels} %d"))
    return histogram.form[1]


def _labels(described: Described, values: Sequence[str]) -> str:
    if len(values) != len(described.labels):
        raise AssertionError(f"{described.name} has the labels {described.labels}, not {len(values)} of them")
    if not values:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(described.labels, values, strict=True))
    return f"{{{','.join(pairs)}}}"


def _number(value: float) -> str:
    """In full, as Prometheus reads numbers."""
    shown = quotient(value, 1) if isinstance(value, int) else value
    return "+Inf" if shown == inf else repr(float(shown))
