"""Does Prometheus learn how many endpoints are wanted, and why?"""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headgate.telemetry.scaling import PoolScaling, scaling_metrics


class Once(Collector):
    def __init__(self, *pools: PoolScaling) -> None:
        self.pools = pools

    def collect(self) -> list[Metric]:
        return list(scaling_metrics(self.pools))


def page(*pools: PoolScaling) -> list[str]:
    registry = CollectorRegistry()
    registry.register(Once(*pools))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_each_pool_has_what_is_wanted_and_what_is_asked_of_it() -> None:
    chat = PoolScaling("chat", endpoints_wanted=4, demand_ppm=2_400_000, endpoints_ready=4)
    code = PoolScaling("code", endpoints_wanted=0, demand_ppm=0, endpoints_ready=0)

    assert page(chat, code) == [
        'headgate_endpoints_wanted{pool="chat"} 4.0',
        'headgate_endpoints_wanted{pool="code"} 0.0',
        'headgate_demand_endpoints{pool="chat"} 2.4',
        'headgate_demand_endpoints{pool="code"} 0.0',
        'headgate_demand_over_capacity{pool="chat"} 0.6',
        'headgate_demand_over_capacity{pool="code"} 0.0',
    ]


def test_demand_without_an_endpoint_is_a_number_and_not_infinite() -> None:
    [line] = [line for line in page(PoolScaling("chat", 1, 500_000, 0)) if "over_capacity" in line]

    assert float(line.split()[1]) == pytest.approx(0.5)
