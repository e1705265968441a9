"""Metrics for this process's configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, family, unlabelled


@dataclass(frozen=True, slots=True)
class ConfigStats:
    applied_at_s: float
    """Unix time at which the configuration in force was applied."""
    reload_successful: bool
    """Whether the files were valid when they were last read."""
    restart_needed: int
    """Number of changed settings that take effect only after a restart."""
    keys_verified: Mapping[str, int]
    """Number of verified keys by fingerprint of the key secret."""


def config_metrics(config: ConfigStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_config_applied_timestamp_seconds", config.applied_at_s)
    yield unlabelled("headgate_config_reload_successful", config.reload_successful)
    yield unlabelled("headgate_config_restart_needed", config.restart_needed)
    verified = family("headgate_keys_verified_total")
    for secret, count in config.keys_verified.items():
        verified.add((secret,), count)
    yield verified
