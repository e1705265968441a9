"""Tests for fallback models."""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Model, ModelTierRule, Policy, RetryRules
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
    commands_for,
    completed,
    duration,
    failed,
    joined,
    leaving,
    policy_changed,
    readied,
    unreadied,
)

QUICK_EJECTION = HealthRules(consecutive_failures_max=1, ejection_ns=duration(100), ejection_ns_max=duration(100))


def a_model(name: str, *fallbacks: str, pool: str | None = None, rungs: tuple[ModelTierRule, ...] = ()) -> Model:
    """Returns a model whose pool has the same name, unless `pool` is given."""
    pools = (PoolName(pool or name),)
    return Model(ModelName(name), pools, rungs, tuple(ModelName(each) for each in fallbacks))


def of_chain(*models: Model, **options: object) -> Policy:
    """Returns a policy with these models. By default, "m" falls back to "n" and then to "o"."""
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


def test_request_stays_with_its_model_while_that_model_can_serve() -> None:
    scheduler = with_endpoints("m", "n", places=1)

    assert sent(scheduler.handle(arrived("a"), at(0))).model is None
    assert scheduler.handle(arrived("b"), at(0)) == []


def test_request_goes_to_the_fallback_if_its_model_has_no_endpoint() -> None:
    dispatch = sent(with_endpoints("n", "o").handle(arrived("a"), at(0)))

    assert (dispatch.endpoint_id, dispatch.pool, dispatch.model, dispatch.attempt) == ("e-n", "n", "n", 1)


def test_first_available_fallback_is_used() -> None:
    scheduler = with_endpoints("n", "o")
    commands_for(scheduler, at(0), unreadied("e-n"))

    assert sent(scheduler.handle(arrived("a"), at(0))).model == "o"


def test_request_waits_for_its_own_model_only_if_no_fallback_is_available() -> None:
    scheduler = with_endpoints("n")
    commands_for(scheduler, at(0), joined("e-m", pool="m"))
    assert sent(scheduler.handle(arrived("a"), at(0))).model == "n"
    commands_for(scheduler, at(0), unreadied("e-n"))

    assert scheduler.handle(arrived("b"), at(0)) == []
    assert sent(scheduler.handle(readied("e-m"), at(1))).model is None


def test_request_waits_for_its_own_model_if_the_retry_budget_is_exhausted() -> None:
    scheduler = with_endpoints("n", policy=of_chain(retry=RetryRules(pool_retries_min=1)))
    commands_for(scheduler, at(0), joined("e-m", pool="m"))

    assert sent(scheduler.handle(arrived("a"), at(0))).model == "n"
    assert scheduler.handle(arrived("b"), at(0)) == []


def test_rejection_names_the_pool_of_the_requested_model() -> None:
    scheduler = with_endpoints("n")
    commands_for(scheduler, at(0), leaving("e-n"))

    [refusal] = scheduler.handle(arrived("a"), at(0))

    assert isinstance(refusal, End)
    assert refusal.outcome is Outcome.NO_ENDPOINTS
    assert refusal.reason.startswith("no endpoint in pool m is available")


def test_api_key_falls_back_only_to_models_it_may_use() -> None:
    policy = of_chain(tenants=(a_tenant("acme", models=("m", "o")), a_tenant("bolt", models=("m",))))
    scheduler = with_endpoints("n", "o", policy=policy)

    assert sent(scheduler.handle(arrived("a", "acme"), at(0))).model == "o"
    assert outcome(scheduler.handle(arrived("b", "bolt"), at(0))) is Outcome.NO_ENDPOINTS


def test_class_falls_back_only_to_pools_it_may_use() -> None:
    scheduler = with_endpoints("n", "o", policy=of_chain(classes=(a_class(pools=("m", "o")),)))

    assert sent(scheduler.handle(arrived("a"), at(0))).model == "o"


def test_unknown_fallback_model_is_skipped() -> None:
    policy = of_chain(a_model("m", "gone", "o"), a_model("o"))

    assert sent(with_endpoints("o", policy=policy).handle(arrived("a"), at(0))).model == "o"


def test_requested_model_tier_does_not_apply_to_the_fallback() -> None:
    own = a_model("m", "n", rungs=(ModelTierRule((PoolName("m"),), name="best"),))
    scheduler = with_endpoints("n", policy=of_chain(own, a_model("n")))

    assert sent(scheduler.handle(RequestArrived(replace(arrived("a").ticket, model_tier="best")), at(0))).model == "n"


def test_response_lengths_are_learned_for_the_serving_model() -> None:
    other = Model(ModelName("n"), (PoolName("curt"), PoolName("chatty")))
    policy = of_chain(a_model("m", "n"), other, retry=RetryRules(pool_retries_min=100))
    ranges = {"curt": {"output_tokens_max": 99}, "chatty": {"output_tokens_min": 100}}
    pools = tuple(replace(pool, **ranges.get(pool.name, {})) for pool in policy.pools)
    scheduler = with_endpoints("curt", "chatty", policy=replace(policy, pools=pools), places=40)
    assert sent(scheduler.handle(arrived("before", model="n"), at(0))).pool == "chatty"
    for number in range(20):
        usage = Usage(10, 7, 0, UsageSource.ENGINE)
        ended = AttemptEnded(RequestId(f"r{number}"), 1, AttemptEnding.COMPLETED, usage=usage)
        commands_for(scheduler, at(0), arrived(f"r{number}"), ended)

    assert sent(scheduler.handle(arrived("after", model="n"), at(0))).pool == "curt"


