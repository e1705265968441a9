"""Do events take their time on the ways of a scenario, and does all end as it should?"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.diagnosis.run import play
from bench.diagnosis.world import INTERACTIVE, Case, case, endpoint, policy_of, world
from headgate.core.commands import Command
from headgate.core.events import Event, PolicyChanged, RequestArrived
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.model.verdict import Incident
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Callers, Fail, Leave, Limit, Reload
from headgate.simulation.virtual.story import Ending, Sample, Story
from headgate.simulation.virtual.ways import Ways

SMALL = replace(world(0), begins_s=3, tail_s=4, load=0.2, endpoints=2)


def slow(name: str) -> Ways:
    def late(now: Instant) -> Duration:
        del now
        return Duration(100 * MILLISECOND)

    return Ways(**{name: late})


def first_token_s(stories: list[Story]) -> float:
    times = sorted((each.first_token_at or 0) - each.arrived_at for each in stories)
    return times[len(times) // 2] / SECOND


def stories_of(of: Case) -> list[Story]:
    stories = play(of).stories
    assert stories
    assert all(each.outcome is Outcome.COMPLETED for each in stories)
    return stories


@pytest.mark.parametrize(("name", "added_s"), [("network_ns", 0.1), ("store_ns", 0.4)])
def test_a_first_token_comes_later_by_the_way(name: str, added_s: float) -> None:
    direct = first_token_s(stories_of(case("direct", Incident.HEALTHY, SMALL)))
    late = first_token_s(stories_of(case("late", Incident.HEALTHY, SMALL, ways=slow(name))))

    assert late - direct == pytest.approx(added_s, abs=0.03)


def test_events_wait_for_those_before_them_to_be_decided() -> None:
    direct = first_token_s(stories_of(case("direct", Incident.HEALTHY, SMALL)))
    late = first_token_s(stories_of(case("late", Incident.HEALTHY, SMALL, ways=slow("decide_ns"))))

    assert late - direct > 0.2


def test_an_endpoint_that_leaves_gets_nothing_new_and_a_lower_limit_holds() -> None:
    changes = (Leave(endpoint(0), Instant(SECOND)), Limit(endpoint(1), Instant(SECOND), 1))
    stories = play(case("changed", Incident.HEALTHY, SMALL, changes=changes)).stories

    late = [each for each in stories if each.arrived_at > 2 * SECOND]
    assert first_token_s([each for each in late if each.first_token_at is not None]) > 0.5


def test_an_engine_that_fails_answers_its_share_with_errors_while_it_does() -> None:
    lasts = Duration(2 * SECOND)
    faults = tuple(Fail(endpoint(number), Instant(2 * SECOND), lasts, 100) for number in range(2))
    stories = play(case("failing", Incident.HEALTHY, SMALL, faults=faults)).stories

    before = [each for each in stories if each.arrived_at < 2 * SECOND]
    during = [each for each in stories if 2 * SECOND < each.arrived_at < 3 * SECOND]
    assert before
    assert during
    assert all(each.outcome is Outcome.COMPLETED for each in before)
    assert not any(each.outcome is Outcome.COMPLETED and each.attempts == 1 for each in during)


def test_callers_say_what_they_ask_for_and_how_long_it_may_take_and_a_policy_changes() -> None:
    manners = Callers(stream=False, api=Api.EMBEDDINGS, allows_ns=Duration(7))
    policy = replace(policy_of(SMALL), tenants=())
    made = case(
        "asked", Incident.HEALTHY, SMALL, callers={INTERACTIVE: manners}, changes=(Reload(policy, Instant(SECOND)),)
    )
    seen: list[Event] = []

    class Scribe:
        def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
            del commands, now
            seen.append(event)

    class Nobody:
        def ended(self, story: Story) -> None: ...

        def sampled(self, sample: Sample) -> None: ...

        def over(self, ending: Ending) -> None: ...

    VirtualHost(made.scenario, Nobody(), observers=(Scribe(),)).run()

    tickets = [each.ticket for each in seen if isinstance(each, RequestArrived)]
    asked = [each for each in tickets if each.class_named == INTERACTIVE]
    assert asked
    assert all((each.api, each.first_token_ns_left) == (Api.EMBEDDINGS, 7) for each in asked)
    assert [each.policy for each in seen if isinstance(each, PolicyChanged)][1:] == [policy]
