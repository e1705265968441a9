"""Tests for demand measurement: the engine time that arriving requests need in each pool."""

from collections.abc import Iterable
from dataclasses import replace

from headgate.core.autoscaling.autoscaler import ScalingMetrics
from headgate.core.autoscaling.demand import REQUESTS_MAX, DemandObserver
from headgate.core.cost import MEAN_BATCH, cost_ns
from headgate.core.events import AttemptEnded, AttemptEnding, Event, RequestArrived, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary, Summary, WaitingWork
from headgate.model.caps import Caps
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Overflow, Policy, Pool, RetryRules
from headgate.model.routes import MIRROR_TENANT, ModelRoute, RouteMirror
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, EndpointId, Instant, ModelName, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_class,
    a_model,
    a_policy,
    a_pool,
    aborted,
    arrived,
    at,
    client_disconnected,
    completed,
    dispatch,
    duration,
    end,
    failed,
    first_token,
    joined,
    leaving,
    policy_changed,
    readied,
    unreadied,
)

SPEED = EngineSpeed()
PROMPT, ANSWER = 25, 150
"""Predicted prompt and response tokens for a builder's request before anything has been learned."""


def work_ns(*, batch: int = MEAN_BATCH, prompt: int = PROMPT, answer: int = ANSWER, cached: int = 0) -> int:
    return cost_ns(SPEED, prompt, answer, batch=batch, cached=cached)


class Watched:
    """A scheduler whose demand is measured."""

    def __init__(self, *events: Event, policy: Policy | None = None) -> None:
        self.scheduler, self.demand = Scheduler(), DemandObserver()
        self.tell(0, policy_changed(policy or a_policy()), *events)

    def tell(self, second: float, *events: Event) -> None:
        for event in events:
            self.demand.observe(event, self.scheduler.handle(event, at(second)), at(second))

    def figures(self, second: float) -> dict[str, ScalingMetrics]:
        return {each.pool: each for each in self.demand.collect(self.scheduler.summary(), at(second))}

    def asked_ns(self, second: float, pool: str = "p") -> int:
        """Returns the engine time in nanoseconds needed by requests that arrived in the ten seconds before this one."""
        return self.figures(second)[pool].demand_ppm * 10 * 1_000


def near(found: int, expected: int) -> bool:
    """Returns whether the values are equal up to rounding to millionths of an endpoint."""
    return abs(found - expected) <= 10_000


def ready(name: str, *, places: int = 128, pool: str = "p") -> tuple[Event, ...]:
    return joined(name, pool=pool, places=places), readied(name)


def names(count: int) -> Iterable[str]:
    return (f"r{number}" for number in range(count))


def told_usage(request: str, *, prompt: int, output: int, cached: int = 0, attempt: int = 1) -> AttemptEnded:
    usage = Usage(prompt, output, cached, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage)


# Which requests count


def test_served_requests_are_counted_by_predicted_engine_time() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, *(arrived(name) for name in names(3)))

    assert near(watched.asked_ns(10), 3 * work_ns())
    assert watched.asked_ns(20) == 0


def test_request_weight_also_applies_to_retries() -> None:
    watched = Watched(*ready("e1"), *ready("e2"), policy=a_policy(retry=RetryRules(credit_per_first_attempt=100)))
    for name, weight in (("a", 8), ("b", 0)):
        event = arrived(name)
        watched.demand.observe(event, watched.scheduler.handle(event, at(1)), at(1), weight=weight)
    assert near(watched.asked_ns(10), 8 * work_ns())

    watched.tell(11, failed("a"), failed("b"))

    assert near(watched.asked_ns(20), 8 * work_ns())


def test_queued_request_is_counted_once_on_arrival() -> None:
    watched = Watched(*ready("e1", places=1))
    watched.tell(1, arrived("a"), arrived("b"))
    assert near(watched.asked_ns(10), 2 * work_ns(batch=1))

    watched.tell(11, completed("a"))
    assert watched.asked_ns(20) == 0


