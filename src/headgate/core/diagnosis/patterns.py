"""By what is each incident recognised?

One function per pattern: given the picture of a pool it says what it found, or None. They are asked in the order of
`PATTERNS`: what is seen directly before what is inferred, and a shape of the load before the mere amount of it. The
consequences of one incident look like another: who is refused tries again, and a queue fills whatever the reason. So
retries and amounts come last. Most patterns require harm: callers wait longer than promised, or are not served. Four
kinds of incident do not: endpoints that do not serve, answers that grow, callers that give up, and a backlog that never
drains. If there is clear harm, some pattern always matches.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headgate.core.diagnosis.endpoints_out import endpoints_out, is_minor
from headgate.core.diagnosis.engines import (
    engine_failing,
    engines_late,
    gateway_resources,
    no_endpoints,
    slow_endpoint,
    slow_endpoints,
    slow_network,
)
from headgate.core.diagnosis.finding import (
    Found,
    after_outage,
    arrivals,
    engine_waiting,
    harmed,
    kv,
    plain,
    prefill,
    prompts,
    usd,
)
from headgate.core.diagnosis.picture import (
    ANSWER_ERRORS,
    BACKLOG_LOOKS,
    EndpointLook,
    Picture,
    clearly_above,
    longer,
    mean,
    more_than_chance,
)
from headgate.core.diagnosis.seconds_seen import LATE_SECONDS, Lengths
from headgate.model.endpoint import EndpointState
from headgate.model.units import SECOND, Duration, TenantId, seconds
from headgate.model.verdict import Incident

FAST_PERCENT: Final = 60
"""Of what is promised: engines that produce tokens in so much have room."""
IDLE_KV_PERCENT: Final = 60
KV_PERCENT: Final = 88
LONGER_PERCENT: Final = 135
COST_PERCENT: Final = 130
COST_OVER_PERCENT: Final = 115
"""What has been told is taken back when answers are within this of the usual ones."""
COST_ARRIVALS_PERCENT: Final = 120
"""Where callers are harmed, longer answers are why only if no more requests come than so many percent of the usual."""
ANSWERS_USUAL_MIN: Final = 60
ANSWERS_MIN: Final = 15
"""Of fewer answers it is not said that they have grown."""
NOISE_PERCENT: Final = 55
"""Of all that came in addition, what one tenant brought."""
NOISE_TIMES: Final = 2
"""Growth of a noisy tenant's requests, over their usual number and over the growth of all other tenants."""
CACHE_USUAL_PERCENT: Final = 15
RETRIES_PERCENT: Final = 30
FRESH_PERCENT: Final = 135
GAVE_UP_MIN: Final = 5
GAVE_UP_PERCENT: Final = 15
"""Callers give up if they abandon at least `GAVE_UP_MIN` requests, and the share of abandoned requests exceeds twice
the usual one by this many percentage points."""
BACKLOG_MIN: Final = 5
"""The pool is overloaded if at least this many requests are queued at each of `BACKLOG_LOOKS` looks."""
NEW_NS: Final = Duration(20 * SECOND)
"""So long after it has become ready an endpoint has only just come."""


# What somebody set


def limit_too_low(picture: Picture) -> Found | None:
    serving = picture.serving
    if not serving or not picture.queued or not (harmed(picture) or picture.backlog >= BACKLOG_MIN):
        return None
    full = [each for each in serving if each.summary.in_flight * 10 >= each.summary.in_flight_max * 9]
    if len(full) < len(serving) or not all(_idle(each, picture) for each in serving):
        return None
    places = sum(each.summary.in_flight_max for each in serving)
    tpot = [each.seen.tpot_ns for each in serving if each.seen.tpot_ns is not None]
    pace = f"{seconds(max(tpot))} between tokens" if tpot else "hardly a token is computed"
    promised = "" if picture.tpot_ns is None else f", {seconds(picture.tpot_ns)} is promised"
    return Found(
        Incident.LIMIT_TOO_LOW,
        f"All {places} places of pool {picture.pool} are taken while its engines have room: in_flight_max is too low.",
        (
            f"{picture.queued} requests wait, and all {places} places at {len(serving)} endpoints are taken",
            f"engines: {pace}{promised}; KV cache {kv(picture)}, {engine_waiting(picture)} waiting there",
        ),
        f"Raise in_flight_max of pool {picture.pool} (`headgate check`, then reload); the headroom rules keep engines "
        "from harm.",
    )


