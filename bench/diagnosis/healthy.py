"""Healthy runs, in which the diagnosis must not report an incident.

Some contain normal events that look unusual for a moment: deployments, bursts, a caller with an impossible deadline.
Others differ from the traffic the patterns were designed for: few requests, non-streaming responses, one endpoint, two
kinds of engines. The load is at most three quarters of the engine capacity.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from bench.diagnosis.world import (
    BATCH,
    INTERACTIVE,
    MODEL,
    Case,
    World,
    case,
    endpoint,
    older_hardware,
    policy_of,
    traffic,
)
from bench.policy.fleet import MAIN, engines, pool
from headgate.model.policy import Model, ServiceClass
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, PoolName
from headgate.model.verdict import Incident
from headgate.simulation.options import CallerBehaviour, Crash, EngineSpec, Hang, LogNormal, RequestErrors
from headgate.simulation.virtual.scenario import EndpointRemoval, PolicyReload
from headgate.simulation.workload.arrival import Arrival

LOAD_MAX = 0.75
RUSH = ClassName("rush")
_PATIENT = CallerBehaviour(client_timeout_ns=Duration(300 * SECOND))


def _loaded(of: World, least: float = 0.35) -> World:
    return replace(of, load=of.rng("load").uniform(least, LOAD_MAX))


def _rated(of: World, rate: float) -> World:
    """World with a fixed request rate, independent of engine capacity."""
    return replace(of, load=of.load * rate / of.rate)


def _healthy(name: str, of: World) -> Case:
    return case(name, Incident.HEALTHY, of)


def steady(of: World) -> Case:
    return _healthy("steady", _loaded(of))


def ramp(of: World) -> Case:
    """The load rises from a third of its maximum to the maximum and falls again, as it does over a day."""
    of = _loaded(of)
    span, draw = of.span_ns, of.rng("ramp")

    def alter(each: Arrival) -> Iterator[Arrival]:
        part = 1 - abs(2 * each.at / span - 1)
        if draw.random() < 0.33 + 0.67 * part:
            yield each

    return case("ramp", Incident.HEALTHY, of, alter=alter)


def bursts(of: World) -> Case:
    """Several two-second bursts, at up to twice the usual rate."""
    of = _loaded(of)
    chance = of.rng("strength")
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
    """Rolling replacement of all endpoints. Each new endpoint joins before the old one leaves."""
    of = _loaded(of)
    new = tuple(_new(of, number, of.begins_s + 15 * number) for number in range(2))
    changes = tuple(
        EndpointRemoval(endpoint(number), Instant((of.begins_s + 15 * number + 13) * SECOND)) for number in range(2)
    )
    specs = (*engines(of.profile, of.endpoints, in_flight_max=256), *new)
    return case("deploy", Incident.HEALTHY, of, specs=specs, changes=changes)


def scale_up(of: World) -> Case:
    """An additional endpoint starts before it is needed."""
    of = _loaded(of, least=0.55)
    specs = (*engines(of.profile, of.endpoints, in_flight_max=256), _new(of, 0, of.begins_s))
    return case("scale-up", Incident.HEALTHY, of, specs=specs)


def scale_down(of: World) -> Case:
    """One endpoint is released. The load on the others rises to at most three quarters of their capacity."""
    of = replace(of, endpoints=max(3, of.endpoints))
    load = of.rng("load").uniform(0.35, LOAD_MAX) * (of.endpoints - 1) / of.endpoints
    of = replace(of, load=load)
    return case("scale-down", Incident.HEALTHY, of, changes=(EndpointRemoval(endpoint(0), of.begins),))


def hiccup(of: World) -> Case:
    """An engine stalls for one second."""
    of = _loaded(of)
    chance = of.rng("strength")
    lasts, at = Duration(round(chance.uniform(0.3, 1.2) * SECOND)), of.begins + chance.randrange(SECOND)
    return case("hiccup", Incident.HEALTHY, of, faults=(Hang(endpoint(0), Instant(at), lasts),))


def night(of: World) -> Case:
    """Only batch traffic remains, and its prompts are longer."""

    def alter(each: Arrival) -> Iterator[Arrival]:
        if each.at < of.begins:
            yield each
        elif each.service_class != INTERACTIVE:
            yield replace(each, prompt_tokens=2 * each.prompt_tokens)

    return case("night", Incident.HEALTHY, of, alter=alter)


def restart(of: World) -> Case:
    """An almost idle engine crashes and restarts immediately. Its requests are retried on other endpoints."""
    of = replace(of, load=min(of.load, 0.02), endpoints=4)
    return case("restart", Incident.HEALTHY, of, faults=(Crash(endpoint(0), of.begins, Duration(200 * MILLISECOND)),))


# Other traffic


def whole_answers(of: World) -> Case:
    """All responses are non-streaming."""
    callers = {INTERACTIVE: CallerBehaviour(stream=False), BATCH: replace(_PATIENT, stream=False)}
    return case("whole-answers", Incident.HEALTHY, _loaded(of), callers=callers)


def embeddings(of: World) -> Case:
    one = LogNormal(median=1, p95=1, max=1)
    of = _rated(replace(of, output=one), of.rng("load").uniform(5, 25))
    manners = CallerBehaviour(stream=False, api=Api.EMBEDDINGS)
    return case("embeddings", Incident.HEALTHY, of, callers={INTERACTIVE: manners, BATCH: manners})


def few(of: World) -> Case:
    """Traffic of only three or ten requests in ten seconds."""
    of = replace(of, begins_s=400, endpoints=of.rng("few").randint(1, 2))
    return _healthy("few", _rated(of, of.rng("load").choice((0.3, 1.0))))


def no_targets(of: World) -> Case:
    """The classes have no latency targets."""
    of = _loaded(of)
    policy = policy_of(of)
    classes = tuple(replace(each, ttft_ns=None, tpot_ns=None) for each in policy.classes)
    callers = {INTERACTIVE: CallerBehaviour(client_timeout_ns=Duration(10 * SECOND)), BATCH: _PATIENT}
    return case("no-targets", Incident.HEALTHY, of, policy=replace(policy, classes=classes), callers=callers)


def long_alone(of: World) -> Case:
    """Few requests, with an occasional very long prompt."""
    of = _rated(replace(of, begins_s=300), 0.5)
    often, draw = 30, of.rng("books")

    def alter(each: Arrival) -> Iterator[Arrival]:
        yield replace(each, prompt_tokens=100_000) if draw.randrange(often) == 0 else each

    return case("long-alone", Incident.HEALTHY, of, alter=alter)


def impossible_deadline(of: World) -> Case:
    """Some requests have a deadline that no engine can meet."""
    of = _loaded(of)
    policy, draw = policy_of(of), of.rng("rush")
    rush = ServiceClass(RUSH, 0, queue_wait_ns_max=Duration(10 * SECOND), ttft_ns=of.ttft_ns, tpot_ns=of.tpot_ns)
    callers = {
        INTERACTIVE: CallerBehaviour(ttft_ns=of.ttft_ns, tpot_ns=of.tpot_ns, client_timeout_ns=Duration(10 * SECOND)),
        BATCH: _PATIENT,
        RUSH: CallerBehaviour(first_token_deadline_ns=Duration(5 * MILLISECOND)),
    }

    def alter(each: Arrival) -> Iterator[Arrival]:
        yield replace(each, service_class=RUSH) if draw.random() < 0.1 else each

    policy = replace(policy, classes=(*policy.classes, rush))
    return case("impossible-deadline", Incident.HEALTHY, of, policy=policy, callers=callers, alter=alter)


# Other engines


def mixed_hardware(of: World) -> Case:
    of = _loaded(replace(of, slowest=0.4))
    return case("mixed-hardware", Incident.HEALTHY, of, faults=(older_hardware(of),))


def one_endpoint(of: World) -> Case:
    return _healthy("one-endpoint", _loaded(replace(of, endpoints=1)))


def two_pools(of: World) -> Case:
    """Two pools serve one model."""
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
    """A minimum share changes during the run."""
    of = _loaded(of)
    policy = policy_of(of)
    classes = tuple(replace(each, min_share_percent=10) if each.name == BATCH else each for each in policy.classes)
    return case("reload", Incident.HEALTHY, of, changes=(PolicyReload(replace(policy, classes=classes), of.begins),))


def failed_attempts(of: World) -> Case:
    """One in fifty requests fails and is retried on another endpoint."""
    of = _loaded(of)
    return case(
        "failed-attempts", Incident.HEALTHY, of, faults=(RequestErrors(endpoint(0), Instant(0), of.span_ns, 2),)
    )


# Long runs


def quiet_hour(of: World) -> Case:
    return _healthy("quiet-hour", _rated(replace(of, begins_s=3_500, endpoints=2), 0.3))


def morning(of: World) -> Case:
    """Half an hour of night traffic, then a rise to daytime traffic within ten minutes."""
    most = min(4.0, 0.6 * of.rate / of.load)
    of = _rated(replace(of, begins_s=1_800, tail_s=700), most)
    draw = of.rng("morning")

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
