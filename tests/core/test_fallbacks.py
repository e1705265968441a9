"""Where does a request go when no endpoint of its own model can serve it?"""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Model, Policy, RetryRules, RungRule
from headgate.model.units import ModelName, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    completed,
    failed,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    told,
    unreadied,
)

QUICK_EJECTION = HealthRules(failures_max=1, eject_ns=lasting(100), eject_ns_max=lasting(100))


def a_model(name: str, *fallbacks: str, pool: str | None = None, rungs: tuple[RungRule, ...] = ()) -> Model:
    """Served by a pool of its own name."""
    pools = (PoolName(pool or name),)
    return Model(ModelName(name), pools, rungs, tuple(ModelName(each) for each in fallbacks))


def of_chain(*models: Model, **options: object) -> Policy:
    """By default "m" falls back to "n", and then to "o"."""
    chain = models or (a_model("m", "n", "o"), a_model("n"), a_model("o"))
    pools = tuple(pool for model in chain for pool in model.pools)
    return a_policy(models=chain, pools=pools, **{"health": QUICK_EJECTION, **options})  # type: ignore[arg-type]


def with_endpoints(*pools: str, policy: Policy | None = None, places: int = 10) -> Scheduler:
    endpoints = [an_endpoint(f"e-{pool}", pool=pool, places=places) for pool in pools]
    return a_scheduler(*endpoints, policy=policy or of_chain())


def sent(commands: list[Command]) -> Dispatch:
    [command] = [each for each in commands if not isinstance(each, End)][-1:]
    assert isinstance(command, Dispatch), commands
    return command


def outcome(commands: list[Command]) -> Outcome:
    command = commands[-1]
    assert isinstance(command, End), commands
    return command.outcome


# On arrival


def test_as_long_as_its_own_model_can_serve_it_stays_there() -> None:
    scheduler = with_endpoints("m", "n", places=1)

    assert sent(scheduler.handle(arrived("a"), at(0))).model is None
    assert scheduler.handle(arrived("b"), at(0)) == []


def test_with_no_endpoint_of_its_own_it_goes_to_the_model_that_it_falls_back_to() -> None:
    dispatch = sent(with_endpoints("n", "o").handle(arrived("a"), at(0)))

    assert (dispatch.endpoint_id, dispatch.pool, dispatch.model, dispatch.attempt) == ("e-n", "n", "n", 1)


def test_the_first_that_takes_work_is_the_one() -> None:
    scheduler = with_endpoints("n", "o")
    told(scheduler, at(0), unreadied("e-n"))

    assert sent(scheduler.handle(arrived("a"), at(0))).model == "o"


def test_its_own_endpoints_are_waited_for_only_where_nobody_else_can_serve() -> None:
    scheduler = with_endpoints("n")
    told(scheduler, at(0), joined("e-m", pool="m"))
    assert sent(scheduler.handle(arrived("a"), at(0))).model == "n"
    told(scheduler, at(0), unreadied("e-n"))

    assert scheduler.handle(arrived("b"), at(0)) == []
    assert sent(scheduler.handle(readied("e-m"), at(1))).model is None


def test_beyond_the_budget_its_own_endpoints_are_waited_for() -> None:
    scheduler = with_endpoints("n", policy=of_chain(retry=RetryRules(pool_extra_min=1)))
    told(scheduler, at(0), joined("e-m", pool="m"))

    assert sent(scheduler.handle(arrived("a"), at(0))).model == "n"
    assert scheduler.handle(arrived("b"), at(0)) == []


def test_where_nobody_can_serve_it_is_told_about_its_own_model() -> None:
    scheduler = with_endpoints("n")
    told(scheduler, at(0), leaving("e-n"))

    [refusal] = scheduler.handle(arrived("a"), at(0))

    assert isinstance(refusal, End)
    assert refusal.outcome is Outcome.NO_ENDPOINTS
    assert refusal.reason.startswith("no endpoint of pool m can serve")


def test_a_key_falls_back_only_to_models_that_it_may_use() -> None:
    policy = of_chain(tenants=(a_tenant("acme", models=("m", "o")), a_tenant("bolt", models=("m",))))
    scheduler = with_endpoints("n", "o", policy=policy)

    assert sent(scheduler.handle(arrived("a", "acme"), at(0))).model == "o"
    assert outcome(scheduler.handle(arrived("b", "bolt"), at(0))) is Outcome.NO_ENDPOINTS


def test_a_class_falls_back_only_to_pools_that_it_may_use() -> None:
    scheduler = with_endpoints("n", "o", policy=of_chain(classes=(a_class(pools=("m", "o")),)))

    assert sent(scheduler.handle(arrived("a"), at(0))).model == "o"


def test_a_model_that_the_policy_does_not_know_is_passed_over() -> None:
    policy = of_chain(a_model("m", "gone", "o"), a_model("o"))

    assert sent(with_endpoints("o", policy=policy).handle(arrived("a"), at(0))).model == "o"


def test_a_rung_that_the_other_model_does_not_have_is_no_matter_there() -> None:
    own = a_model("m", "n", rungs=(RungRule((PoolName("m"),), named="best"),))
    scheduler = with_endpoints("n", policy=of_chain(own, a_model("n")))

    assert sent(scheduler.handle(RequestArrived(replace(arrived("a").ticket, rung="best")), at(0))).model == "n"


