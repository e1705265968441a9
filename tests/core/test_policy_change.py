"""How a policy change affects queued and running requests."""

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, RetryRules
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_class,
    a_model,
    a_policy,
    a_scheduler,
    a_tenant,
    abort,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    eject,
    end,
    failed,
    first_token,
    only_end,
    policy_changed,
    progressed,
)


def test_running_request_completes_under_any_new_policy() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))

    assert scheduler.handle(policy_changed(a_policy(classes=(), tenants=(), pools=(), models=())), at(1)) == []
    assert scheduler.handle(completed("r"), at(2)) == [end("r", Outcome.COMPLETED, attempts=1)]


def test_queued_requests_keep_their_order() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("b", service_class="batch"), arrived("x"), arrived("y"))

    assert scheduler.handle(policy_changed(a_policy(), "h2"), at(1)) == []
    assert scheduler.summary().policy_hash == "h2"
    order = [scheduler.handle(completed(name), at(2))[-1] for name in ("runs", "x", "y")]
    assert order == [
        dispatch("x", waited=2),
        dispatch("y", waited=2),
        dispatch("b", service_class="batch", waited=2),
    ]


def test_queued_request_from_removed_tenant_is_unauthorized() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits", "bolt"))

    assert scheduler.handle(policy_changed(a_policy(tenants=("acme",))), at(2)) == [
        end("waits", Outcome.UNAUTHORIZED, 'unknown tenant "bolt"; check the API key', waited=2)
    ]
    assert scheduler.handle(completed("runs"), at(3)) == [end("runs", Outcome.COMPLETED, attempts=1)]
    assert scheduler.next_wakeup() is None


def test_queued_request_for_removed_model_is_not_found() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert only_end(scheduler.handle(policy_changed(a_policy(models=())), at(1))).outcome is Outcome.MODEL_NOT_FOUND


def test_queued_request_is_forbidden_if_tenant_loses_named_class() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits", service_class="interactive"))
    policy = a_policy(tenants=(a_tenant("acme", classes=("batch",)),))

    assert only_end(scheduler.handle(policy_changed(policy), at(1))).outcome is Outcome.FORBIDDEN


def test_queued_request_without_named_class_moves_to_the_only_class_of_its_tenant() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))
    policy = a_policy(tenants=(a_tenant("acme", classes=("batch",)),))

    assert scheduler.handle(policy_changed(policy), at(1)) == []
    queued = scheduler.summary().queued
    assert (queued["interactive"], queued["batch"]) == (0, 1)


def test_queued_request_in_removed_class_is_classified_again() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits", service_class="batch"))

    assert scheduler.handle(policy_changed(a_policy(classes=(a_class("chat"),))), at(1)) == []
    assert scheduler.summary().queued == {"chat": 1}
    assert scheduler.handle(completed("runs"), at(2))[-1] == dispatch("waits", service_class="chat", waited=2)


def test_queued_request_moves_to_new_class_for_its_service_tier() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("flex", tier="flex"), arrived("x"))
    swapped = (a_class("interactive", band=1), a_class("cheap", band=0, service_tiers=("flex",)))

    commands_for(scheduler, at(1), policy_changed(a_policy(classes=swapped)))

    assert scheduler.handle(completed("runs"), at(2))[-1] == dispatch("flex", service_class="cheap", waited=2)


def test_queued_requests_move_with_their_class_to_new_band() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("i"), arrived("b", service_class="batch"))

    commands_for(scheduler, at(1), policy_changed(a_policy(classes=(INTERACTIVE, a_class("batch", band=-1)))))

    assert scheduler.handle(completed("runs"), at(2))[-1] == dispatch("b", service_class="batch", waited=2)


def test_queued_request_in_removed_pool_moves_to_remaining_pool() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(policy_changed(a_policy(pools=("q",))), at(1)) == [
        dispatch("waits", "e2", pool="q", waited=1)
    ]


def test_queued_request_is_forbidden_if_class_loses_all_of_the_models_pools() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))
    policy = a_policy(classes=(a_class("interactive", pools=("q",)),))

    assert only_end(scheduler.handle(policy_changed(policy), at(1))).outcome is Outcome.FORBIDDEN


