"""Is a request refused at once where it would wait in vain, and never where it would not?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.routing.turnover import Turnover
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import AdmissionRules, Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, PoolName, RequestId, TenantId, seconds
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    lasting,
    refused,
    told,
)

PROMPT = 20_000
"""Bytes of a prompt that the engines of the tests work on for about a sixth of a second, its answer included."""


def hurried(ttft: float | None = 2.0, *, certainty: int | None = 100, **changes: object) -> Policy:
    ttft_ns = None if ttft is None else lasting(ttft)
    classes = (replace(a_class("interactive"), ttft_ns=ttft_ns), a_class("batch", band=1, queue_wait=600))
    policy = a_policy(classes=classes, **changes)  # type: ignore[arg-type]
    return replace(policy, admission=AdmissionRules(certainty))


def outcomes(policy: Policy, count: int, *, endpoints: int = 1, tenant: str = "acme") -> list[Outcome | None]:
    """What becomes at its arrival of each of so many that come at once behind one that runs."""
    scheduler = a_scheduler(*(an_endpoint(f"e{number}") for number in range(endpoints)), policy=policy)
    told(scheduler, at(0), *(arrived(f"runs{number}", tenant) for number in range(endpoints)))
    answers = []
    for number in range(count):
        commands = scheduler.handle(arrived(f"r{number}", tenant, prompt_bytes=PROMPT), at(0))
        answers.append(commands[-1].outcome if commands and isinstance(commands[-1], End) else None)
    return answers


def test_whoever_would_wait_beyond_its_target_is_refused_at_its_arrival() -> None:
    answers = outcomes(hurried(), 30)
    waiting = answers.index(Outcome.UNREACHABLE)

    assert answers == [None] * waiting + [Outcome.UNREACHABLE] * (30 - waiting)
    assert 5 <= waiting <= 20


def test_twice_the_endpoints_let_twice_as_many_wait() -> None:
    one = outcomes(hurried(), 60).index(Outcome.UNREACHABLE)
    two = outcomes(hurried(), 60, endpoints=2).index(Outcome.UNREACHABLE)

    assert 2 * one - 2 <= two <= 2 * one + 2


def test_who_may_wait_longer_is_let_in_later() -> None:
    assert outcomes(hurried(4.0), 60).index(Outcome.UNREACHABLE) > outcomes(hurried(2.0), 60).index(Outcome.UNREACHABLE)


def test_without_the_rule_everybody_waits_and_sees() -> None:
    assert outcomes(hurried(certainty=None), 60) == [None] * 60


def test_without_a_target_the_patience_of_the_class_counts() -> None:
    answers = outcomes(hurried(None), 400)

    assert Outcome.UNREACHABLE in answers
    assert answers.index(Outcome.UNREACHABLE) > 60


def test_the_answer_says_how_long_it_would_have_been_and_when_to_come_again() -> None:
    scheduler = a_scheduler(policy=hurried())
    told(scheduler, at(0), arrived("runs"))
    [end] = told(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(30)))[:1]

    assert isinstance(end, End)
    assert end.outcome is Outcome.UNREACHABLE
    assert end.reason.startswith("it would wait about ")
    assert 'in class "interactive"; come back later' in end.reason
    assert end.retry_after_ns is not None
    assert end.retry_after_ns >= SECOND


def test_another_tenants_queue_does_not_refuse_a_newcomer() -> None:
    scheduler = a_scheduler(policy=hurried())
    told(scheduler, at(0), arrived("runs"))
    told(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(30)))

    assert scheduler.handle(arrived("new", "bolt", prompt_bytes=PROMPT), at(0)) == []
    [*_, sent] = scheduler.handle(completed("runs"), at(0.1))
    assert isinstance(sent, Dispatch)


def test_of_others_no_more_counts_than_their_share_beside_ones_own() -> None:
    """A tenant of three times the weight is served three times as much meanwhile."""
    alone = outcomes(hurried(), 60).index(Outcome.UNREACHABLE)

    def let_in(weight: int) -> int:
        tenants = ("acme", Tenant(TenantId("bolt"), weight=weight), "coil")
        policy = replace(hurried(tenants=tenants), classes=hurried().classes)
        scheduler = a_scheduler(policy=policy)
        told(scheduler, at(0), arrived("runs", "coil"))
        told(scheduler, at(0), *(arrived(f"b{number}", "bolt", prompt_bytes=PROMPT) for number in range(alone)))
        for number in range(60):
            if scheduler.handle(arrived(f"a{number}", prompt_bytes=PROMPT), at(0)):
                return number
        return 60

    assert let_in(300) < let_in(100) < alone
    assert let_in(1) >= alone - 2


def test_a_higher_band_counts_whole() -> None:
    classes = (a_class("interactive"), replace(a_class("batch", band=1), ttft_ns=lasting(2)))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    told(scheduler, at(0), arrived("runs"))
    told(scheduler, at(0), *(arrived(f"i{number}", prompt_bytes=PROMPT) for number in range(30)))
    [end] = scheduler.handle(arrived("b", "bolt", service_class="batch", prompt_bytes=PROMPT), at(0))

    assert isinstance(end, End)
    assert end.outcome is Outcome.UNREACHABLE


def test_beyond_so_many_tenants_the_rest_is_not_reckoned() -> None:
    """The wait is estimated from below, and looking at all of them would take too long."""
    tenants = tuple(f"t{number}" for number in range(100))
    scheduler = a_scheduler(policy=hurried(2.0, tenants=("acme", *tenants)))
    told(scheduler, at(0), arrived("runs"), *(arrived(f"own{number}", prompt_bytes=PROMPT) for number in range(3)))
    for name in tenants:
        told(scheduler, at(0), arrived(f"{name}-1", name, prompt_bytes=400))
    [end] = scheduler.handle(arrived("next", prompt_bytes=PROMPT), at(0))

    assert isinstance(end, End)
    assert end.outcome is Outcome.UNREACHABLE
    cost = scheduler._state.requests.by_id[RequestId("t0-1")].cost_ns
    own = 3 * scheduler._state.requests.by_id[RequestId("own0")].cost_ns
    assert f"it would wait about {seconds(Duration(own + 64 * cost))} " in end.reason


def test_a_pool_that_nobody_serves_adds_nothing_to_the_lane_of_long_prompts() -> None:
    scheduler = a_scheduler(policy=hurried())

    assert scheduler._state.fleet.pace((PoolName("nowhere"), PoolName("p")), long=True) == 1_000
    assert scheduler._state.fleet.grain_ns((PoolName("nowhere"),)) == 0
    assert scheduler._state.fleet.free_in_ns((PoolName("nowhere"),), Duration(0), at(0)) == 0
    assert not scheduler._state.fleet.has_places((PoolName("nowhere"),))


# `in_flight_max` is the bottleneck

QUEUE_LENGTH = a_class("interactive").queue_length_per_tenant_max


def served(
    places: int, *, taking: float, count: int = 20, endpoints: int = 1, tenants: tuple[str, ...] = ("acme",)
) -> Scheduler:
    """A scheduler whose past requests held their places for `taking` seconds, and whose places are all taken."""
    names = [f"e{number}" for number in range(endpoints)]
    scheduler = a_scheduler(
        *(an_endpoint(name, places=places) for name in names), policy=hurried(None, tenants=tenants)
    )
    for number in range(count):
        scheduler.handle(arrived(f"s{number}", prompt_bytes=400), at(number * taking))
        scheduler.handle(completed(f"s{number}"), at((number + 1) * taking))
    told(scheduler, at(count * taking), *(arrived(f"runs{n}", prompt_bytes=400) for n in range(places * endpoints)))
    return scheduler


def let_in(scheduler: Scheduler, now: float) -> int:
    """Number of small requests that are admitted to the queue."""
    for number in range(QUEUE_LENGTH + 1):
        if scheduler.handle(arrived(f"n{number}", prompt_bytes=400), at(now)):
            return number
    raise AssertionError("no request was rejected")


def test_estimated_wait_follows_the_time_that_places_are_held() -> None:
    """The class waits up to 30 s. With 4 places held for 2 s each, 60 can be served in that time, give or take 8."""
    assert 50 <= let_in(served(4, taking=2.0), 40.0) <= 60


def test_twice_the_places_or_endpoints_let_twice_as_many_requests_wait() -> None:
    one = let_in(served(4, taking=2.0), 40.0)

    assert 2 * one <= let_in(served(8, taking=2.0), 40.0) <= 2 * one + 10
    assert 2 * one <= let_in(served(4, taking=2.0, endpoints=2), 40.0) <= 2 * one + 10


def test_few_requests_do_not_affect_the_estimate_for_places() -> None:
    assert let_in(served(4, taking=2.0, count=7), 14.0) == QUEUE_LENGTH


def test_failed_requests_do_not_affect_the_estimate_for_places() -> None:
    scheduler = a_scheduler(an_endpoint(places=4), policy=hurried(None))
    for number in range(20):
        scheduler.handle(arrived(f"s{number}", prompt_bytes=400), at(number))
        scheduler.handle(refused(f"s{number}"), at(number + 1))
    told(scheduler, at(20), *(arrived(f"runs{n}", prompt_bytes=400) for n in range(4)))

    assert let_in(scheduler, 20.0) == QUEUE_LENGTH


def test_requests_whose_callers_left_do_not_affect_the_estimate_for_places() -> None:
    """Such requests have a large cost and leave at once, so places would seem to become free quickly."""
    undisturbed, disturbed = served(4, taking=2.0), served(4, taking=2.0)
    told(disturbed, at(40), *(completed(f"runs{number}") for number in range(4)))
    for number in range(60):
        disturbed.handle(arrived(f"left{number}", prompt_bytes=PROMPT), at(40))
        told(disturbed, at(40), client_left(f"left{number}"), aborted(f"left{number}"))
    told(undisturbed, at(40), *(completed(f"runs{number}") for number in range(4)))
    for scheduler in (undisturbed, disturbed):
        told(scheduler, at(40), *(arrived(f"again{number}", prompt_bytes=400) for number in range(4)))

    assert let_in(disturbed, 40.0) == let_in(undisturbed, 40.0) < QUEUE_LENGTH


@pytest.mark.parametrize("reading", [60, 600])
def test_slow_readers_of_one_tenant_hardly_affect_the_estimate_for_places(reading: int) -> None:
    """Its callers hold their places for minutes because they read slowly; the engine is not slow."""
    undisturbed, disturbed = (served(4, taking=2.0, tenants=("acme", "bolt")) for _ in range(2))
    for scheduler in (undisturbed, disturbed):
        told(scheduler, at(40), *(completed(f"runs{number}") for number in range(4)))
    for burst in range(4):
        names = [f"slow{burst}-{number}" for number in range(4)]
        told(disturbed, at(40 + reading * burst), *(arrived(name, "bolt", prompt_bytes=400) for name in names))
        told(disturbed, at(40 + reading * (burst + 1)), *(completed(name) for name in names))
    later = 40.0 + 4 * reading
    for scheduler, now in ((undisturbed, 40), (disturbed, later)):
        told(scheduler, at(now), *(arrived(f"again{number}", prompt_bytes=400) for number in range(4)))

    usual = let_in(undisturbed, 40.0)
    assert usual / 3 <= let_in(disturbed, later) <= usual < QUEUE_LENGTH


def test_engine_slowdown_for_all_tenants_lowers_the_pace() -> None:
    turnover = Turnover()
    for number in range(200):
        turnover.take(number, at(0), cost_ns=Duration(SECOND), tenant=TenantId(f"t{number % 2}"))
        turnover.give_back(number, at(1 if number < 40 else 50), served=True)

    assert turnover.pace(100, 50) == pytest.approx(1_000, rel=0.35)


def test_single_tenant_determines_the_pace() -> None:
    turnover = Turnover()
    for number in range(600):
        turnover.take(number, at(0), cost_ns=Duration(SECOND))
        turnover.give_back(number, at(50), served=True)

    assert turnover.pace(100, 50) == 1_000


def test_usual_hold_time_is_kept_for_the_tenants_served_last() -> None:
    """Only a few tenants are remembered, so a change shows although many others were served before."""
    turnover = Turnover()
    for number in range(640):
        taking = 1 if number < 320 else 50
        turnover.take(number, at(0), cost_ns=Duration(SECOND), tenant=TenantId(f"t{number // 8}"))
        turnover.give_back(number, at(taking), served=True)

    assert turnover.pace(100, 50) < 1_300


def in_bursts(taking: float = 3.0) -> Scheduler:
    """A scheduler whose four places were taken at the same time by requests of `taking` seconds each."""
    policy = hurried(None)
    classes = (replace(policy.classes[0], queue_wait_ns_max=lasting(2)), *policy.classes[1:])
    scheduler = a_scheduler(an_endpoint(places=4), policy=replace(policy, classes=classes))
    for burst in range(5):
        names = [f"b{burst}-{number}" for number in range(4)]
        told(scheduler, at(burst * taking), *(arrived(name, prompt_bytes=400) for name in names))
        if burst < 4:
            told(scheduler, at((burst + 1) * taking), *(completed(name) for name in names))
    return scheduler


def test_request_between_two_bursts_is_rejected_if_no_place_becomes_free_in_time() -> None:
    """Places were taken at 12 s and are held for 3 s; a request may wait for 2 s."""
    [end] = in_bursts().handle(arrived("early", prompt_bytes=400), at(12.5))

    assert isinstance(end, End)
    assert end.outcome is Outcome.UNREACHABLE
    assert end.reason.startswith("it would wait about 2.5 s and may wait 2 s ")
    assert in_bursts().handle(arrived("later", prompt_bytes=400), at(13.5)) == []


def test_shortest_response_determines_when_a_place_becomes_free() -> None:
    scheduler = in_bursts()
    told(scheduler, at(12.1), completed("b4-0"), arrived("again", prompt_bytes=400))

    assert scheduler.handle(arrived("early", prompt_bytes=400), at(12.5)) == []


def test_places_held_for_no_time_do_not_limit_the_pace() -> None:
    turnover = Turnover()
    for number in range(20):
        turnover.take(number, at(1), cost_ns=Duration(1))
        turnover.give_back(number, at(1), served=True)

    assert turnover.pace(3, 1) == 3_000


def test_prompt_array_counts_for_every_place_it_holds() -> None:
    one, eight = Turnover(), Turnover()
    for number in range(20):
        for turnover, places in ((one, 1), (eight, 8)):
            turnover.take(number, at(number), cost_ns=Duration(SECOND // 10), places=places)
            turnover.give_back(number, at(number + 1), served=True)

    assert one.pace(10, 16) == 1_600
    assert eight.pace(10, 16) == 200


def test_short_responses_after_long_ones_are_expected_to_end_soon() -> None:
    turnover = Turnover()
    for number in range(20):
        turnover.take(number, at(0), cost_ns=Duration(SECOND))
        turnover.give_back(number, at(60), served=True)
    turnover.take("long", at(60), cost_ns=Duration(SECOND))
    turnover.take("short", at(60), cost_ns=Duration(SECOND // 60))

    assert turnover.free_in_ns(2, Duration(0), at(60)) <= SECOND
    assert turnover.free_in_ns(2, Duration(SECOND), at(60)) == 60 * SECOND


def test_wait_for_the_first_of_many_places_is_estimated_as_zero() -> None:
    turnover = Turnover()
    for number in range(20):
        turnover.take(number, at(0), cost_ns=Duration(SECOND))
        turnover.give_back(number, at(60), served=True)
    for number in range(65):
        turnover.take(number, at(60), cost_ns=Duration(SECOND))

    assert turnover.free_in_ns(65, Duration(0), at(60)) == 0
