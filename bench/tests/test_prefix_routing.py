"""Tests for the benefit of routing by prompt prefix.

A short version of `just sim-e4`. It requires the traces in HEADGATE_DATA; if they are missing, the tests are skipped,
except in CI.
"""

import os
from dataclasses import replace
from typing import Any

import pytest

from bench.policy.prefix_routing import DECIDERS, IN_FLIGHT_MAX_OVER_MEAN, TRACES, Trace, outcome, scenario

LOAD = 0.9


def run_routing(trace: Trace, index: str) -> dict[str, Any]:
    return outcome(scenario(trace, LOAD, 1, quick=True, prefix=index != "least backlog"), DECIDERS[index])


@pytest.mark.parametrize(
    "trace",
    [pytest.param(replace(each, quick_s=each.quick_s / 3), id=each.name) for each in TRACES],
)
def test_prefix_routing_beats_least_backlog_without_herding(trace: Trace) -> None:
    if "HEADGATE_DATA" not in os.environ and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA does not name a directory with traces")

    blind, ours = run_routing(trace, "least backlog"), run_routing(trace, "approximate")

    print(blind, ours, sep="\n")
    assert ours["cached_share"] > 1.5 * blind["cached_share"]
    # This run is a third of the quick version. `just sim` checks the actual target.
    assert ours["ttft_s"]["mean"] < 0.95 * blind["ttft_s"]["mean"]
    assert ours["ttft_s"]["p90"] < blind["ttft_s"]["p90"]
    assert ours["goodput_per_s"] >= blind["goodput_per_s"]
    assert ours["in_flight_max_over_mean"] <= IN_FLIGHT_MAX_OVER_MEAN
