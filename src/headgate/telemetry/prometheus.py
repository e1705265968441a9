"""What can Prometheus ask of this process?

The page is made of what has been counted (meters.py), of the scheduler's state at one moment, of
what the engines tell of themselves, and of the event loop's own delay. Every label comes from a
closed set. Rendering takes milliseconds, so it may run in another thread: the picture of the
scheduler is taken beforehand, where decisions are made, and what is read here is copied first or
never changes its size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.units import SECOND, ClassName, EndpointId, PoolName
from headgate.ports.fleet import Phase
from headgate.telemetry.cell import CellFigures, cell_metrics
from headgate.telemetry.directory import DirectoryFigures, directory_metrics
from headgate.telemetry.ledger import LedgerFigures, ledger_metrics
from headgate.telemetry.meters import LATENCY_BOUNDS_S, OTHER, SIZE_BOUNDS, ClassMeter, Histogram, Meters, PoolMeter
from headgate.telemetry.scaling import PoolScaling, scaling_metrics

_LEAVING = "leaving"
_SUSPECTED = "suspected"
_STATES = (*(state.value for state in EndpointState), _SUSPECTED, _LEAVING)
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class EngineSignals:
    """What the endpoints' engines tell of their load, and what they do not."""

    missing: Mapping[tuple[EndpointId, str], bool] = field(default_factory=dict[tuple[EndpointId, str], bool])
    """For each signal that an endpoint's kind of engine tells, whether it is missing."""
    age_s: Mapping[EndpointId, float] = field(default_factory=dict[EndpointId, float])
    """How long ago each endpoint last told anything; those that never did are not there."""


def render(
    meters: Meters,
    loop_lag: Histogram,
    summary: Summary,
    held: Mapping[str, int],
    signals: EngineSignals = EngineSignals(),  # noqa: B008 (frozen, and nothing writes to what it holds)
    *,
    scaling: Sequence[PoolScaling] = (),
    cell: CellFigures | None = None,
    ledger: LedgerFigures | None = None,
    directory: DirectoryFigures | None = None,
) -> tuple[bytes, str]:
    """The page, and its content type."""
    registry = CollectorRegistry()
    beside = _Beside(scaling, cell, ledger, directory)
    registry.register(_Scrape(meters, loop_lag, summary, held, signals, beside=beside))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Beside(NamedTuple):
    """What only some gateways have."""

    scaling: Sequence[PoolScaling]
    cell: CellFigures | None
    ledger: LedgerFigures | None
    directory: DirectoryFigures | None


class _Scrape(Collector):
    """What is told at one scrape."""

    def __init__(
        self,
        meters: Meters,
        loop_lag: Histogram,
        summary: Summary,
        held: Mapping[str, int],
        signals: EngineSignals,
        *,
        beside: _Beside,
    ) -> None:
        self._meters = meters
        self._loop_lag = loop_lag
        self._summary = summary
        self._held = held
        self._signals = signals
        self._scaling = beside.scaling
        self._cell = beside.cell
        self._ledger = beside.ledger
        self._directory = beside.directory

    def collect(self) -> Iterable[Metric]:
        classes, pools = tuple(self._meters.classes.items()), tuple(self._meters.pools.items())
        yield from _class_counters(classes)
        yield from _class_latencies(classes)
        yield from _pool_metrics(pools)
        yield from _batch_metrics(pools)
        yield from _life_metrics(pools)
        if self._cell is None or self._cell.leads or self._cell.mode == "island":
            yield from self._decided(pools)
        yield from _signal_metrics(self._signals)
        if self._cell is not None:
            yield from cell_metrics(self._cell)
        if self._ledger is not None:
            yield from ledger_metrics(self._ledger)
        if self._directory is not None:
            yield from directory_metrics(self._directory)
        yield _loop_lag(self._loop_lag)
        yield _held(self._held)
        yield _info("headgate_config_info", "The configuration in force, by its hash.", hash=self._summary.policy_hash)
        yield _info("headgate_build_info", "The version that runs.", version=__version__)

    def _decided(self, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Metric]:
        """What whoever decides knows of all. In a cell one process tells it, so that sums are right."""
        yield _queue_depth(self._summary)
        yield from _hold_metrics(self._meters, self._summary)
        yield from _given_up(self._summary, pools)
        yield from _endpoint_metrics(self._summary, pools)
        yield from scaling_metrics(self._scaling)
        yield _prefix_hashes(self._summary, pools)


