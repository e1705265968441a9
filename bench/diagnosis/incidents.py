"""Simulated incidents of varying strength.

Each function takes the world of a seed and adds one fault, from barely harmful to severe. The expected verdict is the
incident's name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from bench.diagnosis.world import Case, World, case, endpoint, mean_of, older_hardware, traffic
from bench.policy.fleet import MAIN, engines
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.model.verdict import Incident
from headgate.simulation.options import EngineSpec, Hang, LogNormal, RequestErrors, Slowdown
from headgate.simulation.virtual.link_latencies import LinkLatencies
from headgate.simulation.virtual.scenario import EndpointRemoval, InFlightLimitChange
from headgate.simulation.workload.arrival import Arrival

_EVENTS_PER_REQUEST = 3.2
_SWEEPS = 4


def _moment(of: World) -> Instant:
    """Start time of the fault, not aligned to a full second."""
    return Instant(of.begins + of.rng("moment").randrange(SECOND))


def overload(of: World) -> Case:
    """All tenants send more requests."""
    wanted = of.rng("strength").uniform(1.4, 2.5)
    more = traffic(of, of.rate * (wanted / of.load - 1), since_s=of.begins_s)
    return case("overload", Incident.OVERLOAD, of, more=(more,))


def long_prompts(of: World) -> Case:
    """Entire documents arrive as prompts, in addition to the usual traffic."""
    chance = of.rng("strength")
    long = round(of.prompt.median * chance.uniform(6, 12))
    lengths = LogNormal(median=long, p95=round(1.5 * long), max=min(3 * long, 60_000))
    wanted = chance.uniform(1.3, 2.5) - of.load
    rate = wanted * of.endpoints / of.cost_s(mean_of(lengths), mean_of(of.output))
    return case(
        "long-prompts",
        Incident.LONG_PROMPTS,
        of,
        more=(traffic(of, rate, since_s=of.begins_s, prompt=lengths),),
    )


def prompt_drift(of: World) -> Case:
    """All prompts grow gradually."""
    chance = of.rng("strength")
    of = replace(of, tail_s=170)
    rise_s, wanted = chance.uniform(90, 150), chance.uniform(1.6, 2.6)
    most = 2.0
    while of.rate * of.cost_s(most * mean_of(of.prompt), mean_of(of.output)) / of.endpoints < wanted and most < 20:
        most += 0.25

    def alter(each: Arrival) -> Iterator[Arrival]:
        part = min(1.0, max(0.0, (each.at - of.begins) / SECOND / rise_s))
        yield replace(each, prompt_tokens=round(each.prompt_tokens * (1 + (most - 1) * part)))

    return case("prompt-drift", Incident.PROMPT_DRIFT, of, alter=alter)


def kv_exhausted(of: World) -> Case:
    """There are more concurrent conversations than the KV caches can hold, at a load well below compute capacity."""
    chance = of.rng("strength")
    of = replace(of, load=min(of.load, 0.3), kv_told=False)
    tokens = mean_of(of.prompt) + mean_of(of.output)
    step_s = of.profile.decode_ps(24, kv_tokens=24 * round(tokens)) / 1e12 * 1.3
    held = of.rate / of.endpoints * mean_of(of.output) * step_s * tokens
    kv = max(round(held * chance.uniform(1.7, 2.2)), 8 * of.prompt.max)
    of = replace(of, profile=replace(of.profile, kv_blocks=kv // 16 + 16, context_tokens=kv // 2))
    # Enough additional traffic to overflow the cache.
    more = traffic(of, of.rate * max(1.2, kv / held - 1) * chance.uniform(1.2, 1.7), since_s=of.begins_s)
    return case("kv-exhausted", Incident.KV_EXHAUSTED, of, more=(more,))


def noisy_tenant(of: World) -> Case:
    chance = of.rng("strength")
    who = chance.choice(of.tenants)[0]
    wanted = chance.uniform(1.3, 2.5)
    more = traffic(of, of.rate * (wanted / of.load - 1), since_s=of.begins_s, tenants=((who, 1.0),))
    return case("noisy-tenant", Incident.NOISY_TENANT, of, more=(more,))


def engine_hang(of: World) -> Case:
    chance = of.rng("strength")
    lasts = Duration(round(chance.uniform(12, 60) * SECOND))
    return case("engine-hang", Incident.ENGINE_HANG, of, faults=(Hang(endpoint(0), _moment(of), lasts),))


def slow_network(of: World) -> Case:
    chance = of.rng("strength")
    usual, worst = chance.uniform(0.5, 3), chance.uniform(0.7, 2) * of.ttft_ns / MILLISECOND

    def network_ns(now: Instant) -> Duration:
        return Duration(round((worst if now >= of.begins else usual) * MILLISECOND))

    return case("slow-network", Incident.SLOW_NETWORK, of, ways=LinkLatencies(network_ns=network_ns))


def cold_start(of: World) -> Case:
    """All tenants send more requests, and additional endpoints start for them."""
    chance = of.rng("strength")
    wanted = chance.uniform(1.4, 2.2)
    joins = Instant(of.begins + round(chance.uniform(1, 8) * SECOND))
    new = tuple(
        EngineSpec(
            id=endpoint(of.endpoints + number),
            pool=MAIN,
            profile=of.profile,
            in_flight_max=256,
            starts_at=joins,
            cold_start_ns=Duration(round(chance.uniform(40, 90) * SECOND)),
        )
        for number in range(of.endpoints)
    )
    more = traffic(of, of.rate * (wanted / of.load - 1), since_s=of.begins_s)
    specs = (*engines(of.profile, of.endpoints, in_flight_max=256), *new)
    return case("cold-start", Incident.COLD_START, of, more=(more,), specs=specs)


def retry_storm(of: World) -> Case:
    """Clients with a timeout that is too short retry repeatedly and abandon their earlier requests."""
    chance = of.rng("strength")
    wanted, gap = chance.uniform(1.4, 2.5), chance.uniform(0.4, 1.5)
    copies = wanted / of.load - 1
    draw = of.rng("copies")

    def alter(each: Arrival) -> Iterator[Arrival]:
        yield each
        if each.at >= of.begins:
            count = int(copies) + (draw.random() < copies - int(copies))
            for number in range(1, count + 1):
                yield replace(each, at=Instant(each.at + round(number * gap * SECOND)), previous_tries=number)

    return case("retry-storm", Incident.RETRY_STORM, of, alter=alter)


def prefix_cache_lost(of: World) -> Case:
    """The start of every prompt becomes unique, so prefixes are no longer shared."""
    chance = of.rng("strength")
    longer = LogNormal(median=3 * of.prompt.median, p95=round(2 * 3 * of.prompt.median), max=15 * of.prompt.median)
    of = replace(of, cached=chance.uniform(0.7, 0.9), prompt=longer, load=0.55)
    uncached = replace(of, cached=0.0)
    grows = uncached.cost_s(mean_of(of.prompt), mean_of(of.output)) / of.cost_s(mean_of(of.prompt), mean_of(of.output))
    of = replace(of, load=min(0.6, chance.uniform(1.25, 1.8) / grows))

    def alter(each: Arrival) -> Iterator[Arrival]:
        if each.at < of.begins:
            yield each
        else:
            own = 1_000_000_000 + each.at // 1_000
            yield replace(each, prefix=tuple(own + number for number in range(len(each.prefix))))

    return case("prefix-cache-lost", Incident.PREFIX_CACHE_LOST, of, alter=alter)


def slow_endpoint(of: World) -> Case:
    chance = of.rng("strength")
    # With many endpoints, the others absorb the slow endpoint's load and no caller is affected.
    of = replace(of, load=chance.uniform(0.6, 0.75), endpoints=chance.choice((1, 2, 2, 3)))
    lasts, speed = Duration(of.tail_s * SECOND), chance.randint(60, 500)
    return case("slow-endpoint", Incident.SLOW_ENDPOINT, of, faults=(Slowdown(endpoint(0), _moment(of), lasts, speed),))


def cost_drift(of: World) -> Case:
    """Responses become longer, though not necessarily enough to delay callers."""
    chance = of.rng("strength")
    times = chance.uniform(1.35, 3)
    of = replace(of, load=of.load * chance.uniform(0.5, 1))

    def alter(each: Arrival) -> Iterator[Arrival]:
        tokens = round(each.output_tokens * times) if each.at >= of.begins else each.output_tokens
        yield replace(each, output_tokens=tokens)

    return case("cost-drift", Incident.COST_DRIFT, of, alter=alter, costs=True)


def limit_too_low(of: World) -> Case:
    """A configuration change sets too few slots, leaving engines idle."""
    chance = of.rng("strength")
    tokens = mean_of(of.prompt) + mean_of(of.output)
    step_s = of.profile.decode_ps(8, kv_tokens=8 * round(tokens)) / 1e12
    at_once = of.rate / of.endpoints * mean_of(of.output) * step_s
    places = max(1, int(at_once * chance.uniform(0.35, 0.7)))
    changes = tuple(InFlightLimitChange(endpoint(number), of.begins, places) for number in range(of.endpoints))
    return case("limit-too-low", Incident.LIMIT_TOO_LOW, of, changes=changes)


def scheduler_behind(of: World) -> Case:
    """Traffic grows within the engine capacity, but the scheduler takes too long for each event."""
    chance = of.rng("strength")
    usual, wanted, rise_s = chance.uniform(0.25, 0.5), chance.uniform(1.1, 1.8), chance.uniform(5, 40)
    of = replace(of, load=chance.uniform(0.5, 0.65))
    worst = wanted / (_EVENTS_PER_REQUEST * of.rate + _SWEEPS)
    draw = of.rng("rise")

    def alter(each: Arrival) -> Iterator[Arrival]:
        part = min(1.0, max(0.0, (each.at - of.begins) / SECOND / rise_s))
        if draw.random() < usual / wanted + (1 - usual / wanted) * part:
            yield each

    def decide_ns(now: Instant) -> Duration:
        del now
        return Duration(round(worst * SECOND))

    ways = LinkLatencies(decide_ns=decide_ns)
    return case("scheduler-behind", Incident.SCHEDULER_BEHIND, of, alter=alter, ways=ways)


def store_slow(of: World) -> Case:
    chance = of.rng("strength")
    usual, worst = chance.uniform(0.3, 2), chance.uniform(0.22, 0.7) * of.ttft_ns / MILLISECOND

    def store_ns(now: Instant) -> Duration:
        return Duration(round((worst if now >= of.begins else usual) * MILLISECOND))

    return case("store-slow", Incident.STORE_SLOW, of, ways=LinkLatencies(store_ns=store_ns))


def no_endpoints(of: World) -> Case:
    """All endpoints are removed in quick succession."""
    chance = of.rng("strength")
    apart = chance.uniform(0, 3)
    changes = tuple(
        EndpointRemoval(endpoint(number), Instant(of.begins + round(number * apart * SECOND)))
        for number in range(of.endpoints)
    )
    return case("no-endpoints", Incident.NO_ENDPOINTS, of, changes=changes)


def engine_failing(of: World) -> Case:
    """Engines fail about every second request, but their probes succeed."""
    chance = of.rng("strength")
    percent, lasts = chance.randint(40, 80), Duration(of.tail_s * SECOND)
    faults = tuple(RequestErrors(endpoint(number), _moment(of), lasts, percent) for number in range(of.endpoints))
    return case("engine-failing", Incident.ENGINE_FAILING, of, faults=faults)


def all_slower(of: World) -> Case:
    """All engines slow down to less than half their speed at the same time, while the traffic stays the same."""
    chance = of.rng("strength")
    of = replace(of, load=chance.uniform(0.5, 0.65))
    lasts, speed = Duration(of.tail_s * SECOND), chance.randint(250, 400)
    faults = tuple(Slowdown(endpoint(number), _moment(of), lasts, speed) for number in range(of.endpoints))
    return case("all-slower", Incident.SLOW_ENDPOINT, of, faults=faults)


def mixed_overload(of: World) -> Case:
    """All tenants send more requests to a fleet in which one endpoint has always been slower."""
    chance = of.rng("strength")
    of = replace(of, endpoints=max(2, of.endpoints), slowest=0.4)
    wanted = chance.uniform(1.4, 2.2)
    more = traffic(of, of.rate * (wanted / of.load - 1), since_s=of.begins_s)
    return case("mixed-overload", Incident.OVERLOAD, of, more=(more,), faults=(older_hardware(of),))


INCIDENTS: Final[Mapping[str, Callable[[World], Case]]] = MappingProxyType(
    {
        "overload": overload,
        "long-prompts": long_prompts,
        "prompt-drift": prompt_drift,
        "kv-exhausted": kv_exhausted,
        "noisy-tenant": noisy_tenant,
        "engine-hang": engine_hang,
        "slow-network": slow_network,
        "cold-start": cold_start,
        "retry-storm": retry_storm,
        "prefix-cache-lost": prefix_cache_lost,
        "slow-endpoint": slow_endpoint,
        "cost-drift": cost_drift,
        "limit-too-low": limit_too_low,
        "scheduler-behind": scheduler_behind,
        "store-slow": store_slow,
        "no-endpoints": no_endpoints,
        "engine-failing": engine_failing,
        "all-slower": all_slower,
        "mixed-overload": mixed_overload,
    }
)