def _idle(each: EndpointLook, picture: Picture) -> bool:
    seen = each.seen
    # An engine that does not tell what it holds may have no more slots than we have places.
    if seen.waiting or seen.kv_percent is None or seen.kv_percent > IDLE_KV_PERCENT or seen.tpot_ns is None:
        return False
    step_ns = picture.speed.step_ps // 1_000
    most = step_ns * 2 if picture.tpot_ns is None else picture.tpot_ns * FAST_PERCENT // 100
    return seen.tpot_ns <= most


# Memory


def prefix_cache_lost(picture: Picture) -> Found | None:
    late, usual = picture.late, picture.usual
    if not picture.known or not harmed(picture) or not usual.asked_tokens or not late.asked_tokens:
        return None
    now, before = 100 * late.cached_tokens // late.asked_tokens, 100 * usual.cached_tokens // usual.asked_tokens
    if before < CACHE_USUAL_PERCENT or 2 * now > before:
        return None
    return Found(
        Incident.PREFIX_CACHE_LOST,
        f"Engines of pool {picture.pool} compute what they used to remember: {now}% of prompts are cached, usually "
        f"{before}%.",
        (f"{now}% of prompt tokens came from the cache, usually {before}%", prefill(picture), prompts(picture)),
        "Look for what changed at the beginning of prompts (a date, an id) or whether engines were restarted; put what "
        "changes behind what stays.",
    )


def kv_exhausted(picture: Picture) -> Found | None:
    """Engines report full KV caches, or requests wait because reservations fill the KV cache of every endpoint."""
    used = [each.seen.kv_percent for each in picture.serving if each.seen.kv_percent is not None]
    in_use = mean(sum(used), len(used))
    reserved = picture.queued > 0 and all(each.summary.kv_full for each in picture.serving)
    if not used or not harmed(picture) or (in_use < KV_PERCENT and not reserved):
        return None
    return Found(
        Incident.KV_EXHAUSTED,
        f"The KV caches of pool {picture.pool} are full: {in_use}% in use"
        + (", the rest reserved for running requests" if in_use < KV_PERCENT else "")
        + ", so requests wait though engines could compute.",
        (
            f"KV cache {kv(picture)}; {engine_waiting(picture)} requests wait inside engines",
            prompts(picture),
            f"{picture.queued} requests wait here",
        ),
        "Bound contexts and answers (caps of the class), or add endpoints; give engines more memory for the KV cache.",
    )


# What callers do


def noisy_tenant(picture: Picture) -> Found | None:
    late, usual = picture.late, picture.usual
    if not picture.known or not harmed(picture) or len(late.tenants.by_name) < 2:
        return None
    more = {
        name: work - picture.usually(usual.tenants_work.by_name.get(name, 0))
        for name, work in late.tenants_work.by_name.items()
    }
    name = max(more, key=lambda each: (more[each], each))
    whole = sum(each for each in more.values() if each > 0)
    count, before = late.tenants.by_name.get(name, 0), picture.usually(usual.tenants.by_name.get(name, 0))
    if more[name] * 100 < NOISE_PERCENT * whole or count < NOISE_TIMES * before or not more_than_chance(count, before):
        return None
    if _all_grow(picture, name):
        return None
    share = 100 * late.tenants_work.by_name[name] // max(1, sum(late.tenants_work.by_name.values()))
    if more[name] * 10 < picture.usually(sum(usual.tenants_work.by_name.values())):
        return None
    return Found(
        Incident.NOISY_TENANT,
        f"Tenant {name} asks for {count} requests in {LATE_SECONDS} s, usually {before}, and takes {share}% of pool "
        f"{picture.pool}.",
        (
            f"{name}: {count} requests in {LATE_SECONDS} s, usually {before}; {share}% of all work asked for",
            f"of what came in addition, {100 * more[name] // max(1, whole)}% is theirs",
            arrivals(picture),
        ),
        f"Slow it down: {_throttle(name, 6 * max(1, 2 * before), picture)}; fair shares hold the others up meanwhile.",
        tenant=TenantId(name),
    )


