"""Is it the engines that are the matter, or the way to them?

Patterns, in the manner of `patterns.py`. An endpoint is compared with itself: what is usual of it was learned of it
alone. Where several are slower at once that is told only when nothing else explains it.
"""

from typing import Final

from headgate.core.diagnosis.finding import Found, arrivals, felt, harmed, plain, prefill
from headgate.core.diagnosis.picture import EndpointLook, Picture, more_than_chance
from headgate.core.diagnosis.seconds_seen import LATE_SECONDS
from headgate.model.endpoint import EndpointState
from headgate.model.units import MILLISECOND, SECOND, Duration, seconds
from headgate.model.verdict import Incident

SILENT_NS: Final = Duration(5 * SECOND)
"""Several streams go on at an endpoint, and nothing has come for so long: it hangs."""
SILENT_STREAMS: Final = 3
TWO_SILENT_NS: Final = Duration(10 * SECOND)
ONE_SILENT_NS: Final = Duration(20 * SECOND)
"""The same of two, and where but one or none of its streams has begun: an engine may keep a tool call back until it is
whole, and a long prompt takes a while."""
PREFILL_TIMES: Final = 4
"""While prompts are computed others may stand still: so many times what these take by the pool's speed is allowed."""
FAILURES: Final = 3
FAILING_NS: Final = Duration(15 * SECOND)
FAILED_MIN: Final = 5
FAILED_PERCENT: Final = 15
"""So many attempts, and so many of those that were sent, failed: engines fail."""
EJECTED_PERCENT: Final = 33
NAMED_MAX: Final = 3
SLOW_PERCENT: Final = 155
"""An endpoint is slow whose pace is so many percent of its usual one at its load."""
VERY_SLOW_PERCENT: Final = 200
"""One so slow is told even where the others carry most of what it does not."""
MORE_PERCENT: Final = 130
"""Where so much more is asked for than usual, that engines are slow explains less than that they are asked too much."""
TRANSPORT_NS: Final = Duration(20 * MILLISECOND)
TRANSPORT_TIMES: Final = 4
_OUT_OF_THE_FILE: Final = "or take it out of the file and reload"
_OUT: Final = (EndpointState.EJECTED, EndpointState.TRIAL)


def engine_hang(picture: Picture) -> Found | None:
    for each in picture.endpoints:
        why = _broken(each, picture)
        if why and not each.summary.leaving:
            name = each.summary.id
            others = sum(other is not each for other in picture.serving)
            return Found(
                Incident.ENGINE_HANG,
                f"Endpoint {name} of pool {picture.pool} {why}; its callers wait for nothing.",
                (
                    f"{name}: {why}; {each.summary.in_flight} requests are there",
                    f"{others} other endpoints of the pool serve; {_failed(picture)}",
                ),
                f"Take it out: `headgate operate drain {name} --for 1h`, {_OUT_OF_THE_FILE}; then restart its engine "
                "and read its log.",
            )
    return None


def _broken(each: EndpointLook, picture: Picture) -> str:
    seen = each.seen
    if each.silent_ns >= _silence_allowed_ns(each):
        return f"has sent no token for {seconds(each.silent_ns)} though {seen.open} streams are open"
    # What fails at once and is answered elsewhere nobody notices, unless it goes on.
    lasting = seen.failed_at - seen.failing_since >= FAILING_NS or harmed(picture)
    if seen.failures >= FAILURES and lasting:
        return f"has failed {seen.failures} times in a row"
    return ""


def _silence_allowed_ns(each: EndpointLook) -> Duration:
    seen = each.seen
    prefill_ns = PREFILL_TIMES * seen.awaited_ns
    if seen.decoding >= SILENT_STREAMS:
        return Duration(max(SILENT_NS, prefill_ns))
    if seen.decoding > 1:
        return Duration(max(TWO_SILENT_NS, prefill_ns))
    return Duration(ONE_SILENT_NS + prefill_ns)


def engine_failing(picture: Picture) -> Found | None:
    late = picture.late
    if not harmed(picture):
        return None
    there = [each for each in picture.endpoints if not each.summary.leaving]
    ejected = [each for each in there if each.summary.state in _OUT]
    usual = picture.usual
    failing = late.attempts_failed >= FAILED_MIN and late.attempts_failed * 100 >= late.sent * (
        FAILED_PERCENT + 2 * (100 * usual.attempts_failed // max(1, usual.sent))
    )
    if not (failing or 2 * late.failed >= late.bad or 100 * len(ejected) >= EJECTED_PERCENT * max(1, len(there))):
        return None
    names = [each.summary.id for each in ejected[:NAMED_MAX]]
    out = f"; {len(ejected)} of {len(there)} endpoints are ejected" if ejected else ""
    return Found(
        Incident.ENGINE_FAILING,
        f"Engines of pool {picture.pool} fail: {late.attempts_failed} of {late.sent} attempts in {LATE_SECONDS} s"
        f"{out}.",
        (
            _failed(picture),
            f"{late.failed} requests failed for good; ejected: {', '.join(names) or 'none'}",
            arrivals(picture),
        ),
        "Read the engines' logs and take back the last change to engines or model; `headgate explain --outcome "
        "engine_failed --since 10m` has what they said.",
    )


def no_endpoints(picture: Picture) -> Found | None:
    late, serving = picture.late, len(picture.serving)
    if not harmed(picture) or (serving and 2 * late.missing < late.bad):
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
        f"Take back what took the endpoints of pool {picture.pool} away: the last reload, the fleet, or an order "
        "(`headgate operate list`).",
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
    if not (harmed(picture) or (worst >= VERY_SLOW_PERCENT and felt(picture))):
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
        f"Take it out: `headgate operate drain {name} --for 1h`, {_OUT_OF_THE_FILE}; then look at its machine: clock, "
        "temperature, neighbours on the same device.",
    )


def slow_endpoints(picture: Picture) -> Found | None:
    """Most of them, or the only one, where nothing that is asked of them explains it."""
    paced = _paced(picture)
    if not paced or not harmed(picture) or paced[(len(paced) - 1) // 2][0] < SLOW_PERCENT:
        return None
    if _asked_more(picture):
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
    if not harmed(picture) or not plain(picture):
        return None
    late = picture.late
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


def _failed(picture: Picture) -> str:
    return (
        f"{picture.late.attempts_failed} attempts failed in {LATE_SECONDS} s, usually "
        f"{picture.usually(picture.usual.attempts_failed)}"
    )
