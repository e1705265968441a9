"""Metrics for each pool's desired endpoints, demand and endpoint starts."""

import pytest

from headgate.core.autoscaling.starts import StartPhase
from headgate.model.units import SECOND, Duration
from headgate.telemetry.exposition import exposition_text
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.scaling_metrics import PoolScaling, scaling_metrics


def lines(*pools: PoolScaling) -> list[str]:
    return [line for line in exposition_text(scaling_metrics(pools)).decode().splitlines() if not line.startswith("#")]


def lines_of(what: str, *pools: PoolScaling) -> list[str]:
    return [line for line in lines(*pools) if line.startswith(what)]


def test_each_pool_reports_desired_endpoints_and_demand() -> None:
    chat = PoolScaling("chat", endpoints_desired=4, demand_ppm=2_400_000, endpoints_ready=4)
    code = PoolScaling("code", endpoints_desired=0, demand_ppm=0, endpoints_ready=0)

    assert lines(chat, code)[:6] == [
        'headgate_endpoints_desired{pool="chat"} 4.0',
        'headgate_endpoints_desired{pool="code"} 0.0',
        'headgate_demand_endpoints{pool="chat"} 2.4',
        'headgate_demand_endpoints{pool="code"} 0.0',
        'headgate_demand_to_capacity_ratio{pool="chat"} 0.6',
        'headgate_demand_to_capacity_ratio{pool="code"} 0.0',
    ]


def test_demand_to_capacity_ratio_is_finite_without_endpoints() -> None:
    [line] = [line for line in lines(PoolScaling("chat", 1, 500_000, 0)) if "demand_to_capacity" in line]

    assert float(line.split()[1]) == pytest.approx(0.5)


def test_unscaled_pool_has_no_desired_endpoints_and_no_lead_time() -> None:
    assert {line.partition("{")[0] for line in lines(PoolScaling("chat", None, 500_000, 2))} == {
        "headgate_demand_endpoints",
        "headgate_demand_to_capacity_ratio",
        "headgate_endpoints_starting",
        "headgate_endpoint_start_age_seconds",
    }


def test_starts_in_progress_are_counted_by_phase_and_reported_with_the_oldest_age() -> None:
    cold_starts = Histogram()
    cold_starts.add(90 * SECOND)
    chat = PoolScaling(
        "chat",
        4,
        0,
        2,
        starting={StartPhase.NOT_SCHEDULED: 2, StartPhase.LOADING: 1},
        oldest_start_age_ns=Duration(45 * SECOND),
        lead_time_ns=Duration(130 * SECOND),
        cold_starts=cold_starts,
        correction_ppm=1_250_000,
    )

    assert lines_of("headgate_endpoints_starting", chat) == [
        'headgate_endpoints_starting{pool="chat",phase="not_scheduled"} 2.0',
        'headgate_endpoints_starting{pool="chat",phase="starting"} 0.0',
        'headgate_endpoints_starting{pool="chat",phase="loading"} 1.0',
        'headgate_endpoints_starting{pool="chat",phase="warming"} 0.0',
    ]
    [age] = lines_of("headgate_endpoint_start_age_seconds", chat)
    assert age.endswith(" 45.0")
    assert lines_of("headgate_scaling_correction", chat) == ['headgate_scaling_correction_ratio{pool="chat"} 1.25']
    assert lines_of("headgate_scaling_lead_time_seconds", chat) == [
        'headgate_scaling_lead_time_seconds{pool="chat"} 130.0'
    ]
    assert lines_of("headgate_cold_start_seconds_sum", chat) == ['headgate_cold_start_seconds_sum{pool="chat"} 90.0']
