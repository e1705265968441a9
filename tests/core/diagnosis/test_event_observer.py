"""Tests for the counts derived from scheduler events and commands."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command
from headgate.core.diagnosis.event_observer import EventObserver
from headgate.core.diagnosis.window_counts import TENANTS_MAX, WindowCounts
from headgate.core.events import EndpointMetricsReported, Event, TimerFired
from headgate.model.fault import Fault
from headgate.model.money import Bill, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.policy import OptimizationGoal, Policy
from headgate.model.units import ClassName, Duration, EndpointId, Instant, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_model,
    a_policy,
    aborted,
    arrived,
    at,
    completed,
    dispatch,
    duration,
    end,
    failed,
    first_token,
    joined,
    policy_changed,
    progressed,
    readied,
    timed_out,
)

HURRIED = replace(INTERACTIVE, ttft_ns=duration(1), tpot_ns=duration(0.1))
POLICY = a_policy(classes=(HURRIED, replace(BATCH, optimize_for=OptimizationGoal.COST)))


def a_watch(policy: Policy = POLICY, **bounds: int) -> EventObserver:
    watch = EventObserver(**bounds)
    for event in (policy_changed(policy), joined("e1"), readied("e1")):
        watch.observe(event, [], at(0))
    return watch


def saw(watch: EventObserver, event: Event, *commands: Command, now: Instant | None = None) -> None:
    watch.observe(event, commands, at(0) if now is None else now)


def now_of(watch: EventObserver, pool: str = "p") -> WindowCounts:
    return watch.pools[PoolName(pool)].history.current


def sent(watch: EventObserver, request: str = "r", **of: object) -> None:
    saw(watch, arrived(request, **of), dispatch(request, waited=0.5))  # pyright: ignore[reportArgumentType]


def test_arrivals_are_counted_for_the_first_pool_of_their_model() -> None:
    watch = a_watch()
    saw(watch, arrived("a", prompt_bytes=400))
    saw(watch, arrived("b", "bolt", client_retries=2))
    saw(watch, arrived("c", model="unknown"))

    seen = now_of(watch)
    assert (seen.arrivals, seen.prompt_tokens, seen.retries) == (2, 125, 1)
    assert seen.tenants.by_name == {"acme": 1}


def test_first_token_after_the_class_target_is_late() -> None:
    watch = a_watch()
    for request, seconds in (("a", 0.5), ("b", 1.5)):
        sent(watch, request)
        saw(watch, first_token(request), now=at(seconds))

    seen = now_of(watch)
    assert (seen.sent, seen.begun, seen.judged, seen.late) == (2, 2, 2, 1)
    assert seen.waited_ns == duration(1)
    assert seen.bad_by.by_name == {"interactive acme": 1}


def test_first_token_without_a_target_is_late_if_it_takes_much_longer_than_usual() -> None:
    watch = a_watch(a_policy())
    history = watch.pools[PoolName("p")].history
    sent(watch, "a")
    saw(watch, first_token("a"), now=at(4))
    assert now_of(watch).late == 0
    history.baseline.record_ttft(ClassName("interactive"), duration(0.5))
    sent(watch, "b")
    saw(watch, first_token("b"), now=at(4))
    assert (now_of(watch).judged, now_of(watch).late) == (2, 1)


def test_response_of_a_class_with_only_an_e2e_target_is_judged_when_it_is_complete() -> None:
    watch = a_watch(a_policy(classes=(replace(INTERACTIVE, e2e_ns=duration(1)), BATCH)))
    for request, seconds, stream in (("a", 0.9, False), ("b", 1.1, False), ("c", 1.1, True)):
        sent(watch, request, stream=stream)
        if stream:
            saw(watch, first_token(request), now=at(1.05))
        ended = end(request, Outcome.COMPLETED, attempts=1)
        saw(watch, completed(request, first_token=not stream), ended, now=at(seconds))

    seen = now_of(watch)
    assert (seen.judged, seen.late, seen.unjudged) == (3, 2, 0)
    assert seen.bad_by.by_name == {"interactive acme": 2}


def test_deadline_shorter_than_the_e2e_target_is_not_the_fault_of_the_pool() -> None:
    watch = a_watch(a_policy(classes=(replace(INTERACTIVE, e2e_ns=duration(1)), BATCH)))
    for request, allowed in (("a", 0.5), ("b", 2)):
        saw(watch, arrived(request, stream=False, complete_within=allowed))
        saw(watch, TimerFired(), end(request, Outcome.DEADLINE_EXCEEDED))

    assert (now_of(watch).gave_up, now_of(watch).rejected) == (1, 1)


def test_first_token_in_a_cost_class_or_unknown_class_is_not_evaluated() -> None:
    watch = a_watch()
    saw(watch, arrived("a"), dispatch("a", service_class="batch"))
    saw(watch, first_token("a"), now=at(100))
    saw(watch, arrived("b"), dispatch("b", service_class="gone"))
    saw(watch, first_token("b"), now=at(100))

    assert now_of(watch).judged == 0


def test_repeated_first_tokens_of_a_request_are_not_evaluated_again() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, first_token("r"), now=at(0.5))
    saw(watch, first_token("r"), now=at(5))
    saw(watch, failed("r"), dispatch("r", attempt=2))
    saw(watch, first_token("r", attempt=2), now=at(9))
    saw(watch, first_token("unknown"))

    assert (now_of(watch).judged, now_of(watch).late) == (1, 0)


def test_end_that_reports_the_first_token_is_evaluated_like_both_events() -> None:
    watch = a_watch()
    for request, event in (("a", completed("a", first_token=True)), ("b", completed("b"))):
        sent(watch, request)
        saw(watch, event, now=at(1.5))
    sent(watch, "c")
    saw(watch, first_token("c"), now=at(0.5))
    saw(watch, completed("c", first_token=True), now=at(9))

    assert (now_of(watch).begun, now_of(watch).late) == (2, 1)
    assert watch.endpoints[EndpointId("e1")].decoding == 0


def test_first_token_of_a_non_streaming_response_is_not_evaluated() -> None:
    watch = a_watch()
    sent(watch, stream=False)
    saw(watch, first_token("r"), now=at(50))
    saw(watch, completed("r", tokens=10), end("r", Outcome.COMPLETED, attempts=0), now=at(50))

    seen, endpoint = now_of(watch), watch.endpoints[EndpointId("e1")]
    assert (seen.begun, seen.judged, seen.paced, endpoint.open_streams) == (0, 0, 0, 0)
    assert (seen.unjudged, seen.resolved) == (1, 1)


def test_non_streaming_response_with_reported_tokens_is_counted_as_decoding() -> None:
    watch = a_watch()
    sent(watch, stream=False, prompt_bytes=400)
    saw(watch, first_token("r", delivered=False), now=at(1))
    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.open_streams, endpoint.decoding, endpoint.decoding_tokens, endpoint.last_progress_at) == (
        1,
        1,
        100,
        at(1),
    )

    saw(watch, progressed("r"), now=at(2))
    saw(watch, first_token("r"), now=at(3))
    assert (endpoint.open_streams, endpoint.decoding, endpoint.tokens) == (1, 1, 8)

    saw(watch, completed("r", tokens=8), end("r", Outcome.COMPLETED, attempts=0), now=at(3))
    assert (endpoint.open_streams, endpoint.decoding, endpoint.decoding_tokens) == (0, 0, 0)
    assert (now_of(watch).begun, now_of(watch).judged) == (0, 0)


def test_responses_are_counted_by_class_and_evaluated_by_time_per_token() -> None:
    watch = a_watch()
    for request, seconds in (("a", 1.5), ("b", 0.6)):
        sent(watch, request)
        saw(watch, first_token(request), now=at(0))
        ended = replace(completed(request), usage=Usage(100, 11, 40, UsageSource.ENGINE))
        saw(watch, ended, end(request, Outcome.COMPLETED), now=at(seconds))

    seen = now_of(watch)
    lengths = seen.answers[ClassName("interactive")]
    assert (lengths.count, lengths.tokens, lengths.squares) == (2, 22, 242)
    assert (seen.asked_tokens, seen.cached_tokens, seen.paced, seen.slow) == (200, 80, 2, 1)


def test_time_per_token_is_not_evaluated_for_a_single_token_or_without_a_target() -> None:
    watch = a_watch()
    sent(watch, "a")
    saw(watch, first_token("a"))
    saw(watch, completed("a", tokens=1), now=at(9))
    saw(watch, arrived("b"), dispatch("b", service_class="batch"))
    saw(watch, completed("b", tokens=10), now=at(9))
    saw(watch, completed("c"))

    assert now_of(watch).paced == 0


def test_response_without_usage_is_not_counted() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, completed("r"))

    assert not now_of(watch).asked_tokens


def test_request_cost_is_counted_by_class() -> None:
    watch = a_watch()
    sent(watch)
    nothing = Duration(0)
    bill = Bill(1, BillCause.ANSWER, nothing, nothing, nothing, NanoUsd(1), NanoUsd(2), NanoUsd(3))
    saw(watch, completed("r", tokens=5), replace(end("r", Outcome.COMPLETED), bills=(bill,), attempts=1))

    lengths = now_of(watch).answers[ClassName("interactive")]
    assert (lengths.cost, lengths.asked) == (6, 1)


def test_failed_attempts_count_against_their_endpoint() -> None:
    watch = a_watch()
    for request, ended in (("a", failed("a")), ("b", timed_out("b"))):
        sent(watch, request)
        saw(watch, ended)
    sent(watch, "c")
    saw(watch, TimerFired(), end("c", Outcome.CANCELLED))
    saw(watch, aborted("c"))

    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.failures, endpoint.open_streams, now_of(watch).attempts_failed) == (2, 0, 2)
    sent(watch, "d")
    saw(watch, first_token("d"))
    assert endpoint.decoding == 1
    saw(watch, completed("d"))
    assert (endpoint.failures, endpoint.decoding) == (0, 0)


def test_attempt_aborted_because_its_endpoint_stalled_is_counted() -> None:
    watch = a_watch()
    sent(watch, "ended")
    saw(watch, aborted("ended"), end("ended", Outcome.ENGINE_TIMEOUT))
    sent(watch, "retried")
    saw(watch, aborted("retried"), dispatch("retried", attempt=2))
    sent(watch, "hedged")
    saw(watch, TimerFired(), dispatch("hedged", attempt=2))
    saw(watch, aborted("hedged"))
    sent(watch, "left")
    saw(watch, TimerFired(), end("left", Outcome.CANCELLED))
    saw(watch, aborted("left"))

    seen = now_of(watch)
    assert (seen.attempts_stalled, seen.attempts_failed) == (2, 0)


def test_rate_limited_requests_are_not_counted_as_demand_on_a_pool() -> None:
    watch = a_watch()
    saw(watch, arrived("a", "bolt"))
    for request in ("b", "c"):
        saw(watch, arrived(request, "bolt"), end(request, Outcome.RATE_LIMITED))
    saw(watch, arrived("d", "bolt", client_retries=1), end("d", Outcome.RATE_LIMITED))
    work = now_of(watch).tenants_work.by_name["bolt"]
    saw(watch, arrived("e"), end("e", Outcome.RATE_LIMITED))

    seen = now_of(watch)
    assert (seen.arrivals, seen.tenants.by_name) == (5, {"bolt": 1})
    assert seen.tenants_work.by_name == {"bolt": work}
    saw(watch, arrived("f", "bolt"))
    assert seen.tenants_work.by_name == {"bolt": 2 * work}


def test_rejected_retries_from_a_rate_limited_tenant_are_not_counted_as_harm() -> None:
    watch = a_watch()
    saw(watch, arrived("a", "bolt"), end("a", Outcome.RATE_LIMITED))
    for request, tenant, seconds in (("b", "bolt", 10), ("c", "acme", 10), ("d", "bolt", 10.1)):
        retry = arrived(request, tenant, client_retries=1)
        saw(watch, retry, end(request, Outcome.RETRY_BUDGET_EXHAUSTED, service_class="interactive"), now=at(seconds))

    seen = now_of(watch)
    assert seen.rejected == 2
    assert seen.bad_by.by_name == {"interactive acme": 1, "interactive bolt": 1}


def test_only_the_most_recent_rate_limited_tenants_are_remembered() -> None:
    watch = a_watch()
    for number in range(TENANTS_MAX + 1):
        saw(watch, arrived(f"a{number}", f"t{number}"), end(f"a{number}", Outcome.RATE_LIMITED))
    for number in (0, 1, TENANTS_MAX):
        retry = arrived(f"b{number}", f"t{number}", client_retries=1)
        saw(watch, retry, end(f"b{number}", Outcome.RETRY_BUDGET_EXHAUSTED, service_class="interactive"))

    assert now_of(watch).bad_by.by_name == {"interactive t0": 1}


def test_attempt_the_gateway_could_not_send_does_not_count_against_its_endpoint() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, failed("r", detail="too many open files", fault=Fault.GATEWAY))

    seen = now_of(watch)
    assert (seen.attempts_failed, seen.attempts_unsent) == (1, 1)
    assert watch.endpoints[EndpointId("e1")].failures == 0
    assert watch.pools[PoolName("p")].unsent_reason == "too many open files"


def test_progress_counts_tokens_and_updates_last_activity() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, progressed("r", "unknown"), now=at(3))

    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.tokens, endpoint.last_progress_at) == (8, at(3))


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Outcome.SHED, (1, 0, 0)),
        (Outcome.NO_ENDPOINTS, (0, 1, 0)),
        (Outcome.ENGINE_ERROR, (0, 0, 1)),
        (Outcome.RATE_LIMITED, (0, 0, 0)),
        (Outcome.DRAINING, (0, 0, 0)),
    ],
)
def test_unserved_requests_are_counted_by_cause(outcome: Outcome, counted: tuple[int, int, int]) -> None:
    watch = a_watch()
    saw(watch, arrived("r"), end("r", outcome, service_class=None))
    saw(watch, TimerFired(), end("unknown", outcome))

    seen = now_of(watch)
    assert (seen.rejected, seen.missing, seen.failed) == counted


def test_request_cancelled_after_its_timeout_is_counted_as_not_served() -> None:
    watch = a_watch()
    for request, seconds, service_class in (("a", 5, "interactive"), ("b", 0.5, "interactive"), ("c", 5, "batch")):
        saw(watch, arrived(request))
        left = end(request, Outcome.CANCELLED, service_class=service_class)
        saw(watch, TimerFired(), left, now=at(seconds))
    saw(watch, arrived("d", stream=False))
    saw(watch, TimerFired(), end("d", Outcome.CANCELLED), now=at(5))

    assert (now_of(watch).rejected, now_of(watch).gave_up) == (1, 3)


@pytest.mark.parametrize(
    ("service_class", "allowed", "harm"),
    [("interactive", None, 1), ("interactive", 1.5, 1), ("interactive", 0.01, 0), ("batch", 100, 0)],
)
def test_rejection_for_a_deadline_stricter_than_the_target_is_not_counted_as_harm(
    service_class: str, allowed: float | None, harm: int
) -> None:
    watch = a_watch()
    unreachable = end("r", Outcome.DEADLINE_INFEASIBLE, service_class=service_class)
    saw(watch, arrived("r", first_token_within=allowed), unreachable)
    saw(watch, arrived("s", complete_within=allowed), replace(unreachable, request_id=RequestId("s")))

    assert (now_of(watch).rejected, now_of(watch).resolved) == (2 * harm, 2 * harm)


def test_request_sent_to_another_pool_is_also_counted_there() -> None:
    watch = a_watch(a_policy(pools=("a", "b")))
    saw(watch, arrived("r", prompt_bytes=400), dispatch("r", "b/1", pool="b"))
    saw(watch, failed("r"), dispatch("r", "a/1", pool="a", attempt=2))

    assert [(now_of(watch, pool).arrivals, now_of(watch, pool).prompt_tokens) for pool in "ab"] == [(1, 100), (1, 100)]
    assert now_of(watch, "b").tenants.by_name == {"acme": 1}


def test_pending_prefill_time_is_tracked_per_endpoint() -> None:
    watch = a_watch()
    endpoint = watch.endpoints[EndpointId("e1")]
    sent(watch, "a", prompt_bytes=4_000)
    alone = endpoint.pending_prefill_ns
    sent(watch, "b", prompt_bytes=4_000)
    assert endpoint.pending_prefill_ns == 2 * alone > 0
    saw(watch, first_token("a"))
    assert (endpoint.pending_prefill_ns, endpoint.decoding_tokens) == (alone, 1_000)
    saw(watch, failed("b"))
    saw(watch, completed("a"))

    assert (endpoint.pending_prefill_ns, endpoint.decoding_tokens) == (0, 0)


def test_removed_endpoints_are_forgotten() -> None:
    watch = a_watch()
    saw(watch, joined("e2"))
    saw(watch, joined("e1"))
    watch.drop_departed([EndpointId("e1"), EndpointId("e2")])
    assert list(watch.endpoints) == ["e1", "e2"]
    watch.drop_departed([EndpointId("e2")])
    assert list(watch.endpoints) == ["e2"]


def test_engine_metrics_and_ready_time_are_recorded() -> None:
    watch = a_watch()
    saw(watch, readied("e1"), now=at(50))
    saw(watch, readied("e9"))
    saw(watch, EndpointMetricsReported(EndpointId("e1"), 3, 2, 70))
    saw(watch, EndpointMetricsReported(EndpointId("e9"), 3, 2, 70))

    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.running, endpoint.waiting, endpoint.kv_percent, endpoint.readied_at) == (3, 2, 70, at(0))


def test_endpoint_without_a_join_event_is_tracked_from_its_first_request() -> None:
    watch = a_watch()
    saw(watch, arrived("r"), dispatch("r", "e7"))
    saw(watch, TimerFired(), dispatch("unknown", "e7"))

    assert watch.endpoints[EndpointId("e7")].open_streams == 1


def test_number_of_tracked_requests_and_endpoints_is_bounded() -> None:
    watch = a_watch(open_max=1, endpoints_max=1)
    saw(watch, joined("e2"))
    saw(watch, arrived("a"), dispatch("a", "e3"))
    saw(watch, arrived("b"), dispatch("b", "e1"))

    assert list(watch.endpoints) == ["e1"]
    assert (now_of(watch).arrivals, now_of(watch).sent) == (2, 1)


def test_policy_change_keeps_the_counts_of_remaining_pools() -> None:
    watch = a_watch()
    saw(watch, arrived("r"))
    models = (a_model("m", "p", "q"), a_model("lost", "nowhere"))
    saw(watch, policy_changed(a_policy(pools=("p", "q"), models=models)))

    assert (now_of(watch).arrivals, now_of(watch, "q").arrivals) == (1, 0)
    saw(watch, arrived("s", model="lost"))
    assert now_of(watch).arrivals == 1
