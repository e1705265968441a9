"""How much engine time is counted as asked of each pool?"""

from collections.abc import Iterable
from dataclasses import replace

from headgate.core.autoscaling.autoscaler import Figures
from headgate.core.autoscaling.signal import REQUESTS_MAX, Demand
from headgate.core.cost import MEAN_BATCH, cost_ns
from headgate.core.events import AttemptEnded, AttemptEnding, Event, RequestArrived, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary, Summary, Waiting
from headgate.model.caps import Caps
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, Pool, RetryRules
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
    client_left,
    completed,
    dispatch,
    end,
    failed,
    first_token,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    unreadied,
)

SPEED = EngineSpeed()
PROMPT, ANSWER = 25, 150
"""What a builder's request is predicted to be, before anything was learned."""


def work_ns(*, batch: int = MEAN_BATCH, prompt: int = PROMPT, answer: int = ANSWER, cached: int = 0) -> int:
    return cost_ns(SPEED, prompt, answer, batch=batch, cached=cached)


class Watched:
    """A scheduler, and what is counted beside it."""

    def __init__(self, *events: Event, policy: Policy | None = None) -> None:
        self.scheduler, self.demand = Scheduler(), Demand()
        self.tell(0, policy_changed(policy or a_policy()), *events)

    def tell(self, second: float, *events: Event) -> None:
        for event in events:
            self.demand.saw(event, self.scheduler.handle(event, at(second)), at(second))

    def figures(self, second: float) -> dict[str, Figures]:
        return {each.pool: each for each in self.demand.figures(self.scheduler.summary(), at(second))}

    def asked_ns(self, second: float, pool: str = "p") -> int:
        """What was asked each second, in nanoseconds of one endpoint, over the ten seconds before this one."""
        return self.figures(second)[pool].demand_ppm * 10 * 1_000


def near(found: int, expected: int) -> bool:
    """Up to the millionths of an endpoint in which it is told."""
    return abs(found - expected) <= 10_000


def ready(name: str, *, places: int = 128, pool: str = "p") -> tuple[Event, ...]:
    return joined(name, pool=pool, places=places), readied(name)


def names(count: int) -> Iterable[str]:
    return (f"r{number}" for number in range(count))


def told_usage(request: str, *, prompt: int, output: int, cached: int = 0, attempt: int = 1) -> AttemptEnded:
    usage = Usage(prompt, output, cached, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage)


# What counts


def test_what_is_served_counts_by_what_it_is_predicted_to_take() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, *(arrived(name) for name in names(3)))

    assert near(watched.asked_ns(10), 3 * work_ns())
    assert watched.asked_ns(20) == 0


def test_a_request_may_count_for_several_or_be_passed_over_and_so_do_its_retries() -> None:
    watched = Watched(*ready("e1"), *ready("e2"), policy=a_policy(retry=RetryRules(credit_per_first_attempt=100)))
    for name, weight in (("a", 8), ("b", 0)):
        event = arrived(name)
        watched.demand.saw(event, watched.scheduler.handle(event, at(1)), at(1), weight=weight)
    assert near(watched.asked_ns(10), 8 * work_ns())

    watched.tell(11, failed("a"), failed("b"))

    assert near(watched.asked_ns(20), 8 * work_ns())


def test_what_waits_counts_once_when_it_arrives() -> None:
    watched = Watched(*ready("e1", places=1))
    watched.tell(1, arrived("a"), arrived("b"))
    assert near(watched.asked_ns(10), 2 * work_ns(batch=1))

    watched.tell(11, completed("a"))
    assert watched.asked_ns(20) == 0


def test_a_step_is_shared_among_no_more_than_an_endpoint_takes() -> None:
    watched = Watched(*ready("e1", places=4))
    watched.tell(1, arrived("a"))

    assert near(watched.asked_ns(10), work_ns(batch=4))
    assert work_ns(batch=4) > 10 * work_ns()


def test_what_is_refused_for_want_of_room_counts() -> None:
    policy = a_policy(classes=(a_class(queue_length_max=1),))
    watched = Watched(*ready("e1", places=1), policy=policy)
    watched.tell(1, *(arrived(name) for name in names(5)))

    assert near(watched.asked_ns(10), 5 * work_ns(batch=1))


