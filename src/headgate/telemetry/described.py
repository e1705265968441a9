"""Description of one metric family: its kind, its labels and its help text."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Described:
    name: str
    """As it is asked for; of a histogram without `_bucket`, `_sum` and `_count`."""
    kind: Kind
    labels: tuple[str, ...]
    help: str
    """One sentence in plain text, which goes with every scrape."""
    note: str = ""
    """What the page of the reference says besides, in Markdown."""
    shown_when: str = ""
    """Which gateways tell it; empty where all do."""


def counter(name: str, labels: str, help_: str, note: str = "", *, when: str = "") -> Described:
    assert name.endswith("_total"), f"{name}: counters end in _total"
    return Described(name, Kind.COUNTER, tuple(labels.split()), help_, note, when)


def gauge(name: str, labels: str, help_: str, note: str = "", *, when: str = "") -> Described:
    return Described(name, Kind.GAUGE, tuple(labels.split()), help_, note, when)


def histogram(name: str, labels: str, help_: str, note: str = "", *, when: str = "") -> Described:
    return Described(name, Kind.HISTOGRAM, tuple(labels.split()), help_, note, when)
