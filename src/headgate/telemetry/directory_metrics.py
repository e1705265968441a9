"""Metrics for this process's replica of the tenant and key database."""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, unlabelled


@dataclass(frozen=True, slots=True)
class DirectoryStats:
    fresh: bool
    """Whether the replica is known to be up to date. If so, a key that is not in it does not exist."""
    age_s: float
    """Time since the database last confirmed the replica; infinite if it has never been confirmed."""
    tenants: int
    keys: int
    reconnects: int


def directory_metrics(directory: DirectoryStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_directory_fresh", directory.fresh)
    yield unlabelled("headgate_directory_age_seconds", directory.age_s)
    yield unlabelled("headgate_directory_tenants", directory.tenants)
    yield unlabelled("headgate_directory_keys", directory.keys)
    yield unlabelled("headgate_directory_reconnects_total", directory.reconnects)
