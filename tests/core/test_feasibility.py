"""Is a request refused at once where it would wait in vain, and never where it would not?"""

from dataclasses import replace

from headgate.core.commands import Dispatch, End
from headgate.model.outcome import Outcome
from headgate.model.policy import AdmissionRules, Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, PoolName, RequestId, TenantId, seconds
from testing.builders import a_class, a_policy, a_scheduler, an_endpoint, arrived, at, completed, lasting, told

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

    assert scheduler._state.fleet.lane((PoolName("nowhere"), PoolName("p"))) == 1
