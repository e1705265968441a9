"""Pool metrics: attempts, batches, endpoint starts and drains."""

from collections.abc import Iterator, Sequence

from headgate.ports.fleet import Phase
from headgate.telemetry.exposition import MetricFamily, family
from headgate.telemetry.meter_types import PoolMeter

Pools = Sequence[tuple[str, PoolMeter]]


def pool_metrics(pools: Pools) -> Iterator[MetricFamily]:
    yield from _attempts(pools)
    yield from _batches(pools)
    yield from _lifecycle(pools)


def _attempts(pools: Pools) -> Iterator[MetricFamily]:
    attempts, retries = family("headgate_attempts_total"), family("headgate_retries_total")
    faults, hedges = family("headgate_attempt_faults_total"), family("headgate_hedges_total")
    ejections, disbelieved = family("headgate_endpoint_ejections_total"), family("headgate_usage_implausible_total")
    for name, meter in pools:
        for ending, count in meter.endings.items():
            attempts.add((name, ending.value), count)
        for fault, count in meter.faults.items():
            faults.add((name, fault.value), count)
        retries.add((name,), meter.retries)
        hedges.add((name,), meter.hedges)
        ejections.add((name,), meter.ejections)
        disbelieved.add((name,), meter.usage_implausible)
    return iter((attempts, faults, retries, hedges, ejections, disbelieved))


def _batches(pools: Pools) -> Iterator[MetricFamily]:
    sizes, waits = family("headgate_batch_size"), family("headgate_batch_wait_seconds")
    for name, meter in pools:
        sizes.add_histogram((name,), meter.batch_size)
        waits.add_histogram((name,), meter.batch_wait)
    return iter((sizes, waits))


def _lifecycle(pools: Pools) -> Iterator[MetricFamily]:
    """Start and drain metrics. Exposed only for pools whose endpoints are started by this gateway."""
    warmings, starts = family("headgate_endpoint_warming_seconds"), family("headgate_endpoint_start_phase_seconds")
    drains = family("headgate_endpoint_drain_seconds")
    for name, meter in pools:
        warmings.add_histogram((name,), meter.warmings)
        if any(meter.start_phases[Phase.JOIN].counts):
            for phase, histogram in meter.start_phases.items():
                starts.add_histogram((name, phase.value), histogram)
            drains.add_histogram((name,), meter.drains)
    return iter((warmings, starts, drains))
