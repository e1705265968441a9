"""What does a scheduler do with that which another one has begun?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End, Hold
from headgate.core.events import Counted, TimerFired
from headgate.core.hedging import SEEN_MIN, FirstTokens
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
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    first_token,
    joined,
    lasting,
    progressed,
    readied,
    readmit,
    the_end,
    told,
)
from testing.inside import inside, moments
from testing.reports import a_successor, runs, settled, waits

READY = (joined("e1"), readied("e1"))


def sent(commands: list[object]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


# What waits


def test_what_waited_goes_on_waiting_and_is_served_with_what_it_waited_before() -> None:
    scheduler = a_successor()

    assert told(scheduler, at(0), joined("e1"), waits("r", waited=2)) == []
    assert told(scheduler, at(1), readied("e1")) == [
        readmit("e1", "the engine says it is ready"),
        dispatch("r", waited=3),
    ]


def test_those_who_wait_go_in_their_order_once_an_endpoint_is_ready() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), waits("b", service_class="batch"), waits("i"), waits("j"))

    assert sent(told(scheduler, at(0), readied("e1"), completed("i"), completed("j"))) == ["i", "j", "b"]


def test_what_was_let_in_is_not_judged_again() -> None:
    narrow = a_class("interactive", queue_length_max=1, queue_length_per_tenant_max=1)
    limited = Tenant(TenantId("acme"), limits=Limits(1, 1, concurrency=1))
    scheduler = a_successor(policy=a_policy(classes=(narrow,), tenants=(limited,)))

    assert told(scheduler, at(0), joined("e1"), waits("a"), waits("b"), waits("c")) == []
    assert scheduler.summary().requests == 3


def test_an_attempt_that_failed_before_counts_and_its_endpoint_is_avoided() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"), waits("r", attempts=1, age=5, failed_at="e1"))

    told(scheduler, at(0), runs("s", endpoint="e2"), readied("e2"))

    assert told(scheduler, at(0), readied("e1"))[1:] == []
    assert told(scheduler, at(0), completed("s"))[1:] == [dispatch("r", "e2", attempt=2, waited=1)]


def test_where_it_failed_is_no_matter_if_nobody_knows_that_endpoint() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), waits("r", attempts=1, failed_at="gone"))

    assert told(scheduler, at(0), readied("e1"))[-1] == dispatch("r", attempt=2, waited=1)


def test_all_that_it_waited_is_spent_of_its_class_s_patience() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), *READY, runs("first"), waits("r", waited=20))

    assert scheduler.next_wakeup() == at(10)
    assert the_end(told(scheduler, at(10), TimerFired())) == end(
        "r", Outcome.EXPIRED, 'waited 30 s, as long as class "interactive" may wait', waited=30, retry_after=10
    )


def test_what_has_waited_too_long_meanwhile_ends_as_it_would_have() -> None:
    scheduler = a_successor()

    [ending] = told(scheduler, at(0), joined("e1"), waits("r", waited=31))

    assert isinstance(ending, End)
    assert (ending.outcome, ending.waited_ns) == (Outcome.EXPIRED, lasting(31))
    assert inside(scheduler).requests == 0


def test_its_caller_s_deadline_counts_from_its_arrival() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), waits("r", age=4, complete_within=6))

    assert scheduler.next_wakeup() == at(2)
    assert the_end(told(scheduler, at(2), TimerFired())).outcome is Outcome.TOO_LATE


def test_a_deadline_that_has_passed_meanwhile_ends_it_at_once() -> None:
    scheduler = a_successor()

    assert the_end(told(scheduler, at(0), waits("r", waited=7, first_token_within=6))) == end(
        "r",
        Outcome.TOO_LATE,
        "the 6 s that the caller allows for the first token were over while it waited in class "
        '"interactive"; allow more time or ask for less',
        waited=7,
    )


def test_what_the_policy_has_no_place_for_any_more_ends_for_that_reason() -> None:
    scheduler = a_successor()

    ending = the_end(told(scheduler, at(0), waits("r", waited=2, attempts=1, model="gone")))
    assert (ending.outcome, ending.service_class) == (Outcome.MODEL_NOT_FOUND, "interactive")
    assert (ending.attempts, ending.waited_ns) == (1, lasting(2))
    assert the_end(told(scheduler, at(0), waits("s", "nobody"))).service_class is None


def test_one_whose_class_is_gone_is_classified_again() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), waits("r", service_class="gone"))

    assert told(scheduler, at(0), readied("e1"))[-1] == dispatch("r", waited=1)


def test_it_falls_back_where_nobody_of_its_own_serves() -> None:
    model = replace(a_model("m", "p"), fallbacks=(ModelName("n"),))
    policy = a_policy(pools=("p", "q"), models=(model, a_model("n", "q")))
    scheduler = a_successor(policy=policy)
    told(scheduler, at(0), joined("e2", pool="q"), readied("e2"))

    [order] = told(scheduler, at(0), waits("r"))

    assert isinstance(order, Dispatch)
    assert (order.endpoint_id, order.model) == ("e2", "n")


def test_without_budget_it_waits_for_its_own() -> None:
    model = replace(a_model("m", "p"), fallbacks=(ModelName("n"),))
    policy = a_policy(pools=("p", "q"), models=(model, a_model("n", "q")), retry=RetryRules(pool_extra_min=0))
    scheduler = a_successor(policy=policy)

    assert told(scheduler, at(0), joined("e2", pool="q"), readied("e2"), waits("r"))[1:] == []
    assert sent(told(scheduler, at(1), *READY)) == ["r"]


def test_two_with_one_key_that_two_schedulers_let_in_are_both_served() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=2), waits("a", key="k"), waits("b", key="k"))
    told(scheduler, at(0), readied("e1"), completed("a"))

    assert the_end(told(scheduler, at(0), arrived("c", key="k"))).outcome is Outcome.DUPLICATE
    assert the_end(told(scheduler, at(0), completed("b"))).outcome is Outcome.COMPLETED
    assert inside(scheduler).keys == 0


# Held for an endpoint to start

PATIENT = replace(a_class("interactive", queue_wait=10), start_wait_ns=lasting(100))
EMPTY = replace(a_pool("p"), hold_max=1, cold_start_ns=lasting(40))
FROM_NOTHING = a_policy(classes=(PATIENT,), pools=(EMPTY,))


def test_who_was_held_is_held_on_however_many_are() -> None:
    scheduler = a_successor(policy=FROM_NOTHING)
    commands = told(scheduler, at(0), waits("a", waited=30, held=30), waits("b", waited=30, held=30))

    assert [type(each) for each in commands] == [Hold, Hold]
    assert scheduler.next_wakeup() == at(70)


def test_that_endpoints_were_told_after_those_who_wait_is_not_taken_for_a_start() -> None:
    scheduler = a_successor(policy=FROM_NOTHING)
    told(scheduler, at(0), waits("a", waited=30, held=30))
    told(scheduler, at(1), joined("e1"), readied("e1"))

    assert scheduler.counters(at(1)).starts == ()


def test_who_was_not_held_waits_for_an_endpoint_that_has_joined() -> None:
    scheduler = a_successor(policy=FROM_NOTHING)

    assert told(scheduler, at(0), joined("e1"), waits("a", waited=4)) == []
    assert scheduler.next_wakeup() == at(6)


def test_the_time_that_it_was_held_is_not_taken_from_its_target() -> None:
    prompt = replace(PATIENT, ttft_ns=lasting(3))
    scheduler = a_successor(policy=a_policy(classes=(prompt,), pools=(EMPTY,)))
    told(scheduler, at(0), *READY, runs("first"), waits("r", waited=31, held=30))

    assert at(1) < moments(scheduler._state.queue.expiries)[RequestId("r")] < at(2)


# What is in flight


def test_an_attempt_holds_its_place_and_its_memory() -> None:
    policy = a_policy(pools=(replace(a_pool("p"), kv_tokens=10_000),))
    scheduler = a_successor(policy=policy)
    told(scheduler, at(0), joined("e1"), runs("r", prompt_bytes=400), waits("s"), readied("e1"))
    summary = endpoint_summary(scheduler, "e1")

    assert (summary.in_flight, summary.kv_tokens) == (1, 100)
    assert inside(scheduler).promised == 100 + 100 + 100 + 400
    assert told(scheduler, at(1), completed("r")) == [end("r", Outcome.COMPLETED, attempts=1), dispatch("s", waited=2)]


def test_an_answer_that_has_come_far_has_the_memory_that_it_needs() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), runs("r", began=True, tokens=1_000, prompt_bytes=400))

    assert inside(scheduler).promised == 100 + 1_000 + 100 + 1_000 + 64
    told(scheduler, at(1), completed("r"))
    assert inside(scheduler).promised == 0


def test_what_follows_of_it_is_handled_as_of_any_other() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=2), runs("r"), readied("e1"))
    told(scheduler, at(1), first_token("r"), progressed("r"))

    assert endpoint_summary(scheduler, "e1").kv_tokens == 25 + 8
    assert told(scheduler, at(2), failed("r"))[-1].reason == "after the first token: connection refused"


def test_after_its_first_token_nothing_is_tried_again() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"), runs("r", began=True, tokens=5), readied("e2"))

    assert the_end(told(scheduler, at(1), failed("r"))).outcome is Outcome.ENGINE_FAILED


def test_before_it_it_is_tried_elsewhere_with_the_next_number() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"), runs("r", attempt=2, waited=3, age=20), readied("e2"))

    assert told(scheduler, at(1), failed("r", attempt=2)) == [dispatch("r", "e2", attempt=3, waited=3)]


def test_an_endpoint_that_has_not_joined_holds_it_until_it_has_ended() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), runs("r", endpoint="unknown"))
    summary = endpoint_summary(scheduler, "unknown")

    assert (summary.in_flight, summary.leaving) == (1, True)
    assert the_end(told(scheduler, at(1), completed("r"))).outcome is Outcome.COMPLETED
    assert inside(scheduler).endpoints == 0


def test_an_endpoint_that_joins_later_has_it_in_flight() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), runs("r"), waits("s"), joined("e1"), readied("e1"))
    summary = endpoint_summary(scheduler, "e1")

    assert (summary.in_flight, summary.in_flight_max, summary.leaving) == (1, 1, False)
    assert sent(told(scheduler, at(1), completed("r"))) == ["s"]


def test_a_deadline_that_has_passed_stops_it() -> None:
    scheduler = a_successor()

    assert told(scheduler, at(0), joined("e1"), runs("r", sent_ago=5, waited=1, complete_within=6)) == [
        abort("r", reason="the caller's deadline has passed"),
        end(
            "r",
            Outcome.TOO_LATE,
            "the 6 s that the caller allows for the whole answer were over while attempt 1 was running; "
            "allow more time or ask for less",
            attempts=1,
            waited=1,
        ),
    ]
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    told(scheduler, at(0), aborted("r"))
    assert inside(scheduler).attempts == 0


def test_the_deadline_of_its_first_token_is_over_with_it() -> None:
    scheduler = a_successor()

    assert told(scheduler, at(0), joined("e1"), runs("r", sent_ago=5, began=True, first_token_within=2)) == []


def test_one_whose_request_has_ended_holds_its_place_only() -> None:
    limited = Tenant(TenantId("acme"), limits=Limits(concurrency=1))
    scheduler = a_successor(policy=a_policy(tenants=(limited,)))
    told(scheduler, at(0), joined("e1", places=3), runs("r", over=True), runs("r", attempt=2, over=True, hedge=True))

    assert (scheduler.summary().requests, endpoint_summary(scheduler, "e1").in_flight) == (0, 2)
    assert sent(told(scheduler, at(0), readied("e1"), arrived("s"))) == ["s"]
    assert told(scheduler, at(1), aborted("r"), aborted("r", attempt=2)) == []
    assert inside(scheduler).limit_claims == 1


def test_one_that_was_let_go_says_nothing_about_its_request() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"))
    told(scheduler, at(0), runs("r", let_go=True), runs("r", endpoint="e2", attempt=2, hedge=True, began=True))

    assert told(scheduler, at(1), aborted("r")) == []
    assert the_end(told(scheduler, at(1), completed("r", attempt=2))).outcome is Outcome.COMPLETED


def test_what_is_in_flight_runs_to_its_end_whatever_the_policy_says() -> None:
    scheduler = a_successor(policy=replace(a_policy(), classes=()))
    told(scheduler, at(0), joined("e1", pool="gone"), runs("r", "nobody", pool="gone", service_class="gone"))

    assert the_end(told(scheduler, at(1), completed("r"))) == end(
        "r", Outcome.COMPLETED, service_class="gone", attempts=1
    )


def test_one_whose_class_is_gone_runs_in_the_one_that_it_would_have() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), runs("r", service_class="gone"))

    assert the_end(told(scheduler, at(1), completed("r"))).service_class == "interactive"


def test_it_keeps_the_caps_it_was_sent_with() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), runs("r", caps=Caps(output_tokens=10), level=2))

    assert inside(scheduler).promised == 25 + 25 + 25 + 10


@pytest.mark.parametrize("level", [0, 2])
def test_it_goes_on_with_the_model_that_serves_it(level: int) -> None:
    policy = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))
    scheduler = a_successor(policy=policy)
    told(scheduler, at(0), joined("e1", pool="q"), runs("r", pool="q", model_used="n", level=level))
    told(scheduler, at(1), *(completed("r", tokens=7),))

    assert [each.model for each in scheduler.counters(at(1)).prompts] == ["n"]


def test_the_prompt_of_an_answer_that_comes_whole_is_computed_when_it_should_be() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=4))
    told(scheduler, at(0), runs("short", stream=False))
    told(scheduler, at(0), runs("long", stream=False, prompt_bytes=40_000, sent_ago=0.1))
    told(scheduler, at(0), runs("done", stream=False, prompt_bytes=40_000, sent_ago=100))

    assert list(moments(scheduler._state.attempts.prefills)) == ["long"]
    assert scheduler._state.fleet.endpoints["e1"].pending_tokens == 10_000  # type: ignore[index]


# Two attempts of one request

HEDGED = replace(a_class("interactive"), hedges=True)
RICH = RetryRules(credit_burst=100_000, pool_extra_min=1_000)


def hedging() -> Scheduler:
    """Where answers usually begin after an eighth of a second; two endpoints, not yet ready."""
    scheduler = a_successor(policy=a_policy(classes=(HEDGED, BATCH), retry=RICH))
    known = scheduler._state.hedging._first_tokens[ClassName("interactive"), PoolName("p")] = FirstTokens()
    for _ in range(SEEN_MIN):
        known.learn(Duration(125 * MILLISECOND))
    told(scheduler, at(0), joined("e1"), joined("e2"))
    return scheduler


def test_a_silent_attempt_is_hedged_when_it_would_have_been() -> None:
    scheduler = hedging()
    told(scheduler, at(0), runs("r", sent_ago=0.05), readied("e1"), readied("e2"))

    assert at(0.07) < (scheduler.next_wakeup() or at(99)) < at(0.08)
    [order] = told(scheduler, at(0.1), TimerFired())
    assert isinstance(order, Dispatch)
    assert (order.attempt, order.endpoint_id, order.hedge) == (2, "e2", True)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_the_one_that_speaks_first_is_kept_in_whatever_order_they_are_told(order: tuple[int, int]) -> None:
    scheduler = hedging()
    both = (runs("r"), runs("r", endpoint="e2", attempt=2, hedge=True))
    told(scheduler, at(0), *(both[each] for each in order))

    assert len(scheduler._state.hedging.silent) == 0
    assert told(scheduler, at(1), first_token("r", attempt=2)) == [
        abort("r", reason="attempt 2 was the first to answer")
    ]


def test_a_hedge_that_is_left_alone_is_not_hedged() -> None:
    scheduler = hedging()
    told(scheduler, at(0), runs("r", endpoint="e2", attempt=2, hedge=True))

    assert len(scheduler._state.hedging.silent) == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_order_to_stop_that_was_lost_is_given_again(order: tuple[int, int]) -> None:
    scheduler = hedging()
    both = (runs("r", began=True, tokens=5), runs("r", endpoint="e2", attempt=2, hedge=True))

    assert told(scheduler, at(0), *(both[each] for each in order)) == [
        abort("r", "e2", attempt=2, reason="attempt 1 was the first to answer")
    ]


def test_the_last_attempt_that_may_be_made_is_not_hedged() -> None:
    scheduler = hedging()
    told(scheduler, at(0), runs("r", attempt=3))

    assert len(scheduler._state.hedging.silent) == 0


# What the counters do not have


def limited(**limits: int) -> Policy:
    return a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(**limits)), "bolt"))


def left(scheduler: Scheduler, now: float = 0) -> tuple[int | None, int | None]:
    found = scheduler._state.limits.left(TenantId("acme"), at(now))
    assert found is not None
    return tuple(None if each is None else each.remaining for each in (found.requests, found.tokens))  # type: ignore[return-value]


def test_limits_are_not_taken_twice_where_the_counters_have_them() -> None:
    scheduler = a_successor(policy=limited(requests_per_minute=10, tokens_per_minute=1_000))
    told(scheduler, at(0), joined("e1"), runs("r"), waits("s"))

    assert left(scheduler) == (10, 1_000)


def test_they_are_taken_where_the_counters_do_not_have_them() -> None:
    scheduler = a_successor(policy=limited(requests_per_minute=10, tokens_per_minute=1_000))
    told(scheduler, at(0), joined("e1"), runs("r", counted=Counted.NOTHING), waits("s", counted=Counted.NOTHING))
    told(scheduler, at(0), settled("t", tokens=(30, 70)))

    assert left(scheduler) == (7, 1_000 - 2 * (25 + 150) - 100)


def test_nothing_is_given_back_of_what_another_reserved_but_more_is_a_debt() -> None:
    scheduler = a_successor(policy=limited(tokens_per_minute=1_000))
    told(scheduler, at(0), joined("e1", places=2), runs("r"), runs("s"))

    told(scheduler, at(0), completed("r", tokens=1))
    assert left(scheduler) == (None, 1_000)
    told(scheduler, at(0), completed("s", tokens=274))
    assert left(scheduler) == (None, 900)


def test_what_has_ended_meanwhile_is_a_debt_only_as_far_as_it_was_more_than_reserved() -> None:
    scheduler = a_successor(policy=limited(requests_per_minute=10, tokens_per_minute=1_000))
    told(scheduler, at(0), settled("r", tokens=(100, 175), counted=Counted.ARRIVAL))

    assert left(scheduler) == (10, 900)
    assert inside(scheduler).limit_claims == 0


def test_what_is_open_counts_for_concurrency() -> None:
    scheduler = a_successor(policy=limited(concurrency=2))
    told(scheduler, at(0), joined("e1", places=4), runs("r"), waits("s"), settled("t"), readied("e1"))

    assert the_end(told(scheduler, at(0), arrived("u"))).outcome is Outcome.RATE_LIMITED
    told(scheduler, at(1), completed("r"))
    assert sent(told(scheduler, at(1), arrived("v"))) == ["v"]


def windows(scheduler: Scheduler, now: float = 0) -> tuple[int, int]:
    """First and extra attempts of the last ten seconds at the pool."""
    window = scheduler._state.retry_budget._window(PoolName("p"))
    return window.firsts(at(now)), sum(count for _, count in window._extras)


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (runs("r", counted=Counted.SENT), (0, 0)),
        (runs("r", counted=Counted.ARRIVAL), (1, 0)),
        (runs("r", counted=Counted.NOTHING, sent_ago=11), (0, 0)),
        (runs("r", counted=Counted.ARRIVAL, attempt=3), (0, 2)),
        (runs("r", counted=Counted.ARRIVAL, attempt=2, hedge=True), (0, 1)),
        (runs("r", counted=Counted.ARRIVAL, model_used="n"), (0, 1)),
        (waits("r"), (0, 0)),
        (waits("r", attempts=2), (0, 2)),
        (waits("r", attempts=2, failed_at="e1"), (0, 2)),
        (waits("r", attempts=2, failed_at="elsewhere"), (0, 2)),
        (waits("r", attempts=2, counted=Counted.SENT), (0, 0)),
        (settled("r"), (1, 0)),
        (settled("r", attempts=3), (0, 2)),
        (settled("r", model_used="n"), (0, 1)),
        (settled("r", counted=Counted.SENT), (0, 0)),
        (settled("r", attempts=0, pool=None, service_class=None, tokens=None), (0, 0)),
    ],
)
def test_attempts_that_the_counters_do_not_have_are_counted_on_the_safe_side(
    event: object, counts: tuple[int, int]
) -> None:
    policy = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))
    scheduler = a_successor(policy=policy)
    told(scheduler, at(0), joined("e1"), joined("elsewhere", pool="q"), event)  # type: ignore[arg-type]

    assert windows(scheduler) == counts


@pytest.mark.parametrize(
    "event",
    [
        runs("r", client_retries=1, counted=Counted.NOTHING),
        waits("r", client_retries=1, counted=Counted.NOTHING),
        settled("r", client_retries=1),
        waits("r", attempts=1),
    ],
)
def test_what_a_retry_cost_is_taken_from_its_tenant(event: object) -> None:
    scheduler = a_successor(policy=a_policy(retry=RetryRules(credit_burst=150)))
    told(scheduler, at(0), joined("e1"), event)  # type: ignore[arg-type]

    assert dict(scheduler.counters(at(0)).credits)[TenantId("acme")] == 50


def charged(scheduler: Scheduler) -> dict[str, int]:
    """What tenants who have waited are charged at the pool beyond the level."""
    [turns] = [each for each in scheduler.counters(at(0)).turns if each.band == 0]
    return {tenant: charge - turns.level for tenant, charge in (*turns.waiting, *turns.others)}


def test_turns_that_the_counters_do_not_have_are_charged() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=9), waits("a", "acme"), waits("b", "bolt"), waits("c", "coil"))
    told(scheduler, at(0), runs("r", "acme", counted=Counted.ARRIVAL), runs("s", "bolt", counted=Counted.SENT))
    told(scheduler, at(0), runs("t", "bolt", let_go=True, counted=Counted.ARRIVAL))
    told(scheduler, at(0), settled("u", "coil", tokens=(25, 150)))

    found = charged(scheduler)
    assert found["acme"] == found["coil"] > 0
    assert found["bolt"] == 0


def test_one_that_was_charged_as_predicted_is_charged_the_difference() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), waits("a", "acme"), waits("b", "bolt"), waits("c", "coil"))
    told(scheduler, at(0), settled("r", "acme", tokens=(25, 150), counted=Counted.SENT))
    told(scheduler, at(0), settled("s", "bolt", tokens=(25, 300), counted=Counted.SENT))
    told(scheduler, at(0), settled("t", "coil", service_class="gone", tokens=(25, 300)))

    found = charged(scheduler)
    assert found["acme"] == found["coil"] == 0 < found["bolt"]


def test_what_nobody_can_say_was_as_predicted_if_the_answer_was_whole_and_nothing_otherwise() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), waits("a", "acme"), waits("b", "bolt"), waits("c", "coil"))
    told(scheduler, at(0), settled("r", "acme", tokens=None, counted=Counted.SENT))
    told(scheduler, at(0), settled("s", "bolt", tokens=None, completed=False, counted=Counted.SENT))
    told(scheduler, at(0), settled("t", "coil", tokens=None, completed=False, counted=Counted.ARRIVAL))

    found = charged(scheduler)
    assert found["bolt"] < found["acme"] == found["coil"] == 0


def test_what_was_charged_for_one_that_was_let_go_is_given_back() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=9), waits("a", "acme"), waits("b", "bolt"))
    told(scheduler, at(0), runs("r", "acme", let_go=True, counted=Counted.SENT))
    told(scheduler, at(0), aborted("r"))

    assert charged(scheduler)["acme"] < 0


@pytest.mark.parametrize(
    ("event", "learned"),
    [
        (settled("r", tokens=(30, 70)), True),
        (settled("r", tokens=(30, 70), source=UsageSource.ESTIMATED), False),
        (settled("r", tokens=(30, 70), completed=False), False),
    ],
)
def test_lengths_are_learned_from_answers_that_were_whole_and_counted(event: object, learned: bool) -> None:
    scheduler = a_successor()
    told(scheduler, at(0), event)  # type: ignore[arg-type]

    assert bool(scheduler.counters(at(0)).lengths) is learned


# Mistakes of a host


def test_nothing_is_reported_twice() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), runs("r"), waits("s"))

    with pytest.raises(AssertionError, match="was reported twice"):
        scheduler.handle(waits("s"), at(0))
    with pytest.raises(AssertionError, match="was told twice"):
        scheduler.handle(runs("r"), at(0))
    with pytest.raises(AssertionError, match="to wait and to run"):
        scheduler.handle(runs("s"), at(0))
