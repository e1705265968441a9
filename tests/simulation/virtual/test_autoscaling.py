"""Tests for the autoscaler in a simulation, request by request."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from headgate.core.events import EndpointJoined, EndpointLeaving, EndpointReady
from headgate.core.scheduler import Scheduler
from headgate.model.money import NANO_USD_PER_USD, NanoUsd, Price
from headgate.model.outcome import Outcome
from headgate.model.scaling import ScalingRules
from headgate.model.units import Duration, after
from headgate.simulation.options import Crash, ScaledPool
from headgate.simulation.report.html_report import render_html
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.text_report import render_text
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.virtual.scenes import POOL, Seen, a_scenario, arrival, at, engine, run, seconds

PLACES = 4
RULES = ScalingRules(
    endpoints_max=PLACES,
    period_ns=seconds(1),
    cold_start_ns=seconds(5),
    scale_down_stabilization_ns=seconds(10),
    scale_down_percent=100,
)


def busy(since: float, until: float, *, per_second: int) -> Iterator[Arrival]:
    """Requests that each take most of a second. One engine serves about eight per second."""
    for number in range(round((until - since) * per_second)):
        yield arrival(since + number / per_second, output=80)


def scaled(arrivals: Sequence[Arrival], *, first: int = 1, rules: ScalingRules = RULES, **fields: object) -> Scenario:
    """A pool with room for four engines, of which `first` run at the start."""
    engines = [engine(number, standby=number >= first) for number in range(PLACES)]
    scenario = a_scenario(sorted(arrivals, key=lambda each: each.at), engines=engines, **fields)  # type: ignore[arg-type]
    [pool] = scenario.policy.pools
    pool = replace(pool, scales=True, hold_max=0 if rules.endpoints_min else 100, cold_start_ns=rules.cold_start_ns)
    policy = replace(scenario.policy, pools=(pool,))
    return replace(scenario, policy=policy, scaling={POOL: ScaledPool(rules, seconds(6))})


def wave() -> list[Arrival]:
    """Little load, a minute of load for several engines, and little load again."""
    return [*busy(0, 20, per_second=2), *busy(20, 80, per_second=20), *busy(80, 180, per_second=2)]


def ending(seen: Seen) -> RunSummary:
    assert seen.ending is not None
    return seen.ending


@pytest.fixture(scope="module")
def seen() -> Seen:
    return run(scaled(wave()), samples=180)


def test_pool_grows_with_the_load_and_shrinks_after_it(seen: Seen) -> None:
    events = ending(seen).scale_events
    peak = max(each.endpoints for each in events)

    assert peak >= 3
    assert events[-1].endpoints == 1
    assert all(each.before != each.endpoints and each.reason for each in events)
    assert all(at(20) <= each.at for each in events if each.endpoints == peak)


def test_started_engine_is_ready_after_its_cold_start(seen: Seen) -> None:
    joined = {event.endpoint.id: now for event, now in seen.events(EndpointJoined) if now}
    ready = {event.endpoint_id: now for event, now in seen.events(EndpointReady) if now}

    assert joined
    for name, now in joined.items():
        # The probes of a starting engine are up to five seconds apart.
        assert seconds(6) <= ready[name] - now <= seconds(11)


def test_released_engine_finishes_its_requests(seen: Seen) -> None:
    assert seen.events(EndpointLeaving)
    assert {each.outcome for each in seen.stories} == {Outcome.COMPLETED}


def test_engine_is_paid_while_it_exists(seen: Seen) -> None:
    totals = {each.id: each for each in ending(seen).engines}
    left = {event.endpoint_id for event, _ in seen.events(EndpointLeaving)}

    assert totals["main/0"].paid_ns == ending(seen).at
    assert left
    assert all(0 < totals[name].paid_ns < ending(seen).at for name in left)
    assert all(each.up_ns < each.paid_ns for each in totals.values() if each.id in left)


def test_standby_engine_costs_nothing_without_load() -> None:
    quiet = run(scaled(list(busy(0, 30, per_second=1))))

    assert ending(quiet).scale_events == ()
    assert [each.paid_ns for each in ending(quiet).engines[1:]] == [0] * (PLACES - 1)


def test_released_engine_starts_again_as_a_new_one() -> None:
    later = [replace(each, at=after(each.at, seconds(180))) for each in wave()]
    twice = run(scaled([*wave(), *later]))
    joined = [event.endpoint.id for event, now in twice.events(EndpointJoined)]

    assert len(joined) > len(set(joined))
    assert {each.outcome for each in twice.stories} == {Outcome.COMPLETED}


def test_pool_that_is_scaled_to_zero_starts_an_engine_for_the_first_request() -> None:
    rules = replace(RULES, endpoints_min=0, warm_endpoints_min=0, scale_to_zero_after_ns=seconds(15))
    arrivals = [arrival(1), arrival(90), arrival(90.2)]
    waits = run(scaled(arrivals, rules=rules, cold_start_wait_ns_max=seconds(60)))
    first, *others = sorted(waits.stories, key=lambda each: each.number)

    assert {each.outcome for each in waits.stories} == {Outcome.COMPLETED}
    assert [each.endpoints for each in ending(waits).scale_events][:2] == [0, 1]
    assert first.waited_ns == 0
    assert all(seconds(6) <= each.waited_ns <= seconds(12) for each in others)
    assert len([each for each in ending(waits).scale_events if each.endpoints == 1]) == 1


def test_crash_of_a_released_engine_does_not_bring_it_back() -> None:
    """The engine is stopped before it would have recovered."""
    crash = Crash(engine(1).id, at(96), Duration(seconds(40)))
    seen = run(scaled(wave(), faults=(crash,)))
    totals = {each.id: each for each in ending(seen).engines}

    assert all(each.up_ns <= each.paid_ns for each in totals.values())
    assert ending(seen).scale_events[-1].endpoints == 1


def test_report_shows_the_changes() -> None:
    scenario = scaled(wave())
    [pool] = scenario.policy.pools
    price = Price(per_hour=NanoUsd(NANO_USD_PER_USD))
    scenario = replace(scenario, policy=replace(scenario.policy, pools=(replace(pool, prices=(price,)),)))
    report = SimulationReport(scenario)
    VirtualHost(scenario, report).run()
    told = json_report(report)
    scaling, cost = told["scaling"]["main"], told["cost"]  # type: ignore[index]
    text, page = render_text(report, 100), render_html(report)

    assert scaling["endpoints_min"] == 1
    assert (
        scaling["added"]
        == scaling["removed"]
        == sum(max(0, each["endpoints"] - each["before"]) for each in scaling["events"])
    )
    assert scaling["endpoints_mean"] == pytest.approx(cost["engine_hours"] * 3600 / told["elapsed_s"], rel=1e-3)  # type: ignore[index,operator]
    assert "1 x tiny in main, main autoscaled from 1 to 4" in text
    assert "Autoscaling" in text
    assert "Endpoints over time" in page


def test_same_run_scales_alike() -> None:
    def told() -> str:
        scenario = scaled(wave())
        report = SimulationReport(scenario)
        VirtualHost(scenario, report).run()
        return json.dumps(json_report(report))

    assert told() == told()


def test_scheduler_without_a_summary_cannot_be_autoscaled() -> None:
    class Decider:
        def __init__(self) -> None:
            scheduler = Scheduler()
            self.handle, self.next_wakeup = scheduler.handle, scheduler.next_wakeup

    with pytest.raises(AssertionError, match="summary"):
        run(replace(scaled([arrival(0)]), decider=Decider))
