"""How old is what this process knows of tenants and keys?"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class DirectoryFigures:
    fresh: bool
    """Whether a key that is not known here does not exist."""
    age_s: float
    """Since the database last said that this is all; infinite as long as it never did."""
    tenants: int
    keys: int
    reconnects: int


def directory_metrics(directory: DirectoryFigures) -> Iterator[Metric]:
    fresh = "headgate_directory_fresh", "Whether the copy of tenants and keys is known to be whole."
    yield GaugeMetricFamily(*fresh, value=float(directory.fresh))
    age = "headgate_directory_age_seconds", "Since the database last confirmed the copy."
    yield GaugeMetricFamily(*age, value=directory.age_s)
    yield GaugeMetricFamily("headgate_directory_tenants", "Tenants that the copy holds.", value=directory.tenants)
    yield GaugeMetricFamily("headgate_directory_keys", "Keys that the copy holds.", value=directory.keys)
    reconnects = "headgate_directory_reconnects", "Connections to the database of keys made anew."
    yield CounterMetricFamily(*reconnects, value=directory.reconnects)
