"""Engine metrics, and what to do when an engine stops reporting them.

The gateway always knows exactly how much load it has sent, but other clients may use the engine too. The engine's
metrics include all load but are seconds old. The two are combined: any reported load above the load that the gateway
sent counts as foreign until the next report. Small differences are ignored, because they come from the age of the
metrics.

Endpoints of several pools on the same engine all get its metrics. Load that is not theirs is counted for one of them,
so that it counts once.

An engine that has stopped reporting gets no new requests as long as most other engines in the pool report. If most of
them have stopped, metrics collection has probably failed. Requests are then routed by the load that the gateway sent,
with limits reduced to 80 %.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headgate.core.events import EndpointMetricsReported
from headgate.core.routing.endpoints import EndpointRecord
from headgate.model.endpoint import EndpointState

_SEQUENCES_TOLERATED: Final = 2
_KV_PERCENT_TOLERATED: Final = 5
LIMIT_PERCENT_STALE: Final = 80


def record(endpoint: EndpointRecord, metrics: EndpointMetricsReported) -> bool:
    """Applies the engine's reported metrics. Returns whether this is the first report ever or since a silence."""
    _apply_reported_kv(endpoint, metrics.kv_tokens)
    if _counts_engine_load(endpoint):
        _apply_load(endpoint, metrics)
    else:
        endpoint.foreign = endpoint.kv_foreign = 0
    changed = endpoint.metrics_stale or not endpoint.reports_metrics
    endpoint.reports_metrics, endpoint.metrics_stale = True, False
    return changed


def _counts_engine_load(endpoint: EndpointRecord) -> bool:
    """Returns whether this is the endpoint that counts the load of its engine: the first one that is serving."""
    # `all` would create a generator for every report.
    for each in endpoint.company:  # noqa: SIM110
        if each.serving and (each.id < endpoint.id or not endpoint.serving):
            return False
    return True


def _apply_load(endpoint: EndpointRecord, metrics: EndpointMetricsReported) -> None:
    known = endpoint.engine_load
    endpoint.foreign = max(0, metrics.running + metrics.waiting - known.in_flight - _SEQUENCES_TOLERATED)
    if not _is_ready(endpoint):
        # A broken engine can also report waiting requests.
        endpoint.sequence_limit.clear()
    endpoint.sequence_limit.observe(
        running=metrics.running, waiting=metrics.waiting, kv_percent=metrics.kv_percent, foreign=endpoint.foreign
    )
    endpoint.kv_foreign = 0
    kv_tokens = endpoint.settings.kv_tokens
    if metrics.kv_percent is not None and kv_tokens is not None:
        used = (metrics.kv_percent - _KV_PERCENT_TOLERATED) * kv_tokens // 100
        endpoint.kv_foreign = max(0, used - known.kv_used)
    for each in endpoint.company:
        each.foreign = each.kv_foreign = 0


def _is_ready(endpoint: EndpointRecord) -> bool:
    """Returns whether the endpoint, or another one on the same engine, is ready."""
    ready = EndpointState.READY
    return endpoint.state is ready or any(each.state is ready for each in endpoint.company)


def _apply_reported_kv(endpoint: EndpointRecord, kv_tokens: int | None) -> None:
    """Applies the KV cache capacity that the engine reports, unless it is configured."""
    terms = endpoint.settings
    if kv_tokens is not None and not terms.kv_configured and kv_tokens != terms.kv_tokens:
        endpoint.settings = replace(terms, kv_tokens=kv_tokens)


def reset(endpoint: EndpointRecord) -> None:
    """Resets all reported state, because another engine may now be using the address."""
    endpoint.foreign = endpoint.kv_foreign = 0
    if not endpoint.settings.kv_configured:
        endpoint.settings = replace(endpoint.settings, kv_tokens=None)
    endpoint.reports_metrics = endpoint.metrics_stale = endpoint.skipped_as_stale = False
    endpoint.limit_percent = 100
    if not any(each.serving for each in endpoint.company):
        endpoint.sequence_limit.clear()
    endpoint.update_limit()


def update_stale(endpoints: Iterable[EndpointRecord]) -> list[EndpointRecord]:
    """Updates the effect of stale metrics on the endpoints of a pool. Returns the endpoints that changed."""
    talkers = [each for each in endpoints if each.reports_metrics]
    mostly_silent = 2 * len([each for each in talkers if each.metrics_stale]) > len(talkers)
    changed: list[EndpointRecord] = []
    for each in talkers:
        passed_over = each.metrics_stale and not mostly_silent
        limit_percent = LIMIT_PERCENT_STALE if each.metrics_stale and mostly_silent else 100
        if (passed_over, limit_percent) != (each.skipped_as_stale, each.limit_percent):
            each.skipped_as_stale, each.limit_percent = passed_over, limit_percent
            each.update_limit()
            changed.append(each)
    return changed
