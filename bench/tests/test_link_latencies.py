"""Tests for link latencies, faults and changes in a simulated scenario."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.diagnosis.scored_run import run_case
from bench.diagnosis.world import INTERACTIVE, Case, case, endpoint, policy_of, world
from headgate.core.commands import Command
from headgate.core.events import Event, PolicyChanged, RequestArrived
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.model.verdict import Incident
from headgate.simulation.options import CallerBehaviour, RequestErrors
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.link_latencies import LinkLatencies
from headgate.simulation.virtual.run_observer import FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import EndpointRemoval, InFlightLimitChange, PolicyReload

SMALL = replace(world(0), begins_s=3, tail_s=4, load=0.2, endpoints=2)


def slow(name: str) -> LinkLatencies:
    def late(now: Instant) -> Duration:
        del now
        return Duration(100 * MILLISECOND)

    return LinkLatencies(**{name: late})


def first_token_s(stories: list[RequestTrace]) -> float:
    times = sorted((each.first_token_at or 0) - each.arrived_at for each in stories)
    return times[len(times) // 2] / SECOND


def traces_of(of: Case) -> list[RequestTrace]:
    stories = run_case(of).traces
    assert stories
    assert all(each.outcome is Outcome.COMPLETED for each in stories)
    return stories


@pytest.mark.parametrize(("name", "added_s"), [("network_ns", 0.1), ("store_ns", 0.4)])
def test_link_latency_delays_first_token(name: str, added_s: float) -> None:
    direct = first_token_s(traces_of(case("direct", Incident.HEALTHY, SMALL)))
    late = first_token_s(traces_of(case("late", Incident.HEALTHY, SMALL, ways=slow(name))))

    assert late - direct == pytest.approx(added_s, abs=0.03)


def test_events_wait_until_earlier_ones_are_decided() -> None:
    direct = first_token_s(traces_of(case("direct", Incident.HEALTHY, SMALL)))
    late = first_token_s(traces_of(case("late", Incident.HEALTHY, SMALL, ways=slow("decide_ns"))))

    assert late - direct > 0.2


def test_endpoint_departure_and_lower_limit_delay_requests() -> None:
    changes = (EndpointRemoval(endpoint(0), Instant(SECOND)), InFlightLimitChange(endpoint(1), Instant(SECOND), 1))
    stories = run_case(case("changed", Incident.HEALTHY, SMALL, changes=changes)).traces

    late = [each for each in stories if each.arrived_at > 2 * SECOND]
    assert first_token_s([each for each in late if each.first_token_at is not None]) > 0.5


def test_failing_engine_returns_errors_during_fault() -> None:
    lasts = Duration(2 * SECOND)
    faults = tuple(RequestErrors(endpoint(number), Instant(2 * SECOND), lasts, 100) for number in range(2))
    stories = run_case(case("failing", Incident.HEALTHY, SMALL, faults=faults)).traces

    before = [each for each in stories if each.arrived_at < 2 * SECOND]
    during = [each for each in stories if 2 * SECOND < each.arrived_at < 3 * SECOND]
    assert before
    assert during
    assert all(each.outcome is Outcome.COMPLETED for each in before)
    assert not any(each.outcome is Outcome.COMPLETED and each.attempts == 1 for each in during)


def test_tickets_carry_client_settings_and_policy_is_reloaded() -> None:
    manners = CallerBehaviour(stream=False, api=Api.EMBEDDINGS, first_token_deadline_ns=Duration(7))
    policy = replace(policy_of(SMALL), tenants=())
    made = case(
        "asked",
        Incident.HEALTHY,
        SMALL,
        callers={INTERACTIVE: manners},
        changes=(PolicyReload(policy, Instant(SECOND)),),
    )
    seen: list[Event] = []

    class Scribe:
        def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
            del commands, now
            seen.append(event)

    class Nobody:
        def request_ended(self, story: RequestTrace) -> None: ...

        def sample_taken(self, sample: FleetSample) -> None: ...

        def run_ended(self, ending: RunSummary) -> None: ...

    VirtualHost(made.scenario, Nobody(), observers=(Scribe(),)).run()

    tickets = [each.ticket for each in seen if isinstance(each, RequestArrived)]
    asked = [each for each in tickets if each.requested_class == INTERACTIVE]
    assert asked
    assert all((each.api, each.first_token_ns_left) == (Api.EMBEDDINGS, 7) for each in asked)
    assert [each.policy for each in seen if isinstance(each, PolicyChanged)][1:] == [policy]