def test_step_time_is_shared_among_at_most_as_many_requests_as_the_endpoint_has_slots() -> None:
    watched = Watched(*ready("e1", places=4))
    watched.tell(1, arrived("a"))

    assert near(watched.asked_ns(10), work_ns(batch=4))
    assert work_ns(batch=4) > 10 * work_ns()


def test_request_rejected_for_lack_of_capacity_is_counted() -> None:
    policy = a_policy(classes=(a_class(queue_length_max=1),))
    watched = Watched(*ready("e1", places=1), policy=policy)
    watched.tell(1, *(arrived(name) for name in names(5)))

    assert near(watched.asked_ns(10), 5 * work_ns(batch=1))


def test_rejected_client_retry_is_not_counted_again() -> None:
    policy = a_policy(classes=(a_class(queue_length_max=1),))
    watched = Watched(*ready("e1", places=1), policy=policy)
    watched.tell(1, *(arrived(name) for name in names(2)), arrived("again", client_retries=1))

    assert near(watched.asked_ns(10), 2 * work_ns(batch=1))


def test_request_without_an_available_endpoint_is_counted_for_its_pool() -> None:
    watched = Watched()
    watched.tell(1, arrived("a"))

    assert near(watched.asked_ns(10), work_ns())


def test_invalid_request_is_not_counted() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, arrived("a", tenant="nobody"), arrived("b", model="none"), arrived("c", service_class="none"))

    assert watched.asked_ns(10) == 0


def test_request_arriving_before_the_policy_is_not_counted() -> None:
    """Without a policy, the observer cannot classify the request."""
    demand = DemandObserver()
    demand.observe(arrived("a"), [end("a", Outcome.QUEUE_FULL)], at(0))
    demand.observe(policy_changed(a_policy()), [], at(1))

    assert [each.demand_ppm for each in demand.collect(Scheduler().summary(), at(10))] == [0]


def test_commands_for_other_requests_do_not_change_the_count() -> None:
    watched = Watched(*ready("e1"))
    watched.demand.observe(arrived("a"), [end("b", Outcome.QUEUE_TIMEOUT), dispatch("c")], at(1))

    assert near(watched.asked_ns(10), work_ns())


def test_retry_is_counted_as_additional_work() -> None:
    watched = Watched(*ready("e1"), *ready("e2"))
    watched.tell(1, arrived("a"))
    watched.tell(2, failed("a"))

    assert near(watched.asked_ns(10), 2 * work_ns())


def test_output_caps_limit_the_counted_work() -> None:
    policy = a_policy(classes=(a_class(caps=Caps(output_tokens=20, n=2)),))
    watched = Watched(*ready("e1"), policy=policy)
    asked = arrived("a").ticket
    watched.tell(1, RequestArrived(replace(asked, n=5)))
    assert near(watched.asked_ns(10), work_ns(answer=40))

    watched.tell(11, RequestArrived(replace(asked, request_id=RequestId("b"), output_tokens_max=7)))
    assert near(watched.asked_ns(20), work_ns(answer=7))


def test_requested_number_of_choices_is_counted() -> None:
    policy = a_policy(classes=(a_class(caps=Caps(n=None)),))
    watched = Watched(*ready("e1"), policy=policy)
    watched.tell(1, RequestArrived(replace(arrived("a").ticket, n=3)))

    assert near(watched.asked_ns(10), work_ns(answer=3 * ANSWER))


# Which pools requests count towards


TWO_POOLS = a_policy(pools=("p", "q"))


def test_queued_request_is_divided_among_pools_by_their_endpoints() -> None:
    watched = Watched(*ready("e1", places=1), policy=TWO_POOLS)
    watched.tell(0, *(each for name in ("f1", "f2", "f3") for each in ready(name, places=1, pool="q")))
    watched.tell(0, *(arrived(name) for name in names(4)))
    watched.figures(10)
    watched.tell(11, *(arrived(f"w{number}") for number in range(8)))
    found = watched.figures(20)

    assert near(found[PoolName("p")].demand_ppm * 10_000, 2 * work_ns(batch=1))
    assert near(found[PoolName("q")].demand_ppm * 10_000, 6 * work_ns(batch=1))