def _all_grow(picture: Picture, name: str) -> bool:
    """Whether the requests of the other tenants grow by more than half of this tenant's factor: a general overload."""
    late, usual = picture.late.tenants.by_name, picture.usual.tenants.by_name
    own, own_before = late.get(name, 0), usual.get(name, 0)
    others, others_before = sum(late.values()) - own, sum(usual.values()) - own_before
    return NOISE_TIMES * others * own_before > own * others_before


def _throttle(name: str, per_minute: int, picture: Picture) -> str:
    if picture.operable:
        return f"`headgate operate throttle {name} --requests-per-minute {per_minute} --for 15m`"
    return (
        f"set limits.requests_per_minute of tenant {name} to {per_minute} in the configuration file and send SIGHUP to "
        "the gateway"
    )


def cost_drift(picture: Picture) -> Found | None:
    if not picture.known:
        return None
    if harmed(picture) and picture.late.arrivals * 100 > COST_ARRIVALS_PERCENT * picture.usually(
        picture.usual.arrivals
    ):
        return None
    told = picture.told is Incident.COST_DRIFT
    percent, errors = (COST_OVER_PERCENT, 1) if told else (COST_PERCENT, ANSWER_ERRORS)
    for name, late in picture.later.answers.items():
        usual = picture.usual.answers.get(name, Lengths())
        if usual.count < ANSWERS_USUAL_MIN or late.count < ANSWERS_MIN or not longer(late, usual, percent, errors):
            continue
        # Of traffic that goes away the longest answers are the last to end.
        if 2 * late.asked * picture.usual.seconds < usual.asked * picture.later.seconds:
            continue
        now, before = mean(late.tokens, late.count), mean(usual.tokens, usual.count)
        money = ""
        if usual.cost:
            money = f"; {usd(mean(late.cost, late.count))} a request, usually {usd(mean(usual.cost, usual.count))}"
        return Found(
            Incident.COST_DRIFT,
            f"Answers of class {name} have grown to {now} tokens, usually {before}: each request costs "
            f"{100 * (now - before) // max(1, before)}% more.",
            (
                f"{now} tokens per answer over the last {late.count}, usually {before}{money}",
                arrivals(picture),
            ),
            f"Ask who changed a prompt or a limit; bound it meanwhile with caps.output_tokens of class {name}.",
            service_class=name,
        )
    return None


def retry_storm(picture: Picture) -> Found | None:
    late, usual = picture.late, picture.usual
    if not picture.known or not harmed(picture) or late.arrivals < 20:
        return None
    fresh, before = late.arrivals - late.retries, picture.usually(usual.arrivals - usual.retries)
    now, then = 100 * late.retries // late.arrivals, 100 * usual.retries // usual.arrivals
    if now < max(RETRIES_PERCENT, 2 * then) or fresh * 100 > FRESH_PERCENT * before:
        return None
    return Found(
        Incident.RETRY_STORM,
        f"Callers of pool {picture.pool} ask again and again: {now}% of requests are retries, usually {then}%, while "
        "no more new ones come than ever.",
        (
            f"{now}% of arrivals are retries, usually {then}%",
            f"{fresh} new requests in {LATE_SECONDS} s, usually {before}",
            arrivals(picture),
        ),
        "Check the timeouts and retries of clients and of proxies before the gateway: a retry must wait for "
        "Retry-After. `headgate explain --outcome retry_refused --since 10m` lists rejected retries and their tenants.",
    )


