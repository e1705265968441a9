"""What does a gateway tell Prometheus that has something of everything?"""

from collections.abc import Iterator
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from headgate.core.events import EndpointJoined, PolicyChanged
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.policy import Policy, Pool, ServiceClass
from headgate.model.stage import Stage
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration
from headgate.ports.engine import Telemetry
from headgate.ports.fleet import Phase
from headgate.telemetry.cell import CellFigures
from headgate.telemetry.directory import DirectoryFigures
from headgate.telemetry.engines import EngineSignals
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.ledger import LedgerFigures
from headgate.telemetry.loop_turns import TurnWatch, turn_metrics
from headgate.telemetry.meters import Meters
from headgate.telemetry.options import Objectives
from headgate.telemetry.page import Family
from headgate.telemetry.process import ProcessFigures
from headgate.telemetry.prometheus import Beside, render
from headgate.telemetry.records.figures import RecordsFigures, records_metrics
from headgate.telemetry.scaling import PoolScaling
from headgate.telemetry.stages.budget import ClassBudget
from headgate.telemetry.stages.meters import StageMeters, stage_metrics
from headgate.telemetry.traces.figures import Dropped, Kept, TraceFigures, trace_metrics

CELL = CellFigures(
    mode="following",
    leads=True,
    epoch=1,
    share_of=2,
    members=2,
    members_absent=0,
    unacknowledged=0,
    store_up=True,
    store_round_trip_s=0.001,
    store_reconnects=0,
    store_timeouts=0,
    unintelligible=0,
)
LEDGER = LedgerFigures(
    database_up=True,
    written=1,
    waiting=0,
    spooled_bytes=0,
    oldest_s=0.0,
    lost=0,
    refused=0,
    open_requests=0,
    unrecorded=0,
)
GPU = {"gpu_utilisation": 0.5, "gpu_memory_used_bytes": 1.0, "gpu_memory_total_bytes": 2.0}
TELEMETRY = Telemetry(1, 0, 0.5, 0, further={"prefix_queries": 2.0, "prefix_hits": 1.0, **GPU})


def page_with_everything() -> str:
    beside = Beside(
        scaling=[
            PoolScaling("small", 1, 0, 1, lead_ns=Duration(SECOND), cold_starts=Histogram(), correction_ppm=1_000_000)
        ],
        cell=CELL,
        ledger=LEDGER,
        directory=DirectoryFigures(fresh=True, age_s=0.1, tenants=1, keys=1, reconnects=0),
        process=ProcessFigures(cpu_s=1.0, resident_bytes=1, decide_s=0.1),
        verdicts=(),
        more=_more(),
    )
    signals = EngineSignals({("small/a", "running"): False}, {"small/a": 1.0}, {"small/a": TELEMETRY})
    endpoint = EndpointSummary("small/a", "small", EndpointState.READY, leaving=False, in_flight=0, in_flight_max=1)
    waiting = {("chat", "acme"): 1}
    summary = Summary("h", queued={"chat": 1}, requests=0, endpoints=(endpoint,), queued_tenants=waiting)
    page, _ = render(_meters(), Histogram(), summary, {"tasks": 1}, signals, beside=beside)
    return page.decode()


@cache
def told() -> dict[str, tuple[str, set[str]]]:
    """Name -> kind and labels, of all that has a sample."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(page_with_everything())
        if family.samples
    }


def _meters() -> Meters:
    meters = Meters()
    meters.promise({"chat": Objectives(990_000, 1, 990_000, 999_000, 1_000_000)})
    patient, empty = ServiceClass("chat", 0, start_wait_ns=1, ttft_ns=1), Pool("small", hold_max=1)
    policy = Policy(classes=(patient,), pools=(empty,), tenants=(Tenant("acme"),))
    meters.saw(PolicyChanged(policy, "h"), [], now=0)
    meters.saw(EndpointJoined(Endpoint("small/a", "small", 1)), [], now=0)
    meters.started("small", dict.fromkeys(Phase, 1))
    return meters


def _more() -> Iterator[Family]:
    stages = StageMeters()
    stages.change(["chat"], {"chat": ClassBudget(stages=dict.fromkeys(Stage, 1), ttft_ns=1, duration_ns=1)})
    yield turn_metrics(TurnWatch(lambda _: None))
    yield from stage_metrics(stages)
    yield from records_metrics(RecordsFigures(1, 0, 0, 1, 1.0))
    yield from trace_metrics(TraceFigures(dict.fromkeys(Kept, 0), dict.fromkeys(Dropped, 0), 0, 0, 0))