def test_queued_request_is_counted_for_the_first_pool_if_no_pool_has_endpoints() -> None:
    watched = Watched(policy=TWO_POOLS)
    watched.tell(1, arrived("a"))
    found = watched.figures(10)

    assert near(found[PoolName("p")].demand_ppm * 10_000, work_ns())
    assert found[PoolName("q")].demand_ppm == 0


def test_fallback_request_is_counted_for_the_serving_pool_and_for_its_own_pool() -> None:
    policy = a_policy(
        pools=("p", "q"),
        models=(Model(ModelName("m"), (PoolName("p"),), fallbacks=(ModelName("o"),)), a_model("o", "q")),
    )
    watched = Watched(*ready("f1", pool="q"), policy=policy)
    watched.tell(1, arrived("a"))
    found = watched.figures(10)

    assert found[PoolName("p")].demand_ppm == found[PoolName("q")].demand_ppm > 0


# Learned values


def test_response_lengths_are_learned_from_engine_usage() -> None:
    watched = Watched(*ready("e1"))
    for name in names(600):
        watched.tell(1, arrived(name, prompt_bytes=200), told_usage(name, prompt=100, output=10))
    watched.figures(10)
    watched.tell(11, arrived("a", prompt_bytes=202))

    assert near(watched.asked_ns(20), work_ns(prompt=100, answer=10))


def test_cached_share_of_prompts_is_learned_from_engine_usage() -> None:
    watched = Watched(*ready("e1"))
    for name in names(20):
        watched.tell(1, arrived(name, prompt_bytes=4_000), told_usage(name, prompt=1_000, output=10, cached=400))
    watched.figures(10)
    watched.tell(11, arrived("a", prompt_bytes=4_000))

    assert near(watched.asked_ns(20), work_ns(prompt=1_000, answer=10, cached=400))


def test_cached_share_of_prompts_decays_slowly() -> None:
    watched = Watched(*ready("e1"))
    for name in names(4):
        usage = told_usage(name, prompt=40_000_000, output=10, cached=99_000_000)
        watched.tell(1, arrived(name, prompt_bytes=160_000_000), usage)

    cached = watched.demand._cached[PoolName("p")]
    assert cached.tokens == cached.cached_tokens <= 100_000_000


def test_nothing_is_learned_from_estimated_or_missing_usage() -> None:
    watched = Watched(*ready("e1"))
    for name in names(20):
        estimated = Usage(9, 9, 0, UsageSource.ESTIMATED)
        ended = AttemptEnded(RequestId(name), 1, AttemptEnding.COMPLETED, usage=estimated)
        watched.tell(1, arrived(name), ended)
        watched.tell(1, arrived(f"{name}b"), completed(f"{name}b"), completed("unknown"))
    watched.figures(10)
    watched.tell(11, arrived("a"))

    assert near(watched.asked_ns(20), work_ns())


def test_ended_requests_are_forgotten() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, arrived("a"), arrived("b"), completed("a"), client_disconnected("b"), aborted("b"))

    assert not watched.demand._open


def test_number_of_tracked_requests_is_bounded() -> None:
    watched = Watched(*ready("e1"), policy=a_policy(retry=RetryRules(attempts_max=3)))
    watched.demand._open = dict.fromkeys(map(RequestId, map(str, range(REQUESTS_MAX))))  # type: ignore[assignment]
    watched.tell(1, arrived("a"))

    assert len(watched.demand._open) == REQUESTS_MAX
    assert near(watched.asked_ns(10), work_ns())


def test_removed_pool_is_forgotten() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, arrived("a"), told_usage("a", prompt=9, output=9))
    assert list(watched.demand._cached) == ["p"]
    watched.tell(2, policy_changed(a_policy(pools=("q",)), "h2"))

    assert list(watched.demand._cached) == []
    assert list(watched.figures(10)) == ["q"]


# Endpoints and backlog


def an_endpoint_seen(
    name: str, state: EndpointState = EndpointState.READY, *, leaving: bool = False, percent: int = 100
) -> EndpointSummary:
    return EndpointSummary(
        EndpointId(name),
        PoolName("p"),
        state,
        leaving,
        in_flight=3,
        in_flight_max=4,
        kv_tokens=1_000,
        decode_percent=percent,
        prefill_percent=percent,
    )