def test_a_retry_that_is_refused_again_asks_for_nothing_more() -> None:
    policy = a_policy(classes=(a_class(queue_length_max=1),))
    watched = Watched(*ready("e1", places=1), policy=policy)
    watched.tell(1, *(arrived(name) for name in names(2)), arrived("again", client_retries=1))

    assert near(watched.asked_ns(10), 2 * work_ns(batch=1))


def test_what_nobody_can_serve_at_the_moment_counts_for_the_pool_that_would() -> None:
    watched = Watched()
    watched.tell(1, arrived("a"))

    assert near(watched.asked_ns(10), work_ns())


def test_what_is_refused_for_its_own_fault_does_not_count() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, arrived("a", tenant="nobody"), arrived("b", model="none"), arrived("c", service_class="none"))

    assert watched.asked_ns(10) == 0


def test_what_another_observer_would_refuse_is_not_counted_either() -> None:
    """The policy changed between the decision and this observer: what it does not know it does not count."""
    demand = Demand()
    demand.saw(arrived("a"), [end("a", Outcome.QUEUE_FULL)], at(0))
    demand.saw(policy_changed(a_policy()), [], at(1))

    assert [each.demand_ppm for each in demand.figures(Scheduler().summary(), at(10))] == [0]


def test_what_is_ordered_for_others_at_the_same_moment_is_theirs() -> None:
    watched = Watched(*ready("e1"))
    watched.demand.saw(arrived("a"), [end("b", Outcome.EXPIRED), dispatch("c")], at(1))

    assert near(watched.asked_ns(10), work_ns())


def test_a_further_attempt_is_more_work() -> None:
    watched = Watched(*ready("e1"), *ready("e2"))
    watched.tell(1, arrived("a"))
    watched.tell(2, failed("a"))

    assert near(watched.asked_ns(10), 2 * work_ns())


def test_what_one_caps_at_costs_no_more() -> None:
    policy = a_policy(classes=(a_class(caps=Caps(output_tokens=20, n=2)),))
    watched = Watched(*ready("e1"), policy=policy)
    asked = arrived("a").ticket
    watched.tell(1, RequestArrived(replace(asked, n=5)))
    assert near(watched.asked_ns(10), work_ns(answer=40))

    watched.tell(11, RequestArrived(replace(asked, request_id=RequestId("b"), output_tokens_max=7)))
    assert near(watched.asked_ns(20), work_ns(answer=7))


def test_as_many_answers_as_are_asked_for_count() -> None:
    policy = a_policy(classes=(a_class(caps=Caps(n=None)),))
    watched = Watched(*ready("e1"), policy=policy)
    watched.tell(1, RequestArrived(replace(arrived("a").ticket, n=3)))

    assert near(watched.asked_ns(10), work_ns(answer=3 * ANSWER))


# Where it counts


TWO_POOLS = a_policy(pools=("p", "q"))


def test_who_waits_for_several_pools_counts_by_how_many_endpoints_each_has() -> None:
    watched = Watched(*ready("e1", places=1), policy=TWO_POOLS)
    watched.tell(0, *(each for name in ("f1", "f2", "f3") for each in ready(name, places=1, pool="q")))
    watched.tell(0, *(arrived(name) for name in names(4)))
    watched.figures(10)
    watched.tell(11, *(arrived(f"w{number}") for number in range(8)))
    found = watched.figures(20)

    assert near(found[PoolName("p")].demand_ppm * 10_000, 2 * work_ns(batch=1))
    assert near(found[PoolName("q")].demand_ppm * 10_000, 6 * work_ns(batch=1))


def test_where_no_pool_has_any_the_first_is_asked() -> None:
    watched = Watched(policy=TWO_POOLS)
    watched.tell(1, arrived("a"))
    found = watched.figures(10)

    assert near(found[PoolName("p")].demand_ppm * 10_000, work_ns())
    assert found[PoolName("q")].demand_ppm == 0


def test_who_falls_back_counts_where_it_is_served_and_where_it_wanted_to_go() -> None:
    policy = a_policy(
        pools=("p", "q"),
        models=(Model(ModelName("m"), (PoolName("p"),), fallbacks=(ModelName("o"),)), a_model("o", "q")),
    )
    watched = Watched(*ready("f1", pool="q"), policy=policy)
    watched.tell(1, arrived("a"))
    found = watched.figures(10)

    assert found[PoolName("p")].demand_ppm == found[PoolName("q")].demand_ppm > 0