def client_timeouts(picture: Picture) -> Found | None:
    late, usual = picture.late, picture.usual
    if not picture.known or late.gave_up < GAVE_UP_MIN or late.gave_up < late.bad:
        return None
    whole, usual_whole = late.resolved + late.gave_up, usual.resolved + usual.gave_up
    now, before = 100 * late.gave_up // whole, 100 * usual.gave_up // max(1, usual_whole)
    if now < GAVE_UP_PERCENT + 2 * before or not more_than_chance(late.gave_up, picture.usually(usual.gave_up)):
        return None
    return Found(
        Incident.CLIENT_TIMEOUTS,
        f"Callers of pool {picture.pool} give up before they can be answered: {now}% of requests, usually {before}%.",
        (
            (
                f"{late.gave_up} requests cancelled, or with a deadline shorter than the target, in {LATE_SECONDS} s; "
                f"usually {picture.usually(usual.gave_up)}"
            ),
            prefill(picture),
            arrivals(picture),
        ),
        "Raise the timeout of these callers above the time to the first token of their class, or let them stream; "
        "`headgate explain --outcome cancelled --since 10m` lists them.",
    )


# More than can be computed


def long_prompts(picture: Picture) -> Found | None:
    if not harmed(picture) or not _longer_prompts(picture):
        return None
    late, usual = picture.late, picture.usual
    now, before = mean(late.prompt_tokens, late.arrivals), mean(usual.prompt_tokens, usual.arrivals)
    # Half a minute ago they were already on their way. What was told at first stays: it is as long ago by then.
    drifts = picture.prompts_before * 100 > before * 100 + 35 * (now - before)
    if picture.told in (Incident.LONG_PROMPTS, Incident.PROMPT_DRIFT):
        drifts = picture.told is Incident.PROMPT_DRIFT
    return Found(
        Incident.PROMPT_DRIFT if drifts else Incident.LONG_PROMPTS,
        f"Prompts at pool {picture.pool} have {'slowly ' if drifts else ''}grown to {now} tokens, usually {before}: "
        "engines compute prompts instead of answers.",
        (f"{now} tokens per prompt, usually {before}", prefill(picture), arrivals(picture)),
        "Add endpoints, or send long prompts to a pool of their own (prompt_tokens_max of the class and the pool).",
    )


def _longer_prompts(picture: Picture) -> bool:
    late, usual = picture.late, picture.usual
    return picture.known and clearly_above(
        total=late.prompt_tokens,
        count=late.arrivals,
        usual_total=usual.prompt_tokens,
        usual_squares=usual.prompt_squares,
        usual_count=usual.arrivals,
        percent=LONGER_PERCENT,
    )


def cold_start(picture: Picture) -> Found | None:
    if not harmed(picture):
        return None
    new = [each for each in picture.endpoints if _is_new(each, picture)]
    if not new:
        return None
    serve = f"{len(picture.serving)} serve"
    starting = [each for each in new if each.summary.state is EndpointState.WARMING]
    if starting:
        longest = seconds(Duration(max(picture.now - each.seen.joined_at for each in starting)))
        noun, verb = ("endpoint", "is") if len(starting) == 1 else ("endpoints", "are")
        sentence = f"Pool {picture.pool} waits for {len(starting)} {noun} that {verb} starting; {serve}."
        fact = f"{len(starting)} {noun} {verb} starting, the longest for {longest}; {serve}"
        first = "Wait for them, or lower what is let in"
    else:
        count = "1 endpoint has" if len(new) == 1 else f"{len(new)} endpoints have"
        within = seconds(NEW_NS)
        sentence = f"{count} joined pool {picture.pool} within the last {within}; {serve}, and the backlog remains."
        fact = f"{count} become ready within the last {within}; {serve}"
        first = "Wait until the backlog has drained, or lower what is let in"
    return Found(
        Incident.COLD_START,
        sentence,
        (
            fact,
            arrivals(picture),
            f"{picture.late.missing} requests found no endpoint in the last {LATE_SECONDS} s",
        ),
        f"{first}; for the next time raise warm_min of pool {picture.pool} or name the launch in its calendar.",
    )