# Retry budget


STRICT = RetryRules(pool_retries_min=2, pool_budget_percent=20)


def test_fallback_is_counted_as_an_extra_attempt_at_its_pool() -> None:
    scheduler = with_endpoints("n", "o", policy=of_chain(retry=STRICT), places=100)
    outcomes = [scheduler.handle(arrived(f"r{number}"), at(0))[0] for number in range(4)]

    assert [isinstance(each, Dispatch) for each in outcomes] == [True, True, False, False]
    assert outcome([outcomes[3]]) is Outcome.NO_ENDPOINTS


def test_fallback_is_not_counted_as_a_first_attempt() -> None:
    """Otherwise fallbacks would earn the budget that they spend."""
    policy = of_chain(retry=replace(STRICT, pool_retries_min=0, pool_budget_percent=50))
    scheduler = with_endpoints("n", policy=policy, places=100)
    for number in range(8):
        commands_for(scheduler, at(0), arrived(f"own{number}", model="n"), completed(f"own{number}"))

    fallen = [scheduler.handle(arrived(f"r{number}"), at(0))[0] for number in range(6)]

    assert [isinstance(each, Dispatch) for each in fallen] == [True] * 4 + [False] * 2


# After a failed attempt


def test_request_falls_back_when_its_last_endpoint_fails() -> None:
    scheduler = with_endpoints("m", "n")
    commands_for(scheduler, at(0), arrived("a"))

    dispatch = sent(scheduler.handle(failed("a"), at(1)))

    assert (dispatch.endpoint_id, dispatch.model, dispatch.attempt) == ("e-n", "n", 2)


def test_retry_stays_with_its_model_while_an_endpoint_is_available() -> None:
    policy = of_chain()
    scheduler = a_scheduler(*[an_endpoint(name, pool=name[0]) for name in ("m1", "m2", "n1")], policy=policy)
    commands_for(scheduler, at(0), arrived("a"))

    dispatch = sent(scheduler.handle(failed("a"), at(1)))

    assert (dispatch.endpoint_id, dispatch.model, dispatch.attempt) == ("m2", None, 2)


def test_retry_falling_back_uses_the_retry_budget_of_its_new_pool() -> None:
    policy = of_chain(retry=replace(STRICT, pool_retries_min=0))
    scheduler = with_endpoints("m", "n", policy=policy)
    for number in range(20):
        commands_for(scheduler, at(0), arrived(f"own{number}"), completed(f"own{number}"))
    commands_for(scheduler, at(0), arrived("a"))

    [_, ended] = scheduler.handle(failed("a"), at(1))

    assert isinstance(ended, End)
    assert ended.outcome is Outcome.ENGINE_ERROR
    assert ended.reason == "not retried because the retry budget is exhausted: connection refused"


def test_retry_returns_to_its_own_model_once_that_model_can_serve_again() -> None:
    scheduler = with_endpoints("n")
    commands_for(scheduler, at(0), arrived("a"), joined("e-m", pool="m"), readied("e-m"))

    dispatch = sent(scheduler.handle(failed("a"), at(1)))

    assert (dispatch.endpoint_id, dispatch.model, dispatch.attempt) == ("e-m", None, 2)


def test_failed_request_without_a_fallback_reports_the_last_failure() -> None:
    scheduler = with_endpoints("m")
    commands_for(scheduler, at(0), arrived("a"))

    [_, ended] = scheduler.handle(failed("a"), at(1))

    assert isinstance(ended, End)
    assert ended.outcome is Outcome.NO_ENDPOINTS
    assert ended.reason.endswith("(after: connection refused)")


# Policy changes


def test_request_queued_for_its_fallback_stays_there_after_a_policy_change() -> None:
    scheduler = with_endpoints("n", places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    assert scheduler.handle(policy_changed(of_chain(), "h2"), at(1)) == []
    dispatch = sent(scheduler.handle(completed("a"), at(2)))
    assert (dispatch.request_id, dispatch.model) == ("b", "n")


def test_request_queued_for_a_removed_fallback_is_rejected() -> None:
    scheduler = with_endpoints("n", places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    commands = scheduler.handle(policy_changed(of_chain(a_model("m"), a_model("n")), "h2"), at(1))

    assert outcome(commands) is Outcome.NO_ENDPOINTS


def test_request_without_an_endpoint_after_a_policy_change_is_rejected_with_retry_after() -> None:
    policy = of_chain(a_model("m", "n"), a_model("n"))
    scheduler = a_scheduler(an_endpoint("e1", pool="n"), policy=policy)
    commands_for(scheduler, at(0), arrived("a", model="n"), arrived("r"), leaving("e1"))

    [ending] = commands_for(scheduler, at(1), policy_changed(replace(policy, fairness_depth=2), "h2"))
    assert isinstance(ending, End)
    assert (ending.outcome, ending.retry_after_ns) == (Outcome.NO_ENDPOINTS, duration(30))
