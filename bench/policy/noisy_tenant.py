"""E2: measures the effect of one tenant's burst on the other tenants.

The largest client of a trace sends ten times its usual traffic. The other tenants' results are compared with those of a
run without that client. The two traces have real clients: the LMSYS arena and ServeGen. A third part has three tenants
with different weights and request sizes, each demanding more than its share.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
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
    table,
)
from bench.policy.fairness_observer import FairnessObserver
from bench.policy.fleet import MAIN, engines, pool, speed_of
from headgate.core.commands import Command
from headgate.core.cost import cost_ns
from headgate.core.events import Event
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.policy import Model, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import (
    MILLISECOND,
    MINUTE,
    SECOND,
    ClassName,
    Duration,
    Instant,
    ModelName,
    RequestId,
    TenantId,
)
from headgate.simulation.baselines.no_queue import RoundRobin
from headgate.simulation.options import CallerBehaviour, RateTraffic, ServeGenTraffic, TraceTraffic, Traffic, Uniform
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.traffic import arrivals, span_ns

INTERACTIVE = ClassName("interactive")
CALLERS = {
    INTERACTIVE: CallerBehaviour(
        ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), client_timeout_ns=Duration(10 * SECOND)
    )
}
PATIENT = {INTERACTIVE: CallerBehaviour(client_timeout_ns=Duration(10 * MINUTE))}
TIMES, SPREAD_S = 10, 5.0
"""Multiplier for the noisy tenant's traffic, and the interval around each request over which the copies are spread."""
ARRIVALS_MIN = 20
"""Minimum number of requests for a tenant's attainment to count. With fewer requests, the share is not meaningful."""
POINTS_LOST_MAX = 0.05
WEIGHTS = {TenantId("light"): 100, TenantId("middle"): 200, TenantId("heavy"): 400}
_MODEL = ModelName("m")


def run(seed: int, *, quick: bool) -> Figures:
    traces = data_folder() / "traces"
    shares = (("interactive", 1.0),)
    passes = 1 if quick else 3
    lmsys = tuple(
        TraceTraffic(
            path=traces / "lmsys_arena_27clients.csv",
            classes=shares,
            speed_up=6.0,
            shift_ns=Duration(each * 600 * SECOND),
        )
        for each in range(passes)
    )
    servegen = ServeGenTraffic(
        rates=traces / "servegen_m-small_rates.csv.gz",
        lengths=traces / "servegen_m-small_lengths.jsonl.gz",
        classes=shares,
        start_ns=Duration(12 * 60 * MINUTE),
        duration_ns=Duration((60 if quick else 240) * SECOND),
        keep=0.08,
    )
    return {
        "lmsys": burst(lmsys, seed),
        "servegen": burst((servegen,), seed),
        "weights": weighted(seed, Duration((90 if quick else 240) * SECOND)),
    }


def burst(traffic: Sequence[Traffic], seed: int) -> dict[str, Any]:
    alone = list(arrivals(traffic, seed=seed))
    noisy = Counter(each.tenant for each in alone).most_common(1)[0][0]
    others = [each for each in alone if each.tenant != noisy]
    together = sorted(
        [*others, *_with_burst([each for each in alone if each.tenant == noisy], seed)], key=lambda each: each.at
    )
    span = span_ns(traffic)

    def against(
        decider: Callable[[], Decider], requests: Sequence[Arrival], watch: FairnessObserver | None
    ) -> SimulationReport:
        print_progress(f"  seed {seed}: {len(requests)} requests of {len({each.tenant for each in requests})} tenants")
        scenario = _scenario(requests, span, seed, decider=decider, callers=CALLERS)
        return run_scenario(scenario, *((watch,) if watch is not None else ()))

    watch = FairnessObserver(_costs(together), {})
    isolated, shared = against(headgate_scheduler, others, None), against(headgate_scheduler, together, watch)
    turns = against(RoundRobin, together, None)
    watch.finish()
    return {
        "tenants": len(isolated.tenants),
        "requests": len(others),
        "requests_of_noisy": len(together) - len(others),
        "attainment_alone": isolated.total.tally.attainment,
        "attainment_of_others": _attainment(shared, noisy),
        "attainment_of_noisy": shared.tenants[noisy].tally.attainment,
        "attainment_of_others_by_round_robin": _attainment(turns, noisy),
        "points_lost_by_worst": _most_lost(isolated, shared, noisy),
        "points_lost_by_worst_by_round_robin": _most_lost(isolated, turns, noisy),
        "jain_of_others": _jain(shared, noisy),
        "apart_over_bound": round(watch.worst.ratio, 4),
        "apart_s": round(watch.worst.grew_s, 3),
    }


