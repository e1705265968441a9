"""Taking over requests and attempts that an earlier scheduler started."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End, Hold
from headgate.core.events import CountedUpTo, TimerFired
from headgate.core.hedging import SAMPLES_MIN, TtftHistogram
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, RetryRules
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, ClassName, Duration, ModelName, PoolName, RequestId, TenantId
from headgate.model.usage import UsageSource
from testing.builders import (
    BATCH,
    a_class,
    a_model,
    a_policy,
    a_pool,
    abort,
    aborted,
    arrived,
    at,
    commands_for,
    completed,
    dispatch,
    duration,
    end,
    endpoint_summary,
    failed,
    first_token,
    joined,
    only_end,
    progressed,
    readied,
    readmit,
)
from testing.scheduler_sizes import scheduler_sizes, timer_instants
from testing.takeover_reports import a_successor, running_report, settlement, waiting_report

READY = (joined("e1"), readied("e1"))


def sent(commands: list[object]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


# Queued requests


def test_queued_request_keeps_the_time_it_has_already_waited() -> None:
    scheduler = a_successor()

    assert commands_for(scheduler, at(0), joined("e1"), waiting_report("r", waited=2)) == []
    assert commands_for(scheduler, at(1), readied("e1")) == [
        readmit("e1", "the engine reports that it is ready"),
        dispatch("r", waited=3),
    ]


def test_queued_requests_are_sent_in_order_when_endpoint_is_ready() -> None:
    scheduler = a_successor()
    commands_for(
        scheduler,
        at(0),
        joined("e1"),
        waiting_report("b", service_class="batch"),
        waiting_report("i"),
        waiting_report("j"),
    )

    assert sent(commands_for(scheduler, at(0), readied("e1"), completed("i"), completed("j"))) == ["i", "j", "b"]


def test_admitted_requests_are_not_checked_against_limits_again() -> None:
    narrow = a_class("interactive", queue_length_max=1, queue_length_per_tenant_max=1)
    limited = Tenant(TenantId("acme"), limits=Limits(1, 1, concurrency=1))
    scheduler = a_successor(policy=a_policy(classes=(narrow,), tenants=(limited,)))

    assert (
        commands_for(scheduler, at(0), joined("e1"), waiting_report("a"), waiting_report("b"), waiting_report("c"))
        == []
    )
    assert scheduler.summary().requests == 3


def test_earlier_failed_attempt_is_counted_and_its_endpoint_is_avoided() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), joined("e2"), waiting_report("r", attempts=1, age=5, failed_at="e1"))

    commands_for(scheduler, at(0), running_report("s", endpoint="e2"), readied("e2"))

    assert commands_for(scheduler, at(0), readied("e1"))[1:] == []
    assert commands_for(scheduler, at(0), completed("s"))[1:] == [dispatch("r", "e2", attempt=2, waited=1)]


def test_unknown_endpoint_in_failed_attempt_is_ignored() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), waiting_report("r", attempts=1, failed_at="gone"))

    assert commands_for(scheduler, at(0), readied("e1"))[-1] == dispatch("r", attempt=2, waited=1)


def test_time_already_waited_counts_towards_maximum_queue_wait() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), *READY, running_report("first"), waiting_report("r", waited=20))

    assert scheduler.next_wakeup() == at(10)
    assert only_end(commands_for(scheduler, at(10), TimerFired())) == end(
        "r", Outcome.QUEUE_TIMEOUT, 'waited 30 s, the maximum in class "interactive"', waited=30, retry_after=10
    )


def test_request_past_maximum_queue_wait_expires_on_takeover() -> None:
    scheduler = a_successor()

    [ending] = commands_for(scheduler, at(0), joined("e1"), waiting_report("r", waited=31))

    assert isinstance(ending, End)
    assert (ending.outcome, ending.waited_ns) == (Outcome.QUEUE_TIMEOUT, duration(31))
    assert scheduler_sizes(scheduler).requests == 0


def test_caller_deadline_is_measured_from_arrival() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), waiting_report("r", age=4, complete_within=6))

    assert scheduler.next_wakeup() == at(2)
    assert only_end(commands_for(scheduler, at(2), TimerFired())).outcome is Outcome.DEADLINE_EXCEEDED


def test_queued_request_past_its_deadline_ends_on_takeover() -> None:
    scheduler = a_successor()

    assert only_end(commands_for(scheduler, at(0), waiting_report("r", waited=7, first_token_within=6))) == end(
        "r",
        Outcome.DEADLINE_EXCEEDED,
        "the caller's deadline of 6 s for the first token passed while the request waited in class "
        '"interactive"; allow more time or send a smaller request',
        waited=7,
    )


def test_queued_request_no_longer_allowed_by_policy_is_rejected() -> None:
    scheduler = a_successor()

    ending = only_end(commands_for(scheduler, at(0), waiting_report("r", waited=2, attempts=1, model="gone")))
    assert (ending.outcome, ending.service_class) == (Outcome.MODEL_NOT_FOUND, "interactive")
    assert (ending.attempts, ending.waited_ns) == (1, duration(2))
    assert only_end(commands_for(scheduler, at(0), waiting_report("s", "nobody"))).service_class is None


def test_queued_request_in_removed_class_is_classified_again() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), waiting_report("r", service_class="gone"))

    assert commands_for(scheduler, at(0), readied("e1"))[-1] == dispatch("r", waited=1)


def test_queued_request_falls_back_if_its_model_has_no_endpoint() -> None:
    model = replace(a_model("m", "p"), fallbacks=(ModelName("n"),))
    policy = a_policy(pools=("p", "q"), models=(model, a_model("n", "q")))
    scheduler = a_successor(policy=policy)
    commands_for(scheduler, at(0), joined("e2", pool="q"), readied("e2"))

    [order] = commands_for(scheduler, at(0), waiting_report("r"))

    assert isinstance(order, Dispatch)
    assert (order.endpoint_id, order.model) == ("e2", "n")


def test_queued_request_does_not_fall_back_without_retry_budget() -> None:
    model = replace(a_model("m", "p"), fallbacks=(ModelName("n"),))
    policy = a_policy(pools=("p", "q"), models=(model, a_model("n", "q")), retry=RetryRules(pool_retries_min=0))
    scheduler = a_successor(policy=policy)

    assert commands_for(scheduler, at(0), joined("e2", pool="q"), readied("e2"), waiting_report("r"))[1:] == []
    assert sent(commands_for(scheduler, at(1), *READY)) == ["r"]


def test_requests_with_same_key_admitted_by_two_schedulers_are_both_served() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1", places=2), waiting_report("a", key="k"), waiting_report("b", key="k"))
    commands_for(scheduler, at(0), readied("e1"), completed("a"))

    assert only_end(commands_for(scheduler, at(0), arrived("c", key="k"))).outcome is Outcome.DUPLICATE_REQUEST
    assert only_end(commands_for(scheduler, at(0), completed("b"))).outcome is Outcome.COMPLETED
    assert scheduler_sizes(scheduler).keys == 0


# Requests on hold

PATIENT = replace(a_class("interactive", queue_wait=10), cold_start_wait_ns_max=duration(100))
EMPTY = replace(a_pool("p"), hold_max=1, cold_start_ns=duration(40))
FROM_NOTHING = a_policy(classes=(PATIENT,), pools=(EMPTY,))


def test_held_requests_stay_on_hold_beyond_hold_max() -> None:
    scheduler = a_successor(policy=FROM_NOTHING)
    commands = commands_for(
        scheduler, at(0), waiting_report("a", waited=30, held=30), waiting_report("b", waited=30, held=30)
    )

    assert [type(each) for each in commands] == [Hold, Hold]
    assert scheduler.next_wakeup() == at(70)


def test_endpoint_reported_after_held_request_is_not_counted_as_cold_start() -> None:
    scheduler = a_successor(policy=FROM_NOTHING)
    commands_for(scheduler, at(0), waiting_report("a", waited=30, held=30))
    commands_for(scheduler, at(1), joined("e1"), readied("e1"))

    assert scheduler.counters(at(1)).cold_starts == ()


def test_queued_request_is_not_held_if_endpoint_has_joined() -> None:
    scheduler = a_successor(policy=FROM_NOTHING)

    assert commands_for(scheduler, at(0), joined("e1"), waiting_report("a", waited=4)) == []
    assert scheduler.next_wakeup() == at(6)


def test_hold_time_does_not_count_towards_target() -> None:
    prompt = replace(PATIENT, ttft_ns=duration(3))
    scheduler = a_successor(policy=a_policy(classes=(prompt,), pools=(EMPTY,)))
    commands_for(scheduler, at(0), *READY, running_report("first"), waiting_report("r", waited=31, held=30))

    assert at(1) < timer_instants(scheduler._state.queue.expiry_timers)[RequestId("r")] < at(2)


# Running attempts


def test_reported_attempt_occupies_slot_and_memory() -> None:
    policy = a_policy(pools=(replace(a_pool("p"), kv_tokens=10_000),))
    scheduler = a_successor(policy=policy)
    commands_for(
        scheduler, at(0), joined("e1"), running_report("r", prompt_bytes=400), waiting_report("s"), readied("e1")
    )
    summary = endpoint_summary(scheduler, "e1")

    assert (summary.in_flight, summary.kv_tokens) == (1, 100)
    assert scheduler_sizes(scheduler).promised == 100 + 100 + 100 + 400
    assert commands_for(scheduler, at(1), completed("r")) == [
        end("r", Outcome.COMPLETED, attempts=1),
        dispatch("s", waited=2),
    ]


def test_memory_reservation_covers_tokens_already_produced() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), running_report("r", began=True, tokens=1_000, prompt_bytes=400))

    assert scheduler_sizes(scheduler).promised == 100 + 1_000 + 100 + 1_000 + 64
    commands_for(scheduler, at(1), completed("r"))
    assert scheduler_sizes(scheduler).promised == 0


def test_later_events_for_reported_attempt_are_handled_normally() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1", places=2), running_report("r"), readied("e1"))
    commands_for(scheduler, at(1), first_token("r"), progressed("r"))

    assert endpoint_summary(scheduler, "e1").kv_tokens == 25 + 8
    assert commands_for(scheduler, at(2), failed("r"))[-1].reason == "after the first token: connection refused"


def test_reported_attempt_is_not_retried_after_first_token() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), joined("e2"), running_report("r", began=True, tokens=5), readied("e2"))

    assert only_end(commands_for(scheduler, at(1), failed("r"))).outcome is Outcome.ENGINE_ERROR


def test_reported_attempt_is_retried_with_next_number_before_first_token() -> None:
    scheduler = a_successor()
    commands_for(
        scheduler, at(0), joined("e1"), joined("e2"), running_report("r", attempt=2, waited=3, age=20), readied("e2")
    )

    assert commands_for(scheduler, at(1), failed("r", attempt=2)) == [dispatch("r", "e2", attempt=3, waited=3)]


def test_unknown_endpoint_is_kept_until_its_attempt_ends() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), running_report("r", endpoint="unknown"))
    summary = endpoint_summary(scheduler, "unknown")

    assert (summary.in_flight, summary.leaving) == (1, True)
    assert only_end(commands_for(scheduler, at(1), completed("r"))).outcome is Outcome.COMPLETED
    assert scheduler_sizes(scheduler).endpoints == 0


def test_endpoint_joining_later_has_reported_attempt_in_flight() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), running_report("r"), waiting_report("s"), joined("e1"), readied("e1"))
    summary = endpoint_summary(scheduler, "e1")

    assert (summary.in_flight, summary.in_flight_max, summary.leaving) == (1, 1, False)
    assert sent(commands_for(scheduler, at(1), completed("r"))) == ["s"]


def test_reported_attempt_past_its_deadline_is_aborted() -> None:
    scheduler = a_successor()

    assert commands_for(
        scheduler, at(0), joined("e1"), running_report("r", sent_ago=5, waited=1, complete_within=6)
    ) == [
        abort("r", reason="the caller's deadline has passed"),
        end(
            "r",
            Outcome.DEADLINE_EXCEEDED,
            "the caller's deadline of 6 s for the complete response passed while attempt 1 was running; "
            "allow more time or send a smaller request",
            attempts=1,
            waited=1,
        ),
    ]
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    commands_for(scheduler, at(0), aborted("r"))
    assert scheduler_sizes(scheduler).attempts == 0


def test_first_token_deadline_does_not_apply_after_first_token() -> None:
    scheduler = a_successor()

    assert (
        commands_for(scheduler, at(0), joined("e1"), running_report("r", sent_ago=5, began=True, first_token_within=2))
        == []
    )


def test_attempt_for_ended_request_only_occupies_its_slot() -> None:
    limited = Tenant(TenantId("acme"), limits=Limits(concurrency=1))
    scheduler = a_successor(policy=a_policy(tenants=(limited,)))
    commands_for(
        scheduler,
        at(0),
        joined("e1", places=3),
        running_report("r", over=True),
        running_report("r", attempt=2, over=True, hedge=True),
    )

    assert (scheduler.summary().requests, endpoint_summary(scheduler, "e1").in_flight) == (0, 2)
    assert sent(commands_for(scheduler, at(0), readied("e1"), arrived("s"))) == ["s"]
    assert commands_for(scheduler, at(1), aborted("r"), aborted("r", attempt=2)) == []
    assert scheduler_sizes(scheduler).limit_claims == 1


def test_ending_a_superseded_attempt_does_not_end_request() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), joined("e2"))
    commands_for(
        scheduler,
        at(0),
        running_report("r", let_go=True),
        running_report("r", endpoint="e2", attempt=2, hedge=True, began=True),
    )

    assert commands_for(scheduler, at(1), aborted("r")) == []
    assert only_end(commands_for(scheduler, at(1), completed("r", attempt=2))).outcome is Outcome.COMPLETED


def test_reported_attempt_completes_under_any_policy() -> None:
    scheduler = a_successor(policy=replace(a_policy(), classes=()))
    commands_for(
        scheduler, at(0), joined("e1", pool="gone"), running_report("r", "nobody", pool="gone", service_class="gone")
    )

    assert only_end(commands_for(scheduler, at(1), completed("r"))) == end(
        "r", Outcome.COMPLETED, service_class="gone", attempts=1
    )


def test_reported_attempt_in_removed_class_is_classified_again() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), running_report("r", service_class="gone"))

    assert only_end(commands_for(scheduler, at(1), completed("r"))).service_class == "interactive"


def test_reported_attempt_keeps_its_caps() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), running_report("r", caps=Caps(output_tokens=10), level=2))

    assert scheduler_sizes(scheduler).promised == 25 + 25 + 25 + 10


@pytest.mark.parametrize("level", [0, 2])
def test_reported_attempt_keeps_its_serving_model(level: int) -> None:
    policy = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))
    scheduler = a_successor(policy=policy)
    commands_for(scheduler, at(0), joined("e1", pool="q"), running_report("r", pool="q", model_used="n", level=level))
    commands_for(scheduler, at(1), *(completed("r", tokens=7),))

    assert [each.model for each in scheduler.counters(at(1)).prompts] == ["n"]


def test_prefill_in_a_non_streaming_attempt_ends_at_predicted_time() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1", places=4))
    commands_for(scheduler, at(0), running_report("short", stream=False))
    commands_for(scheduler, at(0), running_report("long", stream=False, prompt_bytes=40_000, sent_ago=0.1))
    commands_for(scheduler, at(0), running_report("done", stream=False, prompt_bytes=40_000, sent_ago=100))

    assert list(timer_instants(scheduler._state.attempts.prefill_timers)) == ["long"]
    assert scheduler._state.fleet.endpoints["e1"].pending_tokens == 10_000  # type: ignore[index]


# Hedged requests

HEDGED = replace(a_class("interactive"), hedging=True)
RICH = RetryRules(credit_burst=100_000, pool_retries_min=1_000)


def hedging() -> Scheduler:
    """Returns a scheduler with two endpoints that are not ready and a typical time to first token of 125 ms."""
    scheduler = a_successor(policy=a_policy(classes=(HEDGED, BATCH), retry=RICH))
    known = scheduler._state.hedging._first_tokens[ClassName("interactive"), PoolName("p")] = TtftHistogram()
    for _ in range(SAMPLES_MIN):
        known.learn(Duration(125 * MILLISECOND))
    commands_for(scheduler, at(0), joined("e1"), joined("e2"))
    return scheduler


def test_reported_attempt_without_first_token_is_hedged_on_time() -> None:
    scheduler = hedging()
    commands_for(scheduler, at(0), running_report("r", sent_ago=0.05), readied("e1"), readied("e2"))

    assert at(0.07) < (scheduler.next_wakeup() or at(99)) < at(0.08)
    [order] = commands_for(scheduler, at(0.1), TimerFired())
    assert isinstance(order, Dispatch)
    assert (order.attempt, order.endpoint_id, order.hedge) == (2, "e2", True)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_first_attempt_to_respond_is_kept_in_any_report_order(order: tuple[int, int]) -> None:
    scheduler = hedging()
    both = (running_report("r"), running_report("r", endpoint="e2", attempt=2, hedge=True))
    commands_for(scheduler, at(0), *(both[each] for each in order))

    assert len(scheduler._state.hedging.silence_timers) == 0
    assert commands_for(scheduler, at(1), first_token("r", attempt=2)) == [
        abort("r", reason="attempt 2 responded first")
    ]


def test_remaining_hedge_is_not_hedged_again() -> None:
    scheduler = hedging()
    commands_for(scheduler, at(0), running_report("r", endpoint="e2", attempt=2, hedge=True))

    assert len(scheduler._state.hedging.silence_timers) == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_lost_abort_is_repeated(order: tuple[int, int]) -> None:
    scheduler = hedging()
    both = (running_report("r", began=True, tokens=5), running_report("r", endpoint="e2", attempt=2, hedge=True))

    assert commands_for(scheduler, at(0), *(both[each] for each in order)) == [
        abort("r", "e2", attempt=2, reason="attempt 1 responded first")
    ]


def test_last_allowed_attempt_is_not_hedged() -> None:
    scheduler = hedging()
    commands_for(scheduler, at(0), running_report("r", attempt=3))

    assert len(scheduler._state.hedging.silence_timers) == 0


# Work that the snapshot does not include


def limited(**limits: int) -> Policy:
    return a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(**limits)), "bolt"))


def left(scheduler: Scheduler, now: float = 0) -> tuple[int | None, int | None]:
    found = scheduler._state.limits.left(TenantId("acme"), at(now))
    assert found is not None
    return tuple(None if each is None else each.remaining for each in (found.requests, found.tokens))  # type: ignore[return-value]


def test_requests_in_snapshot_are_not_counted_in_rate_limits_again() -> None:
    scheduler = a_successor(policy=limited(requests_per_minute=10, tokens_per_minute=1_000))
    commands_for(scheduler, at(0), joined("e1"), running_report("r"), waiting_report("s"))

    assert left(scheduler) == (10, 1_000)


def test_requests_missing_from_snapshot_are_counted_in_rate_limits() -> None:
    scheduler = a_successor(policy=limited(requests_per_minute=10, tokens_per_minute=1_000))
    commands_for(
        scheduler,
        at(0),
        joined("e1"),
        running_report("r", counted=CountedUpTo.NOTHING),
        waiting_report("s", counted=CountedUpTo.NOTHING),
    )
    commands_for(scheduler, at(0), settlement("t", tokens=(30, 70)))

    assert left(scheduler) == (7, 1_000 - 2 * (25 + 150) - 100)


def test_earlier_reservation_is_not_refunded_and_excess_is_charged() -> None:
    scheduler = a_successor(policy=limited(tokens_per_minute=1_000))
    commands_for(scheduler, at(0), joined("e1", places=2), running_report("r"), running_report("s"))

    commands_for(scheduler, at(0), completed("r", tokens=1))
    assert left(scheduler) == (None, 1_000)
    commands_for(scheduler, at(0), completed("s", tokens=274))
    assert left(scheduler) == (None, 900)


def test_settled_request_is_charged_only_for_usage_beyond_reservation() -> None:
    scheduler = a_successor(policy=limited(requests_per_minute=10, tokens_per_minute=1_000))
    commands_for(scheduler, at(0), settlement("r", tokens=(100, 175), counted=CountedUpTo.ARRIVAL))

    assert left(scheduler) == (10, 900)
    assert scheduler_sizes(scheduler).limit_claims == 0


def test_open_requests_count_towards_concurrency() -> None:
    scheduler = a_successor(policy=limited(concurrency=2))
    commands_for(
        scheduler,
        at(0),
        joined("e1", places=4),
        running_report("r"),
        waiting_report("s"),
        settlement("t"),
        readied("e1"),
    )

    assert only_end(commands_for(scheduler, at(0), arrived("u"))).outcome is Outcome.RATE_LIMITED
    commands_for(scheduler, at(1), completed("r"))
    assert sent(commands_for(scheduler, at(1), arrived("v"))) == ["v"]


def windows(scheduler: Scheduler, now: float = 0) -> tuple[int, int]:
    """Returns the number of first attempts and extra attempts in the pool over the last ten seconds."""
    window = scheduler._state.retry_budget._window(PoolName("p"))
    return window.firsts(at(now)), sum(count for _, count in window._extras)


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (running_report("r", counted=CountedUpTo.SENT), (0, 0)),
        (running_report("r", counted=CountedUpTo.ARRIVAL), (1, 0)),
        (running_report("r", counted=CountedUpTo.NOTHING, sent_ago=11), (0, 0)),
        (running_report("r", counted=CountedUpTo.ARRIVAL, attempt=3), (0, 2)),
        (running_report("r", counted=CountedUpTo.ARRIVAL, attempt=2, hedge=True), (0, 1)),
        (running_report("r", counted=CountedUpTo.ARRIVAL, model_used="n"), (0, 1)),
        (waiting_report("r"), (0, 0)),
        (waiting_report("r", attempts=2), (0, 2)),
        (waiting_report("r", attempts=2, failed_at="e1"), (0, 2)),
        (waiting_report("r", attempts=2, failed_at="elsewhere"), (0, 2)),
        (waiting_report("r", attempts=2, counted=CountedUpTo.SENT), (0, 0)),
        (settlement("r"), (1, 0)),
        (settlement("r", attempts=3), (0, 2)),
        (settlement("r", model_used="n"), (0, 1)),
        (settlement("r", counted=CountedUpTo.SENT), (0, 0)),
        (settlement("r", attempts=0, pool=None, service_class=None, tokens=None), (0, 0)),
    ],
)
def test_attempts_missing_from_snapshot_are_counted_conservatively(event: object, counts: tuple[int, int]) -> None:
    policy = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))
    scheduler = a_successor(policy=policy)
    commands_for(scheduler, at(0), joined("e1"), joined("elsewhere", pool="q"), event)  # type: ignore[arg-type]

    assert windows(scheduler) == counts


@pytest.mark.parametrize(
    "event",
    [
        running_report("r", client_retries=1, counted=CountedUpTo.NOTHING),
        waiting_report("r", client_retries=1, counted=CountedUpTo.NOTHING),
        settlement("r", client_retries=1),
        waiting_report("r", attempts=1),
    ],
)
def test_reported_retry_uses_the_tenants_retry_budget(event: object) -> None:
    scheduler = a_successor(policy=a_policy(retry=RetryRules(credit_burst=150)))
    commands_for(scheduler, at(0), joined("e1"), event)  # type: ignore[arg-type]

    assert dict(scheduler.counters(at(0)).retry_credits)[TenantId("acme")] == 50


def charged(scheduler: Scheduler) -> dict[str, int]:
    """Returns each tenant's fairness charge in the pool, relative to the current level."""
    [turns] = [each for each in scheduler.counters(at(0)).fair_queues if each.band == 0]
    return {tenant: charge - turns.level for tenant, charge in (*turns.waiting, *turns.others)}


