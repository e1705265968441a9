"""Builders for the baseline scheduler tests."""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointJoined
from headgate.model.units import EndpointId, Instant
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.engine.state import EngineState
from headgate.simulation.virtual.scenario import Decider
from testing.builders import a_policy, an_endpoint, at, commands_for, dispatch, policy_changed, readied


def with_endpoints(decider: Decider, *names: str) -> Decider:
    """Gives the baseline a policy and ready endpoints with these names."""
    commands_for(decider, at(0), policy_changed(a_policy()))
    for name in names:
        commands_for(decider, at(0), EndpointJoined(an_endpoint(name)), readied(name))
    return decider


def sent(
    request: str, endpoint: str, reason: str, *, service_class: str = "interactive", waited: float = 0
) -> Dispatch:
    return replace(dispatch(request, endpoint, service_class=service_class, waited=waited), reason=reason)


def shows(gate: SaturationGate, endpoint: str, *, waiting: int, kv_used: float, now: Instant) -> None:
    """Reports one endpoint's scraped metrics to the gate."""
    state = EngineState(
        running=0,
        waiting=waiting,
        kv_blocks_used=0,
        kv_used_fraction=kv_used,
        prefix_queried_tokens=0,
        prefix_hit_tokens=0,
        preemptions=0,
        prompt_tokens=0,
        generated_tokens=0,
        steps=0,
        worked_ps=0,
    )
    gate.on_scrape(EndpointId(endpoint), state, now)
