"""Request metrics by class and tenant, and metrics for the objectives."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from headgate.core.summary import Summary
from headgate.model.money import NANO_USD_PER_USD
from headgate.model.outcome import Outcome
from headgate.telemetry.exposition import MetricFamily, family, quotient
from headgate.telemetry.meter_types import UNAVAILABLE_OUTCOMES, ClassMeter, ObjectiveKind, PromptSize, TenantMeter
from headgate.telemetry.meters import OTHER, nearest_known_tenant
from headgate.telemetry.options import Objectives

_MILLION: Final = 1_000_000
_SIZES: Final = tuple((size, size.name.lower()) for size in PromptSize)

Classes = Sequence[tuple[str, ClassMeter]]


def class_metrics(classes: Classes) -> Iterator[MetricFamily]:
    yield from _counters(classes)
    yield from _tokens(classes)
    yield from _latency_histograms(classes)


def _counters(classes: Classes) -> Iterator[MetricFamily]:
    requests, admitted = family("headgate_requests_total"), family("headgate_requests_admitted_total")
    goodput, cost = family("headgate_goodput_requests_total"), family("headgate_cost_usd_total")
    degraded = family("headgate_requests_degraded_total")
    for name, meter in classes:
        for outcome, count in meter.requests.items():
            requests.add((name, outcome.value), count)
        admitted.add((name,), meter.admitted)
        degraded.add((name,), meter.degraded)
        goodput.add((name,), meter.goodput)
        cost.add((name,), quotient(meter.nano_usd, NANO_USD_PER_USD))
    return iter((requests, admitted, degraded, goodput, cost))


def _tokens(classes: Classes) -> Iterator[MetricFamily]:
    tokens, useful = family("headgate_tokens_total"), family("headgate_goodput_tokens_total")
    for name, meter in classes:
        tokens.add((name, "prompt"), meter.prompt_tokens)
        tokens.add((name, "output"), meter.output_tokens)
        useful.add((name, "prompt"), meter.useful_prompt_tokens)
        useful.add((name, "output"), meter.useful_output_tokens)
    return iter((tokens, useful))


def _latency_histograms(classes: Classes) -> Iterator[MetricFamily]:
    waits, between = family("headgate_queue_wait_seconds"), family("headgate_inter_token_latency_seconds")
    firsts, totals = family("headgate_time_to_first_token_seconds"), family("headgate_request_duration_seconds")
    for name, meter in classes:
        waits.add_histogram((name,), meter.queue_wait)
        between.add_histogram((name,), meter.inter_token_latency)
        for size, shown in _SIZES:
            firsts.add_histogram((name, shown), meter.time_to_first_token[size])
            totals.add_histogram((name, shown), meter.duration[size])
    return iter((waits, firsts, between, totals))


def tenant_metrics(tenants: Sequence[tuple[str, TenantMeter]]) -> Iterator[MetricFamily]:
    requests, tokens = family("headgate_tenant_requests_total"), family("headgate_tenant_tokens_total")
    cost = family("headgate_tenant_cost_usd_total")
    for name, meter in tenants:
        for ended, count in meter.requests.items():
            requests.add((name, ended.value), count)
        tokens.add((name, "prompt"), meter.prompt_tokens)
        tokens.add((name, "output"), meter.output_tokens)
        cost.add((name,), quotient(meter.nano_usd, NANO_USD_PER_USD))
    return iter((requests, tokens, cost))


def tenant_queue_depth(summary: Summary, tenants: Iterable[str]) -> MetricFamily:
    """Queue depth by tenant. Tenants with their own metrics have a sample even if nothing is queued."""
    depths = dict.fromkeys((OTHER, *tenants), 0)
    for (_, tenant), count in summary.queued_tenants.items():
        depths[tenant if tenant in depths else nearest_known_tenant(tenant, depths)] += count
    told = family("headgate_tenant_queue_depth")
    for name, depth in depths.items():
        told.add((name,), depth)
    return told


def objective_metrics(classes: Classes, objectives: Mapping[str, Objectives]) -> Iterator[MetricFamily]:
    """Counters for the requests that each objective covers and for those that met it, and gauges for the objectives."""
    requests, good = family("headgate_objective_requests_total"), family("headgate_objective_good_requests_total")
    ratio, cost = family("headgate_objective_target_ratio"), family("headgate_cost_objective_usd_per_1k_tokens")
    for name, meter in classes:
        promise = objectives.get(name, Objectives())
        for objective, asked, kept in _objective_counts(meter, promise):
            requests.add((name, objective.value), asked)
            good.add((name, objective.value), kept)
        for objective, ppm in _objective_targets(promise):
            ratio.add((name, objective.value), ppm / _MILLION)
        if promise.cost_per_1k_tokens is not None:
            cost.add((name,), promise.cost_per_1k_tokens / NANO_USD_PER_USD)
    return iter((requests, good, ratio, cost))


def _objective_counts(meter: ClassMeter, promise: Objectives) -> Iterator[tuple[ObjectiveKind, int, int]]:
    """Number of covered requests and number of good requests, for each objective.

    The good requests are read first, so that they never exceed the covered ones while another thread is counting.
    """
    for objective, target_ns in (
        (ObjectiveKind.TTFT, meter.targets.ttft_ns),
        (ObjectiveKind.DURATION, promise.duration_ns),
    ):
        if target_ns is not None:
            kept = meter.objective_good[objective]
            yield objective, meter.objective_requests[objective], kept
    if promise.availability_ppm is not None:
        completed = meter.requests[Outcome.COMPLETED]
        yield (
            ObjectiveKind.AVAILABILITY,
            completed + sum(meter.requests[each] for each in UNAVAILABLE_OUTCOMES),
            completed,
        )


def _objective_targets(promise: Objectives) -> Iterator[tuple[ObjectiveKind, int]]:
    for objective, ppm in (
        (ObjectiveKind.TTFT, promise.ttft_ppm),
        (ObjectiveKind.DURATION, promise.duration_ppm),
        (ObjectiveKind.AVAILABILITY, promise.availability_ppm),
    ):
        if ppm is not None:
            yield objective, ppm
