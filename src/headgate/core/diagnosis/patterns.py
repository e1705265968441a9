"""Patterns that recognise incidents.

Each pattern is a function that takes the observation of a pool and returns a finding or None. Patterns are tried in the
order of `PATTERNS`. Direct observations come before conclusions, and changes in the kind of load come before changes in
its amount. Retries and amounts come last, because the consequences of one incident resemble another: rejected callers
retry, and queues grow in most incidents.

Most patterns require harm: callers wait longer than their targets or are not served. Four kinds of incidents do not:
endpoints that are not serving, growing responses, callers giving up, and a backlog that never drains. If there is clear
harm, some pattern always matches.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headgate.core.diagnosis.endpoints_down import endpoints_down, is_minor
from headgate.core.diagnosis.engine_patterns import (
    engine_failing,
    engines_late,
    gateway_resources,
    no_endpoints,
    slow_endpoint,
    slow_endpoints,
    slow_network,
)
from headgate.core.diagnosis.finding import (
    IncidentFinding,
    after_outage,
    arrivals_evidence,
    callers_harmed,
    counted,
    engine_queue_evidence,
    format_usd,
    harm_threshold,
    is_harm_clear,
    kv_evidence,
    missing_evidence,
    prefill_evidence,
    prompts_evidence,
)
from headgate.core.diagnosis.pool_observation import (
    ANSWER_ERRORS,
    BACKLOG_LOOKS,
    EndpointObservation,
    PoolObservation,
    clearly_above,
    is_longer,
    mean,
    more_than_chance,
)
from headgate.core.diagnosis.window_counts import RECENT_SECONDS, AnswerLengths
from headgate.model.endpoint import EndpointState
from headgate.model.units import SECOND, Duration, TenantId, format_seconds
from headgate.model.verdict import Incident

FAST_PERCENT: Final = 60
"""Percentage of the time-per-token target below which engines count as having spare capacity."""
IDLE_KV_PERCENT: Final = 60
KV_PERCENT: Final = 88
LONGER_PERCENT: Final = 135
COST_PERCENT: Final = 130
COST_OVER_PERCENT: Final = 115
"""Percentage of the usual response length at which a reported cost drift ends."""
COST_ARRIVALS_PERCENT: Final = 120
"""Maximum arrivals, in percent of the usual number, at which longer responses can explain harm."""
ANSWERS_USUAL_MIN: Final = 60
ANSWERS_MIN: Final = 15
"""Minimum number of responses, in the baseline and recently, for a cost drift."""
NOISE_PERCENT: Final = 55
"""Minimum percentage of the additional work that must come from one tenant for it to count as noisy."""
NOISE_TIMES: Final = 2
"""Minimum growth in a noisy tenant's requests, relative to their usual number and to all other tenants' growth."""
CACHE_USUAL_PERCENT: Final = 15
RETRIES_PERCENT: Final = 30
FRESH_PERCENT: Final = 135
GAVE_UP_MIN: Final = 5
GAVE_UP_PERCENT: Final = 15
"""Callers give up if they abandon at least `GAVE_UP_MIN` requests and the share of abandoned requests exceeds twice the
usual share by this many percentage points."""
BACKLOG_MIN: Final = 5
"""Minimum number of queued requests, at each of the last `BACKLOG_LOOKS` checks, for an overloaded pool."""
NEW_NS: Final = Duration(20 * SECOND)
"""Time after becoming ready during which an endpoint counts as new."""


# Configuration


def limit_too_low(picture: PoolObservation) -> IncidentFinding | None:
    serving = picture.serving
    if not serving or not picture.queued or not (callers_harmed(picture) or picture.backlog >= BACKLOG_MIN):
        return None
    full = [each for each in serving if each.summary.in_flight * 10 >= each.summary.in_flight_max * 9]
    if len(full) < len(serving) or not all(_is_idle(each, picture) for each in serving):
        return None
    places = sum(each.summary.in_flight_max for each in serving)
    slots, verb = ("The only slot", "is") if places == 1 else (f"All {places} slots", "are")
    tpot = [each.stats.tpot_ns for each in serving if each.stats.tpot_ns is not None]
    pace = f"{format_seconds(max(tpot))} between tokens" if tpot else "almost no tokens"
    promised = "" if picture.tpot_ns is None else f" (target {format_seconds(picture.tpot_ns)})"
    return IncidentFinding(
        Incident.LIMIT_TOO_LOW,
        f"{slots} of pool {picture.pool} {verb} in use while its engines have spare capacity: in_flight_max is too "
        "low.",
        (
            (
                f"{counted(picture.queued, 'request is', 'requests are')} queued; {places} of "
                f"{counted(places, 'slot')} on {counted(len(serving), 'endpoint')} {verb} in use"
            ),
            f"engines: {pace}{promised}; KV cache {kv_evidence(picture)}, {engine_queue_evidence(picture)}",
        ),
        f"Raise in_flight_max for pool {picture.pool} (`headgate check`, then reload). The headroom rules protect the "
        "engines from overload.",
    )


def _is_idle(endpoint: EndpointObservation, picture: PoolObservation) -> bool:
    seen = endpoint.stats
    # An engine that does not report its KV cache may have no more slots than the gateway uses.
    if seen.waiting or seen.kv_percent is None or seen.kv_percent > IDLE_KV_PERCENT or seen.tpot_ns is None:
        return False
    step_ns = picture.speed.step_ps // 1_000
    most = step_ns * 2 if picture.tpot_ns is None else picture.tpot_ns * FAST_PERCENT // 100
    return seen.tpot_ns <= most


# Memory


def prefix_cache_lost(picture: PoolObservation) -> IncidentFinding | None:
    late, usual = picture.recent, picture.baseline
    if not picture.has_baseline or not callers_harmed(picture) or not usual.asked_tokens or not late.asked_tokens:
        return None
    now, before = 100 * late.cached_tokens // late.asked_tokens, 100 * usual.cached_tokens // usual.asked_tokens
    if before < CACHE_USUAL_PERCENT or 2 * now > before:
        return None
    return IncidentFinding(
        Incident.PREFIX_CACHE_LOST,
        f"Engines in pool {picture.pool} are recomputing prompts that used to be cached: {now}% of prompt tokens are "
        f"cached, usually {before}%.",
        (
            f"{now}% of prompt tokens came from the cache, usually {before}%",
            prefill_evidence(picture),
            prompts_evidence(picture),
        ),
        "Check whether the start of the prompts has changed (a date, an id) or engines were restarted. Put the "
        "variable parts of a prompt after the fixed parts.",
    )


def kv_exhausted(picture: PoolObservation) -> IncidentFinding | None:
    """Recognises KV caches that engines report as full, or that are fully reserved on every endpoint."""
    used = [each.stats.kv_percent for each in picture.serving if each.stats.kv_percent is not None]
    in_use = mean(sum(used), len(used))
    reserved = picture.queued > 0 and all(each.summary.kv_full for each in picture.serving)
    if not used or not callers_harmed(picture) or (in_use < KV_PERCENT and not reserved):
        return None
    return IncidentFinding(
        Incident.KV_EXHAUSTED,
        f"The KV caches of pool {picture.pool} are full: {in_use}% in use"
        + (", the rest reserved for running requests" if in_use < KV_PERCENT else "")
        + ". Requests wait although the engines could process them.",
        (
            f"KV cache {kv_evidence(picture)}; {engine_queue_evidence(picture)}",
            prompts_evidence(picture),
            f"{counted(picture.queued, 'request')} queued in the gateway",
        ),
        "Limit prompt and response lengths (the class's caps), add endpoints, or give engines more KV cache memory.",
    )


# Callers


def noisy_tenant(picture: PoolObservation) -> IncidentFinding | None:
    late, usual = picture.recent, picture.baseline
    if not picture.has_baseline or not callers_harmed(picture) or len(late.tenants.by_name) < 2:
        return None
    more = {
        name: work - picture.baseline_count(usual.tenants_work.by_name.get(name, 0))
        for name, work in late.tenants_work.by_name.items()
    }
    name = max(more, key=lambda each: (more[each], each))
    whole = sum(each for each in more.values() if each > 0)
    count, before = late.tenants.by_name.get(name, 0), picture.baseline_count(usual.tenants.by_name.get(name, 0))
    if more[name] * 100 < NOISE_PERCENT * whole or count < NOISE_TIMES * before or not more_than_chance(count, before):
        return None
    if _all_grow(picture, name):
        return None
    share = 100 * late.tenants_work.by_name[name] // max(1, sum(late.tenants_work.by_name.values()))
    if more[name] * 10 < picture.baseline_count(sum(usual.tenants_work.by_name.values())):
        return None
    return IncidentFinding(
        Incident.NOISY_TENANT,
        f"Tenant {name} sent {count} requests in {RECENT_SECONDS} s, usually {before}, and is using {share}% of pool "
        f"{picture.pool}.",
        (
            f"{name}: {count} requests in {RECENT_SECONDS} s, usually {before}; {share}% of the requested work",
            f"{100 * more[name] // max(1, whole)}% of the additional work comes from {name}",
            arrivals_evidence(picture),
        ),
        f"Throttle the tenant: {_throttle(name, 6 * max(1, 2 * before), picture)}. In the meantime, fair shares "
        "protect the other tenants.",
        tenant=TenantId(name),
    )


def _all_grow(picture: PoolObservation, name: str) -> bool:
    """Returns whether the other tenants' requests grew by over half of this tenant's factor, as in an overload."""
    late, usual = picture.recent.tenants.by_name, picture.baseline.tenants.by_name
    own, own_before = late.get(name, 0), usual.get(name, 0)
    others, others_before = sum(late.values()) - own, sum(usual.values()) - own_before
    return NOISE_TIMES * others * own_before > own * others_before


def _throttle(name: str, per_minute: int, picture: PoolObservation) -> str:
    if picture.overrides_enabled:
        return f"`headgate operate throttle {name} --requests-per-minute {per_minute} --for 15m`"
    return (
        f"set limits.requests_per_minute for tenant {name} to {per_minute} in the configuration file and send SIGHUP "
        "to the gateway"
    )


def cost_drift(picture: PoolObservation) -> IncidentFinding | None:
    if not picture.has_baseline:
        return None
    if callers_harmed(picture) and picture.recent.arrivals * 100 > COST_ARRIVALS_PERCENT * picture.baseline_count(
        picture.baseline.arrivals
    ):
        return None
    told = picture.reported is Incident.COST_DRIFT
    percent, errors = (COST_OVER_PERCENT, 1) if told else (COST_PERCENT, ANSWER_ERRORS)
    for name, late in picture.longer_window.answers.items():
        usual = picture.baseline.answers.get(name, AnswerLengths())
        if usual.count < ANSWERS_USUAL_MIN or late.count < ANSWERS_MIN or not is_longer(late, usual, percent, errors):
            continue
        # When traffic stops, the longest responses end last.
        if 2 * late.asked * picture.baseline.seconds < usual.asked * picture.longer_window.seconds:
            continue
        now, before = mean(late.tokens, late.count), mean(usual.tokens, usual.count)
        money = ""
        if usual.cost:
            cost, usual_cost = mean(late.cost, late.count), mean(usual.cost, usual.count)
            money = f"; {format_usd(cost)} a request, usually {format_usd(usual_cost)}"
        return IncidentFinding(
            Incident.COST_DRIFT,
            f"Responses of class {name} have grown from the usual {before} to {now} tokens. Each request costs "
            f"{100 * (now - before) // max(1, before)}% more.",
            (
                f"{now} tokens per response in the last {late.count} responses, usually {before}{money}",
                arrivals_evidence(picture),
            ),
            f"Find out who changed a prompt or a limit. In the meantime, set caps.output_tokens for class {name}.",
            service_class=name,
        )
    return None


def retry_storm(picture: PoolObservation) -> IncidentFinding | None:
    late, usual = picture.recent, picture.baseline
    if not picture.has_baseline or not callers_harmed(picture) or late.arrivals < 20:
        return None
    fresh, before = late.arrivals - late.retries, picture.baseline_count(usual.arrivals - usual.retries)
    now, then = 100 * late.retries // late.arrivals, 100 * usual.retries // usual.arrivals
    if now < max(RETRIES_PERCENT, 2 * then) or fresh * 100 > FRESH_PERCENT * before:
        return None
    return IncidentFinding(
        Incident.RETRY_STORM,
        f"Callers of pool {picture.pool} are retrying repeatedly: {now}% of requests are retries, usually {then}%, "
        "while the number of new requests is near its usual level.",
        (
            f"{now}% of arrivals are retries, usually {then}%",
            f"{counted(fresh, 'new request')} in {RECENT_SECONDS} s, usually {before}",
            arrivals_evidence(picture),
        ),
        "Check the timeout and retry settings of clients and of any proxies in front of the gateway. Retries must "
        "respect Retry-After. `headgate explain --outcome retry_budget_exhausted --since 10m` lists rejected retries "
        "and their tenants.",
    )


def client_timeouts(picture: PoolObservation) -> IncidentFinding | None:
    late, usual = picture.recent, picture.baseline
    if not picture.has_baseline or late.gave_up < GAVE_UP_MIN or late.gave_up < late.bad:
        return None
    whole, usual_whole = late.resolved + late.gave_up, usual.resolved + usual.gave_up
    now, before = 100 * late.gave_up // whole, 100 * usual.gave_up // max(1, usual_whole)
    if now < GAVE_UP_PERCENT + 2 * before or not more_than_chance(late.gave_up, picture.baseline_count(usual.gave_up)):
        return None
    return IncidentFinding(
        Incident.CLIENT_TIMEOUTS,
        f"Callers of pool {picture.pool} are giving up before they get a response: {now}% of requests, usually "
        f"{before}%.",
        (
            (
                f"{late.gave_up} requests cancelled, or with a deadline shorter than the target, in {RECENT_SECONDS} "
                f"s; usually {picture.baseline_count(usual.gave_up)}"
            ),
            prefill_evidence(picture),
            arrivals_evidence(picture),
        ),
        "Raise these callers' timeouts above the time to first token in their class, or have them stream. "
        "`headgate explain --outcome cancelled --since 10m` lists them.",
    )


# Capacity


def long_prompts(picture: PoolObservation) -> IncidentFinding | None:
    if not callers_harmed(picture) or not _longer_prompts(picture):
        return None
    late, usual = picture.recent, picture.baseline
    now, before = mean(late.prompt_tokens, late.arrivals), mean(usual.prompt_tokens, usual.arrivals)
    # A drift was already visible half a minute ago. The first verdict is kept, because the values from half a minute
    # ago are now part of the incident.
    drifts = picture.earlier_prompt_tokens * 100 > before * 100 + 35 * (now - before)
    if picture.reported in (Incident.LONG_PROMPTS, Incident.PROMPT_DRIFT):
        drifts = picture.reported is Incident.PROMPT_DRIFT
    return IncidentFinding(
        Incident.PROMPT_DRIFT if drifts else Incident.LONG_PROMPTS,
        f"Prompts to pool {picture.pool} have {'slowly ' if drifts else ''}grown from the usual {before} to {now} "
        "tokens. Engines are spending their time on prefill instead of decoding.",
        (prompts_evidence(picture), prefill_evidence(picture), arrivals_evidence(picture)),
        "Add endpoints, or send long prompts to a separate pool (prompt_tokens_max of the class and the pool).",
    )


def _longer_prompts(picture: PoolObservation) -> bool:
    late, usual = picture.recent, picture.baseline
    return picture.has_baseline and clearly_above(
        total=late.prompt_tokens,
        count=late.arrivals,
        usual_total=usual.prompt_tokens,
        usual_squares=usual.prompt_squares,
        usual_count=usual.arrivals,
        percent=LONGER_PERCENT,
    )


def cold_start(picture: PoolObservation) -> IncidentFinding | None:
    if not callers_harmed(picture):
        return None
    new = [each for each in picture.endpoints if _is_new(each, picture)]
    if not new:
        return None
    serve = f"{len(picture.serving)} {'is' if len(picture.serving) == 1 else 'are'} serving"
    starting = [each for each in new if each.summary.state is EndpointState.WARMING]
    if starting:
        longest = format_seconds(Duration(max(picture.now - each.stats.joined_at for each in starting)))
        noun, verb = ("endpoint", "is") if len(starting) == 1 else ("endpoints", "are")
        sentence = f"Pool {picture.pool} is waiting for {len(starting)} starting {noun}; {serve}."
        fact = f"{len(starting)} {noun} {verb} starting, the longest for {longest}; {serve}"
        first = "Wait for them or admit fewer requests"
    else:
        count = "1 endpoint has" if len(new) == 1 else f"{len(new)} endpoints have"
        within = format_seconds(NEW_NS)
        sentence = f"{count} joined pool {picture.pool} within the last {within}; {serve}, and the backlog remains."
        fact = f"{count} become ready within the last {within}; {serve}"
        first = "Wait until the backlog has drained or admit fewer requests"
    return IncidentFinding(
        Incident.COLD_START,
        sentence,
        (fact, arrivals_evidence(picture), missing_evidence(picture)),
        f"{first}. To avoid this in the future, raise warm_endpoints_min for pool {picture.pool} or add the launch to "
        "its calendar.",
    )


def _is_new(endpoint: EndpointObservation, picture: PoolObservation) -> bool:
    if endpoint.summary.leaving:
        return False
    if endpoint.summary.state is EndpointState.WARMING:
        return True
    since, usual = endpoint.stats.readied_at, picture.baseline.seconds
    return since is not None and picture.now - since < NEW_NS and usual > 0


def overload(picture: PoolObservation) -> IncidentFinding | None:
    late = picture.recent
    if not callers_harmed(picture) or not is_harm_clear(picture):
        return _backlog_finding(picture) if picture.backlog >= BACKLOG_MIN else None
    if not (picture.queued or late.rejected or picture.level) or after_outage(picture):
        return None
    return IncidentFinding(
        Incident.OVERLOAD,
        f"Pool {picture.pool} is getting more requests than its {counted(len(picture.serving), 'endpoint')} can "
        "process.",
        (
            arrivals_evidence(picture),
            (
                f"{counted(picture.queued, 'request is', 'requests are')} queued; "
                f"{counted(late.rejected, 'was', 'were')} rejected in the last {RECENT_SECONDS} s, "
                f"usually {picture.baseline_count(picture.baseline.rejected)}"
            ),
            prefill_evidence(picture),
        ),
        f"Add endpoints{_how_to_add(picture)}. Until then, degradation and limits decide which requests are served.",
    )


def _backlog_finding(picture: PoolObservation) -> IncidentFinding:
    """Returns the finding for a pool that is getting more requests than it can process, with little harm so far."""
    late = picture.recent
    was = "was" if late.bad == 1 else "were"
    harmed = (
        f"{late.bad} of {counted(late.resolved, 'request')} {was} late or not served in the last {RECENT_SECONDS} s"
    )
    action = f"No action is needed if the queued work can wait. Otherwise add endpoints{_how_to_add(picture)}."
    if callers_harmed(picture):
        targets = f"{harmed}."
    else:
        few = f"{harmed}; {harm_threshold(picture)} or more count as harm."
        targets = few if late.bad else "Targets are still being met."
        if late.gave_up >= GAVE_UP_MIN and late.gave_up * 100 >= GAVE_UP_PERCENT * (late.resolved + late.gave_up):
            targets += f" Callers gave up on {late.gave_up} requests in {RECENT_SECONDS} s."
            action = (
                f"Add endpoints{_how_to_add(picture)}, or raise these callers' timeouts. `headgate explain --outcome "
                "cancelled --since 10m` lists the requests."
            )
    return IncidentFinding(
        Incident.OVERLOAD,
        f"Pool {picture.pool} is getting more requests than its {counted(len(picture.serving), 'endpoint')} can "
        f"process: {picture.queued} requests are queued, and at least {picture.backlog} were queued throughout the "
        f"last {BACKLOG_LOOKS} s. {targets}",
        (
            (
                f"{picture.queued} requests are queued; at least {picture.backlog} were queued throughout the last "
                f"{BACKLOG_LOOKS} s"
            ),
            arrivals_evidence(picture),
            f"{harmed}; callers gave up on {late.gave_up} more",
        ),
        action,
    )


def _how_to_add(picture: PoolObservation) -> str:
    """Returns a note that follows the advice to add endpoints."""
    return " (raise endpoints_max)" if picture.scales else ""


PATTERNS: Final[Sequence[Callable[[PoolObservation], IncidentFinding | None]]] = (
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


def find_incident(
    picture: PoolObservation, *, exclude: Callable[[PoolObservation], IncidentFinding | None] | None = None
) -> IncidentFinding | None:
    """Returns the finding of the first pattern that matches, skipping the pattern `exclude`."""
    out = endpoints_down(picture)
    if out is not None and not is_minor(picture):
        return out
    for pattern in PATTERNS:
        if pattern is not exclude and (one := pattern(picture)) is not None:
            return one
    return out
