"""Is what the scheduler is told, and what it orders, counted where it belongs?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Command
from headgate.core.diagnosis.seconds_seen import TENANTS_MAX, Seen
from headgate.core.diagnosis.watch import Watch
from headgate.core.events import EndpointMeasured, Event, TimerFired
from headgate.model.fault import Fault
from headgate.model.money import Bill, Cause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, Promise
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
    end,
    failed,
    fell_silent,
    first_token,
    joined,
    lasting,
    policy_changed,
    progressed,
    readied,
)

HURRIED = replace(INTERACTIVE, ttft_ns=lasting(1), tpot_ns=lasting(0.1))
POLICY = a_policy(classes=(HURRIED, replace(BATCH, promise=Promise.COST)))


def a_watch(policy: Policy = POLICY, **bounds: int) -> Watch:
    watch = Watch(**bounds)
    for event in (policy_changed(policy), joined("e1"), readied("e1")):
        watch.saw(event, [], at(0))
    return watch


def saw(watch: Watch, event: Event, *commands: Command, now: Instant | None = None) -> None:
    watch.saw(event, commands, at(0) if now is None else now)


def now_of(watch: Watch, pool: str = "p") -> Seen:
    return watch.pools[PoolName(pool)].history.now


def sent(watch: Watch, request: str = "r", **of: object) -> None:
    saw(watch, arrived(request, **of), dispatch(request, waited=0.5))  # pyright: ignore[reportArgumentType]


def test_arrivals_count_where_their_model_is_at_home() -> None:
    watch = a_watch()
    saw(watch, arrived("a", prompt_bytes=400))
    saw(watch, arrived("b", "bolt", client_retries=2))
    saw(watch, arrived("c", model="unknown"))

    seen = now_of(watch)
    assert (seen.arrivals, seen.prompt_tokens, seen.retries) == (2, 125, 1)
    assert seen.tenants.by_name == {"acme": 1}


def test_a_first_token_is_late_by_the_target_of_its_class() -> None:
    watch = a_watch()
    for request, seconds in (("a", 0.5), ("b", 1.5)):
        sent(watch, request)
        saw(watch, first_token(request), now=at(seconds))

    seen = now_of(watch)
    assert (seen.sent, seen.begun, seen.judged, seen.late) == (2, 2, 2, 1)
    assert seen.waited_ns == lasting(1)
    assert seen.bad_by.by_name == {"interactive acme": 1}


def test_without_a_target_late_is_what_takes_many_times_as_long_as_usual() -> None:
    watch = a_watch(a_policy())
    history = watch.pools[PoolName("p")].history
    sent(watch, "a")
    saw(watch, first_token("a"), now=at(4))
    assert now_of(watch).late == 0
    history.usual.took(ClassName("interactive"), lasting(0.5))
    sent(watch, "b")
    saw(watch, first_token("b"), now=at(4))
    assert (now_of(watch).judged, now_of(watch).late) == (2, 1)


def test_who_does_not_hurry_is_never_late() -> None:
    watch = a_watch()
    saw(watch, arrived("a"), dispatch("a", service_class="batch"))
    saw(watch, first_token("a"), now=at(100))
    saw(watch, arrived("b"), dispatch("b", service_class="gone"))
    saw(watch, first_token("b"), now=at(100))

    assert now_of(watch).judged == 0


def test_only_the_first_word_of_a_request_counts() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, first_token("r"), now=at(0.5))
    saw(watch, first_token("r"), now=at(5))
    saw(watch, failed("r"), dispatch("r", attempt=2))
    saw(watch, first_token("r", attempt=2), now=at(9))
    saw(watch, first_token("unheard of"))

    assert (now_of(watch).judged, now_of(watch).late) == (1, 0)


def test_what_is_not_streamed_has_no_first_token_to_wait_for() -> None:
    watch = a_watch()
    sent(watch, stream=False)
    saw(watch, first_token("r"), now=at(50))
    saw(watch, completed("r", tokens=10), end("r", Outcome.COMPLETED, attempts=0), now=at(50))

    seen, endpoint = now_of(watch), watch.endpoints[EndpointId("e1")]
    assert (seen.begun, seen.judged, seen.paced, endpoint.open) == (0, 0, 0, 0)
    assert (seen.unjudged, seen.resolved) == (1, 1)


def test_unstreamed_response_with_reported_tokens_counts_as_decoding() -> None:
    watch = a_watch()
    sent(watch, stream=False, prompt_bytes=400)
    saw(watch, first_token("r", delivered=False), now=at(1))
    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.open, endpoint.decoding, endpoint.decoding_tokens, endpoint.heard_at) == (1, 1, 100, at(1))

    saw(watch, progressed("r"), now=at(2))
    saw(watch, first_token("r"), now=at(3))
    assert (endpoint.open, endpoint.decoding, endpoint.tokens) == (1, 1, 8)

    saw(watch, completed("r", tokens=8), end("r", Outcome.COMPLETED, attempts=0), now=at(3))
    assert (endpoint.open, endpoint.decoding, endpoint.decoding_tokens) == (0, 0, 0)
    assert (now_of(watch).begun, now_of(watch).judged) == (0, 0)


def test_answers_are_counted_by_class_and_judged_by_their_pace() -> None:
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


def test_one_token_has_no_pace_and_no_promise_is_not_broken() -> None:
    watch = a_watch()
    sent(watch, "a")
    saw(watch, first_token("a"))
    saw(watch, completed("a", tokens=1), now=at(9))
    saw(watch, arrived("b"), dispatch("b", service_class="batch"))
    saw(watch, completed("b", tokens=10), now=at(9))
    saw(watch, completed("c"))

    assert now_of(watch).paced == 0


def test_an_answer_without_usage_says_nothing() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, completed("r"))

    assert not now_of(watch).asked_tokens


def test_what_a_request_cost_is_counted() -> None:
    watch = a_watch()
    sent(watch)
    nothing = Duration(0)
    bill = Bill(1, Cause.ANSWER, nothing, nothing, nothing, NanoUsd(1), NanoUsd(2), NanoUsd(3))
    saw(watch, completed("r", tokens=5), replace(end("r", Outcome.COMPLETED), bills=(bill,), attempts=1))

    lengths = now_of(watch).answers[ClassName("interactive")]
    assert (lengths.cost, lengths.asked) == (6, 1)


def test_attempts_that_fail_count_against_their_endpoint() -> None:
    watch = a_watch()
    for request, ended in (("a", failed("a")), ("b", fell_silent("b"))):
        sent(watch, request)
        saw(watch, ended)
    sent(watch, "c")
    saw(watch, TimerFired(), end("c", Outcome.CANCELLED))
    saw(watch, aborted("c"))

    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.failures, endpoint.open, now_of(watch).attempts_failed) == (2, 0, 2)
    sent(watch, "d")
    saw(watch, first_token("d"))
    assert endpoint.decoding == 1
    saw(watch, completed("d"))
    assert (endpoint.failures, endpoint.decoding) == (0, 0)


def test_attempt_aborted_because_its_endpoint_stalled_is_counted() -> None:
    watch = a_watch()
    sent(watch, "ended")
    saw(watch, aborted("ended"), end("ended", Outcome.ENGINE_SILENT))
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


def test_rate_limited_requests_do_not_count_as_demand_on_a_pool() -> None:
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


def test_rejected_retries_of_a_rate_limited_tenant_do_not_count_as_harm() -> None:
    watch = a_watch()
    saw(watch, arrived("a", "bolt"), end("a", Outcome.RATE_LIMITED))
    for request, tenant, seconds in (("b", "bolt", 10), ("c", "acme", 10), ("d", "bolt", 10.1)):
        retry = arrived(request, tenant, client_retries=1)
        saw(watch, retry, end(request, Outcome.RETRY_REFUSED, service_class="interactive"), now=at(seconds))

    seen = now_of(watch)
    assert seen.refused == 2
    assert seen.bad_by.by_name == {"interactive acme": 1, "interactive bolt": 1}


def test_only_the_most_recent_rate_limited_tenants_are_remembered() -> None:
    watch = a_watch()
    for number in range(TENANTS_MAX + 1):
        saw(watch, arrived(f"a{number}", f"t{number}"), end(f"a{number}", Outcome.RATE_LIMITED))
    for number in (0, 1, TENANTS_MAX):
        retry = arrived(f"b{number}", f"t{number}", client_retries=1)
        saw(watch, retry, end(f"b{number}", Outcome.RETRY_REFUSED, service_class="interactive"))

    assert now_of(watch).bad_by.by_name == {"interactive t0": 1}


def test_attempt_that_the_gateway_could_not_send_does_not_count_against_its_endpoint() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, failed("r", detail="too many open files", fault=Fault.GATEWAY))

    seen = now_of(watch)
    assert (seen.attempts_failed, seen.attempts_unsent) == (1, 1)
    assert watch.endpoints[EndpointId("e1")].failures == 0
    assert watch.pools[PoolName("p")].unsent_why == "too many open files"


def test_progress_is_a_sign_of_life() -> None:
    watch = a_watch()
    sent(watch)
    saw(watch, progressed("r", "unheard of"), now=at(3))

    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.tokens, endpoint.heard_at) == (8, at(3))


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Outcome.SHED, (1, 0, 0)),
        (Outcome.NO_ENDPOINTS, (0, 1, 0)),
        (Outcome.ENGINE_FAILED, (0, 0, 1)),
        (Outcome.RATE_LIMITED, (0, 0, 0)),
        (Outcome.DRAINING, (0, 0, 0)),
    ],
)
def test_who_is_not_served_is_counted_by_whose_fault_it_is(outcome: Outcome, counted: tuple[int, int, int]) -> None:
    watch = a_watch()
    saw(watch, arrived("r"), end("r", outcome, service_class=None))
    saw(watch, TimerFired(), end("unheard of", outcome))

    seen = now_of(watch)
    assert (seen.refused, seen.missing, seen.failed) == counted


def test_who_leaves_after_too_long_was_not_served() -> None:
    watch = a_watch()
    for request, seconds, service_class in (("a", 5, "interactive"), ("b", 0.5, "interactive"), ("c", 5, "batch")):
        saw(watch, arrived(request))
        left = end(request, Outcome.CANCELLED, service_class=service_class)
        saw(watch, TimerFired(), left, now=at(seconds))
    saw(watch, arrived("d", stream=False))
    saw(watch, TimerFired(), end("d", Outcome.CANCELLED), now=at(5))

    assert (now_of(watch).refused, now_of(watch).gave_up) == (1, 3)


@pytest.mark.parametrize(
    ("service_class", "allowed", "harm"),
    [("interactive", None, 1), ("interactive", 1.5, 1), ("interactive", 0.01, 0), ("batch", 100, 0)],
)
def test_a_deadline_stricter_than_what_was_promised_is_the_callers_own(
    service_class: str, allowed: float | None, harm: int
) -> None:
    watch = a_watch()
    unreachable = end("r", Outcome.UNREACHABLE, service_class=service_class)
    saw(watch, arrived("r", first_token_within=allowed), unreachable)
    saw(watch, arrived("s", complete_within=allowed), replace(unreachable, request_id=RequestId("s")))

    assert (now_of(watch).refused, now_of(watch).resolved) == (2 * harm, 2 * harm)


def test_what_is_sent_to_another_pool_counts_there_too() -> None:
    watch = a_watch(a_policy(pools=("a", "b")))
    saw(watch, arrived("r", prompt_bytes=400), dispatch("r", "b/1", pool="b"))
    saw(watch, failed("r"), dispatch("r", "a/1", pool="a", attempt=2))

    assert [(now_of(watch, pool).arrivals, now_of(watch, pool).prompt_tokens) for pool in "ab"] == [(1, 100), (1, 100)]
    assert now_of(watch, "b").tenants.by_name == {"acme": 1}


def test_prompts_that_are_yet_to_be_computed_are_known_of_each_endpoint() -> None:
    watch = a_watch()
    endpoint = watch.endpoints[EndpointId("e1")]
    sent(watch, "a", prompt_bytes=4_000)
    alone = endpoint.unbegun_ns
    sent(watch, "b", prompt_bytes=4_000)
    assert endpoint.unbegun_ns == 2 * alone > 0
    saw(watch, first_token("a"))
    assert (endpoint.unbegun_ns, endpoint.decoding_tokens) == (alone, 1_000)
    saw(watch, failed("b"))
    saw(watch, completed("a"))

    assert (endpoint.unbegun_ns, endpoint.decoding_tokens) == (0, 0)


def test_endpoints_that_have_left_are_forgotten() -> None:
    watch = a_watch()
    saw(watch, joined("e2"))
    saw(watch, joined("e1"))
    watch.keep_endpoints([EndpointId("e1"), EndpointId("e2")])
    assert list(watch.endpoints) == ["e1", "e2"]
    watch.keep_endpoints([EndpointId("e2")])
    assert list(watch.endpoints) == ["e2"]


def test_what_engines_say_and_when_they_became_ready_is_kept() -> None:
    watch = a_watch()
    saw(watch, readied("e1"), now=at(50))
    saw(watch, readied("e9"))
    saw(watch, EndpointMeasured(EndpointId("e1"), 3, 2, 70))
    saw(watch, EndpointMeasured(EndpointId("e9"), 3, 2, 70))

    endpoint = watch.endpoints[EndpointId("e1")]
    assert (endpoint.running, endpoint.waiting, endpoint.kv_percent, endpoint.readied_at) == (3, 2, 70, at(0))


def test_an_endpoint_that_was_not_seen_to_join_is_followed_from_its_first_request() -> None:
    watch = a_watch()
    saw(watch, arrived("r"), dispatch("r", "e7"))
    saw(watch, TimerFired(), dispatch("unheard of", "e7"))

    assert watch.endpoints[EndpointId("e7")].open == 1


def test_no_more_is_followed_than_the_bounds_allow() -> None:
    watch = a_watch(open_max=1, endpoints_max=1)
    saw(watch, joined("e2"))
    saw(watch, arrived("a"), dispatch("a", "e3"))
    saw(watch, arrived("b"), dispatch("b", "e1"))

    assert list(watch.endpoints) == ["e1"]
    assert (now_of(watch).arrivals, now_of(watch).sent) == (2, 1)


def test_a_new_policy_keeps_what_is_known_of_its_pools() -> None:
    watch = a_watch()
    saw(watch, arrived("r"))
    models = (a_model("m", "p", "q"), a_model("lost", "nowhere"))
    saw(watch, policy_changed(a_policy(pools=("p", "q"), models=models)))

    assert (now_of(watch).arrivals, now_of(watch, "q").arrivals) == (1, 0)
    saw(watch, arrived("s", model="lost"))
    assert now_of(watch).arrivals == 1
