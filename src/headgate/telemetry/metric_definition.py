"""Description of one metric family: its kind, its labels and its help text."""

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    name: str
    """Metric name, without a histogram's `_bucket`, `_sum` and `_count` suffixes."""
    type: MetricType
    labels: tuple[str, ...]
    help: str
    """Help text in the exposition format: one sentence in plain text."""
    note: str = ""
    """Additional text for the metrics reference, in Markdown."""
    exposed_when: str = ""
    """Condition under which a gateway exposes the metric. Empty if it is always exposed."""


def counter(name: str, labels: str, help_: str, note: str = "", *, exposed_when: str = "") -> MetricDefinition:
    assert name.endswith("_total"), f"{name}: the name of a counter must end in _total"
    return MetricDefinition(name, MetricType.COUNTER, tuple(labels.split()), help_, note, exposed_when)


def gauge(name: str, labels: str, help_: str, note: str = "", *, exposed_when: str = "") -> MetricDefinition:
    return MetricDefinition(name, MetricType.GAUGE, tuple(labels.split()), help_, note, exposed_when)


def histogram(name: str, labels: str, help_: str, note: str = "", *, exposed_when: str = "") -> MetricDefinition:
    return MetricDefinition(name, MetricType.HISTOGRAM, tuple(labels.split()), help_, note, exposed_when)
