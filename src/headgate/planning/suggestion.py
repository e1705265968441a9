"""Configuration and alert rules that follow from a plan."""

from collections.abc import Iterator
from typing import Final

from headgate.model.money import NANO_USD_PER_USD, price_at
from headgate.model.policy import ServiceClass
from headgate.model.units import MILLISECOND, MINUTE, SECOND, Instant, PoolName
from headgate.planning.cases import ALERT_MEAN_NS
from headgate.planning.plan import CapacityPlan

_ALERT_MEAN: Final = f"{ALERT_MEAN_NS // MINUTE}m"


def suggested_configuration(plan: CapacityPlan) -> str:
    """Returns settings for the gateway's configuration file: pool sizes, prices and the classes' objectives."""
    return "\n".join([*_pools(plan), *_classes(plan), ""])


def _pools(plan: CapacityPlan) -> Iterator[str]:
    yield "pools:"
    for pool, count in plan.endpoints:
        most = max(dict(each.endpoints)[pool] for each in plan.curve)
        start = f"{plan.given.cold_starts_ns[0] // SECOND}s"
        yield f"  {pool}:"
        yield f"    in_flight_max: {plan.given.in_flight_max[pool]}"
        yield from _price(plan, pool)
        yield f"    scaling: {{endpoints_min: {count}, endpoints_max: {most}, cold_start: {start}}}"


def _price(plan: CapacityPlan, pool: PoolName) -> Iterator[str]:
    [prices] = [each.prices for each in plan.given.pools if each.name == pool]
    price = price_at(prices, Instant(0))
    if price is not None and price.per_hour:
        yield f"    prices: {{per_hour: {price.per_hour / NANO_USD_PER_USD:.9g}}}"


def _classes(plan: CapacityPlan) -> Iterator[str]:
    yield "classes:"
    for each in plan.given.classes:
        if each.name in plan.given.objectives:
            yield f"  {each.name}: {{{', '.join(_class_settings(plan, each))}}}"


def _class_settings(plan: CapacityPlan, service_class: ServiceClass) -> Iterator[str]:
    if service_class.ttft_ns is not None:
        yield f"ttft: {service_class.ttft_ns // MILLISECOND}ms"
    if service_class.tpot_ns is not None:
        yield f"tpot: {service_class.tpot_ns // MILLISECOND}ms"
    if service_class.ttft_ns is not None:
        # An objective of 100 % leaves no error budget, so the configuration does not accept it.
        percent = min(100 * plan.given.objectives[service_class.name], 99.99)
        yield f"objectives: {{ttft_percent: {percent:.4g}}}"


def traffic_alert_per_s(plan: CapacityPlan) -> float:
    """Returns the workload's highest 15-minute mean at the next step, or at the end of the curve.

    At this rate, traffic with the workload's peaks begins to use up the headroom, so there is time to add endpoints.
    """
    return plan.given.workload.highest_mean_per_s * (plan.next_step or plan.curve[-1].traffic)


def in_flight_alert(plan: CapacityPlan, pool: PoolName) -> int:
    """Returns the requests in flight that use up the headroom."""
    return round(plan.in_flight_p95[pool] * (1 + plan.given.headroom))


def alert_rules(plan: CapacityPlan) -> str:
    """Returns Prometheus rules for traffic above the next step, and for a pool that has used up its headroom."""
    requests = f'headgate_requests_total{{class=~"{"|".join(plan.given.workload.classes)}"}}[{_ALERT_MEAN}]'
    lines = [
        "groups:",
        "  - name: headgate-plan",
        "    rules:",
        "      - alert: HeadgateTrafficAbovePlan",
        f"        expr: sum(rate({requests})) > {traffic_alert_per_s(plan):.4g}",
        "        annotations: {summary: The traffic uses the headroom of its plan. Add endpoints.}",
    ]
    for pool, _ in plan.endpoints:
        lines += [
            "      - alert: HeadgateConcurrencyAbovePlan",
            f'        expr: sum(headgate_attempts_in_flight{{pool="{pool}"}}) > {in_flight_alert(plan, pool)}',
            "        for: 15m",
            f"        annotations: {{summary: Pool {pool} has no headroom left. Add endpoints.}}",
        ]
    return "\n".join([*lines, ""])