def _class_counters(classes: Sequence[tuple[str, ClassMeter]]) -> Iterator[Metric]:
    requests = CounterMetricFamily("headgate_requests", "Requests by how they ended.", labels=["class", "outcome"])
    tokens = CounterMetricFamily("headgate_tokens", "Tokens that attempts used.", labels=["class", "direction"])
    for name, meter in classes:
        for outcome, count in meter.requests.items():
            requests.add_metric([name, outcome.value], count)
        tokens.add_metric([name, "prompt"], meter.prompt_tokens)
        tokens.add_metric([name, "output"], meter.output_tokens)
    return iter((requests, tokens))


def _class_latencies(classes: Sequence[tuple[str, ClassMeter]]) -> Iterator[Metric]:
    waits = _histogram("headgate_queue_wait_seconds", "Time in our queue before the first attempt.", "class")
    firsts = _histogram("headgate_time_to_first_token_seconds", "From arrival to a stream's first token.", "class")
    between = _histogram("headgate_inter_token_latency_seconds", "Between the tokens of a stream.", "class")
    totals = _histogram("headgate_request_duration_seconds", "From arrival to completion.", "class")
    for name, meter in classes:
        for family, histogram in (
            (waits, meter.wait),
            (firsts, meter.to_first_token),
            (between, meter.between_tokens),
            (totals, meter.total),
        ):
            _add(family, [name], histogram)
    return iter((waits, firsts, between, totals))


def _held(held: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily("headgate_held", "How much of what could pile up there is.", labels=["what"])
    for what, count in held.items():
        family.add_metric([what], count)
    return family


def _loop_lag(histogram: Histogram) -> Metric:
    family = _histogram("headgate_loop_lag_seconds", "How late the event loop runs what is due.")
    _add(family, [], histogram)
    return family


def _histogram(name: str, documentation: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, documentation, labels=labels)


def _add(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    histogram: Histogram,
    *,
    bounds: Sequence[float] = LATENCY_BOUNDS_S,
    unit: int = SECOND,
) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*bounds, None), list(histogram.counts), strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else str(float(bound)), total))
    family.add_metric(labels, buckets, histogram.total / unit)


def _pool_metrics(pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Metric]:
    attempts = CounterMetricFamily("headgate_attempts", "Attempts by how they ended.", labels=["pool", "ending"])
    retries = CounterMetricFamily("headgate_retries", "Attempts after another had ended.", labels=["pool"])
    hedges = CounterMetricFamily("headgate_hedges", "Attempts made while another was silent.", labels=["pool"])
    ejections = CounterMetricFamily("headgate_endpoint_ejections", "Endpoints ejected.", labels=["pool"])
    for name, meter in pools:
        for ending, count in meter.endings.items():
            attempts.add_metric([name, ending.value], count)
        retries.add_metric([name], meter.retries)
        hedges.add_metric([name], meter.hedges)
        ejections.add_metric([name], meter.ejections)
    return iter((attempts, retries, hedges, ejections))


def _batch_metrics(pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Metric]:
    sizes = _histogram("headgate_batch_size", "Inputs in a call that asks for several requests.", "pool")
    waits = _histogram("headgate_batch_wait_seconds", "How long a request waited for company.", "pool")
    for name, meter in pools:
        _add(sizes, [name], meter.batch_size, bounds=SIZE_BOUNDS, unit=1)
        _add(waits, [name], meter.batch_wait)
    return iter((sizes, waits))


def _life_metrics(pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Metric]:
    """How starts and drains went is known of pools whose endpoints are started from here; most are not."""
    warmings = _histogram(
        "headgate_endpoint_warming_seconds", "From joining to the engine's word that it serves.", "pool"
    )
    starts = _histogram("headgate_endpoint_start_seconds", "Of an endpoint's start, by phase.", "pool", "phase")
    drains = _histogram("headgate_endpoint_drain_seconds", "From giving an endpoint up to its last attempt.", "pool")
    for name, meter in pools:
        _add(warmings, [name], meter.warmings)
        if any(meter.starts[Phase.JOIN].counts):
            for phase, histogram in meter.starts.items():
                _add(starts, [name, phase.value], histogram)
            _add(drains, [name], meter.drains)
    return iter((warmings, starts, drains))


