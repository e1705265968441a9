"""Endpoint health: ejection, trials, slow start and zone failures.

Consecutive failures eject an endpoint, and each consecutive ejection lasts twice as long as the previous one. The
endpoint returns on trial: it gets one request at a time until one succeeds. Only served requests restore trust, because
a passing health check does not prove that an engine can actually compute. An engine is put on trial as soon as its
probe passes again, or after at most ten seconds if its probe never fails. If no endpoint of a pool accepts requests, no
ejection lasts longer than the first one. In that case there is no healthy endpoint to send requests to, and the first
one that recovers must be found quickly. Endpoints with a failing probe are an exception (`routing/failing_probes`).

An endpoint that becomes ready alongside others that have been serving for a while starts slowly. Its caches are empty
and its first steps are compiled under load, so it begins with only some of its slots and gets more with every step. If
all endpoints become ready together, for example when the gateway starts, there is no slow start because none of them
could take over the load. An endpoint on trial cannot take over load either.

If several pools share an engine and it refuses connections or does not respond, it is ejected in all of them at once. A
model that fails is ejected only in its own pool.

An entire zone can fail. When most of its endpoints are ejected, each of its other endpoints is ejected too, provided
that the endpoint's pool is also served from another zone. This check runs only when a trusted endpoint fails, not when
a trial fails. Otherwise, the healthy half of a half-broken zone would be ejected again and again.
"""

from collections.abc import Iterable

from headgate.core.routing.endpoints import PROBE_FAILING_NS_MAX, EndpointRecord
from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.policy import HealthRules
from headgate.model.units import Duration, Instant, after

_DOUBLINGS_MAX = 16
_SLOW_START_STEP_PERCENT = 20
"""Initial percentage of slots in a slow start, and its increment per step."""
_ZONE_EJECTIONS_MIN = 2
"""Minimum number of ejected endpoints for a zone failure."""

_ENGINE_TROUBLES = (EndpointProblem.CONNECTION_REFUSED, EndpointProblem.UNREACHABLE, EndpointProblem.UNRESPONSIVE)
"""Problems of an engine rather than of one of its models."""


def pass_trial(endpoint: EndpointRecord) -> None:
    """Marks an endpoint as trusted after a successful trial."""
    endpoint.failures = endpoint.ejections = 0
    endpoint.state = EndpointState.READY


def mark_ready(endpoint: EndpointRecord) -> bool:
    """Records that the engine is ready. Returns True if the endpoint is trusted and False if it is on trial."""
    endpoint.failures = 0
    endpoint.state = EndpointState.TRIAL if endpoint.ejections else EndpointState.READY
    return endpoint.state is EndpointState.READY


def record_failure(endpoint: EndpointRecord, rules: HealthRules) -> bool:
    """Records a failure and returns whether to eject the endpoint."""
    endpoint.failures += 1
    if endpoint.state is EndpointState.TRIAL:
        return True
    return endpoint.state is EndpointState.READY and endpoint.failures >= rules.consecutive_failures_max


def ejection_ns(previous_ejections: int, rules: HealthRules) -> Duration:
    """Returns the length of an ejection after `previous_ejections` consecutive ejections."""
    return Duration(min(rules.ejection_ns << min(previous_ejections, _DOUBLINGS_MAX), rules.ejection_ns_max))


def eject(endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> None:
    length = ejection_ns(endpoint.ejections, rules)
    endpoint.ejections += 1
    endpoint.failures = 0
    endpoint.state = EndpointState.EJECTED
    endpoint.ejected_until = after(now, length)


def down_with(endpoint: EndpointRecord, now: Instant) -> list[EndpointRecord]:
    """Returns the endpoints of other pools to eject together with this one, because the same engine does not respond.

    Each of them gets this endpoint's trouble.

    Other failures may concern only one of the engine's models. An engine that has just served another pool responds,
    although the requests of this pool time out.
    """
    trouble = endpoint.attempt_trouble
    if trouble is None or trouble.kind not in _ENGINE_TROUBLES:
        return []
    timeout = trouble.kind is EndpointProblem.UNRESPONSIVE
    found = [
        each
        for each in endpoint.company
        if each.serving and not (timeout and each.in_flight and now - each.last_progress_at < PROBE_FAILING_NS_MAX)
    ]
    for each in found:
        each.attempt_trouble = trouble
    return found


def shorten_ejection(endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> bool:
    """Caps an ejection at the length of a first ejection that starts now.

    Returns False if the endpoint is not ejected.
    """
    if endpoint.state is not EndpointState.EJECTED:
        return False
    endpoint.ejected_until = min(endpoint.ejected_until, after(now, rules.ejection_ns))
    return True


def advance_slow_start(endpoint: EndpointRecord, rules: HealthRules) -> Duration | None:
    """Takes the next step of a slow start. Returns the time until the next step, or None if this is the last."""
    endpoint.slow_start_percent = min(100, endpoint.slow_start_percent + _SLOW_START_STEP_PERCENT)
    endpoint.update_limit()
    if endpoint.slow_start_percent == 100:
        return None
    return Duration(max(1, rules.slow_start_ns * _SLOW_START_STEP_PERCENT // 100))


def starts_slowly(endpoint: EndpointRecord, others: Iterable[EndpointRecord], now: Instant, rules: HealthRules) -> bool:
    """Returns whether another endpoint of the pool has been serving for at least the length of a slow start."""
    if not rules.slow_start_ns:
        return False
    return any(
        each is not endpoint and is_fully_serving(each) and now - each.ready_at >= rules.slow_start_ns
        for each in others
    )


def is_fully_serving(endpoint: EndpointRecord) -> bool:
    """Returns whether the endpoint can take load from others: it is trusted and uses all of its slots."""
    return endpoint.live and endpoint.state is EndpointState.READY and endpoint.slow_start_percent == 100


def zone_is_down(endpoints: Iterable[EndpointRecord], rules: HealthRules) -> bool:
    """Returns whether enough endpoints of a zone are ejected to treat the zone as failed."""
    ejected = serving = 0
    for each in endpoints:
        ejected += each.state is EndpointState.EJECTED
        serving += each.live
    return ejected >= _ZONE_EJECTIONS_MIN and 100 * ejected >= rules.zone_ejection_percent * (ejected + serving)
