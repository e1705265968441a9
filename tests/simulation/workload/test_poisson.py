"""Tests for Poisson traffic: rate, lengths, labels and seed."""

from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest

from headgate.model.units import SECOND, Duration
from headgate.simulation.options import LogNormal, PoissonTraffic, Uniform
from headgate.simulation.workload.traffic import arrivals, span_ns

TRAFFIC = PoissonTraffic(
    rate=50.0,
    duration_ns=Duration(200 * SECOND),
    prompt=LogNormal(median=1_000, p95=4_000, max=8_000),
    output=Uniform(100, 200),
    classes=(("interactive", 1.0), ("batch", 1.0)),
    tenants=(("acme", 9.0), ("zeta", 1.0)),
)


def test_arrivals_form_a_poisson_process_at_the_configured_rate() -> None:
    moments = [each.at for each in arrivals([TRAFFIC], seed=1)]
    gaps = [later - sooner for sooner, later in pairwise(moments)]

    assert len(moments) == pytest.approx(10_000, rel=0.04)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1, abs=0.05)
    assert moments == sorted(moments)
    assert moments[-1] < span_ns([TRAFFIC]) == 200 * SECOND


def test_lengths_follow_their_distributions() -> None:
    requests = list(arrivals([TRAFFIC], seed=1))
    prompts, outputs = sorted(each.prompt_tokens for each in requests), [each.output_tokens for each in requests]

    assert median(prompts) == pytest.approx(1_000, rel=0.05)
    assert prompts[int(0.95 * len(prompts))] == pytest.approx(4_000, rel=0.08)
    assert prompts[-1] == 8_000
    assert prompts[0] >= 1
    assert (min(outputs), max(outputs)) == (100, 200)
    assert fmean(outputs) == pytest.approx(150, rel=0.02)


def test_labels_occur_in_proportion_to_their_weights() -> None:
    requests = list(arrivals([TRAFFIC], seed=1))

    assert sum(each.tenant == "zeta" for each in requests) / len(requests) == pytest.approx(0.1, abs=0.015)
    assert sum(each.service_class == "batch" for each in requests) / len(requests) == pytest.approx(0.5, abs=0.025)


def test_traffic_depends_only_on_the_seed() -> None:
    assert list(arrivals([TRAFFIC], seed=1)) == list(arrivals([TRAFFIC], seed=1))
    assert list(arrivals([TRAFFIC], seed=1)) != list(arrivals([TRAFFIC], seed=2))