def seen(
    *endpoints: EndpointSummary, queued: dict[str, int] | None = None, waiting: tuple[WaitingWork, ...] = ()
) -> Summary:
    counts = {ClassName(name): count for name, count in (queued or {}).items()}
    return Summary("h1", counts, 0, endpoints, waiting_work=waiting)


def told_of(summary: Summary, policy: Policy | None = None) -> ScalingMetrics:
    demand = DemandObserver()
    demand.observe(policy_changed(policy or a_policy()), [], at(0))
    [figures] = demand.collect(summary, at(10))
    return figures


def test_endpoints_are_counted_by_state() -> None:
    summary = seen(
        an_endpoint_seen("a"),
        an_endpoint_seen("b", EndpointState.TRIAL),
        an_endpoint_seen("c", EndpointState.WARMING),
        an_endpoint_seen("d", EndpointState.EJECTED),
        an_endpoint_seen("e", leaving=True),
    )
    pool = replace(a_pool(), kv_tokens=5_000)

    assert told_of(summary, a_policy(pools=(pool,))) == ScalingMetrics(
        PoolName("p"),
        demand_ppm=0,
        backlog_ns=0,
        ttft_ns=None,
        kv_tokens_used=4_000,
        kv_tokens_each=5_000,
        ready=2,
        warming=1,
        draining=1,
        places_used=12,
        places_each=4,
    )


def test_empty_scheduler_reports_zero_figures() -> None:
    assert told_of(Scheduler().summary()) == ScalingMetrics(PoolName("p"), 0, 0, None, 0, None, 0, 0, 0)


def test_demand_is_higher_if_endpoints_are_slower_than_configured() -> None:
    demand, watched = DemandObserver(), Watched(*ready("e1"))
    for event in (policy_changed(a_policy()), arrived("a")):
        demand.observe(event, watched.scheduler.handle(event, at(1)), at(0))
    [figures] = demand.collect(seen(an_endpoint_seen("a", percent=100), an_endpoint_seen("b", percent=300)), at(10))

    assert near(figures.demand_ppm * 10_000, 2 * work_ns())


def test_backlog_is_scaled_to_the_strictest_target_of_the_queued_classes() -> None:
    quick, slow = replace(INTERACTIVE, ttft_ns=duration(2)), replace(BATCH, ttft_ns=duration(40))
    policy = a_policy(classes=(quick, slow))
    both = (WaitingWork((PoolName("p"),), 0, duration(6)), WaitingWork((PoolName("p"),), 1, duration(100)))

    told = told_of(seen(queued={"interactive": 3, "batch": 9}, waiting=both), policy)
    assert (told.backlog_ns, told.ttft_ns) == (duration(6 + 5), duration(2))
    told = told_of(seen(queued={"interactive": 0, "batch": 9}, waiting=both[1:]), policy)
    assert (told.backlog_ns, told.ttft_ns) == (duration(100), duration(40))


def test_class_without_a_target_uses_its_maximum_queue_wait() -> None:
    waits = (WaitingWork((PoolName("p"),), 0, duration(6)),)
    told = told_of(seen(queued={"interactive": 3}, waiting=waits))

    assert (told.backlog_ns, told.ttft_ns) == (duration(6), INTERACTIVE.queue_wait_ns_max)


def test_backlog_in_a_band_without_known_classes_is_not_counted() -> None:
    waits = (WaitingWork((PoolName("p"),), 7, duration(6)),)

    assert told_of(seen(queued={"interactive": 3}, waiting=waits)).backlog_ns == 0


def test_figures_at_the_start_of_a_period_do_not_reset_the_counts() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(0, arrived("a"))

    assert watched.asked_ns(0) == 0
    assert near(watched.asked_ns(10), work_ns())


def test_figures_are_empty_before_the_first_policy() -> None:
    assert DemandObserver().collect(Scheduler().summary(), Instant(5)) == ()


