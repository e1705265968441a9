"""Metrics for setting trials on this gateway."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, family, unlabelled


@dataclass(frozen=True, slots=True)
class TrialStats:
    running: bool
    has_new_value: bool
    """Whether the present block has the new value."""
    results: Mapping[str, int]
    """Number of trials that this process has ended, by result."""


def trial_metrics(trials: TrialStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_setting_trial_running", trials.running)
    yield unlabelled("headgate_setting_trial_new_value", trials.has_new_value)
    results = family("headgate_setting_trials_total")
    for result, count in trials.results.items():
        results.add((result,), count)
    yield results