def _is_new(each: EndpointLook, picture: Picture) -> bool:
    if each.summary.leaving:
        return False
    if each.summary.state is EndpointState.WARMING:
        return True
    since, usual = each.seen.readied_at, picture.usual.seconds
    return since is not None and picture.now - since < NEW_NS and usual > 0


def overload(picture: Picture) -> Found | None:
    late = picture.late
    if not harmed(picture) or not plain(picture):
        return _backlog(picture) if picture.backlog >= BACKLOG_MIN else None
    if not (picture.queued or late.refused or picture.level) or after_outage(picture):
        return None
    return Found(
        Incident.OVERLOAD,
        f"Pool {picture.pool} is asked for more than its {len(picture.serving)} endpoints can compute.",
        (
            arrivals(picture),
            (
                f"{picture.queued} requests wait; {late.refused} were refused in the last {LATE_SECONDS} s, usually "
                f"{picture.usually(picture.usual.refused)}"
            ),
            prefill(picture),
        ),
        "Add endpoints (raise endpoints_max or start them); until then the ladder and limits decide who gives way.",
    )


def _backlog(picture: Picture) -> Found:
    """The pool is asked for more than it can compute, but so far no caller is harmed, or too few to be sure."""
    late = picture.late
    targets = "Targets are met so far."
    action = "No action if the queued work can wait; otherwise add endpoints (raise endpoints_max or start them)."
    if harmed(picture):
        targets = f"{late.bad} requests were late or not served in {LATE_SECONDS} s."
    elif late.gave_up >= GAVE_UP_MIN and late.gave_up * 100 >= GAVE_UP_PERCENT * (late.resolved + late.gave_up):
        targets = f"Targets are met so far, but callers gave up on {late.gave_up} requests in {LATE_SECONDS} s."
        action = (
            "Add endpoints (raise endpoints_max or start them), or raise the timeout of these callers; `headgate "
            "explain --outcome cancelled --since 10m` lists the requests."
        )
    return Found(
        Incident.OVERLOAD,
        f"Pool {picture.pool} is asked for more than its {len(picture.serving)} endpoints can compute: "
        f"{picture.queued} requests wait, and never fewer than {picture.backlog} in {BACKLOG_LOOKS} s. {targets}",
        (
            f"{picture.queued} requests wait; at least {picture.backlog} have waited at any time in {BACKLOG_LOOKS} s",
            arrivals(picture),
            (
                f"{late.bad} of {late.resolved} requests were late or not served in {LATE_SECONDS} s; callers gave up "
                f"on {late.gave_up} more"
            ),
        ),
        action,
    )


PATTERNS: Final[Sequence[Callable[[Picture], Found | None]]] = (
    gateway_resources,
    engine_failing,
    no_endpoints,
    slow_network,
    slow_endpoint,
    limit_too_low,
    prefix_cache_lost,
    noisy_tenant,
    kv_exhausted,
    long_prompts,
    slow_endpoints,
    retry_storm,
    cold_start,
    cost_drift,
    client_timeouts,
    overload,
    engines_late,
)


def found(picture: Picture, *, but: Callable[[Picture], Found | None] | None = None) -> Found | None:
    """The finding of the first pattern that applies. The pattern `but` is left out."""
    out = endpoints_out(picture)
    if out is not None and not is_minor(picture):
        return out
    for pattern in PATTERNS:
        if pattern is not but and (one := pattern(picture)) is not None:
            return one
    return out
