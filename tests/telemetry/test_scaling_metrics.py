"""Does Prometheus learn how many endpoints are wanted, and why?"""

import pytest

from headgate.telemetry.page import page
from headgate.telemetry.scaling import PoolScaling, scaling_metrics


def lines(*pools: PoolScaling) -> list[str]:
    return [line for line in page(scaling_metrics(pools)).decode().splitlines() if not line.startswith("#")]


def test_each_pool_has_what_is_wanted_and_what_is_asked_of_it() -> None:
    chat = PoolScaling("chat", endpoints_wanted=4, demand_ppm=2_400_000, endpoints_ready=4)
    code = PoolScaling("code", endpoints_wanted=0, demand_ppm=0, endpoints_ready=0)

    assert lines(chat, code) == [
        'headgate_endpoints_wanted{pool="chat"} 4.0',
        'headgate_endpoints_wanted{pool="code"} 0.0',
        'headgate_demand_endpoints{pool="chat"} 2.4',
        'headgate_demand_endpoints{pool="code"} 0.0',
        'headgate_demand_over_capacity{pool="chat"} 0.6',
        'headgate_demand_over_capacity{pool="code"} 0.0',
    ]


def test_demand_without_an_endpoint_is_a_number_and_not_infinite() -> None:
    [line] = [line for line in lines(PoolScaling("chat", 1, 500_000, 0)) if "over_capacity" in line]

    assert float(line.split()[1]) == pytest.approx(0.5)


def test_of_a_pool_that_is_not_scaled_only_what_is_asked_is_told() -> None:
    assert lines(PoolScaling("chat", None, 500_000, 2)) == [
        'headgate_demand_endpoints{pool="chat"} 0.5',
        'headgate_demand_over_capacity{pool="chat"} 0.25',
    ]
