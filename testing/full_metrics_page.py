"""A metrics page on which each of a gateway's metrics has a sample."""

from collections.abc import Iterator
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from headgate.core.events import EndpointJoined, PolicyChanged
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.routes import ModelRoute, RouteMirror
from headgate.model.stage import Stage
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration
from headgate.ports.engine import Telemetry
from headgate.ports.fleet import Phase
from headgate.ports.identity import IssuerStats
from headgate.telemetry.cell_metrics import CellStats
from headgate.telemetry.config_metrics import ConfigStats, config_metrics
from headgate.telemetry.directory_metrics import DirectoryStats
from headgate.telemetry.engine_metrics import EngineReadings
from headgate.telemetry.exposition import MetricFamily
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.identity_metrics import IdentityStats, identity_metrics
from headgate.telemetry.ledger_metrics import LedgerStats
from headgate.telemetry.loop_watchdog import LoopWatchdog, loop_iteration_metrics
from headgate.telemetry.meters import Meters
from headgate.telemetry.options import Objectives
from headgate.telemetry.process_metrics import ProcessStats
from headgate.telemetry.prometheus import OptionalMetrics, render
from headgate.telemetry.records.stats import RecordsStats, records_metrics
from headgate.telemetry.scaling_metrics import PoolScaling
from headgate.telemetry.stages.stage_budget import ClassStageBudget
from headgate.telemetry.stages.stage_meters import StageMeters, stage_metrics
from headgate.telemetry.tls_metrics import ListenerTlsStats, tls_metrics
from headgate.telemetry.traces.stats import DropReason, KeepReason, TraceStats, trace_metrics
from headgate.telemetry.trial_metrics import TrialStats, trial_metrics

CELL = CellStats(
    mode="following",
    is_leader=True,
    epoch=1,
    share_divisor=2,
    members=2,
    members_absent=0,
    unacknowledged_messages=0,
    store_up=True,
    store_round_trip_s=0.001,
    store_reconnects=0,
    store_timeouts=0,
    entries_skipped=0,
    share_leases=1,
    share_renewal_age_s=1.5,
)
LEDGER = LedgerStats(
    database_up=True,
    rows_written=1,
    rows_waiting=0,
    spool_bytes=0,
    oldest_row_age_s=0.0,
    rows_lost=0,
    rows_rejected=0,
    open_requests=0,
    unjournaled_attempts=0,
)
GPU = {"gpu_utilisation": 0.5, "gpu_memory_used_bytes": 1.0, "gpu_memory_total_bytes": 2.0}
TELEMETRY = Telemetry(1, 0, 0.5, 0, extra={"prefix_queries": 2.0, "prefix_hits": 1.0, **GPU})


def full_metrics_page() -> str:
    beside = OptionalMetrics(
        scaling=[
            PoolScaling(
                "small", 1, 0, 1, lead_time_ns=Duration(SECOND), cold_starts=Histogram(), correction_ppm=1_000_000
            )
        ],
        cell=CELL,
        ledger=LEDGER,
        directory=DirectoryStats(fresh=True, age_s=0.1, tenants=1, keys=1, reconnects=0),
        process=ProcessStats(cpu_s=1.0, resident_bytes=1, scheduler_busy_s=0.1),
        verdicts=(),
        extra_families=_more(),
    )
    signals = EngineReadings({("small/a", "running"): False}, {"small/a": 1.0}, {"small/a": TELEMETRY})
    adapters = (("lora", 1),)
    endpoint = EndpointSummary("small/a", "small", EndpointState.READY, False, 1, in_flight_max=1, adapters=adapters)
    waiting = {("chat", "acme"): 1}
    summary = Summary("h", queued={"chat": 1}, requests=0, endpoints=(endpoint,), queued_tenants=waiting)
    page, _ = render(_meters(), Histogram(), summary, {"tasks": 1}, signals, optional=beside)
    return page.decode()


@cache
def metrics_with_samples() -> dict[str, tuple[str, set[str]]]:
    """Type and label names of each metric that has samples, by metric name."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(full_metrics_page())
        if family.samples
    }


def _meters() -> Meters:
    meters = Meters()
    meters.set_objectives({"chat": Objectives(990_000, 1, 990_000, 999_000, 1_000_000)})
    patient, empty = ServiceClass("chat", 0, cold_start_wait_ns_max=1, ttft_ns=1), Pool("small", hold_max=1)
    routed = Model("chat", ("small",), routes=(ModelRoute("small", ("small",), mirror=RouteMirror(("small",))),))
    policy = Policy(classes=(patient,), pools=(empty,), models=(routed,), tenants=(Tenant("acme"),))
    meters.observe(PolicyChanged(policy, "h"), [], now=0)
    meters.observe(EndpointJoined(Endpoint("small/a", "small", 1)), [], now=0)
    meters.count_endpoint_start("small", dict.fromkeys(Phase, 1))
    return meters


def _more() -> Iterator[MetricFamily]:
    stages = StageMeters()
    stages.set_classes(["chat"], {"chat": ClassStageBudget(stages=dict.fromkeys(Stage, 1), ttft_ns=1, duration_ns=1)})
    yield loop_iteration_metrics(LoopWatchdog(lambda _: None))
    yield from stage_metrics(stages)
    yield from trial_metrics(TrialStats(running=True, has_new_value=False, results={"improved": 1}))
    yield from config_metrics(ConfigStats(1.0, reload_successful=True, restart_needed=0, keys_verified={"5f1d": 1}))
    yield from records_metrics(RecordsStats(1, 0, 0, 1, 1.0))
    yield from tls_metrics([ListenerTlsStats("listen", 1.0, reload_failed=False, handshake_failures={"invalid": 0})])
    yield from identity_metrics(IdentityStats([(IssuerStats("corp", 1, 1.0, 0), 1)], {"expired": 0}))
    yield from trace_metrics(TraceStats(dict.fromkeys(KeepReason, 0), dict.fromkeys(DropReason, 0), 0, 0, 0))