def weighted(seed: int, length: Duration) -> dict[str, Any]:
    """Engine time received by three tenants with different weights, each demanding more than its share."""
    sizes = {
        "light": (Uniform(100, 300), Uniform(50, 150), 60.0),
        "middle": (Uniform(1_000, 3_000), Uniform(50, 150), 30.0),
        "heavy": (Uniform(100, 300), Uniform(300, 900), 30.0),
    }
    traffic = tuple(
        RateTraffic(
            rate=rate,
            duration_ns=length,
            prompt=prompt,
            output=output,
            classes=(("interactive", 1.0),),
            tenants=((name, 1.0),),
        )
        for name, (prompt, output, rate) in sizes.items()
    )
    requests = list(arrivals(traffic, seed=seed))
    watch = FairnessObserver(_costs(requests), WEIGHTS)
    # Without deadlines or cancellations, all three tenants have queued requests until the last arrival.
    scenario = _scenario(requests, length, seed, decider=headgate_scheduler, callers=PATIENT)
    between = _ServedBetween(watch, Instant(length // 3), Instant(length))
    print_progress(f"  seed {seed}: three weights, {len(requests)} requests")
    run_scenario(scenario, between)
    watch.finish()
    served = {tenant: between.last_s[tenant] - between.first_s[tenant] for tenant in WEIGHTS}
    per_weight = {tenant: served[tenant] / WEIGHTS[tenant] for tenant in WEIGHTS}
    return {
        "served_s": {tenant: round(each, 2) for tenant, each in served.items()},
        "most_over_least_per_weight": round(max(per_weight.values()) / min(per_weight.values()), 4),
        "apart_over_bound": round(watch.worst.ratio, 4),
        "apart_s": round(watch.worst.grew_s, 3),
    }


class _ServedBetween:
    """Observer that records the engine time served up to each of two instants."""

    def __init__(self, watch: FairnessObserver, first: Instant, last: Instant) -> None:
        self._watch, self._first, self._last = watch, first, last
        self.first_s: dict[TenantId, float] = {}
        self.last_s: dict[TenantId, float] = {}

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self._watch.observe(event, commands, now)
        if now <= self._first:
            self.first_s = self._watch.served_s
        if now <= self._last:
            self.last_s = self._watch.served_s


def _with_burst(requests: Sequence[Arrival], seed: int) -> list[Arrival]:
    """The original requests, plus nine copies of each at random times around the original."""
    chance = Random(f"{seed} noisy")
    copies = [
        Arrival(
            Instant(max(0, each.at + round(chance.uniform(-SPREAD_S, SPREAD_S) * SECOND))),
            each.prompt_tokens,
            each.output_tokens,
            each.service_class,
            each.tenant,
        )
        for each in requests
        for _ in range(TIMES - 1)
    ]
    return [*requests, *copies]


def _scenario(
    requests: Sequence[Arrival],
    span: Duration,
    seed: int,
    *,
    decider: Callable[[], Decider],
    callers: Mapping[ClassName, CallerBehaviour],
) -> Scenario:
    wants = callers[INTERACTIVE]
    assert wants.client_timeout_ns is not None
    service_class = ServiceClass(
        INTERACTIVE,
        0,
        queue_wait_ns_max=wants.client_timeout_ns,
        ttft_ns=wants.ttft_ns,
        tpot_ns=wants.tpot_ns,
    )
    tenants = sorted({each.tenant for each in requests})
    return Scenario(
        title="one tenant bursts",
        seed=seed,
        policy=Policy(
            classes=(service_class,),
            tenants=tuple(Tenant(name, weight=WEIGHTS.get(name, 100)) for name in tenants),
            pools=(pool(MAIN, RTXPRO6000_LLAMA_8B),),
            models=(Model(_MODEL, (MAIN,)),),
        ),
        model=_MODEL,
        engines=engines(RTXPRO6000_LLAMA_8B, 1),
        callers=callers,
        arrivals=lambda: iter(requests),
        span_ns=span,
        decider=decider,
    )


def _costs(requests: Sequence[Arrival]) -> dict[RequestId, int]:
    """Actual cost of each request, in nanoseconds, keyed by the request ID that the virtual host assigns."""
    speed = speed_of(RTXPRO6000_LLAMA_8B)
    return {
        RequestId(f"r{number}"): cost_ns(speed, each.prompt_tokens, each.output_tokens)
        for number, each in enumerate(requests)
    }


def _attainment(report: SimulationReport, without: TenantId) -> float:
    tallies = [group.tally for name, group in report.tenants.items() if name != without]
    return round(sum(each.good for each in tallies) / sum(each.arrivals for each in tallies), 6)


def _most_lost(isolated: SimulationReport, shared: SimulationReport, noisy: TenantId) -> float:
    lost = [
        (group.tally.attainment or 0.0) - (shared.tenants[name].tally.attainment or 0.0)
        for name, group in isolated.tenants.items()
        if name != noisy and group.tally.arrivals >= ARRIVALS_MIN
    ]
    return round(max(lost), 6)


def _jain(report: SimulationReport, without: TenantId) -> float:
    shares = [group.tally.attainment or 0.0 for name, group in report.tenants.items() if name != without]
    return round(sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares)), 6)


