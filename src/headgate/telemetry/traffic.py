"""What became of requests, by class and by tenant, and were promises kept?"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from headgate.core.summary import Summary
from headgate.model.money import NANO_USD_PER_USD
from headgate.model.outcome import Outcome
from headgate.telemetry.counts import NOT_SERVED, ClassMeter, Objective, Size, TenantMeter
from headgate.telemetry.meters import OTHER, told_apart
from headgate.telemetry.options import Objectives
from headgate.telemetry.page import Family, family, quotient

_MILLION: Final = 1_000_000
_SIZES: Final = tuple((size, size.name.lower()) for size in Size)

Classes = Sequence[tuple[str, ClassMeter]]


def traffic_metrics(classes: Classes) -> Iterator[Family]:
    yield from _counters(classes)
    yield from _tokens(classes)
    yield from _latencies(classes)


def _counters(classes: Classes) -> Iterator[Family]:
    requests, admitted = family("headgate_requests_total"), family("headgate_requests_admitted_total")
    goodput, cost = family("headgate_goodput_requests_total"), family("headgate_cost_usd_total")
    degraded = family("headgate_requests_degraded_total")
    for name, meter in classes:
        for outcome, count in meter.requests.items():
            requests.add((name, outcome.value), count)
        admitted.add((name,), meter.admitted)
        degraded.add((name,), meter.degraded)
        goodput.add((name,), meter.good)
        cost.add((name,), quotient(meter.nano_usd, NANO_USD_PER_USD))
    return iter((requests, admitted, degraded, goodput, cost))


def _tokens(classes: Classes) -> Iterator[Family]:
    tokens, useful = family("headgate_tokens_total"), family("headgate_useful_tokens_total")
    for name, meter in classes:
        tokens.add((name, "prompt"), meter.prompt_tokens)
        tokens.add((name, "output"), meter.output_tokens)
        useful.add((name, "prompt"), meter.useful_prompt_tokens)
        useful.add((name, "output"), meter.useful_output_tokens)
    return iter((tokens, useful))


def _latencies(classes: Classes) -> Iterator[Family]:
    waits, between = family("headgate_queue_wait_seconds"), family("headgate_inter_token_latency_seconds")
    firsts, totals = family("headgate_time_to_first_token_seconds"), family("headgate_request_duration_seconds")
    for name, meter in classes:
        waits.add_histogram((name,), meter.wait)
        between.add_histogram((name,), meter.between_tokens)
        for size, shown in _SIZES:
            firsts.add_histogram((name, shown), meter.to_first_token[size])
            totals.add_histogram((name, shown), meter.total[size])
    return iter((waits, firsts, between, totals))


def tenant_metrics(tenants: Sequence[tuple[str, TenantMeter]]) -> Iterator[Family]:
    requests, tokens = family("headgate_tenant_requests_total"), family("headgate_tenant_tokens_total")
    cost = family("headgate_tenant_cost_usd_total")
    for name, meter in tenants:
        for ended, count in meter.requests.items():
            requests.add((name, ended.value), count)
        tokens.add((name, "prompt"), meter.prompt_tokens)
        tokens.add((name, "output"), meter.output_tokens)
        cost.add((name,), quotient(meter.nano_usd, NANO_USD_PER_USD))
    return iter((requests, tokens, cost))


def tenant_queues(summary: Summary, tenants: Iterable[str]) -> Family:
    """Every tenant that is told apart is there, also where none of its requests waits."""
    depths = dict.fromkeys((OTHER, *tenants), 0)
    for (_, tenant), count in summary.queued_tenants.items():
        depths[tenant if tenant in depths else told_apart(tenant, depths)] += count
    told = family("headgate_tenant_queue_depth")
    for tenant, count in depths.items():
        told.add((tenant,), count)
    return told


def objective_metrics(classes: Classes, promised: Mapping[str, Objectives]) -> Iterator[Family]:
    """What can be judged is counted, whether anything is promised of it or not; what is promised is a gauge."""
    requests, good = family("headgate_objective_requests_total"), family("headgate_objective_good_total")
    ratio, cost = family("headgate_objective_ratio"), family("headgate_cost_objective_usd_per_1k_tokens")
    for name, meter in classes:
        promise = promised.get(name, Objectives())
        for objective, asked, kept in _judged(meter, promise):
            requests.add((name, objective.value), asked)
            good.add((name, objective.value), kept)
        for objective, ppm in _ratios(promise):
            ratio.add((name, objective.value), ppm / _MILLION)
        if promise.cost_per_1k_tokens is not None:
            cost.add((name,), promise.cost_per_1k_tokens / NANO_USD_PER_USD)
    return iter((requests, good, ratio, cost))


def _judged(meter: ClassMeter, promise: Objectives) -> Iterator[tuple[Objective, int, int]]:
    """How many each objective is about, and how many kept it. What kept it is read first: it is never the larger."""
    for objective, target_ns in ((Objective.TTFT, meter.targets.ttft_ns), (Objective.DURATION, promise.duration_ns)):
        if target_ns is not None:
            kept = meter.objective_good[objective]
            yield objective, meter.objective_requests[objective], kept
    if promise.served_ppm is not None:
        completed = meter.requests[Outcome.COMPLETED]
        yield Objective.SERVED, completed + sum(meter.requests[each] for each in NOT_SERVED), completed


def _ratios(promise: Objectives) -> Iterator[tuple[Objective, int]]:
    for objective, ppm in (
        (Objective.TTFT, promise.ttft_ppm),
        (Objective.DURATION, promise.duration_ppm),
        (Objective.SERVED, promise.served_ppm),
    ):
        if ppm is not None:
            yield objective, ppm
