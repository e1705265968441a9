"""E5: measures recovery from a retry storm.

All four engines fail for 30 s at 80 % load. Callers retry like the official client, and some of them retry more often.
The experiment measures attempts per request and the time until attainment is back to its previous level.
"""

from collections.abc import Callable
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, headgate_scheduler, percent, table
from bench.policy.fleet import MAIN, engines, pool
from bench.policy.recovery import RecoveryReport
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.policy import Model, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, EndpointId, Instant, ModelName, TenantId
from headgate.simulation.baselines.no_queue import LeastOutstanding
from headgate.simulation.options import CallerBehaviour, Crash, LogNormal, RateTraffic
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.traffic import arrivals

OUTAGES_S = {"30 s": 30.0, "90 s": 90.0}
BEFORE_S, AFTER_S = 60.0, 120.0
SETTLED_NS = Duration(30 * SECOND)
"""Time after the outage by which attainment should be back to normal."""
RATE = 30.0
RETRIES = {"official client": 2, "persistent client": 8}
AMPLIFICATION_MAX, RECOVERY_MAX = 1.2, 2.0
_MODEL = ModelName("m")


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for outage, length_s in list(OUTAGES_S.items())[: 1 if quick else None]:
        for callers, retries in RETRIES.items():
            figures[f"{outage}, {callers}"] = outcome(seed, length_s, retries, headgate_scheduler)
        if not quick:
            figures[f"{outage}, {callers}, least-outstanding"] = outcome(seed, length_s, retries, LeastOutstanding)
    return figures


def outcome(seed: int, outage_s: float, retries: int, decider: Callable[[], Decider]) -> dict[str, Any]:
    print_progress(f"  seed {seed}: {outage_s:g} s without engines, {retries} retries")
    scene = scenario(seed, outage_s, retries, decider)
    report = RecoveryReport(scene)
    VirtualHost(scene, report).run()
    total = report.total.tally
    lost_at, outage = Instant(round(BEFORE_S * SECOND)), Duration(round(outage_s * SECOND))
    before, recovery_s = report.recovery(lost_at, outage)
    return {
        "amplification": total.amplification,
        "callers_retries": total.retries,
        "attainment_before": before,
        "attainment": total.attainment,
        "recovery_s": recovery_s,
        "recovery_over_outage": round(recovery_s / outage_s, 4),
        "attainment_after": report.share_after(Instant(lost_at + outage + SETTLED_NS)),
    }


def scenario(seed: int, outage_s: float, retries: int, decider: Callable[[], Decider]) -> Scenario:
    callers = {
        ClassName("interactive"): CallerBehaviour(
            ttft_ns=Duration(2 * SECOND),
            tpot_ns=Duration(100 * MILLISECOND),
            client_timeout_ns=Duration(30 * SECOND),
            retries=retries,
        ),
        ClassName("batch"): CallerBehaviour(
            ttft_ns=Duration(60 * SECOND), client_timeout_ns=Duration(300 * SECOND), retries=retries
        ),
    }
    span = Duration(round((BEFORE_S + outage_s + AFTER_S) * SECOND))
    tenants = (("acme", 4.0), ("globex", 2.0), ("initech", 1.0))
    traffic = RateTraffic(
        rate=RATE,
        duration_ns=span,
        prompt=LogNormal(median=1_000, p95=4_000, max=8_000),
        output=LogNormal(median=130, p95=450, max=1_000),
        classes=(("interactive", 0.7), ("batch", 0.3)),
        tenants=tenants,
    )
    fleet = engines(RTXPRO6000_LLAMA_8B, 4)
    lost_at, back_after = Instant(round(BEFORE_S * SECOND)), Duration(round(outage_s * SECOND))
    return Scenario(
        title="retry storm",
        seed=seed,
        policy=Policy(
            classes=tuple(
                ServiceClass(
                    name,
                    band,
                    queue_wait_ns_max=each.client_timeout_ns or Duration(0),
                    ttft_ns=each.ttft_ns,
                    tpot_ns=each.tpot_ns,
                    min_share_percent=5 * band,
                )
                for band, (name, each) in enumerate(callers.items())
            ),
            tenants=tuple(Tenant(TenantId(name)) for name, _ in tenants),
            pools=(pool(MAIN, RTXPRO6000_LLAMA_8B),),
            models=(Model(_MODEL, (MAIN,)),),
        ),
        model=_MODEL,
        engines=fleet,
        callers=callers,
        arrivals=lambda: arrivals((traffic,), seed=seed),
        span_ns=span,
        faults=tuple(Crash(EndpointId(each.id), lost_at, back_after) for each in fleet),
        decider=decider,
    )


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for name, of in figures.items():
        if "least-outstanding" not in name:
            found += [
                Threshold(f"{name}: number of attempts per request", of["amplification"], most=AMPLIFICATION_MAX),
                Threshold(
                    f"{name}: recovery time relative to the outage duration",
                    of["recovery_over_outage"],
                    most=RECOVERY_MAX,
                ),
            ]
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            f"{of['amplification']:.3f}",
            f"{of['callers_retries']:.0f}",
            percent(of["attainment_before"]),
            f"{of['recovery_s']:.0f} s",
            f"{of['recovery_over_outage']:.2f}",
            percent(of["attainment_after"]),
            percent(of["attainment"]),
        )
        for name, of in figures.items()
    ]
    header = (
        "outage, callers",
        "attempts per request",
        "caller retries",
        "attainment before",
        "recovery time",
        "recovery time / outage",
        "attainment after recovery",
        "total attainment",
    )
    return table(header, rows)


EXPERIMENT = Experiment(
    name="retry-storm",
    title="E5: retry storm",
    about=(
        "Four RTX PRO 6000 engines run at 80 % load, and all of them go down at 60 s. The official client retries "
        "twice and honours `Retry-After`, and the persistent client retries eight times. Attempts per request is the "
        "number of attempts sent to engines divided by the number of distinct requests. Recovery time is the time from "
        "when the engines return until attainment, measured by arrival time, reaches 95 % of its previous level."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
)
