"""Engine metrics, and what to do when an engine stops reporting them.

The gateway always knows exactly how much load it has sent, but other clients may use the engine too. The engine's
metrics include all load but are seconds old. The two are combined: any reported load above the load that the gateway
sent counts as foreign until the next report. Small differences are ignored, because they come from the age of the
metrics.

An engine that has stopped reporting gets no new requests as long as most other engines in the pool report. If most of
them have stopped, metrics collection has probably failed. Requests are then routed by the load that the gateway sent,
with limits reduced to 80 %.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headgate.core.events import EndpointMetricsReported
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.sequence_limit import SequenceLimit
from headgate.model.endpoint import EndpointState

_SEQUENCES_TOLERATED: Final = 2
_KV_PERCENT_TOLERATED: Final = 5
LIMIT_PERCENT_STALE: Final = 80


def record(endpoint: EndpointRecord, metrics: EndpointMetricsReported) -> bool:
    """Applies the engine's reported metrics. Returns whether this is the first report ever or since a silence."""
    known = endpoint.in_flight + _SEQUENCES_TOLERATED
    endpoint.foreign = max(0, metrics.running + metrics.waiting - known)
    if endpoint.state is not EndpointState.READY:
        # A broken engine can also report waiting requests.
        endpoint.sequence_limit = SequenceLimit()
    endpoint.sequence_limit.observe(
        running=metrics.running, waiting=metrics.waiting, kv_percent=metrics.kv_percent, foreign=endpoint.foreign
    )
    endpoint.kv_foreign = 0
    _apply_reported_kv(endpoint, metrics.kv_tokens)
    kv_tokens = endpoint.settings.kv_tokens
    if metrics.kv_percent is not None and kv_tokens is not None:
        used = (metrics.kv_percent - _KV_PERCENT_TOLERATED) * kv_tokens // 100
        endpoint.kv_foreign = max(0, used - endpoint.kv_used)
    changed = endpoint.metrics_stale or not endpoint.reports_metrics
    endpoint.reports_metrics, endpoint.metrics_stale = True, False
    return changed


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
    endpoint.sequence_limit = SequenceLimit()
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
