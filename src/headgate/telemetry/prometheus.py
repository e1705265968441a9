"""The /metrics page of this process.

It contains the counters (meters.py), a snapshot of the scheduler's state, the engines' own metrics and the event loop
lag. Every label value comes from a fixed set. Rendering takes milliseconds, so it may run in another thread. The
snapshot is taken beforehand in the scheduler's thread. All other data is copied first or has a fixed size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate import __version__
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, PoolName
from headgate.telemetry.cell_metrics import CellStats, cell_metrics
from headgate.telemetry.directory_metrics import DirectoryStats, directory_metrics
from headgate.telemetry.engine_metrics import EngineReadings, engine_metrics
from headgate.telemetry.exposition import CONTENT_TYPE, MetricFamily, exposition_text, family
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.ledger_metrics import LedgerStats, ledger_metrics
from headgate.telemetry.meter_types import PoolMeter
from headgate.telemetry.meters import OTHER, Meters
from headgate.telemetry.pool_metrics import pool_metrics
from headgate.telemetry.process_metrics import ProcessStats, process_metrics
from headgate.telemetry.request_metrics import class_metrics, objective_metrics, tenant_metrics, tenant_queue_depth
from headgate.telemetry.route_meters import route_metrics
from headgate.telemetry.scaling_metrics import PoolScaling, scaling_metrics
from headgate.telemetry.verdict_metrics import CurrentVerdict, verdict_metrics

_LEAVING: Final = "leaving"
_SUSPECTED: Final = "suspected"
_STATES: Final = (*(state.value for state in EndpointState), _SUSPECTED, _LEAVING)
_PPM: Final = 1_000_000
_ADAPTERS_MAX: Final = 100
"""Maximum number of adapters per pool that have a series of their own."""


@dataclass(frozen=True, slots=True)
class OptionalMetrics:
    """Metrics that only some gateways expose."""

    scaling: Sequence[PoolScaling] = ()
    cell: CellStats | None = None
    ledger: LedgerStats | None = None
    directory: DirectoryStats | None = None
    process: ProcessStats | None = None
    verdicts: Sequence[CurrentVerdict] | None = None
    """Current verdicts; None if diagnosis is off."""
    extra_families: Iterable[MetricFamily] = ()
    """Additional families."""


def render(
    meters: Meters,
    loop_lag: Histogram,
    summary: Summary,
    tracked_objects: Mapping[str, int],
    readings: EngineReadings = EngineReadings(),  # noqa: B008 (frozen, and its mappings are never changed)
    *,
    optional: OptionalMetrics = OptionalMetrics(),  # noqa: B008 (likewise)
) -> tuple[bytes, str]:
    """The page and its content type."""
    return exposition_text(
        _families(meters, loop_lag, summary, tracked_objects, readings, beside=optional)
    ), CONTENT_TYPE


def _families(
    meters: Meters,
    loop_lag: Histogram,
    summary: Summary,
    held: Mapping[str, int],
    signals: EngineReadings,
    *,
    beside: OptionalMetrics,
) -> Iterator[MetricFamily]:
    classes, pools = tuple(meters.classes.items()), tuple(meters.pools.items())
    yield from class_metrics(classes)
    yield from tenant_metrics(tuple(meters.tenants.items()))
    yield from objective_metrics(classes, meters.objectives)
    yield from pool_metrics(pools)
    yield from route_metrics(meters.routes)
    cell = beside.cell
    if cell is None or cell.is_leader or cell.mode == "island":
        yield from _scheduler_metrics(meters, summary, pools)
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
    yield from beside.extra_families
    yield _loop_lag(loop_lag)
    yield _tracked_objects(held)
    yield _info("headgate_config_info", summary.policy_hash)
    yield _info("headgate_build_info", __version__)


def _scheduler_metrics(
    meters: Meters, summary: Summary, pools: Sequence[tuple[str, PoolMeter]]
) -> Iterator[MetricFamily]:
    """Metrics that only the scheduling process exposes, so that sums over a cell are correct."""
    yield _queue_depth(summary)
    yield tenant_queue_depth(summary, tuple(meters.tenants))
    yield from _hold_metrics(meters, summary)
    yield from _degradation_metrics(summary, pools)
    yield from _endpoint_metrics(summary, pools)
    yield _adapter_metrics(summary)
    yield _by_pool("headgate_prefix_index_entries", summary.prefix_hashes, pools)
    yield _by_pool("headgate_prefix_index_bytes", summary.prefix_bytes, pools)
    yield _by_pool("headgate_sessions", summary.sessions, pools)
    yield _quarantined(summary)


def _queue_depth(summary: Summary) -> MetricFamily:
    depth = family("headgate_queue_depth")
    for name, count in summary.queued.items():
        depth.add((name,), count)
    return depth


def _hold_metrics(meters: Meters, summary: Summary) -> Iterator[MetricFamily]:
    """Hold metrics for each class and pool that allow holds."""
    total, depth = family("headgate_requests_held_total"), family("headgate_hold_depth")
    for (service_class, pool), count in tuple(meters.held_requests.items()):
        total.add((service_class, pool), count)
        depth.add((service_class, pool), summary.held.get((PoolName(pool), ClassName(service_class)), 0))
    return iter((total, depth))


def _degradation_metrics(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[MetricFamily]:
    """Degradation metrics. Every pool has a sample, even at level 0."""
    levels, shed = family("headgate_degradation_level"), family("headgate_shed_ratio")
    found = {each.pool: each for each in summary.degradation}
    for name, _ in pools:
        if name != OTHER:
            given = found.get(PoolName(name))
            levels.add((name,), given.level if given else 0)
            shed.add((name,), given.shed_ppm / _PPM if given else 0)
    return iter((levels, shed))


def _adapter_metrics(summary: Summary) -> MetricFamily:
    """Attempts in flight by pool and LoRA adapter, with a limited number of adapters per pool."""
    counts: dict[str, dict[str, int]] = {}
    for endpoint in summary.endpoints:
        for adapter, count in endpoint.adapters:
            of_pool = counts.setdefault(endpoint.pool, {})
            name = adapter if adapter in of_pool or len(of_pool) < _ADAPTERS_MAX else OTHER
            of_pool[name] = of_pool.get(name, 0) + count
    in_flight = family("headgate_adapter_attempts_in_flight")
    for pool, of_pool in counts.items():
        for adapter, count in of_pool.items():
            in_flight.add((pool, adapter), count)
    return in_flight


def _endpoint_metrics(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[MetricFamily]:
    """Endpoint metrics. Every pool has a sample for every state, because alerts rely on the zeros."""
    in_flight, endpoints = family("headgate_attempts_in_flight"), family("headgate_endpoints")
    times = family("headgate_endpoint_measured_to_configured_time_ratio")
    counts = {(name, state): 0 for name, _ in pools if name != OTHER for state in _STATES}
    for endpoint in summary.endpoints:
        in_flight.add((endpoint.pool, endpoint.id), endpoint.in_flight)
        times.add((endpoint.pool, endpoint.id, "decode"), endpoint.decode_percent / 100)
        times.add((endpoint.pool, endpoint.id, "prefill"), endpoint.prefill_percent / 100)
        key = endpoint.pool, _state(endpoint)
        counts[key] = counts.get(key, 0) + 1
    for labels, count in counts.items():
        endpoints.add(labels, count)
    return iter((in_flight, endpoints, times))


def _state(endpoint: EndpointSummary) -> str:
    """State label of an endpoint. Leaving and suspected take precedence over its actual state."""
    if endpoint.leaving:
        return _LEAVING
    return _SUSPECTED if endpoint.suspected else endpoint.state.value


def _by_pool(name: str, values: Sequence[tuple[PoolName, int]], pools: Sequence[tuple[str, PoolMeter]]) -> MetricFamily:
    told, found = family(name), dict(values)
    for pool, _ in pools:
        if pool != OTHER:
            told.add((pool,), found.get(PoolName(pool), 0))
    return told


def _quarantined(summary: Summary) -> MetricFamily:
    told = family("headgate_quarantined_requests")
    told.add((), summary.quarantined)
    return told


def _loop_lag(histogram: Histogram) -> MetricFamily:
    told = family("headgate_event_loop_lag_seconds")
    told.add_histogram((), histogram)
    return told


def _tracked_objects(held: Mapping[str, int]) -> MetricFamily:
    told = family("headgate_tracked_objects")
    for what, count in held.items():
        told.add((what,), count)
    return told


def _info(name: str, value: str) -> MetricFamily:
    told = family(name)
    told.add((value,), 1)
    return told
