"""Patterns that trace the problem to the engines or to the network path to them.

They work like the patterns in `patterns.py`. An endpoint is compared with its own usual speed. If several endpoints are
slow at the same time, this is reported only if no other pattern explains it.
"""

from typing import Final

from headgate.core.diagnosis.endpoint_stats import SLOW_PERCENT
from headgate.core.diagnosis.endpoints_down import drain_advice
from headgate.core.diagnosis.finding import (
    IncidentFinding,
    after_outage,
    arrivals_evidence,
    callers_affected,
    callers_harmed,
    counted,
    failures_evidence,
    is_harm_clear,
    missing_evidence,
    prefill_evidence,
)
from headgate.core.diagnosis.pool_observation import EndpointObservation, PoolObservation, more_than_chance
from headgate.core.diagnosis.window_counts import RECENT_SECONDS
from headgate.model.endpoint import EndpointState
from headgate.model.units import MILLISECOND, Duration, format_seconds
from headgate.model.verdict import Incident

UNSENT_MIN: Final = 3
FAILED_MIN: Final = 5
FAILED_PERCENT: Final = 15
"""Minimum number of failed attempts, and minimum percentage of all attempts sent, for an engine failure."""
VERY_SLOW_PERCENT: Final = 200
"""Percentage of the usual time per token at which a slow endpoint is reported even if few callers are harmed."""
MORE_PERCENT: Final = 130
"""Percentage of the usual number of requests above which demand explains slow engines better than the engines do."""
TRANSPORT_NS: Final = Duration(20 * MILLISECOND)
TRANSPORT_TIMES: Final = 4


def gateway_resources(picture: PoolObservation) -> IncidentFinding | None:
    """Recognises attempts that fail because a gateway lacks resources."""
    late = picture.recent
    if late.attempts_unsent < UNSENT_MIN or 2 * late.attempts_unsent < late.attempts_failed:
        return None
    return IncidentFinding(
        Incident.GATEWAY_RESOURCES,
        f"The gateway cannot connect to engines in pool {picture.pool}: {picture.unsent_reason}. The engines are not "
        "the cause.",
        (
            f"{late.attempts_unsent} of {counted(late.sent, 'attempt')} could not be sent in {RECENT_SECONDS} s",
            f"{counted(late.failed, 'request')} failed permanently in {RECENT_SECONDS} s",
            arrivals_evidence(picture),
        ),
        "Raise the limit named in the reason (file descriptors: `ulimit -n` or LimitNOFILE; memory; local ports), or "
        "fix name resolution on the gateway's machine. Then restart the gateway.",
    )