def test_attempts_missing_from_snapshot_are_charged() -> None:
    scheduler = a_successor()
    commands_for(
        scheduler,
        at(0),
        joined("e1", places=9),
        waiting_report("a", "acme"),
        waiting_report("b", "bolt"),
        waiting_report("c", "coil"),
    )
    commands_for(
        scheduler,
        at(0),
        running_report("r", "acme", counted=CountedUpTo.ARRIVAL),
        running_report("s", "bolt", counted=CountedUpTo.SENT),
    )
    commands_for(scheduler, at(0), running_report("t", "bolt", let_go=True, counted=CountedUpTo.ARRIVAL))
    commands_for(scheduler, at(0), settlement("u", "coil", tokens=(25, 150)))

    found = charged(scheduler)
    assert found["acme"] == found["coil"] > 0
    assert found["bolt"] == 0


def test_settled_request_is_charged_for_difference_from_prediction() -> None:
    scheduler = a_successor()
    commands_for(
        scheduler,
        at(0),
        joined("e1"),
        waiting_report("a", "acme"),
        waiting_report("b", "bolt"),
        waiting_report("c", "coil"),
    )
    commands_for(scheduler, at(0), settlement("r", "acme", tokens=(25, 150), counted=CountedUpTo.SENT))
    commands_for(scheduler, at(0), settlement("s", "bolt", tokens=(25, 300), counted=CountedUpTo.SENT))
    commands_for(scheduler, at(0), settlement("t", "coil", service_class="gone", tokens=(25, 300)))

    found = charged(scheduler)
    assert found["acme"] == found["coil"] == 0 < found["bolt"]


