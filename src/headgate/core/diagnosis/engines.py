"""Is it the engines that are the matter, or the way to them?

Patterns, in the manner of `patterns.py`. An endpoint is compared with itself: what is usual of it was learned of it
alone. Where several are slower at once that is told only when nothing else explains it.
"""

from typing import Final

from headgate.core.diagnosis.endpoint_seen import SLOW_PERCENT
from headgate.core.diagnosis.endpoints_out import take_out
from headgate.core.diagnosis.finding import Found, after_outage, arrivals, attempts_failed, felt, harmed, plain, prefill
from headgate.core.diagnosis.picture import EndpointLook, Picture, more_than_chance
from headgate.core.diagnosis.seconds_seen import LATE_SECONDS
from headgate.model.endpoint import EndpointState
from headgate.model.units import MILLISECOND, Duration, seconds
from headgate.model.verdict import Incident

UNSENT_MIN: Final = 3
FAILED_MIN: Final = 5
FAILED_PERCENT: Final = 15
"""So many attempts, and so many of those that were sent, failed: engines fail."""
VERY_SLOW_PERCENT: Final = 200
"""One so slow is told even where the others carry most of what it does not."""
MORE_PERCENT: Final = 130
"""Where so much more is asked for than usual, that engines are slow explains less than that they are asked too much."""
TRANSPORT_NS: Final = Duration(20 * MILLISECOND)
TRANSPORT_TIMES: Final = 4


def gateway_resources(picture: Picture) -> Found | None:
    """Attempts fail because a gateway lacks resources, not because of the engines."""
    late = picture.late
    if late.attempts_unsent < UNSENT_MIN or 2 * late.attempts_unsent < late.attempts_failed:
        return None
    return Found(
        Incident.GATEWAY_RESOURCES,
        f"The gateway cannot connect to engines of pool {picture.pool}: {picture.unsent_why}. The engines are not to "
        "blame.",
        (
            f"{late.attempts_unsent} of {late.sent} attempts could not be sent in {LATE_SECONDS} s",
            f"{late.failed} requests failed for good in {LATE_SECONDS} s",
            arrivals(picture),
        ),
        "Raise the limit that the reason names (file descriptors: `ulimit -n` or LimitNOFILE; memory; local ports), or "
        "fix name resolution on its machine; then restart the gateway.",
    )