def engine_failing(picture: PoolObservation) -> IncidentFinding | None:
    late, usual = picture.recent, picture.baseline
    if not callers_harmed(picture):
        return None
    failing = late.attempts_failed >= FAILED_MIN and late.attempts_failed * 100 >= late.sent * (
        FAILED_PERCENT + 2 * (100 * usual.attempts_failed // max(1, usual.sent))
    )
    if not (failing or 2 * late.failed >= late.bad):
        return None
    return IncidentFinding(
        Incident.ENGINE_FAILING,
        f"Engines in pool {picture.pool} are failing: {late.attempts_failed} of {counted(late.sent, 'attempt')} and "
        f"{counted(late.failed, 'request')} in {RECENT_SECONDS} s.",
        (
            failures_evidence(picture),
            f"{counted(late.failed, 'request')} failed permanently in {RECENT_SECONDS} s",
            arrivals_evidence(picture),
        ),
        "Read the engine logs and revert the last change to the engines or the model. `headgate explain --outcome "
        "engine_error --since 10m` shows the errors.",
    )


def no_endpoints(picture: PoolObservation) -> IncidentFinding | None:
    late, serving = picture.recent, len(picture.serving)
    if not callers_harmed(picture) or (serving and (2 * late.missing < late.bad or not picture.last_seconds.missing)):
        return None
    if any(each.summary.state is EndpointState.WARMING and not each.summary.leaving for each in picture.endpoints):
        return None
    verb = "is" if serving == 1 else "are"
    return IncidentFinding(
        Incident.NO_ENDPOINTS,
        f"Requests to pool {picture.pool} have no endpoint: {serving} of {len(picture.endpoints)} {verb} serving.",
        (
            missing_evidence(picture),
            f"{counted(len(picture.endpoints), 'endpoint')} known, {serving} serving",
            arrivals_evidence(picture),
        ),
        f"Revert the change that removed the endpoints from pool {picture.pool}: the last reload, a fleet change or an "
        "operator override" + (" (`headgate operate list`)." if picture.overrides_enabled else "."),
    )


def slow_network(picture: PoolObservation) -> IncidentFinding | None:
    now, usual = picture.transport_ns, picture.transport_usual_ns
    if now is None or usual is None or now < max(TRANSPORT_NS, TRANSPORT_TIMES * usual) or not callers_harmed(picture):
        return None
    return IncidentFinding(
        Incident.SLOW_NETWORK,
        f"The network to pool {picture.pool} is slow: connecting takes {format_seconds(now)}, usually "
        f"{format_seconds(usual)}.",
        (
            f"connecting to endpoints takes {format_seconds(now)}, usually {format_seconds(usual)}",
            prefill_evidence(picture),
        ),
        "Check the network between the gateway and the endpoints (`headgate doctor` probes each). Move traffic to "
        "endpoints in the gateway's own zone.",
    )


def _by_slowness(picture: PoolObservation) -> list[tuple[int, EndpointObservation]]:
    """Returns the endpoints whose time per token can be compared with their usual time per token, slowest last."""
    known = [(slower, each) for each in picture.serving if (slower := each.stats.slower_percent) is not None]
    return sorted(known, key=lambda each: (each[0], each[1].summary.id))


def slow_endpoint(picture: PoolObservation) -> IncidentFinding | None:
    """Recognises one slow endpoint among several."""
    paced = _by_slowness(picture)
    if len(paced) < 2:
        return None
    worst, each = paced[-1]
    if not (callers_harmed(picture) or (worst >= VERY_SLOW_PERCENT and callers_affected(picture))) or after_outage(
        picture
    ):
        return None
    others = paced[(len(paced) - 1) // 2][0]
    # When demand is high everywhere, an older machine slows down more than the others.
    least = VERY_SLOW_PERCENT if _has_more_arrivals(picture) else SLOW_PERCENT
    if worst < least or worst * 100 < (SLOW_PERCENT - 15) * others:
        return None
    name = each.summary.id
    return IncidentFinding(
        Incident.SLOW_ENDPOINT,
        f"Endpoint {name} in pool {picture.pool} takes {worst / 100:.1f} times as long per token as usual at its load.",
        (
            f"{name}: {_tpot(each)} between tokens, {worst}% of the usual time at its load",
            f"median of {len(paced)} endpoints: {others}%",
        ),
        f"Check its machine: clock rate, temperature, other jobs on the same device. {drain_advice(each, picture)}",
    )


def slow_endpoints(picture: PoolObservation) -> IncidentFinding | None:
    """Recognises that most endpoints, or the only one, are slow for reasons that demand does not explain."""
    paced = _by_slowness(picture)
    if not paced or not callers_harmed(picture) or paced[(len(paced) - 1) // 2][0] < SLOW_PERCENT:
        return None
    if _has_more_arrivals(picture) or after_outage(picture):
        return None
    middle, each = paced[(len(paced) - 1) // 2]
    slow = [one for one in paced if one[0] >= SLOW_PERCENT]
    take, their = ("takes", "its") if len(slow) == 1 else ("take", "their")
    return IncidentFinding(
        Incident.SLOW_ENDPOINT,
        f"{len(slow)} of {counted(len(picture.serving), 'endpoint')} in pool {picture.pool} {take} {middle / 100:.1f} "
        f"times as long per token as usual at {their} load.",
        (
            f"{each.summary.id}: {_tpot(each)} between tokens, {middle}% of the usual time at its load",
            prefill_evidence(picture),
            arrivals_evidence(picture),
        ),
        "Check what they have in common: the last change to the engines or the model, the power and clock rates of "
        "their machines, or other jobs on them. In the meantime, add endpoints or admit fewer requests.",
    )


def engines_late(picture: PoolObservation) -> IncidentFinding | None:
    """Recognises harm without queued or rejected requests. Tried last."""
    late = picture.recent
    if not callers_harmed(picture) or not is_harm_clear(picture):
        return None
    if after_outage(picture):
        return None
    return IncidentFinding(
        Incident.SLOW_ENDPOINT,
        f"Engines in pool {picture.pool} are missing their targets although no requests are queued in the gateway.",
        (
            prefill_evidence(picture),
            (
                f"{counted(late.late, 'first token was', 'first tokens were')} late and "
                f"{counted(late.slow, 'response was', 'responses were')} slow in the last {RECENT_SECONDS} s"
            ),
            arrivals_evidence(picture),
        ),
        "Check the engines' internal queues and clock rates, and whether they have other users. If they have always "
        "been this slow, the class's targets are too strict.",
    )


def _has_more_arrivals(picture: PoolObservation) -> bool:
    fresh, usual = picture.recent.arrivals - picture.recent.retries, picture.baseline_count(picture.baseline.arrivals)
    return fresh * 100 > MORE_PERCENT * usual and more_than_chance(fresh, usual)


def _tpot(endpoint: EndpointObservation) -> str:
    return "unknown" if endpoint.stats.tpot_ns is None else format_seconds(endpoint.stats.tpot_ns)
