"""Does the reference of the metrics name every metric with its kind and labels, and no other?"""

import re

from prometheus_client.parser import text_string_to_metric_families

from headgate.core.events import EndpointJoined, PolicyChanged
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.policy import Policy, Pool, ServiceClass
from headgate.ports.fleet import Phase
from headgate.telemetry.cell import CellFigures
from headgate.telemetry.directory import DirectoryFigures
from headgate.telemetry.ledger import LedgerFigures
from headgate.telemetry.meters import Histogram, Meters
from headgate.telemetry.prometheus import EngineSignals, render
from headgate.telemetry.scaling import PoolScaling
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/reference/metrics.md").read_text()


def shown() -> dict[str, tuple[str, set[str]]]:
    """What a gateway with something of everything shows: name -> kind and labels."""
    meters = Meters()
    patient, empty = ServiceClass("chat", 0, start_wait_ns=1), Pool("small", hold_max=1)
    meters.saw(PolicyChanged(Policy(classes=(patient,), pools=(empty,)), "h"), [], now=0)
    meters.saw(EndpointJoined(Endpoint("small/a", "small", 1)), [], now=0)
    meters.started("small", dict.fromkeys(Phase, 1))
    endpoint = EndpointSummary("small/a", "small", EndpointState.READY, leaving=False, in_flight=0, in_flight_max=1)
    summary = Summary(policy_hash="h", queued={"chat": 0}, requests=0, endpoints=(endpoint,))
    signals = EngineSignals({("small/a", "running"): False}, {"small/a": 1.0})
    cell = CellFigures(
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
    scaling = [PoolScaling("small", 1, 0, 1)]
    ledger = LedgerFigures(
        database_up=True, written=1, waiting=0, spooled_bytes=0, oldest_s=0.0, lost=0, refused=0, open_requests=0
    )
    directory = DirectoryFigures(fresh=True, age_s=0.1, tenants=1, keys=1, reconnects=0)
    page, _ = render(
        meters,
        Histogram(),
        summary,
        {"tasks": 1},
        signals,
        scaling=scaling,
        cell=cell,
        ledger=ledger,
        directory=directory,
    )
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(page.decode())
    }


def described() -> dict[str, tuple[str, set[str]]]:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `headgate_")]
    return {name.strip(" `"): (kind.strip(), set(re.findall("`([a-z_]+)`", labels))) for name, kind, labels, _ in rows}


def test_every_metric_is_on_the_page_and_no_other() -> None:
    assert described() == shown()


def test_every_metric_has_a_meaning() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("| `headgate_") and not line.endswith(". |")] == []
