"""Is this endpoint fit to serve?

Failures in a row eject an endpoint for a while; each ejection in a row lasts twice as long.
It comes back on trial: one request at a time, until one succeeds. A health page that answers
proves nothing, so only work counts; an engine that has been restarted meanwhile is on trial at
once, without sitting out its time. Where no endpoint of a pool takes work, nobody sits out more
than the first length: there is nothing to spare the others, and whoever is back first must be found.
"""

from headgate.core.routing.endpoints import EndpointRecord
from headgate.model.endpoint import EndpointState
from headgate.model.policy import HealthRules
from headgate.model.units import Duration, Instant, after

_DOUBLINGS_MAX = 16


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


def eject(endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> None:
    length = rules.eject_ns << min(endpoint.ejections, _DOUBLINGS_MAX)
    endpoint.ejections += 1
    endpoint.failures = 0
    endpoint.state = EndpointState.EJECTED
    endpoint.returns_at = after(now, Duration(min(length, rules.eject_ns_max)))


def shorten(endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> bool:
    """Lets an ejection last no longer than a first one that begins at this moment; false if it is not ejected."""
    if endpoint.state is not EndpointState.EJECTED:
        return False
    endpoint.returns_at = min(endpoint.returns_at, after(now, rules.eject_ns))
    return True