def test_unknown_usage_is_charged_as_predicted_only_if_response_was_complete() -> None:
    scheduler = a_successor()
    commands_for(
        scheduler,
        at(0),
        joined("e1"),
        waiting_report("a", "acme"),
        waiting_report("b", "bolt"),
        waiting_report("c", "coil"),
    )
    commands_for(scheduler, at(0), settlement("r", "acme", tokens=None, counted=CountedUpTo.SENT))
    commands_for(scheduler, at(0), settlement("s", "bolt", tokens=None, completed=False, counted=CountedUpTo.SENT))
    commands_for(scheduler, at(0), settlement("t", "coil", tokens=None, completed=False, counted=CountedUpTo.ARRIVAL))

    found = charged(scheduler)
    assert found["bolt"] < found["acme"] == found["coil"] == 0


def test_charge_for_superseded_attempt_is_refunded() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1", places=9), waiting_report("a", "acme"), waiting_report("b", "bolt"))
    commands_for(scheduler, at(0), running_report("r", "acme", let_go=True, counted=CountedUpTo.SENT))
    commands_for(scheduler, at(0), aborted("r"))

    assert charged(scheduler)["acme"] < 0


@pytest.mark.parametrize(
    ("event", "learned"),
    [
        (settlement("r", tokens=(30, 70)), True),
        (settlement("r", tokens=(30, 70), source=UsageSource.ESTIMATED), False),
        (settlement("r", tokens=(30, 70), completed=False), False),
    ],
)
def test_lengths_are_learned_only_from_complete_responses_with_engine_usage(event: object, learned: bool) -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), event)  # type: ignore[arg-type]

    assert bool(scheduler.counters(at(0)).lengths) is learned


# Invalid reports


def test_duplicate_report_fails_assertion() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), running_report("r"), waiting_report("s"))

    with pytest.raises(AssertionError, match="was reported twice"):
        scheduler.handle(waiting_report("s"), at(0))
    with pytest.raises(AssertionError, match="attempt 1 was reported twice"):
        scheduler.handle(running_report("r"), at(0))
    with pytest.raises(AssertionError, match="both as queued and as running"):
        scheduler.handle(running_report("s"), at(0))