# What is learned


def test_lengths_are_learned_from_what_engines_say() -> None:
    watched = Watched(*ready("e1"))
    for name in names(600):
        watched.tell(1, arrived(name, prompt_bytes=200), told_usage(name, prompt=100, output=10))
    watched.figures(10)
    watched.tell(11, arrived("a", prompt_bytes=202))

    assert near(watched.asked_ns(20), work_ns(prompt=100, answer=10))


def test_what_engines_held_of_prompts_is_learned() -> None:
    watched = Watched(*ready("e1"))
    for name in names(20):
        watched.tell(1, arrived(name, prompt_bytes=4_000), told_usage(name, prompt=1_000, output=10, cached=400))
    watched.figures(10)
    watched.tell(11, arrived("a", prompt_bytes=4_000))

    assert near(watched.asked_ns(20), work_ns(prompt=1_000, answer=10, cached=400))


def test_what_was_held_is_forgotten_slowly() -> None:
    watched = Watched(*ready("e1"))
    for name in names(4):
        usage = told_usage(name, prompt=40_000_000, output=10, cached=99_000_000)
        watched.tell(1, arrived(name, prompt_bytes=160_000_000), usage)

    cached = watched.demand._cached[PoolName("p")]
    assert cached.tokens == cached.cached_tokens <= 100_000_000


def test_nothing_is_learned_from_what_was_estimated_or_did_not_end_well() -> None:
    watched = Watched(*ready("e1"))
    for name in names(20):
        estimated = Usage(9, 9, 0, UsageSource.ESTIMATED)
        ended = AttemptEnded(RequestId(name), 1, AttemptEnding.COMPLETED, usage=estimated)
        watched.tell(1, arrived(name), ended)
        watched.tell(1, arrived(f"{name}b"), completed(f"{name}b"), completed("unknown"))
    watched.figures(10)
    watched.tell(11, arrived("a"))

    assert near(watched.asked_ns(20), work_ns())


def test_nothing_is_remembered_of_a_request_that_has_ended() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, arrived("a"), arrived("b"), completed("a"), client_left("b"), aborted("b"))

    assert not watched.demand._open


def test_no_more_requests_are_remembered_than_one_process_holds() -> None:
    watched = Watched(*ready("e1"), policy=a_policy(retry=RetryRules(attempts_max=3)))
    watched.demand._open = dict.fromkeys(map(RequestId, map(str, range(REQUESTS_MAX))))  # type: ignore[assignment]
    watched.tell(1, arrived("a"))

    assert len(watched.demand._open) == REQUESTS_MAX
    assert near(watched.asked_ns(10), work_ns())


def test_a_pool_that_a_reload_took_away_is_forgotten() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(1, arrived("a"), told_usage("a", prompt=9, output=9))
    assert list(watched.demand._cached) == ["p"]
    watched.tell(2, policy_changed(a_policy(pools=("q",)), "h2"))

    assert list(watched.demand._cached) == []
    assert list(watched.figures(10)) == ["q"]


# What is there


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
    *endpoints: EndpointSummary, queued: dict[str, int] | None = None, waiting: tuple[Waiting, ...] = ()
) -> Summary:
    counts = {ClassName(name): count for name, count in (queued or {}).items()}
    return Summary("h1", counts, 0, endpoints, waiting=waiting)


def told_of(summary: Summary, policy: Policy | None = None) -> Figures:
    demand = Demand()
    demand.saw(policy_changed(policy or a_policy()), [], at(0))
    [figures] = demand.figures(summary, at(10))
    return figures


