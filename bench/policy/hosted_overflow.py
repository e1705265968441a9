"""Overflow to a hosted provider under overload, and its cost.

Runs the conversations and the code of the E1 workload, all interactive, on four own engines at 0.7 and 1.5 times their
capacity, with and without overflow. Without batch requests there is no work that can wait, so the excess is lost
without overflow. The provider is simulated, too: twelve engines of the same kind with few requests in flight each, and
a price per token. The bills of all requests are added up by pool, as in the ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import (
    Experiment,
    Figures,
    Threshold,
    data_folder,
    headgate_scheduler,
    percent,
    run_scenario,
    seconds,
    table,
)
from bench.policy.fleet import MAIN, engines, pool
from bench.policy.overload import key_figures
from bench.sim_overload_workload import FLEETS, Overload
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import Event
from headgate.model.money import NANO_USD_PER_USD, NanoUsd, Price
from headgate.model.policy import Overflow
from headgate.model.units import MILLISECOND, Duration, Instant, PoolName, RequestId
from headgate.simulation.report.json_report import json_report

FLEET = FLEETS["rtxpro6000"]
LOADS = (0.7, 1.5)
AFTER_NS = Duration(500 * MILLISECOND)
PROVIDER_ENGINES, PROVIDER_PLACES = 12, 8
CLOUD = PoolName("cloud")
NONE, OVERFLOW = "no overflow", "overflow"
QUICK_S = 120.0
OWN_PRICE = Price(Instant(0), per_hour=NanoUsd(2 * NANO_USD_PER_USD))
CLOUD_PRICE = Price(
    Instant(0),
    input_per_1m_tokens=NanoUsd(NANO_USD_PER_USD // 5),
    cached_per_1m_tokens=NanoUsd(NANO_USD_PER_USD // 10),
    output_per_1m_tokens=NanoUsd(NANO_USD_PER_USD * 4 // 5),
)
"""Assumed prices: 2 dollars per hour of one's own engine, and 0.20, 0.10 and 0.80 dollars per million tokens."""


class BillObserver:
    """Adds up the bills and counts the requests of each pool."""

    def __init__(self) -> None:
        self.cost: dict[PoolName, int] = {MAIN: 0, CLOUD: 0}
        self.requests: dict[PoolName, int] = {MAIN: 0, CLOUD: 0}
        self._pools: dict[tuple[RequestId, int], PoolName] = {}

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del event, now
        for each in commands:
            if isinstance(each, Dispatch):
                self._pools[each.request_id, each.attempt] = each.pool
            elif isinstance(each, End):
                for bill in each.bills:
                    name = self._pools.pop((each.request_id, bill.attempt))
                    self.requests[name] += 1
                    self.cost[name] += bill.nano_usd


def run(seed: int, *, quick: bool) -> Figures:
    return {
        f"{load:g}": {what: _outcome(seed, load, what, quick=quick) for what in (NONE, OVERFLOW)}
        for load in (LOADS[-1:] if quick else LOADS)
    }


def _outcome(seed: int, load: float, what: str, *, quick: bool) -> dict[str, Any]:
    print_progress(f"  seed {seed}: load {load:g}, {what}")
    overload = Overload(
        fleet=FLEET, data=data_folder(), seed=seed, load=load, first_s=QUICK_S if quick else None, batch_share=0.0
    )
    scene = overload.scenario(headgate_scheduler, limits=True)
    own = replace(pool(MAIN, FLEET.profile), prices=(OWN_PRICE,))
    cloud = replace(pool(CLOUD, FLEET.profile), hosted=True, prices=(CLOUD_PRICE,))
    model = scene.policy.models[0]
    if what == OVERFLOW:
        model = replace(model, overflow=Overflow((CLOUD,), AFTER_NS))
    scene = replace(
        scene,
        policy=replace(scene.policy, pools=(own, cloud), models=(model,)),
        engines=scene.engines
        + engines(FLEET.profile, PROVIDER_ENGINES, pool_name=CLOUD, in_flight_max=PROVIDER_PLACES),
    )
    bills = BillObserver()
    figures = json_report(run_scenario(scene, bills))
    total = sum(bills.requests.values())
    return key_figures(figures | {"classes": figures["classes"] | {"batch": {"attainment": None}}}) | {
        "provider_share": bills.requests[CLOUD] / total,
        "provider_usd": bills.cost[CLOUD] / NANO_USD_PER_USD,
        "own_usd": bills.cost[MAIN] / NANO_USD_PER_USD,
    }


def thresholds(figures: Figures) -> list[Threshold]:
    high = figures[f"{LOADS[-1]:g}"]
    before, after = high[NONE], high[OVERFLOW]
    found = [
        Threshold(
            "increase in interactive attainment at 1.5 times the capacity",
            after["interactive"] - before["interactive"],
            least=0.01,
        ),
        Threshold("increase in code attainment at 1.5 times the capacity", after["code"] - before["code"], least=0.1),
        Threshold("cost of the provider in dollars at 1.5 times the capacity", after["provider_usd"], least=0.01),
        Threshold("cost of the provider without overflow", before["provider_usd"], most=0.0),
    ]
    if (low := figures.get(f"{LOADS[0]:g}")) is not None:
        share = low[OVERFLOW]["provider_share"]
        found.append(Threshold("share of the requests at the provider at 0.7 times the capacity", share, most=0.02))
    return found


def as_table(figures: Figures) -> str:
    rows = [(load, what, *_row(each)) for load, of in figures.items() for what, each in of.items()]
    header = ("load", "", "interactive", "code", "goodput req/s", "p99 TTFT", "at the provider")
    return table((*header, "provider", "own engines"), rows)


def _row(of: Mapping[str, Any]) -> Sequence[str]:
    return (
        percent(of["interactive"]),
        percent(of["code"]),
        f"{of['goodput']:.1f}",
        seconds(of["ttft_s_p99"]),
        percent(of["provider_share"]),
        f"{of['provider_usd']:.2f} USD",
        f"{of['own_usd']:.2f} USD",
    )


EXPERIMENT = Experiment(
    name="hosted-overflow",
    title="Overflow to a hosted provider",
    about=(
        "The conversations and the code of the E1 workload, all interactive, run on four simulated engines at 0.7 and "
        "1.5 times their capacity. With overflow, requests whose estimated wait exceeds 0.5 s go to a simulated "
        "provider: twelve engines of the same kind, each with at most 8 requests in flight. The prices are "
        "assumed: 2 dollars per hour of an own engine, and 0.20 dollars per million prompt tokens (0.10 if cached) and "
        "0.80 dollars per million output tokens at the provider. The costs are the sums of the requests' bills, which "
        "the ledger stores. Idle time of the own engines is not included."
    ),
    run=run,
    table=as_table,
    thresholds=thresholds,
    seeds=(1, 2, 3),
)
