"""Is this endpoint fit to serve?

Failures in a row eject an endpoint for a while; each ejection in a row lasts twice as long. The endpoint comes back on
trial: one request at a time, until one succeeds. A health page that responds does not prove that an engine computes, so
only work makes it trusted. But an engine is put on trial as soon as its probe passes again, and after at most ten
seconds if its probe passes all the time. If no endpoint of a pool accepts work, no ejection lasts longer than the first
one: there are no other endpoints to protect, and the first one that recovers must be found.

Who becomes ready beside others that have served for a while starts slowly: its caches are empty and its first steps
are compiled under load, so it takes a part of its places and more with every step. Where all began together, as when
the gateway itself starts, nobody is spared by that, and nobody starts slowly. Nor is one on trial anybody to lean on.

A zone goes down as a whole. Once most of its endpoints have been ejected the others there are not waited for, as long
as each one's pool is served from elsewhere. That is judged when an endpoint fails that was trusted, not when a trial
fails: half a zone that stays broken must not take the sound half with it again and again.
"""

from collections.abc import Iterable

from headgate.core.routing.endpoints import EndpointRecord
from headgate.model.endpoint import EndpointState
from headgate.model.policy import HealthRules
from headgate.model.units import Duration, Instant, after

_DOUBLINGS_MAX = 16
_GROWTH_PERCENT = 20
"""What a slow start begins with, and by what it grows."""
_ZONE_EJECTIONS_MIN = 2
"""One endpoint that fails is an endpoint that fails."""


def passed_trial(endpoint: EndpointRecord) -> None:
    """It is trusted again."""
    endpoint.failures = endpoint.ejections = 0
    endpoint.state = EndpointState.READY


def readied(endpoint: EndpointRecord) -> bool:
    """Notes that the engine says it can serve; true if it is trusted, false if on trial."""
    endpoint.failures = 0
    endpoint.state = EndpointState.TRIAL if endpoint.ejections else EndpointState.READY
    return endpoint.state is EndpointState.READY


def failed(endpoint: EndpointRecord, rules: HealthRules) -> bool:
    """Notes a failure; true if the endpoint is to be ejected."""
    endpoint.failures += 1
    if endpoint.state is EndpointState.TRIAL:
        return True
    return endpoint.state is EndpointState.READY and endpoint.failures >= rules.failures_max


def ejection_ns(before: int, rules: HealthRules) -> Duration:
    """The length of an ejection after `before` ejections in a row."""
    return Duration(min(rules.eject_ns << min(before, _DOUBLINGS_MAX), rules.eject_ns_max))


def eject(endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> None:
    length = ejection_ns(endpoint.ejections, rules)
    endpoint.ejections += 1
    endpoint.failures = 0
    endpoint.state = EndpointState.EJECTED
    endpoint.returns_at = after(now, length)


def shorten(endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> bool:
    """Lets an ejection last no longer than a first one that begins at this moment; false if it is not ejected."""
    if endpoint.state is not EndpointState.EJECTED:
        return False
    endpoint.returns_at = min(endpoint.returns_at, after(now, rules.eject_ns))
    return True


def grow(endpoint: EndpointRecord, rules: HealthRules) -> Duration | None:
    """The next step of a slow start; how long until the one after it, None if it was the last."""
    endpoint.grown_percent = min(100, endpoint.grown_percent + _GROWTH_PERCENT)
    endpoint.bound()
    if endpoint.grown_percent == 100:
        return None
    return Duration(max(1, rules.slow_start_ns * _GROWTH_PERCENT // 100))


def starts_slowly(endpoint: EndpointRecord, others: Iterable[EndpointRecord], now: Instant, rules: HealthRules) -> bool:
    """Whether it has become ready beside one that has served for as long as a slow start takes."""
    if not rules.slow_start_ns:
        return False
    return any(each is not endpoint and carries(each) and now - each.ready_at >= rules.slow_start_ns for each in others)


def carries(endpoint: EndpointRecord) -> bool:
    """Whether others may be spared at its cost: it is trusted, and takes all that it can."""
    return endpoint.live and endpoint.state is EndpointState.READY and endpoint.grown_percent == 100


def zone_is_down(endpoints: Iterable[EndpointRecord], rules: HealthRules) -> bool:
    """Whether so many of a zone's endpoints are ejected that it is the zone which fails."""
    ejected = serving = 0
    for each in endpoints:
        ejected += each.state is EndpointState.EJECTED
        serving += each.live
    return ejected >= _ZONE_EJECTIONS_MIN and 100 * ejected >= rules.zone_percent * (ejected + serving)
