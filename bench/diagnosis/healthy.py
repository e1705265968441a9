"""Which runs are there in which nothing is wrong?

What is usual in a day and looks unusual for a moment: deploys, bursts, a caller who asks for the impossible; and what
is merely unlike the traffic that patterns are made for: few requests, whole answers, one endpoint, engines of two
kinds. Loads go up to three quarters of what engines compute.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from bench.diagnosis.world import BATCH, INTERACTIVE, MODEL, Case, World, case, endpoint, older, policy_of, traffic
from bench.policy.fleet import MAIN, engines, pool
from headgate.model.policy import Model, ServiceClass
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, PoolName
from headgate.model.verdict import Incident
from headgate.simulation.virtual.scenario import Callers, Crash, EngineSpec, Fail, Hang, Leave, Reload
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.lengths import LogNormal

LOAD_MAX = 0.75
RUSH = ClassName("rush")
_PATIENT = Callers(leave_ns=Duration(300 * SECOND))


def _loaded(of: World, least: float = 0.35) -> World:
    return replace(of, load=of.chance("load").uniform(least, LOAD_MAX))


def _rated(of: World, rate: float) -> World:
    """So many requests a second, whatever its engines can."""
    return replace(of, load=of.load * rate / of.rate)


def _healthy(name: str, of: World) -> Case:
    return case(name, Incident.HEALTHY, of)


def steady(of: World) -> Case:
    return _healthy("steady", _loaded(of))


def ramp(of: World) -> Case:
    """From a third of the load to all of it and back, as on a day."""
    of = _loaded(of)
    span, draw = of.span_ns, of.chance("ramp")

    def alter(each: Arrival) -> Iterator[Arrival]:
        part = 1 - abs(2 * each.at / span - 1)
        if draw.random() < 0.33 + 0.67 * part:
            yield each

    return case("ramp", Incident.HEALTHY, of, alter=alter)


def bursts(of: World) -> Case:
    """Up to twice as much for two seconds, several times."""
    of = _loaded(of)
    chance = of.chance("strength")
    times = [chance.uniform(20, of.begins_s + of.tail_s - 5) for _ in range(4)]
    more = tuple(traffic(of, of.rate * chance.uniform(0.5, 1), since_s=each, lasts_s=2) for each in times)
    return case("bursts", Incident.HEALTHY, of, more=more)


def _new(of: World, number: int, at_s: float) -> EngineSpec:
    return EngineSpec(
        id=endpoint(of.endpoints + number),
        pool=MAIN,
        profile=of.profile,
        in_flight_max=256,
        starts_at=Instant(round(at_s * SECOND)),
        cold_start_ns=Duration(10 * SECOND),
    )


def deploy(of: World) -> Case:
    """One endpoint after the other is replaced: the new one comes first, then the old one leaves."""
    of = _loaded(of)
    new = tuple(_new(of, number, of.begins_s + 15 * number) for number in range(2))
    changes = tuple(Leave(endpoint(number), Instant((of.begins_s + 15 * number + 13) * SECOND)) for number in range(2))
    specs = (*engines(of.profile, of.endpoints, in_flight_max=256), *new)
    return case("deploy", Incident.HEALTHY, of, specs=specs, changes=changes)


def scale_up(of: World) -> Case:
    """A further endpoint is started before it is needed."""
    of = _loaded(of, least=0.55)
    specs = (*engines(of.profile, of.endpoints, in_flight_max=256), _new(of, 0, of.begins_s))
    return case("scale-up", Incident.HEALTHY, of, specs=specs)


def scale_down(of: World) -> Case:
    """An endpoint is given back; the others then have up to three quarters of what they can do."""
    of = replace(of, endpoints=max(3, of.endpoints))
    load = of.chance("load").uniform(0.35, LOAD_MAX) * (of.endpoints - 1) / of.endpoints
    of = replace(of, load=load)
    return case("scale-down", Incident.HEALTHY, of, changes=(Leave(endpoint(0), of.begins),))


def hiccup(of: World) -> Case:
    """An engine stands still for a second, as they do."""
    of = _loaded(of)
    chance = of.chance("strength")
    lasts, at = Duration(round(chance.uniform(0.3, 1.2) * SECOND)), of.begins + chance.randrange(SECOND)
    return case("hiccup", Incident.HEALTHY, of, faults=(Hang(endpoint(0), Instant(at), lasts),))


def night(of: World) -> Case:
    """Who hurries has gone home: the other class alone, and its prompts are longer."""

    def alter(each: Arrival) -> Iterator[Arrival]:
        if each.at < of.begins:
            yield each
        elif each.service_class != INTERACTIVE:
            yield replace(each, prompt_tokens=2 * each.prompt_tokens)

    return case("night", Incident.HEALTHY, of, alter=alter)


def restart(of: World) -> Case:
    """An engine with hardly anything to do dies, and is back at once: what it had is asked elsewhere."""
    of = replace(of, load=min(of.load, 0.02), endpoints=4)
    return case("restart", Incident.HEALTHY, of, faults=(Crash(endpoint(0), of.begins, Duration(200 * MILLISECOND)),))


# Traffic of another kind


def whole_answers(of: World) -> Case:
    """Nobody streams."""
    callers = {INTERACTIVE: Callers(stream=False), BATCH: replace(_PATIENT, stream=False)}
    return case("whole-answers", Incident.HEALTHY, _loaded(of), callers=callers)


def embeddings(of: World) -> Case:
    one = LogNormal(median=1, p95=1, most=1)
    of = _rated(replace(of, output=one), of.chance("load").uniform(5, 25))
    manners = Callers(stream=False, api=Api.EMBEDDINGS)
    return case("embeddings", Incident.HEALTHY, of, callers={INTERACTIVE: manners, BATCH: manners})


def few(of: World) -> Case:
    """Three requests in ten seconds, or ten."""
    of = replace(of, begins_s=400, endpoints=of.chance("few").randint(1, 2))
    return _healthy("few", _rated(of, of.chance("load").choice((0.3, 1.0))))


def no_targets(of: World) -> Case:
    """Nobody has said what is late."""
    of = _loaded(of)
    policy = policy_of(of)
    classes = tuple(replace(each, ttft_ns=None, tpot_ns=None) for each in policy.classes)
    callers = {INTERACTIVE: Callers(leave_ns=Duration(10 * SECOND)), BATCH: _PATIENT}
    return case("no-targets", Incident.HEALTHY, of, policy=replace(policy, classes=classes), callers=callers)


def long_alone(of: World) -> Case:
    """Few requests, and now and then somebody's whole book."""
    of = _rated(replace(of, begins_s=300), 0.5)
    often, draw = 30, of.chance("books")

    def alter(each: Arrival) -> Iterator[Arrival]:
        yield replace(each, prompt_tokens=100_000) if draw.randrange(often) == 0 else each

    return case("long-alone", Incident.HEALTHY, of, alter=alter)


