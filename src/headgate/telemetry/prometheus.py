"""How many, how long, how full: what can Prometheus ask of this process?

Counts are plain integers, raised where a decision is observed and turned into metrics only when
someone scrapes. Every label comes from a closed set: the classes and pools of the present
policy, the outcomes, the endings, the endpoints of the fleet. What carries another name, such
as a class that a reload took away while its requests ran, counts as `other`, so no traffic and
no number of reloads can grow what is kept here.

A page is made in two steps, since rendering takes milliseconds: the picture of the scheduler is
taken where decisions are made, and the page may then be rendered in another thread. What is
read there is copied first or never changes its size.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import AttemptEnded, AttemptEnding, EndpointJoined, EndpointLeaving, Event, PolicyChanged
from headgate.core.summary import Summary
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName, RequestId

NO_CLASS = "none"
"""The class of requests that were refused before they had one."""
OTHER = "other"

# Each attempt in flight is remembered until it ends. More than any fleet of one process can hold at once.
ATTEMPTS_MAX = 262_144

_WAIT_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_WAIT_BOUNDS_NS = tuple(int(bound * SECOND) for bound in _WAIT_BOUNDS_S)
_LEAVING = "leaving"
_STATES = (*(state.value for state in EndpointState), _LEAVING)


Meter = TypeVar("Meter")


class PrometheusObserver:
    def __init__(self) -> None:
        self._classes = {name: _ClassMeter() for name in (NO_CLASS, OTHER)}
        self._pools = {OTHER: _PoolMeter()}
        self._attempts: dict[tuple[RequestId, int], tuple[_ClassMeter, _PoolMeter]] = {}
        self._pool_of: dict[EndpointId, PoolName] = {}

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        match event:
            case AttemptEnded():
                self._ended(event)
            case PolicyChanged(policy):
                self._change_policy(policy)
            case EndpointJoined(endpoint):
                self._pool_of[endpoint.id] = endpoint.pool
            case EndpointLeaving(endpoint_id):
                self._pool_of.pop(endpoint_id, None)
            case _:
                pass
        for command in commands:
            match command:
                case Dispatch():
                    self._dispatched(command)
                case End():
                    self._class(command.service_class).requests[command.outcome] += 1
                case Eject(endpoint_id):
                    self._pool(self._pool_of.get(endpoint_id)).ejections += 1
                case _:
                    pass

    def turned_away(self, outcome: Outcome) -> None:
        """Counts a request that ended at the door, before the scheduler heard of it."""
        self._classes[NO_CLASS].requests[outcome] += 1

    def render(self, summary: Summary) -> tuple[bytes, str]:
        """The page, and its content type."""
        registry = CollectorRegistry()
        registry.register(_Scrape(self._classes, self._pools, summary))
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def _dispatched(self, command: Dispatch) -> None:
        class_meter, pool_meter = self._class(command.service_class), self._pool(command.pool)
        if command.attempt == 1:
            class_meter.waited(command.waited_ns)
        else:
            pool_meter.retries += 1
        if len(self._attempts) < ATTEMPTS_MAX:
            self._attempts[command.request_id, command.attempt] = class_meter, pool_meter

    def _ended(self, event: AttemptEnded) -> None:
        found = self._attempts.pop((event.request_id, event.attempt), None)
        class_meter, pool_meter = found or (self._classes[OTHER], self._pools[OTHER])
        pool_meter.endings[event.ending] += 1
        if event.usage is not None:
            # A counter may never fall, whatever an engine claims.
            class_meter.prompt_tokens += max(0, event.usage.prompt_tokens)
            class_meter.output_tokens += max(0, event.usage.output_tokens)

    def _class(self, name: str | None) -> "_ClassMeter":
        return self._classes.get(NO_CLASS if name is None else name) or self._classes[OTHER]

    def _pool(self, name: str | None) -> "_PoolMeter":
        return self._pools.get(OTHER if name is None else name) or self._pools[OTHER]

    def _change_policy(self, policy: Policy) -> None:
        _keep(self._classes, (NO_CLASS, OTHER, *(each.name for each in policy.classes)), _ClassMeter)
        _keep(self._pools, (OTHER, *(each.name for each in policy.pools)), _PoolMeter)


class _ClassMeter:
    __slots__ = ("output_tokens", "prompt_tokens", "requests", "wait_counts", "wait_total_ns")

    def __init__(self) -> None:
        self.requests = dict.fromkeys(Outcome, 0)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.wait_counts = [0] * (len(_WAIT_BOUNDS_NS) + 1)
        """How many waits fell between each bound and the one before; the last has no bound."""
        self.wait_total_ns = 0

    def waited(self, wait: Duration) -> None:
        self.wait_counts[bisect_left(_WAIT_BOUNDS_NS, wait)] += 1
        self.wait_total_ns += wait


class _PoolMeter:
    __slots__ = ("ejections", "endings", "retries")

    def __init__(self) -> None:
        self.endings = dict.fromkeys(AttemptEnding, 0)
        self.retries = 0
        self.ejections = 0


class _Scrape(Collector):
    """What is told at one scrape."""

    def __init__(self, classes: Mapping[str, _ClassMeter], pools: Mapping[str, _PoolMeter], summary: Summary) -> None:
        self._classes = classes
        self._pools = pools
        self._summary = summary

    def collect(self) -> Iterable[Metric]:
        classes, pools = tuple(self._classes.items()), tuple(self._pools.items())
        yield from _class_metrics(classes)
        yield from _pool_metrics(pools)
        yield _queue_depth(self._summary)
        yield from _endpoint_metrics(self._summary, pools)
        yield _info("headgate_config_info", "The configuration in force, by its hash.", hash=self._summary.policy_hash)
        yield _info("headgate_build_info", "The version that runs.", version=__version__)


def _class_metrics(classes: Sequence[tuple[str, _ClassMeter]]) -> Iterator[Metric]:
    requests = CounterMetricFamily("headgate_requests", "Requests by how they ended.", labels=["class", "outcome"])
    tokens = CounterMetricFamily("headgate_tokens", "Tokens that attempts used.", labels=["class", "direction"])
    waits = HistogramMetricFamily(
        "headgate_queue_wait_seconds", "Time in our queue of requests that left it for an endpoint.", labels=["class"]
    )
    for name, meter in classes:
        for outcome, count in meter.requests.items():
            requests.add_metric([name, outcome.value], count)
        tokens.add_metric([name, "prompt"], meter.prompt_tokens)
        tokens.add_metric([name, "output"], meter.output_tokens)
        waits.add_metric([name], list(_cumulative(meter.wait_counts)), meter.wait_total_ns / SECOND)
    return iter((requests, tokens, waits))


def _cumulative(counts: Sequence[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*_WAIT_BOUNDS_S, None), counts, strict=True):
        total += count
        yield ("+Inf" if bound is None else str(bound)), total


def _pool_metrics(pools: Sequence[tuple[str, _PoolMeter]]) -> Iterator[Metric]:
    attempts = CounterMetricFamily("headgate_attempts", "Attempts by how they ended.", labels=["pool", "ending"])
    retries = CounterMetricFamily("headgate_retries", "Attempts after a request's first.", labels=["pool"])
    ejections = CounterMetricFamily("headgate_endpoint_ejections", "Endpoints ejected.", labels=["pool"])
    for name, meter in pools:
        for ending, count in meter.endings.items():
            attempts.add_metric([name, ending.value], count)
        retries.add_metric([name], meter.retries)
        ejections.add_metric([name], meter.ejections)
    return iter((attempts, retries, ejections))


def _queue_depth(summary: Summary) -> Metric:
    depth = GaugeMetricFamily("headgate_queue_depth", "Requests that wait.", labels=["class"])
    for name, count in summary.queued.items():
        depth.add_metric([name], count)
    return depth


def _endpoint_metrics(summary: Summary, pools: Sequence[tuple[str, _PoolMeter]]) -> Iterator[Metric]:
    """Every pool is there in every state, also with none: an alert on no ready endpoint needs the zero."""
    in_flight = GaugeMetricFamily("headgate_in_flight", "Attempts in flight.", labels=["pool", "endpoint"])
    counts = {(name, state): 0 for name, _ in pools if name != OTHER for state in _STATES}
    for endpoint in summary.endpoints:
        in_flight.add_metric([endpoint.pool, endpoint.id], endpoint.in_flight)
        key = endpoint.pool, _LEAVING if endpoint.leaving else endpoint.state.value
        counts[key] = counts.get(key, 0) + 1
    endpoints = GaugeMetricFamily("headgate_endpoints", "Endpoints by state.", labels=["pool", "state"])
    for key, count in counts.items():
        endpoints.add_metric(key, count)
    return iter((in_flight, endpoints))


def _info(name: str, documentation: str, **labels: str) -> Metric:
    info = GaugeMetricFamily(name, documentation, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info


def _keep(meters: dict[str, Meter], names: Sequence[str], new: Callable[[], Meter]) -> None:
    """Leaves a meter for each of the names and no other; those that stay keep what they counted."""
    for gone in [name for name in meters if name not in names]:
        del meters[gone]
    for name in names:
        if name not in meters:
            meters[name] = new()