def engine_failing(picture: Picture) -> Found | None:
    late, usual = picture.late, picture.usual
    if not harmed(picture):
        return None
    failing = late.attempts_failed >= FAILED_MIN and late.attempts_failed * 100 >= late.sent * (
        FAILED_PERCENT + 2 * (100 * usual.attempts_failed // max(1, usual.sent))
    )
    if not (failing or 2 * late.failed >= late.bad):
        return None
    return Found(
        Incident.ENGINE_FAILING,
        f"Engines of pool {picture.pool} fail: {late.attempts_failed} of {late.sent} attempts and {late.failed} "
        f"requests in {LATE_SECONDS} s.",
        (
            attempts_failed(picture),
            f"{late.failed} requests failed for good in {LATE_SECONDS} s",
            arrivals(picture),
        ),
        "Read the engines' logs and take back the last change to engines or model; `headgate explain --outcome "
        "engine_failed --since 10m` has what they said.",
    )


def no_endpoints(picture: Picture) -> Found | None:
    late, serving = picture.late, len(picture.serving)
    if not harmed(picture) or (serving and (2 * late.missing < late.bad or not picture.latest.missing)):
        return None
    if any(each.summary.state is EndpointState.WARMING and not each.summary.leaving for each in picture.endpoints):
        return None
    return Found(
        Incident.NO_ENDPOINTS,
        f"Requests of pool {picture.pool} find no endpoint: {serving} of {len(picture.endpoints)} serve.",
        (
            f"{late.missing} requests found no endpoint in the last {LATE_SECONDS} s",
            f"{len(picture.endpoints)} endpoints are known, {serving} of them serve",
            arrivals(picture),
        ),
        f"Take back what took the endpoints of pool {picture.pool} away: the last reload, the fleet, or an operator's "
        "order" + (" (`headgate operate list`)." if picture.operable else "."),
    )


def slow_network(picture: Picture) -> Found | None:
    now, usual = picture.transport_ns, picture.transport_usual_ns
    if now is None or usual is None or now < max(TRANSPORT_NS, TRANSPORT_TIMES * usual) or not harmed(picture):
        return None
    return Found(
        Incident.SLOW_NETWORK,
        f"The network to pool {picture.pool} is slow: connecting takes {seconds(now)}, usually {seconds(usual)}.",
        (
            f"connecting to endpoints takes {seconds(now)}, usually {seconds(usual)}",
            prefill(picture),
        ),
        "Look at the network between the gateway and the endpoints (`headgate doctor` asks each); move traffic to "
        "endpoints in the gateway's own zone.",
    )


def _paced(picture: Picture) -> list[tuple[int, EndpointLook]]:
    """Endpoints of which it is known how slow they are beside what is usual of themselves, the slowest last."""
    known = [(slower, each) for each in picture.serving if (slower := each.seen.slower_percent) is not None]
    return sorted(known, key=lambda each: (each[0], each[1].summary.id))


def slow_endpoint(picture: Picture) -> Found | None:
    """One of several."""
    paced = _paced(picture)
    if len(paced) < 2:
        return None
    worst, each = paced[-1]
    if not (harmed(picture) or (worst >= VERY_SLOW_PERCENT and felt(picture))) or after_outage(picture):
        return None
    others = paced[(len(paced) - 1) // 2][0]
    # An older machine slows down by more than the others when all of them are asked for too much.
    least = VERY_SLOW_PERCENT if _asked_more(picture) else SLOW_PERCENT
    if worst < least or worst * 100 < (SLOW_PERCENT - 15) * others:
        return None
    name = each.summary.id
    return Found(
        Incident.SLOW_ENDPOINT,
        f"Endpoint {name} of pool {picture.pool} is {worst / 100:.1f} times as slow as usual at its load.",
        (
            f"{name}: {_tpot(each)} between tokens, {worst}% of what is usual at its load",
            f"the middle one of {len(paced)} endpoints: {others}%",
        ),
        f"Look at its machine: clock, temperature, neighbours on the same device. {take_out(each, picture)}",
    )


def slow_endpoints(picture: Picture) -> Found | None:
    """Most of them, or the only one, where nothing that is asked of them explains it."""
    paced = _paced(picture)
    if not paced or not harmed(picture) or paced[(len(paced) - 1) // 2][0] < SLOW_PERCENT:
        return None
    if _asked_more(picture) or after_outage(picture):
        return None
    middle, each = paced[(len(paced) - 1) // 2]
    slow = [one for one in paced if one[0] >= SLOW_PERCENT]
    return Found(
        Incident.SLOW_ENDPOINT,
        f"{len(slow)} of {len(picture.serving)} endpoints of pool {picture.pool} are {middle / 100:.1f} times as slow "
        "as usual at their load.",
        (
            f"{each.summary.id}: {_tpot(each)} between tokens, {middle}% of what is usual at its load",
            prefill(picture),
            arrivals(picture),
        ),
        "Look at what they share: the last change to engines or model, power and clock of their machines, a job "
        "beside them. Until then add endpoints or let in less.",
    )


def engines_late(picture: Picture) -> Found | None:
    """The last that is asked: callers are harmed, nothing waits here and nothing was refused."""
    late = picture.late
    if not harmed(picture) or not plain(picture):
        return None
    if after_outage(picture):
        return None
    return Found(
        Incident.SLOW_ENDPOINT,
        f"Engines of pool {picture.pool} answer later than was promised, though nothing waits for them here.",
        (
            prefill(picture),
            f"{late.late} first tokens were late and {late.slow} answers slow in the last {LATE_SECONDS} s",
            arrivals(picture),
        ),
        "Look at the engines: what waits inside them, their clocks, who else uses them. If they have always been so "
        "slow, the targets of the class are too strict.",
    )


def _asked_more(picture: Picture) -> bool:
    fresh, usual = picture.late.arrivals - picture.late.retries, picture.usually(picture.usual.arrivals)
    return fresh * 100 > MORE_PERCENT * usual and more_than_chance(fresh, usual)


def _tpot(each: EndpointLook) -> str:
    return "unknown" if each.seen.tpot_ns is None else seconds(each.seen.tpot_ns)