def test_figures_follow_endpoint_changes_in_a_real_scheduler() -> None:
    watched = Watched(*ready("e1"), *ready("e2"), *ready("e3"))
    watched.tell(1, arrived("a"), arrived("b"), arrived("c"), unreadied("e2"), leaving("e3"))
    found = watched.figures(10)[PoolName("p")]

    assert (found.ready, found.warming, found.draining) == (1, 1, 1)
    assert found.kv_tokens_used == 2 * PROMPT
    assert isinstance(watched.demand._rules.pools[PoolName("p")], Pool)


# Between two periods


def test_peek_uses_a_full_period_and_does_not_reset_the_counts() -> None:
    """Over the short time since the last period, a single request would look like a burst."""
    watched = Watched(*ready("e"))
    watched.figures(10)
    watched.tell(10, arrived("r"))
    glanced = {each.pool: each for each in watched.demand.peek(watched.scheduler.summary(), at(10.1), duration(10))}

    assert near(glanced["p"].demand_ppm * 10 * 1_000, work_ns())
    assert near(watched.asked_ns(20), work_ns())


# Pools without endpoints


def with_a_pool_that_may_be_empty() -> Policy:
    """Returns a policy with the pool "own" and the pool "rented", which starts an endpoint on demand."""
    patient = replace(a_class("interactive", queue_wait=20), cold_start_wait_ns_max=duration(100))
    pools = (a_pool("own"), replace(a_pool("rented"), hold_max=9))
    return a_policy(classes=(patient,), pools=pools, models=(a_model("m", "own", "rented"),))


def test_demand_is_counted_for_the_startable_pool_if_no_pool_is_ready() -> None:
    watched = Watched(joined("dead", pool="own"), policy=with_a_pool_that_may_be_empty())
    watched.tell(1, arrived("a"))

    figures = watched.figures(10)

    assert figures["own"].demand_ppm == figures["own"].backlog_ns == 0
    assert figures["rented"].demand_ppm > 0
    assert figures["rented"].backlog_ns > 0, "held requests are part of the backlog"
    assert figures["rented"].ttft_ns == duration(20)


def test_demand_is_counted_for_the_ready_pool_rather_than_the_startable_one() -> None:
    watched = Watched(*ready("e1", pool="own", places=1), policy=with_a_pool_that_may_be_empty())
    watched.tell(1, arrived("a"), arrived("b"))

    figures = watched.figures(10)

    assert figures["own"].backlog_ns > 0
    assert figures["rented"].demand_ppm == figures["rented"].backlog_ns == 0


# Attainment


WITH_TARGET = a_policy(classes=(replace(a_class(queue_length_max=1), ttft_ns=duration(2)),))


def attainment(watched: Watched, second: float, pool: str = "p") -> tuple[int, int]:
    """Returns how many requests had a target in the period that ends here, and how many of those missed it."""
    found = watched.figures(second)[pool]
    return found.judged, found.missed


def test_first_token_is_compared_with_the_class_target() -> None:
    watched = Watched(*ready("e1"), policy=WITH_TARGET)
    watched.tell(1, arrived("a"), arrived("b"))
    watched.tell(3, first_token("a"))
    watched.tell(3.1, first_token("b"), first_token("b"), first_token("unknown"))

    assert attainment(watched, 10) == (2, 1)
    assert attainment(watched, 20) == (0, 0)


def test_first_token_reported_with_the_end_is_compared_with_the_class_target() -> None:
    watched = Watched(*ready("e1"), policy=WITH_TARGET)
    watched.tell(1, arrived("a"), arrived("b"))
    watched.tell(3.1, completed("a", first_token=True), completed("b"))

    assert attainment(watched, 10) == (1, 1)


def test_requests_without_a_target_and_non_streaming_requests_are_not_evaluated() -> None:
    untargeted = Watched(*ready("e1"))
    untargeted.tell(1, arrived("a"))
    untargeted.tell(9, first_token("a"))
    assert attainment(untargeted, 10) == (0, 0)

    whole = Watched(*ready("e1"), policy=WITH_TARGET)
    whole.tell(1, arrived("a", stream=False))
    whole.tell(9, first_token("a"))
    assert attainment(whole, 10) == (0, 0)


