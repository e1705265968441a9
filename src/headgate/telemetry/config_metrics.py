"""Metrics for this process's configuration."""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, unlabelled


@dataclass(frozen=True, slots=True)
class ConfigStats:
    applied_at_s: float
    """Unix time at which the configuration in force was applied."""
    reload_successful: bool
    """Whether the files were valid when they were last read."""
    restart_needed: int
    """Number of changed settings that take effect only after a restart."""


def config_metrics(config: ConfigStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_config_applied_timestamp_seconds", config.applied_at_s)
    yield unlabelled("headgate_config_reload_successful", config.reload_successful)
    yield unlabelled("headgate_config_restart_needed", config.restart_needed)
