"""What can Prometheus ask of this process?

The page is made of what has been counted (meters.py), of the scheduler's state at one moment, of what the engines tell
of themselves, and of the event loop's own delay. Every label comes from a closed set. Rendering takes milliseconds, so
it may run in another thread: the picture of the scheduler is taken beforehand, where decisions are made, and what is
read here is copied first or never changes its size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate import __version__
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, PoolName
from headgate.telemetry.cell import CellFigures, cell_metrics
from headgate.telemetry.counts import PoolMeter
from headgate.telemetry.directory import DirectoryFigures, directory_metrics
from headgate.telemetry.engines import EngineSignals, engine_metrics
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.ledger import LedgerFigures, ledger_metrics
from headgate.telemetry.meters import OTHER, Meters
from headgate.telemetry.page import CONTENT_TYPE, Family, family, page
from headgate.telemetry.pools import pool_metrics
from headgate.telemetry.process import ProcessFigures, process_metrics
from headgate.telemetry.scaling import PoolScaling, scaling_metrics
from headgate.telemetry.traffic import objective_metrics, tenant_metrics, tenant_queues, traffic_metrics
from headgate.telemetry.verdicts import Present, verdict_metrics

_LEAVING: Final = "leaving"
_SUSPECTED: Final = "suspected"
_STATES: Final = (*(state.value for state in EndpointState), _SUSPECTED, _LEAVING)
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Beside:
    """What only some gateways have."""

    scaling: Sequence[PoolScaling] = ()
    cell: CellFigures | None = None
    ledger: LedgerFigures | None = None
    directory: DirectoryFigures | None = None
    process: ProcessFigures | None = None
    verdicts: Sequence[Present] | None = None
    """None where nobody looks for what is wrong."""
    more: Iterable[Family] = ()
    """Families that others have made."""


def render(
    meters: Meters,
    loop_lag: Histogram,
    summary: Summary,
    held: Mapping[str, int],
    signals: EngineSignals = EngineSignals(),  # noqa: B008 (frozen, and nothing writes to what it holds)
    *,
    beside: Beside = Beside(),  # noqa: B008 (likewise)
) -> tuple[bytes, str]:
    """The page, and its content type."""
    return page(_families(meters, loop_lag, summary, held, signals, beside=beside)), CONTENT_TYPE


def _families(
    meters: Meters,
    loop_lag: Histogram,
    summary: Summary,
    held: Mapping[str, int],
    signals: EngineSignals,
    *,
    beside: Beside,
) -> Iterator[Family]:
    classes, pools = tuple(meters.classes.items()), tuple(meters.pools.items())
    yield from traffic_metrics(classes)
    yield from tenant_metrics(tuple(meters.tenants.items()))
    yield from objective_metrics(classes, meters.promised)
    yield from pool_metrics(pools)
    cell = beside.cell
    if cell is None or cell.leads or cell.mode == "island":
        yield from _decided(meters, summary, pools)
        yield from scaling_metrics(beside.scaling)
        if beside.verdicts is not None:
            yield from verdict_metrics([name for name, _ in pools if name != OTHER], beside.verdicts)
    yield from engine_metrics(signals, {each.id: each.pool for each in summary.endpoints})
    if cell is not None:
        yield from cell_metrics(cell)
    if beside.ledger is not None:
        yield from ledger_metrics(beside.ledger)
    if beside.directory is not None:
        yield from directory_metrics(beside.directory)
    if beside.process is not None:
        yield from process_metrics(beside.process)
    yield from beside.more
    yield _loop_lag(loop_lag)
    yield _held(held)
    yield _info("headgate_config_info", summary.policy_hash)
    yield _info("headgate_build_info", __version__)


def _decided(meters: Meters, summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Family]:
    """What whoever decides knows of all. In a cell one process tells it, so that sums are right."""
    yield _queue_depth(summary)
    yield tenant_queues(summary, tuple(meters.tenants))
    yield from _hold_metrics(meters, summary)
    yield from _given_up(summary, pools)
    yield from _endpoint_metrics(summary, pools)
    yield _prefix_hashes(summary, pools)
    yield _quarantined(summary)


def _queue_depth(summary: Summary) -> Family:
    depth = family("headgate_queue_depth")
    for name, count in summary.queued.items():
        depth.add((name,), count)
    return depth


def _hold_metrics(meters: Meters, summary: Summary) -> Iterator[Family]:
    """Of classes that may be held, and pools that may have no endpoint."""
    total, depth = family("headgate_requests_held_total"), family("headgate_hold_depth")
    for (service_class, pool), count in tuple(meters.held.items()):
        total.add((service_class, pool), count)
        depth.add((service_class, pool), summary.held.get((PoolName(pool), ClassName(service_class)), 0))
    return iter((total, depth))


def _given_up(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Family]:
    """Every pool is there, also where nothing is given up."""
    levels, shed = family("headgate_ladder_level"), family("headgate_shed_fraction")
    found = {each.pool: each for each in summary.given_up}
    for name, _ in pools:
        if name != OTHER:
            given = found.get(PoolName(name))
            levels.add((name,), given.level if given else 0)
            shed.add((name,), given.shed_ppm / _MILLION if given else 0)
    return iter((levels, shed))


def _endpoint_metrics(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Family]:
    """Every pool is there in every state, also with none: an alert on no ready endpoint needs the zero."""
    in_flight, endpoints = family("headgate_in_flight"), family("headgate_endpoints")
    counts = {(name, state): 0 for name, _ in pools if name != OTHER for state in _STATES}
    for endpoint in summary.endpoints:
        in_flight.add((endpoint.pool, endpoint.id), endpoint.in_flight)
        key = endpoint.pool, _state(endpoint)
        counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        endpoints.add(key, count)
    return iter((in_flight, endpoints))


def _state(endpoint: EndpointSummary) -> str:
    """Each is in one state: what it is about to be counts for more than what it is."""
    if endpoint.leaving:
        return _LEAVING
    return _SUSPECTED if endpoint.suspected else endpoint.state.value


def _prefix_hashes(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Family:
    told = family("headgate_prefix_hashes")
    found = dict(summary.prefix_hashes)
    for name, _ in pools:
        if name != OTHER:
            told.add((name,), found.get(PoolName(name), 0))
    return told


def _quarantined(summary: Summary) -> Family:
    told = family("headgate_quarantined_requests")
    told.add((), summary.quarantined)
    return told


def _loop_lag(histogram: Histogram) -> Family:
    told = family("headgate_loop_lag_seconds")
    told.add_histogram((), histogram)
    return told


def _held(held: Mapping[str, int]) -> Family:
    told = family("headgate_held")
    for what, count in held.items():
        told.add((what,), count)
    return told


def _info(name: str, value: str) -> Family:
    told = family(name)
    told.add((value,), 1)
    return told