def bars(figures: Figures) -> list[Threshold]:
    found = [
        Threshold(
            f"{name}: attainment lost by the worst-affected tenant",
            figures[name]["points_lost_by_worst"],
            most=POINTS_LOST_MAX,
        )
        for name in ("lmsys", "servegen")
    ]
    found += [
        Threshold(
            f"{name}: largest difference between two tenants relative to the bound", of["apart_over_bound"], most=1.0
        )
        for name, of in figures.items()
    ]
    ratio = figures["weights"]["most_over_least_per_weight"]
    return [*found, Threshold("weights: highest engine time per weight relative to the lowest", ratio, most=1.15)]


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            round(of["tenants"]),
            f"{of['requests']:.0f} + {of['requests_of_noisy']:.0f}",
            percent(of["attainment_alone"]),
            percent(of["attainment_of_others"]),
            percent(of["attainment_of_others_by_round_robin"]),
            percent(of["attainment_of_noisy"]),
            f"{100 * of['points_lost_by_worst']:.1f}",
            f"{of['jain_of_others']:.4f}",
            f"{of['apart_s']:.2f} s ({of['apart_over_bound']:.2f})",
        )
        for name, of in figures.items()
        if name != "weights"
    ]
    header = (
        "trace",
        "other tenants",
        "requests, others + noisy",
        "others alone",
        "others with noisy",
        "others, round-robin",
        "noisy",
        "maximum points lost",
        "Jain",
        "largest difference (ratio to bound)",
    )
    of = figures["weights"]
    served = ", ".join(f"{tenant} {each:.1f} s" for tenant, each in of["served_s"].items())
    return (
        f"{table(header, rows)}\n\nIn another run, three tenants with weights 1 (light), 2 (middle) and 4 (heavy) "
        f"always have queued requests. They receive the following engine times: {served}. The highest engine time per "
        f"weight is {of['most_over_least_per_weight']:.3f} times the lowest. The largest difference between two "
        f"tenants is {of['apart_s']:.2f} s, or {of['apart_over_bound']:.2f} times the bound."
    )


EXPERIMENT = Experiment(
    name="noisy-tenant",
    title="E2: burst from one tenant",
    about=(
        "The largest client in a trace sends ten times its usual traffic. The experiment compares the other tenants' "
        "results with those of a run without that client. The LMSYS arena trace runs at six times its recorded speed "
        "and the ServeGen m-small trace at 8 % of its rates, each on one RTX PRO 6000 engine. The TTFT target is 2 s "
        "and the TPOT target is 100 ms. The maximum number of points lost covers only tenants with at least 20 "
        "requests. `bench/policy/fairness_observer.py` defines the bound."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
)