def test_endpoints_in_removed_pool_finish_running_requests_but_get_no_new_ones() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p", places=2), an_endpoint("e2", pool="q"))
    commands_for(scheduler, at(0), arrived("runs"), policy_changed(a_policy(pools=("q",))))

    assert commands_for(scheduler, at(1), arrived("x"), arrived("y")) == [dispatch("x", "e2", pool="q")]
    assert scheduler.handle(completed("runs"), at(2)) == [end("runs", Outcome.COMPLETED, attempts=1)]


def test_queued_request_keeps_its_expiry_time() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits"))
    commands_for(scheduler, at(10), policy_changed(a_policy(classes=(a_class("interactive", queue_wait=5),))))

    assert scheduler.handle(TimerFired(), at(29)) == []
    assert only_end(scheduler.handle(TimerFired(), at(30))).outcome is Outcome.QUEUE_TIMEOUT


def test_queued_retry_keeps_its_position_and_excluded_endpoint() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("long"), arrived("r"), arrived("other"), failed("r"))

    assert scheduler.handle(policy_changed(a_policy()), at(1)) == []
    assert scheduler.handle(completed("long"), at(2))[-1] == dispatch("r", "e1", attempt=2, waited=2)


def test_shorter_stall_timeout_applies_to_open_streams() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))
    commands_for(scheduler, at(2), progressed("r"))

    commands_for(scheduler, at(3), policy_changed(a_policy(health=HealthRules(stall_ns_max=duration(5)))))

    assert scheduler.next_wakeup() == at(7)
    assert scheduler.handle(TimerFired(), at(7)) == [
        eject("e1", until=at(17), reason="no activity for 5 s; streams in flight: 1"),
        abort("r", reason="the endpoint has stalled"),
    ]


def test_policy_change_sets_no_stall_timer_for_endpoint_without_streams() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False), policy_changed(a_policy()))
    commands_for(scheduler, at(1), TimerFired())

    assert scheduler.next_wakeup() is None


def test_remaining_tenant_keeps_its_retry_budget() -> None:
    rules = RetryRules(credit_burst=100, credit_per_first_attempt=0)
    scheduler = a_scheduler(policy=a_policy(retry=rules), places=9)
    commands_for(scheduler, at(0), arrived("a", client_retries=1))
    commands_for(scheduler, at(1), policy_changed(a_policy(retry=rules, classes=(INTERACTIVE, BATCH))))

    refusal = only_end(scheduler.handle(arrived("b", client_retries=1), at(1)))

    assert refusal.outcome is Outcome.RETRY_BUDGET_EXHAUSTED


def test_tenant_removed_and_added_again_gets_new_retry_budget() -> None:
    rules = RetryRules(credit_burst=100, credit_per_first_attempt=0)
    scheduler = a_scheduler(policy=a_policy(retry=rules), places=9)
    commands_for(scheduler, at(0), arrived("a", client_retries=1))
    commands_for(
        scheduler, at(1), policy_changed(a_policy(tenants=(), retry=rules)), policy_changed(a_policy(retry=rules))
    )

    assert scheduler.handle(arrived("b", client_retries=1), at(1)) == [dispatch("b", place="2 of 9")]


def test_pool_keeps_its_extra_attempt_count_unless_window_changes() -> None:
    hardy = HealthRules(consecutive_failures_max=99)
    policy = a_policy(health=hardy, retry=RetryRules(pool_retries_min=1))
    scheduler = a_scheduler(policy=policy, places=9)
    commands_for(scheduler, at(0), *[arrived(name) for name in "abcd"])
    commands_for(scheduler, at(0), failed("a"), client_disconnected("a"))

    commands_for(scheduler, at(0), policy_changed(policy))
    assert only_end(scheduler.handle(failed("b"), at(0))).outcome is Outcome.ENGINE_ERROR

    other_window = RetryRules(pool_budget_window_ns=duration(20), pool_retries_min=1)
    commands_for(scheduler, at(0), policy_changed(a_policy(health=hardy, retry=other_window)))
    assert scheduler.handle(failed("c"), at(0)) == [dispatch("c", attempt=2, place="3 of 9")]


def test_new_model_is_served_immediately() -> None:
    scheduler = a_scheduler(policy=a_policy(models=()))
    commands_for(scheduler, at(0), policy_changed(a_policy(models=(a_model("new"),))))

    assert scheduler.handle(arrived("r", model="new"), at(1)) == [dispatch("r")]
