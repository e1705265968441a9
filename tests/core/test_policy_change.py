"""What becomes of work when the policy changes under it?"""

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
    client_left,
    completed,
    dispatch,
    eject,
    end,
    failed,
    first_token,
    lasting,
    policy_changed,
    progressed,
    the_end,
    told,
)


def test_what_is_in_flight_runs_to_its_end_whatever_the_new_policy_says() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))

    assert scheduler.handle(policy_changed(a_policy(classes=(), tenants=(), pools=(), models=())), at(1)) == []
    assert scheduler.handle(completed("r"), at(2)) == [end("r", Outcome.COMPLETED, attempts=1)]


def test_queued_work_that_the_new_policy_still_knows_goes_on_waiting_in_its_order() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("b", service_class="batch"), arrived("x"), arrived("y"))

    assert scheduler.handle(policy_changed(a_policy(), "h2"), at(1)) == []
    assert scheduler.summary().policy_hash == "h2"
    order = [scheduler.handle(completed(name), at(2))[-1] for name in ("runs", "x", "y")]
    assert order == [
        dispatch("x", waited=2),
        dispatch("y", waited=2),
        dispatch("b", service_class="batch", waited=2),
    ]


def test_a_queued_request_whose_tenant_has_gone_is_unauthorized() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits", "bolt"))

    assert scheduler.handle(policy_changed(a_policy(tenants=("acme",))), at(2)) == [
        end("waits", Outcome.UNAUTHORIZED, 'tenant "bolt" is not known; check the API key', waited=2)
    ]
    assert scheduler.handle(completed("runs"), at(3)) == [end("runs", Outcome.COMPLETED, attempts=1)]
    assert scheduler.next_wakeup() is None


def test_a_queued_request_whose_model_has_gone_is_not_found() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert the_end(scheduler.handle(policy_changed(a_policy(models=())), at(1))).outcome is Outcome.MODEL_NOT_FOUND


def test_a_queued_request_whose_tenant_may_no_longer_use_the_class_it_named_is_forbidden() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits", service_class="interactive"))
    policy = a_policy(tenants=(a_tenant("acme", classes=("batch",)),))

    assert the_end(scheduler.handle(policy_changed(policy), at(1))).outcome is Outcome.FORBIDDEN


def test_queued_request_without_a_named_class_moves_to_the_only_class_of_its_tenant() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))
    policy = a_policy(tenants=(a_tenant("acme", classes=("batch",)),))

    assert scheduler.handle(policy_changed(policy), at(1)) == []
    queued = scheduler.summary().queued
    assert (queued["interactive"], queued["batch"]) == (0, 1)


def test_a_queued_request_whose_named_class_has_gone_is_classified_again() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits", service_class="batch"))

    assert scheduler.handle(policy_changed(a_policy(classes=(a_class("chat"),))), at(1)) == []
    assert scheduler.summary().queued == {"chat": 1}
    assert scheduler.handle(completed("runs"), at(2))[-1] == dispatch("waits", service_class="chat", waited=2)


def test_a_queued_request_whose_tier_means_another_class_moves_there() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("flex", tier="flex"), arrived("x"))
    swapped = (a_class("interactive", band=1), a_class("cheap", band=0, service_tiers=("flex",)))

    told(scheduler, at(1), policy_changed(a_policy(classes=swapped)))

    assert scheduler.handle(completed("runs"), at(2))[-1] == dispatch("flex", service_class="cheap", waited=2)


def test_a_class_that_changes_its_band_takes_its_queued_requests_along() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("i"), arrived("b", service_class="batch"))

    told(scheduler, at(1), policy_changed(a_policy(classes=(INTERACTIVE, a_class("batch", band=-1)))))

    assert scheduler.handle(completed("runs"), at(2))[-1] == dispatch("b", service_class="batch", waited=2)


def test_a_queued_request_whose_pool_has_gone_moves_to_those_that_serve_its_model() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"))
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(policy_changed(a_policy(pools=("q",))), at(1)) == [
        dispatch("waits", "e2", pool="q", waited=1)
    ]


def test_a_queued_request_whose_pools_are_gone_for_its_class_is_forbidden() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))
    policy = a_policy(classes=(a_class("interactive", pools=("q",)),))

    assert the_end(scheduler.handle(policy_changed(policy), at(1))).outcome is Outcome.FORBIDDEN