def _queue_depth(summary: Summary) -> Metric:
    depth = GaugeMetricFamily("headgate_queue_depth", "Requests that wait.", labels=["class"])
    for name, count in summary.queued.items():
        depth.add_metric([name], count)
    return depth


def _hold_metrics(meters: Meters, summary: Summary) -> Iterator[Metric]:
    """Of classes that may be held, and pools that may have no endpoint."""
    labels = ["class", "pool"]
    total = CounterMetricFamily("headgate_requests_held", "Requests held for an endpoint to start.", labels=labels)
    depth = GaugeMetricFamily("headgate_hold_depth", "Requests that were held and still wait.", labels=labels)
    for (service_class, pool), count in tuple(meters.held.items()):
        total.add_metric([service_class, pool], count)
        depth.add_metric([service_class, pool], summary.held.get((PoolName(pool), ClassName(service_class)), 0))
    return iter((total, depth))


def _given_up(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Metric]:
    """Every pool is there, also where nothing is given up."""
    levels = GaugeMetricFamily("headgate_ladder_level", "How much is given up under overload.", labels=["pool"])
    shed = GaugeMetricFamily("headgate_shed_fraction", "Of what arrives, what is refused by rank.", labels=["pool"])
    found = {each.pool: each for each in summary.given_up}
    for name, _ in pools:
        if name != OTHER:
            given = found.get(PoolName(name))
            levels.add_metric([name], given.level if given else 0)
            shed.add_metric([name], given.shed_ppm / _MILLION if given else 0)
    return iter((levels, shed))


def _endpoint_metrics(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Iterator[Metric]:
    """Every pool is there in every state, also with none: an alert on no ready endpoint needs the zero."""
    in_flight = GaugeMetricFamily("headgate_in_flight", "Attempts in flight.", labels=["pool", "endpoint"])
    counts = {(name, state): 0 for name, _ in pools if name != OTHER for state in _STATES}
    for endpoint in summary.endpoints:
        in_flight.add_metric([endpoint.pool, endpoint.id], endpoint.in_flight)
        key = endpoint.pool, _state(endpoint)
        counts[key] = counts.get(key, 0) + 1
    endpoints = GaugeMetricFamily("headgate_endpoints", "Endpoints by state.", labels=["pool", "state"])
    for key, count in counts.items():
        endpoints.add_metric(key, count)
    return iter((in_flight, endpoints))


def _state(endpoint: EndpointSummary) -> str:
    """Each is in one state: what it is about to be counts for more than what it is."""
    if endpoint.leaving:
        return _LEAVING
    return _SUSPECTED if endpoint.suspected else endpoint.state.value


def _prefix_hashes(summary: Summary, pools: Sequence[tuple[str, PoolMeter]]) -> Metric:
    family = GaugeMetricFamily(
        "headgate_prefix_hashes",
        "Hashes by which endpoints are known to hold the beginnings of prompts.",
        labels=["pool"],
    )
    found = dict(summary.prefix_hashes)
    for name, _ in pools:
        if name != OTHER:
            family.add_metric([name], found.get(PoolName(name), 0))
    return family


def _signal_metrics(signals: EngineSignals) -> Iterator[Metric]:
    """Every signal that is to be expected is there, also when it is told: an alert on a missing one needs the zero."""
    missing = GaugeMetricFamily(
        "headgate_endpoint_signal_missing",
        "Whether the endpoint's engine fails to tell what its kind tells.",
        labels=["endpoint", "signal"],
    )
    for key, is_missing in signals.missing.items():
        missing.add_metric(key, float(is_missing))
    ages = GaugeMetricFamily(
        "headgate_endpoint_telemetry_age_seconds", "Since the endpoint last told its load.", labels=["endpoint"]
    )
    for endpoint_id, age_s in signals.age_s.items():
        ages.add_metric([endpoint_id], age_s)
    return iter((missing, ages))


def _info(name: str, documentation: str, **labels: str) -> Metric:
    info = GaugeMetricFamily(name, documentation, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info
