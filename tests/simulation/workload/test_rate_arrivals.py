"""Tests for traffic at a rate: arrival process, changes of the rate, lengths, labels and seed."""

from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

import pytest

from headgate.model.units import SECOND, Duration
from headgate.simulation.options import DailyPeak, LogNormal, Ramp, RateTraffic, Spike, Uniform
from headgate.simulation.workload.traffic import arrivals, span_ns

TRAFFIC = RateTraffic(
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


def changed(**changes: Any) -> RateTraffic:
    return replace(TRAFFIC, **changes)


def moments_s(traffic: RateTraffic) -> list[float]:
    return [each.at / SECOND for each in arrivals([traffic], seed=1)]


def requests_between(traffic: RateTraffic, start_s: float, end_s: float) -> int:
    return sum(start_s <= each < end_s for each in moments_s(traffic))


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
def test_burstiness_is_the_variation_of_the_gaps(burstiness: float) -> None:
    moments = moments_s(changed(burstiness=burstiness))
    gaps = [later - sooner for sooner, later in pairwise(moments)]

    assert len(moments) == pytest.approx(10_000, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness, rel=0.05, abs=0.01)


def test_ramp_changes_the_rate_linearly_and_keeps_it() -> None:
    ramp = Ramp(to=150.0, at_ns=Duration(50 * SECOND), duration_ns=Duration(100 * SECOND))
    traffic = changed(ramp=ramp, burstiness=0.0)

    assert requests_between(traffic, 0, 50) == pytest.approx(50 * 50, abs=2)
    assert requests_between(traffic, 50, 100) == pytest.approx(50 * 75, abs=2)
    assert requests_between(traffic, 100, 150) == pytest.approx(50 * 125, abs=2)
    assert requests_between(traffic, 150, 200) == pytest.approx(50 * 150, abs=2)


def test_spike_multiplies_the_rate_for_its_duration() -> None:
    traffic = changed(spikes=(Spike(factor=5.0, at_ns=Duration(60 * SECOND), duration_ns=Duration(10 * SECOND)),))

    assert requests_between(traffic, 60, 70) == pytest.approx(2_500, rel=0.1)
    assert requests_between(traffic, 50, 60) == pytest.approx(500, rel=0.15)
    assert requests_between(traffic, 70, 80) == pytest.approx(500, rel=0.15)


def test_day_has_its_share_of_requests_in_the_peak_and_the_same_mean() -> None:
    peak = DailyPeak(
        share=0.4, at_ns=Duration(40 * SECOND), duration_ns=Duration(20 * SECOND), day_ns=Duration(100 * SECOND)
    )
    traffic = changed(day=peak, burstiness=0.0)

    assert [requests_between(traffic, start, start + 20) for start in (40, 140)] == pytest.approx([2_000] * 2, abs=2)
    assert requests_between(traffic, 0, 200) == pytest.approx(10_000, abs=2)


def test_no_request_arrives_outside_a_peak_with_all_requests() -> None:
    second = Duration(SECOND)
    traffic = changed(day=DailyPeak(share=1.0, at_ns=second, duration_ns=second, day_ns=Duration(10 * SECOND)))

    assert {int(each) % 10 for each in moments_s(traffic)} == {1}


def test_ramp_and_spike_multiply() -> None:
    second = Duration(SECOND)
    traffic = changed(
        ramp=Ramp(to=100.0, at_ns=Duration(0), duration_ns=second),
        spikes=(Spike(factor=3.0, at_ns=Duration(100 * SECOND), duration_ns=Duration(10 * SECOND)),),
        burstiness=0.0,
    )

    assert requests_between(traffic, 100, 110) == pytest.approx(3_000, abs=2)