def test_the_endpoints_of_a_pool_that_has_gone_get_nothing_more_and_finish_what_they_have() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p", places=2), an_endpoint("e2", pool="q"))
    told(scheduler, at(0), arrived("runs"), policy_changed(a_policy(pools=("q",))))

    assert told(scheduler, at(1), arrived("x"), arrived("y")) == [dispatch("x", "e2", pool="q")]
    assert scheduler.handle(completed("runs"), at(2)) == [end("runs", Outcome.COMPLETED, attempts=1)]


def test_a_queued_request_keeps_the_time_by_which_it_must_be_served() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits"))
    told(scheduler, at(10), policy_changed(a_policy(classes=(a_class("interactive", queue_wait=5),))))

    assert scheduler.handle(TimerFired(), at(29)) == []
    assert the_end(scheduler.handle(TimerFired(), at(30))).outcome is Outcome.EXPIRED


def test_a_retry_that_waits_through_a_change_of_policy_stays_at_the_head_and_away_from_what_failed() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("long"), arrived("r"), arrived("other"), failed("r"))

    assert scheduler.handle(policy_changed(a_policy()), at(1)) == []
    assert scheduler.handle(completed("long"), at(2))[-1] == dispatch("r", "e1", attempt=2, waited=2)


def test_a_shorter_patience_with_silence_holds_for_streams_that_are_already_open() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), first_token("r"))
    told(scheduler, at(2), progressed("r"))

    told(scheduler, at(3), policy_changed(a_policy(health=HealthRules(stall_ns_max=lasting(5)))))

    assert scheduler.next_wakeup() == at(7)
    assert scheduler.handle(TimerFired(), at(7)) == [
        eject("e1", until=at(17), reason="no sign of life for 5 s; streams in flight: 1"),
        abort("r", reason="its endpoint shows no sign of life"),
    ]


def test_an_endpoint_without_streams_gets_no_alarm_from_new_rules() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False), policy_changed(a_policy()))
    told(scheduler, at(1), TimerFired())

    assert scheduler.next_wakeup() is None


def test_the_retry_budgets_of_those_who_stay_are_kept() -> None:
    rules = RetryRules(credit_burst=100, credit_per_first_attempt=0)
    scheduler = a_scheduler(policy=a_policy(retry=rules), places=9)
    told(scheduler, at(0), arrived("a", client_retries=1))
    told(scheduler, at(1), policy_changed(a_policy(retry=rules, classes=(INTERACTIVE, BATCH))))

    refusal = the_end(scheduler.handle(arrived("b", client_retries=1), at(1)))

    assert refusal.outcome is Outcome.RETRY_REFUSED


def test_a_tenant_that_goes_and_comes_again_starts_with_a_new_budget() -> None:
    rules = RetryRules(credit_burst=100, credit_per_first_attempt=0)
    scheduler = a_scheduler(policy=a_policy(retry=rules), places=9)
    told(scheduler, at(0), arrived("a", client_retries=1))
    told(scheduler, at(1), policy_changed(a_policy(tenants=(), retry=rules)), policy_changed(a_policy(retry=rules)))

    assert scheduler.handle(arrived("b", client_retries=1), at(1)) == [dispatch("b", place="2 of 9")]


def test_a_pool_that_stays_keeps_its_count_of_extra_attempts_unless_the_window_changes() -> None:
    hardy = HealthRules(failures_max=99)
    policy = a_policy(health=hardy, retry=RetryRules(pool_extra_min=1))
    scheduler = a_scheduler(policy=policy, places=9)
    told(scheduler, at(0), *[arrived(name) for name in "abcd"])
    told(scheduler, at(0), failed("a"), client_left("a"))

    told(scheduler, at(0), policy_changed(policy))
    assert the_end(scheduler.handle(failed("b"), at(0))).outcome is Outcome.ENGINE_FAILED

    other_window = RetryRules(pool_window_ns=lasting(20), pool_extra_min=1)
    told(scheduler, at(0), policy_changed(a_policy(health=hardy, retry=other_window)))
    assert scheduler.handle(failed("c"), at(0)) == [dispatch("c", attempt=2, place="3 of 9")]


def test_a_new_model_is_served_at_once() -> None:
    scheduler = a_scheduler(policy=a_policy(models=()))
    told(scheduler, at(0), policy_changed(a_policy(models=(a_model("new"),))))

    assert scheduler.handle(arrived("r", model="new"), at(1)) == [dispatch("r")]