def impossible_deadline(of: World) -> Case:
    """One of a few callers allows less time than any engine takes."""
    of = _loaded(of)
    policy, draw = policy_of(of), of.chance("rush")
    rush = ServiceClass(RUSH, 0, queue_wait_ns_max=Duration(10 * SECOND), ttft_ns=of.ttft_ns, tpot_ns=of.tpot_ns)
    callers = {
        INTERACTIVE: Callers(ttft_ns=of.ttft_ns, tpot_ns=of.tpot_ns, leave_ns=Duration(10 * SECOND)),
        BATCH: _PATIENT,
        RUSH: Callers(allows_ns=Duration(5 * MILLISECOND)),
    }

    def alter(each: Arrival) -> Iterator[Arrival]:
        yield replace(each, service_class=RUSH) if draw.random() < 0.1 else each

    policy = replace(policy, classes=(*policy.classes, rush))
    return case("impossible-deadline", Incident.HEALTHY, of, policy=policy, callers=callers, alter=alter)


# Engines of another kind


def mixed_hardware(of: World) -> Case:
    of = _loaded(replace(of, slowest=0.4))
    return case("mixed-hardware", Incident.HEALTHY, of, faults=(older(of),))


def one_endpoint(of: World) -> Case:
    return _healthy("one-endpoint", _loaded(replace(of, endpoints=1)))


def two_pools(of: World) -> Case:
    """One model is served by two pools."""
    of = _loaded(of)
    policy, second = policy_of(of), PoolName("second")
    policy = replace(policy, pools=(*policy.pools, pool(second, of.profile)), models=(Model(MODEL, (MAIN, second)),))
    count = of.endpoints // 2
    specs = (
        *engines(of.profile, of.endpoints - count, in_flight_max=256),
        *engines(of.profile, count, pool_name=second, in_flight_max=256),
    )
    return case("two-pools", Incident.HEALTHY, of, policy=policy, specs=specs)


def reload(of: World) -> Case:
    """Somebody changes a share in the middle of it."""
    of = _loaded(of)
    policy = policy_of(of)
    classes = tuple(replace(each, floor_percent=10) if each.name == BATCH else each for each in policy.classes)
    return case("reload", Incident.HEALTHY, of, changes=(Reload(replace(policy, classes=classes), of.begins),))


def failed_attempts(of: World) -> Case:
    """One in fifty is answered with an error, and asked again elsewhere."""
    of = _loaded(of)
    return case("failed-attempts", Incident.HEALTHY, of, faults=(Fail(endpoint(0), Instant(0), of.span_ns, 2),))


# Long ones


def quiet_hour(of: World) -> Case:
    return _healthy("quiet-hour", _rated(replace(of, begins_s=3_500, endpoints=2), 0.3))


def morning(of: World) -> Case:
    """Half an hour of the night, and ten minutes in which everybody comes."""
    most = min(4.0, 0.6 * of.rate / of.load)
    of = _rated(replace(of, begins_s=1_800, tail_s=700), most)
    draw = of.chance("morning")

    def alter(each: Arrival) -> Iterator[Arrival]:
        part = min(1.0, max(0.0, (each.at - of.begins) / SECOND / 600))
        if draw.random() < 0.1 + 0.9 * part:
            yield each

    return case("morning", Incident.HEALTHY, of, alter=alter)


HEALTHY: Final[Mapping[str, Callable[[World], Case]]] = MappingProxyType(
    {
        "steady": steady,
        "ramp": ramp,
        "bursts": bursts,
        "deploy": deploy,
        "scale-up": scale_up,
        "scale-down": scale_down,
        "hiccup": hiccup,
        "night": night,
        "restart": restart,
        "whole-answers": whole_answers,
        "embeddings": embeddings,
        "few": few,
        "no-targets": no_targets,
        "long-alone": long_alone,
        "impossible-deadline": impossible_deadline,
        "mixed-hardware": mixed_hardware,
        "one-endpoint": one_endpoint,
        "two-pools": two_pools,
        "reload": reload,
        "failed-attempts": failed_attempts,
        "quiet-hour": quiet_hour,
        "morning": morning,
    }
)