def test_endpoints_are_counted_by_their_state() -> None:
    summary = seen(
        an_endpoint_seen("a"),
        an_endpoint_seen("b", EndpointState.TRIAL),
        an_endpoint_seen("c", EndpointState.WARMING),
        an_endpoint_seen("d", EndpointState.EJECTED),
        an_endpoint_seen("e", leaving=True),
    )
    pool = replace(a_pool(), kv_tokens=5_000)

    assert told_of(summary, a_policy(pools=(pool,))) == Figures(
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


def test_a_scheduler_with_nothing_has_figures_of_nothing() -> None:
    assert told_of(Scheduler().summary()) == Figures(PoolName("p"), 0, 0, None, 0, None, 0, 0, 0)


def test_endpoints_that_are_slower_than_was_said_are_asked_for_more() -> None:
    demand, watched = Demand(), Watched(*ready("e1"))
    for event in (policy_changed(a_policy()), arrived("a")):
        demand.saw(event, watched.scheduler.handle(event, at(1)), at(0))
    [figures] = demand.figures(seen(an_endpoint_seen("a", percent=100), an_endpoint_seen("b", percent=300)), at(10))

    assert near(figures.demand_ppm * 10_000, 2 * work_ns())


def test_what_waits_counts_by_the_strictest_target_of_those_that_wait() -> None:
    quick, slow = replace(INTERACTIVE, ttft_ns=lasting(2)), replace(BATCH, ttft_ns=lasting(40))
    policy = a_policy(classes=(quick, slow))
    both = (Waiting((PoolName("p"),), 0, lasting(6)), Waiting((PoolName("p"),), 1, lasting(100)))

    told = told_of(seen(queued={"interactive": 3, "batch": 9}, waiting=both), policy)
    assert (told.backlog_ns, told.ttft_ns) == (lasting(6 + 5), lasting(2))
    told = told_of(seen(queued={"interactive": 0, "batch": 9}, waiting=both[1:]), policy)
    assert (told.backlog_ns, told.ttft_ns) == (lasting(100), lasting(40))


def test_a_class_without_a_target_has_as_long_as_it_may_wait() -> None:
    waits = (Waiting((PoolName("p"),), 0, lasting(6)),)
    told = told_of(seen(queued={"interactive": 3}, waiting=waits))

    assert (told.backlog_ns, told.ttft_ns) == (lasting(6), INTERACTIVE.queue_wait_ns_max)


def test_what_waits_in_a_band_of_which_no_class_is_known_is_not_counted() -> None:
    waits = (Waiting((PoolName("p"),), 7, lasting(6)),)

    assert told_of(seen(queued={"interactive": 3}, waiting=waits)).backlog_ns == 0


def test_asked_twice_at_one_moment_it_forgets_nothing() -> None:
    watched = Watched(*ready("e1"))
    watched.tell(0, arrived("a"))

    assert watched.asked_ns(0) == 0
    assert near(watched.asked_ns(10), work_ns())


def test_before_anything_has_happened_there_is_nothing_to_tell() -> None:
    assert Demand().figures(Scheduler().summary(), Instant(5)) == ()


def test_endpoints_that_come_and_go_are_seen_beside_a_real_scheduler() -> None:
    watched = Watched(*ready("e1"), *ready("e2"), *ready("e3"))
    watched.tell(1, arrived("a"), arrived("b"), arrived("c"), unreadied("e2"), leaving("e3"))
    found = watched.figures(10)[PoolName("p")]

    assert (found.ready, found.warming, found.draining) == (1, 1, 1)
    assert found.kv_tokens_used == 2 * PROMPT
    assert isinstance(watched.demand._rules.pools[PoolName("p")], Pool)


# Between two periods


def test_a_glance_takes_what_came_so_far_for_that_of_a_whole_period_and_forgets_nothing() -> None:
    """By the little time that has passed, a single request would look like a crowd."""
    watched = Watched(*ready("e"))
    watched.figures(10)
    watched.tell(10, arrived("r"))
    glanced = {each.pool: each for each in watched.demand.glance(watched.scheduler.summary(), at(10.1), lasting(10))}

    assert near(glanced["p"].demand_ppm * 10 * 1_000, work_ns())
    assert near(watched.asked_ns(20), work_ns())


# Pools that have no endpoint


def with_a_pool_that_may_be_empty() -> Policy:
    """The pool "own" has endpoints or should; "rented" has one when it is asked for."""
    patient = replace(a_class("interactive", queue_wait=20), start_wait_ns=lasting(100))
    pools = (a_pool("own"), replace(a_pool("rented"), hold_max=9))
    return a_policy(classes=(patient,), pools=pools, models=(a_model("m", "own", "rented"),))


def test_where_nobody_is_ready_the_pool_that_can_be_started_is_asked() -> None:
    watched = Watched(joined("dead", pool="own"), policy=with_a_pool_that_may_be_empty())
    watched.tell(1, arrived("a"))

    figures = watched.figures(10)

    assert figures["own"].demand_ppm == figures["own"].backlog_ns == 0
    assert figures["rented"].demand_ppm > 0
    assert figures["rented"].backlog_ns > 0, "who is held waits"
    assert figures["rented"].ttft_ns == lasting(20)


def test_where_one_is_ready_the_others_are_asked_as_ever() -> None:
    watched = Watched(*ready("e1", pool="own", places=1), policy=with_a_pool_that_may_be_empty())
    watched.tell(1, arrived("a"), arrived("b"))

    figures = watched.figures(10)

    assert figures["own"].backlog_ns > 0
    assert figures["rented"].demand_ppm == figures["rented"].backlog_ns == 0


# Attainment


WITH_TARGET = a_policy(classes=(replace(a_class(queue_length_max=1), ttft_ns=lasting(2)),))


def attainment(watched: Watched, second: float, pool: str = "p") -> tuple[int, int]:
    """Requests with a target in the period that ends here, and those of them that missed it."""
    found = watched.figures(second)[pool]
    return found.judged, found.missed


def test_first_token_is_compared_with_the_target_of_the_class() -> None:
    watched = Watched(*ready("e1"), policy=WITH_TARGET)
    watched.tell(1, arrived("a"), arrived("b"))
    watched.tell(3, first_token("a"))
    watched.tell(3.1, first_token("b"), first_token("b"), first_token("unknown"))

    assert attainment(watched, 10) == (2, 1)
    assert attainment(watched, 20) == (0, 0)


def test_class_without_a_target_and_whole_answers_are_not_judged() -> None:
    untargeted = Watched(*ready("e1"))
    untargeted.tell(1, arrived("a"))
    untargeted.tell(9, first_token("a"))
    assert attainment(untargeted, 10) == (0, 0)

    whole = Watched(*ready("e1"), policy=WITH_TARGET)
    whole.tell(1, arrived("a", stream=False))
    whole.tell(9, first_token("a"))
    assert attainment(whole, 10) == (0, 0)


def test_request_rejected_for_lack_of_capacity_misses_its_target() -> None:
    watched = Watched(*ready("e1", places=1), policy=WITH_TARGET)
    watched.tell(1, *(arrived(name) for name in names(5)))
    judged, missed = attainment(watched, 2)
    assert judged == missed == 3, "one runs and one waits"

    watched.tell(60, client_left("r0"))
    assert attainment(watched, 70) == (1, 1), "the waiting one has expired"


def test_rejected_request_of_a_model_that_the_policy_no_longer_has_is_not_judged() -> None:
    watched = Watched(*ready("e1"), policy=WITH_TARGET)
    watched.demand.saw(arrived("a"), [], at(1))
    watched.tell(2, policy_changed(replace(WITH_TARGET, models=())))
    watched.demand.saw(TimerFired(), [end("a", Outcome.EXPIRED)], at(60))

    assert attainment(watched, 70) == (0, 0)


def test_rejection_for_another_reason_than_capacity_is_not_judged() -> None:
    empty = Watched(policy=WITH_TARGET)
    empty.tell(1, arrived("a"))

    assert attainment(empty, 10) == (0, 0)


def test_request_that_needed_another_attempt_is_not_judged() -> None:
    policy = replace(WITH_TARGET, retry=RetryRules(credit_per_first_attempt=100))
    watched = Watched(*ready("e1"), *ready("e2"), policy=policy)
    watched.tell(1, arrived("a"))
    watched.tell(8, failed("a"))
    watched.tell(9, first_token("a", 2))

    assert attainment(watched, 10) == (0, 0)


def test_request_that_was_held_for_a_start_is_not_judged() -> None:
    patient = replace(a_class(), ttft_ns=lasting(2), start_wait_ns=lasting(300))
    held = a_policy(classes=(patient,), pools=(replace(a_pool(), hold_max=5),))
    watched = Watched(policy=held)
    watched.tell(1, arrived("a"))
    watched.tell(100, *ready("e1"))
    watched.tell(101, first_token("a"))

    assert attainment(watched, 110) == (0, 0)
