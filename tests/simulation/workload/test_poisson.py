"""Does plain chance keep its rate and its lengths?"""

from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest

from headgate.model.units import SECOND, Duration
from headgate.simulation.workload.traffic import LogNormal, PoissonTraffic, Uniform, arrivals, span_ns

TRAFFIC = PoissonTraffic(
    rate=50.0,
    length_ns=Duration(200 * SECOND),
    prompt=LogNormal(median=1_000, p95=4_000, most=8_000),
    output=Uniform(100, 200),
    classes=(("interactive", 1.0), ("batch", 1.0)),
    tenants=(("acme", 9.0), ("zeta", 1.0)),
)


def test_requests_come_at_the_rate_and_owe_nothing_to_each_other() -> None:
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


def test_labels_come_as_often_as_their_shares() -> None:
    requests = list(arrivals([TRAFFIC], seed=1))

    assert sum(each.tenant == "zeta" for each in requests) / len(requests) == pytest.approx(0.1, abs=0.015)
    assert sum(each.service_class == "batch" for each in requests) / len(requests) == pytest.approx(0.5, abs=0.025)


def test_the_seed_decides_all() -> None:
    assert list(arrivals([TRAFFIC], seed=1)) == list(arrivals([TRAFFIC], seed=1))
    assert list(arrivals([TRAFFIC], seed=1)) != list(arrivals([TRAFFIC], seed=2))