def test_response_that_is_not_streamed_is_compared_with_the_e2e_target() -> None:
    classes = (replace(a_class(queue_length_max=1), e2e_ns=duration(2)),)
    watched = Watched(*ready("e1", places=1), policy=a_policy(classes=classes))
    watched.tell(1, arrived("a", stream=False))
    watched.tell(2, first_token("a", delivered=False))
    watched.tell(2.5, completed("a", tokens=5))
    watched.tell(3, arrived("b", stream=False))
    watched.tell(6, completed("b", first_token=True))
    assert attainment(watched, 10) == (2, 1)

    watched.tell(11, *(arrived(name, stream=False) for name in names(5)))
    assert attainment(watched, 20) == (3, 3), "one request runs and one is queued"


def test_request_rejected_for_lack_of_capacity_is_counted_as_a_missed_target() -> None:
    watched = Watched(*ready("e1", places=1), policy=WITH_TARGET)
    watched.tell(1, *(arrived(name) for name in names(5)))
    judged, missed = attainment(watched, 2)
    assert judged == missed == 3, "one request runs and one is queued"

    watched.tell(60, client_disconnected("r0"))
    assert attainment(watched, 70) == (1, 1), "the queued request has expired"


def test_rejected_request_for_a_removed_model_is_not_evaluated() -> None:
    watched = Watched(*ready("e1"), policy=WITH_TARGET)
    watched.demand.observe(arrived("a"), [], at(1))
    watched.tell(2, policy_changed(replace(WITH_TARGET, models=())))
    watched.demand.observe(TimerFired(), [end("a", Outcome.QUEUE_TIMEOUT)], at(60))

    assert attainment(watched, 70) == (0, 0)


def test_only_rejections_caused_by_capacity_are_evaluated() -> None:
    empty = Watched(policy=WITH_TARGET)
    empty.tell(1, arrived("a"))

    assert attainment(empty, 10) == (0, 0)


def test_retried_request_is_not_evaluated() -> None:
    policy = replace(WITH_TARGET, retry=RetryRules(credit_per_first_attempt=100))
    watched = Watched(*ready("e1"), *ready("e2"), policy=policy)
    watched.tell(1, arrived("a"))
    watched.tell(8, failed("a"))
    watched.tell(9, first_token("a", 2))

    assert attainment(watched, 10) == (0, 0)


def test_held_request_is_not_evaluated() -> None:
    patient = replace(a_class(), ttft_ns=duration(2), cold_start_wait_ns_max=duration(300))
    held = a_policy(classes=(patient,), pools=(replace(a_pool(), hold_max=5),))
    watched = Watched(policy=held)
    watched.tell(1, arrived("a"))
    watched.tell(100, *ready("e1"))
    watched.tell(101, first_token("a"))

    assert attainment(watched, 110) == (0, 0)


def test_copies_for_mirrors_are_no_demand() -> None:
    own, candidate = PoolName("p"), PoolName("candidate")
    route = ModelRoute("r", (own,), mirror=RouteMirror((candidate,)))
    model = Model(ModelName("m"), (own,), routes=(route,))
    watched = Watched(*ready("e1", pool="candidate"), policy=a_policy(pools=(own, candidate), models=(model,)))
    ticket = arrived("a-mirror", MIRROR_TENANT).ticket
    copy = replace(ticket, requested_class=ClassName("interactive"), mirror_route="r")
    watched.tell(1, RequestArrived(copy))

    assert watched.asked_ns(10, "candidate") == 0


def test_overflowed_request_is_demand_for_its_own_pool() -> None:
    own, cloud = PoolName("p"), PoolName("cloud")
    model = Model(ModelName("m"), (own,), overflow=Overflow((cloud,), duration(1)))
    policy = a_policy(pools=(Pool(own), Pool(cloud, hosted=True)), models=(model,))
    watched = Watched(joined("e1"), *ready("e2", pool="cloud"), policy=policy)
    watched.tell(1, arrived("a"))

    assert [each.in_flight for each in watched.scheduler.summary().endpoints] == [0, 1]
    assert watched.asked_ns(10) > 0