def test_what_its_answers_are_like_is_learned_of_the_model_that_served() -> None:
    other = Model(ModelName("n"), (PoolName("curt"), PoolName("chatty")))
    policy = of_chain(a_model("m", "n"), other, retry=RetryRules(pool_extra_min=100))
    ranges = {"curt": {"output_tokens_max": 99}, "chatty": {"output_tokens_min": 100}}
    pools = tuple(replace(pool, **ranges.get(pool.name, {})) for pool in policy.pools)
    scheduler = with_endpoints("curt", "chatty", policy=replace(policy, pools=pools), places=40)
    assert sent(scheduler.handle(arrived("before", model="n"), at(0))).pool == "chatty"
    for number in range(20):
        usage = Usage(10, 7, 0, UsageSource.ENGINE)
        ended = AttemptEnded(RequestId(f"r{number}"), 1, AttemptEnding.COMPLETED, usage=usage)
        told(scheduler, at(0), arrived(f"r{number}"), ended)

    assert sent(scheduler.handle(arrived("after", model="n"), at(0))).pool == "curt"


# The budget


STRICT = RetryRules(pool_extra_min=2, pool_percent=20)


def test_a_fallback_is_an_extra_attempt_at_the_pool_that_it_goes_to() -> None:
    scheduler = with_endpoints("n", "o", policy=of_chain(retry=STRICT), places=100)
    outcomes = [scheduler.handle(arrived(f"r{number}"), at(0))[0] for number in range(4)]

    assert [isinstance(each, Dispatch) for each in outcomes] == [True, True, False, False]
    assert outcome([outcomes[3]]) is Outcome.NO_ENDPOINTS


def test_what_falls_back_counts_in_no_pool_as_a_first_attempt() -> None:
    """Or it would bring the budget along that it uses up."""
    policy = of_chain(retry=replace(STRICT, pool_extra_min=0, pool_percent=50))
    scheduler = with_endpoints("n", policy=policy, places=100)
    for number in range(8):
        told(scheduler, at(0), arrived(f"own{number}", model="n"), completed(f"own{number}"))

    fallen = [scheduler.handle(arrived(f"r{number}"), at(0))[0] for number in range(6)]

    assert [isinstance(each, Dispatch) for each in fallen] == [True] * 4 + [False] * 2


# After a failed attempt


def test_when_its_last_endpoint_fails_it_goes_on_where_it_falls_back_to() -> None:
    scheduler = with_endpoints("m", "n")
    told(scheduler, at(0), arrived("a"))

    dispatch = sent(scheduler.handle(failed("a"), at(1)))

    assert (dispatch.endpoint_id, dispatch.model, dispatch.attempt) == ("e-n", "n", 2)


def test_as_long_as_one_of_its_own_is_live_another_attempt_stays_there() -> None:
    policy = of_chain()
    scheduler = a_scheduler(*[an_endpoint(name, pool=name[0]) for name in ("m1", "m2", "n1")], policy=policy)
    told(scheduler, at(0), arrived("a"))

    dispatch = sent(scheduler.handle(failed("a"), at(1)))

    assert (dispatch.endpoint_id, dispatch.model, dispatch.attempt) == ("m2", None, 2)


def test_an_attempt_that_falls_back_costs_the_budget_of_the_pool_that_it_goes_to() -> None:
    policy = of_chain(retry=replace(STRICT, pool_extra_min=0))
    scheduler = with_endpoints("m", "n", policy=policy)
    for number in range(20):
        told(scheduler, at(0), arrived(f"own{number}"), completed(f"own{number}"))
    told(scheduler, at(0), arrived("a"))

    [_, ended] = scheduler.handle(failed("a"), at(1))

    assert isinstance(ended, End)
    assert ended.outcome is Outcome.ENGINE_FAILED
    assert ended.reason == "not tried again, the retry budget is used up: connection refused"


def test_back_to_its_own_model_once_that_can_serve_again() -> None:
    scheduler = with_endpoints("n")
    told(scheduler, at(0), arrived("a"), joined("e-m", pool="m"), readied("e-m"))

    dispatch = sent(scheduler.handle(failed("a"), at(1)))

    assert (dispatch.endpoint_id, dispatch.model, dispatch.attempt) == ("e-m", None, 2)


def test_with_nowhere_to_fall_back_to_it_is_told_why_after_what() -> None:
    scheduler = with_endpoints("m")
    told(scheduler, at(0), arrived("a"))

    [_, ended] = scheduler.handle(failed("a"), at(1))

    assert isinstance(ended, End)
    assert ended.outcome is Outcome.NO_ENDPOINTS
    assert ended.reason.endswith("(after: connection refused)")


# When the policy changes


def test_who_waits_where_it_fell_back_to_waits_there_under_the_next_policy_too() -> None:
    scheduler = with_endpoints("n", places=1)
    told(scheduler, at(0), arrived("a"), arrived("b"))

    assert scheduler.handle(policy_changed(of_chain(), "h2"), at(1)) == []
    dispatch = sent(scheduler.handle(completed("a"), at(2)))
    assert (dispatch.request_id, dispatch.model) == ("b", "n")


def test_who_waits_where_no_policy_sends_it_any_more_is_told_so() -> None:
    scheduler = with_endpoints("n", places=1)
    told(scheduler, at(0), arrived("a"), arrived("b"))

    commands = scheduler.handle(policy_changed(of_chain(a_model("m"), a_model("n")), "h2"), at(1))

    assert outcome(commands) is Outcome.NO_ENDPOINTS


def test_who_fell_back_and_has_nowhere_to_go_by_a_new_policy_is_told_when_to_come_again() -> None:
    policy = of_chain(a_model("m", "n"), a_model("n"))
    scheduler = a_scheduler(an_endpoint("e1", pool="n"), policy=policy)
    told(scheduler, at(0), arrived("a", model="n"), arrived("r"), leaving("e1"))

    [ending] = told(scheduler, at(1), policy_changed(policy, "h2"))
    assert isinstance(ending, End)
    assert (ending.outcome, ending.retry_after_ns) == (Outcome.NO_ENDPOINTS, lasting(30))
