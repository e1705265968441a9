"""Tests for e2e targets: the time from the arrival of a request to the end of its response."""

from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import EndpointReady, Event, TimerFired
from headgate.core.hedging import SAMPLES_MIN
from headgate.core.request_state import Request
from headgate.core.routing.response_times import PERCENT_MAX, ResponseTimes
from headgate.core.routing.response_times import SAMPLES_MIN as MEASURED_MIN
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    HeadroomRules,
    HealthRules,
    Policy,
    Pool,
    RetryRules,
    ServiceClass,
    SheddingRules,
)
from headgate.model.ticket import Api
from headgate.model.units import Duration, EndpointId, PoolName, RequestId
from testing.builders import (
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    first_token,
    joined,
    only_end,
    policy_changed,
    progressed,
    readied,
)
from testing.takeover_reports import a_successor, running_report, waiting_report

RANKING = replace(a_class("ranking"), e2e_ns=duration(1))
CHAT = a_class("chat")
SHORT_PROMPT_S = 0.081470156
"""Time to first token of a prompt of 100 bytes on a busy endpoint, in seconds."""
TOKEN_S = 0.02
"""Assumed time per further token, in seconds."""
RICH = RetryRules(credit_burst=100_000, pool_retries_min=1_000)


def ranking(request: str, **ticket: object) -> Event:
    event = arrived(request, stream=False, service_class="ranking", **ticket)  # type: ignore[arg-type]
    return replace(event, ticket=replace(event.ticket, api=Api.RERANK))


def chat(request: str, *, service_class: str = "ranking", **ticket: object) -> Event:
    return arrived(request, stream=False, service_class=service_class, **ticket)  # type: ignore[arg-type]


def with_targets(*classes: ServiceClass, percent_max: int | None = None, **options: object) -> Policy:
    """Returns a policy without degradation that, by default, rejects no requests because of their estimated wait."""
    policy = a_policy(classes=classes or (RANKING, CHAT), **options)  # type: ignore[arg-type]
    return replace(policy, degradation=DegradationRules(enabled=False), admission=AdmissionRules(percent_max))


def a_busy_scheduler(*classes: ServiceClass, **options: object) -> Scheduler:
    """Returns a scheduler whose only slot is occupied."""
    scheduler = a_scheduler(policy=with_targets(*classes, **options))
    commands_for(scheduler, at(0), arrived("runs", service_class=(classes or (RANKING, CHAT))[-1].name))
    return scheduler


def expiry(scheduler: Scheduler) -> End:
    moment = scheduler.next_wakeup()
    assert moment is not None
    return only_end(scheduler.handle(TimerFired(), moment))


def sent_order(scheduler: Scheduler, running: str, count: int) -> list[str]:
    """Completes the running request and then each request that is sent, and returns their order."""
    found: list[str] = []
    for _ in range(count):
        [sent] = [each for each in scheduler.handle(completed(running), at(0)) if isinstance(each, Dispatch)]
        found.append(running := sent.request_id)
    return found


def endpoint_of(commands: list[Command]) -> str:
    [sent] = [each for each in commands if isinstance(each, Dispatch)]
    return sent.endpoint_id


# Waiting


def test_ranking_expires_once_it_can_no_longer_complete_in_time() -> None:
    scheduler = a_busy_scheduler()
    commands_for(scheduler, at(0), ranking("waits"))

    assert scheduler.next_wakeup() == at(1 - SHORT_PROMPT_S)
    ended = expiry(scheduler)
    assert ended.outcome is Outcome.QUEUE_TIMEOUT
    assert ended.reason == (
        'waited 0.919 s and can no longer meet the e2e target of class "ranking" (1 s, of which the response needs '
        "about 0.0815 s)"
    )


def test_predicted_length_of_the_response_shortens_the_wait() -> None:
    scheduler = a_busy_scheduler(replace(RANKING, e2e_ns=duration(10)), CHAT)
    commands_for(scheduler, at(0), chat("waits"))

    assert scheduler.next_wakeup() == at(10 - SHORT_PROMPT_S - 149 * TOKEN_S)


def test_predicted_length_of_the_response_takes_at_most_a_part_of_the_target() -> None:
    scheduler = a_busy_scheduler()
    commands_for(scheduler, at(0), chat("waits"))

    assert scheduler.next_wakeup() == at(1 - 0.9)


def test_prompt_that_takes_longer_than_the_target_does_not_wait() -> None:
    scheduler = a_busy_scheduler(replace(RANKING, e2e_ns=duration(0.05)), CHAT)

    assert only_end(commands_for(scheduler, at(0), ranking("waits"), TimerFired())).outcome in (
        Outcome.QUEUE_TIMEOUT,
        Outcome.DEADLINE_INFEASIBLE,
    )


def test_estimates_do_not_shorten_the_wait_while_speeds_are_learned() -> None:
    scheduler = a_busy_scheduler(pools=(replace(a_pool(), speed_assumed=True),))
    commands_for(scheduler, at(0), ranking("waits"))

    assert scheduler.next_wakeup() == at(1)
    assert "of which the response needs about 0" in expiry(scheduler).reason


def test_queue_wait_limits_the_wait_if_it_is_shorter_than_the_target() -> None:
    scheduler = a_busy_scheduler(replace(RANKING, queue_wait_ns_max=duration(0.5)), CHAT)
    commands_for(scheduler, at(0), ranking("waits"))

    assert expiry(scheduler).reason == 'waited 0.5 s, the maximum in class "ranking"'


def test_earlier_deadline_of_the_caller_replaces_the_target() -> None:
    scheduler = a_busy_scheduler()
    commands_for(scheduler, at(0), ranking("waits", complete_within=0.5))

    assert scheduler.next_wakeup() == at(0.5 - SHORT_PROMPT_S)
    assert "the caller's deadline for the complete response (0.5 s)" in expiry(scheduler).reason


def test_later_deadline_of_the_caller_does_not_extend_the_target() -> None:
    scheduler = a_busy_scheduler()
    commands_for(scheduler, at(0), ranking("waits", complete_within=5))

    assert scheduler.next_wakeup() == at(1 - SHORT_PROMPT_S)


def test_earlier_ttft_target_of_a_stream_is_decisive() -> None:
    scheduler = a_busy_scheduler(replace(RANKING, ttft_ns=duration(0.5)), CHAT)
    event = ranking("waits")
    assert hasattr(event, "ticket")
    commands_for(scheduler, at(0), replace(event, ticket=replace(event.ticket, stream=True)))

    assert scheduler.next_wakeup() == at(0.5 - SHORT_PROMPT_S)
    assert 'the TTFT target of class "ranking" (0.5 s)' in expiry(scheduler).reason


def test_request_that_would_wait_too_long_for_its_target_is_rejected_on_arrival() -> None:
    scheduler = a_busy_scheduler(percent_max=100)
    commands = commands_for(scheduler, at(0), *(chat(f"c{number}") for number in range(12)))

    rejected = [each for each in commands if isinstance(each, End)]
    assert rejected
    assert {each.outcome for each in rejected} == {Outcome.DEADLINE_INFEASIBLE}
    patient = a_busy_scheduler(replace(RANKING, e2e_ns=None), CHAT, percent_max=100)
    assert commands_for(patient, at(0), *(chat(f"c{number}") for number in range(12))) == []


def test_target_is_measured_from_when_an_endpoint_serves() -> None:
    empty = replace(a_pool(), hold_max=3, cold_start_ns=duration(40))
    held = replace(RANKING, cold_start_wait_ns_max=duration(100))
    scheduler = a_scheduler_without_endpoints(with_targets(held, replace(held, name="other"), pools=(empty,)))
    commands_for(scheduler, at(0), arrived("first", service_class="other"), ranking("waits"))
    commands_for(scheduler, at(50), joined("e1"), EndpointReady(EndpointId("e1")))

    waiting = scheduler._state.requests.by_id[RequestId("waits")]
    assert waiting.e2e_target == at(51)


# Order


def test_request_with_the_earliest_latest_first_token_is_served_first() -> None:
    slow, quick = (replace(a_class(name), e2e_ns=duration(e2e)) for name, e2e in (("slow", 20), ("quick", 10)))
    scheduler = a_busy_scheduler(slow, quick, CHAT)
    commands_for(
        scheduler,
        at(0),
        chat("no target", service_class="chat"),
        chat("slow", service_class="slow"),
        chat("quick", service_class="quick"),
        chat("hurried", service_class="quick", first_token_within=5),
    )

    assert sent_order(scheduler, "runs", 4) == ["hurried", "quick", "slow", "no target"]


def test_longer_response_is_served_first_if_targets_are_equal() -> None:
    scheduler = a_busy_scheduler(replace(RANKING, e2e_ns=duration(20)), CHAT)
    commands_for(scheduler, at(0), ranking("ranks"), chat("generates"))

    assert sent_order(scheduler, "runs", 2) == ["generates", "ranks"]


# Measured times


def teach_response_time(scheduler: Scheduler, took_s: float, *, count: int = MEASURED_MIN) -> None:
    for number in range(count):
        commands_for(scheduler, at(number), ranking(f"taught {number}"))
        commands_for(scheduler, at(number + took_s), completed(f"taught {number}"))


def test_measured_response_time_replaces_the_prediction_for_rankings() -> None:
    scheduler = a_scheduler(policy=with_targets())
    teach_response_time(scheduler, 0.5)
    commands_for(scheduler, at(100), arrived("runs", service_class="chat"), ranking("waits"))

    percent = round(100 * 0.5 / SHORT_PROMPT_S - 0.5)
    needs = round(percent * SHORT_PROMPT_S * 1e7) / 1e9
    waiting = scheduler._state.requests.by_id[RequestId("waits")]
    assert waiting.service_ns == pytest.approx(needs * 1e9, abs=1e6)
    assert scheduler.next_wakeup() == at(101) - waiting.service_ns


def test_measured_response_time_applies_while_speeds_are_learned() -> None:
    scheduler = a_scheduler(policy=with_targets(pools=(replace(a_pool(), speed_assumed=True),)))
    teach_response_time(scheduler, 0.02)
    commands_for(scheduler, at(100), arrived("runs", service_class="chat"), ranking("waits"))

    assert scheduler._state.requests.by_id[RequestId("waits")].service_ns == pytest.approx(0.02e9, rel=0.05)


def test_measured_response_time_takes_at_most_a_part_of_the_target() -> None:
    scheduler = a_scheduler(policy=with_targets())
    teach_response_time(scheduler, 0.99)
    commands_for(scheduler, at(100), arrived("runs", service_class="chat"), ranking("waits"))

    assert scheduler.next_wakeup() == at(100.1)


def test_generated_responses_are_not_measured() -> None:
    scheduler = a_scheduler(policy=with_targets())
    for number in range(2 * MEASURED_MIN):
        commands_for(scheduler, at(number), chat(f"r{number}"))
        commands_for(scheduler, at(number + 0.5), completed(f"r{number}"))

    assert scheduler._state.fleet.pools[PoolName("p")].response_times.percent is None


def test_response_times_weigh_older_responses_less() -> None:
    times = ResponseTimes()
    for _ in range(1_000):
        times.learn(measured_ns=10, predicted_ns=10)
    assert times.percent == 100
    for _ in range(200):
        times.learn(measured_ns=30, predicted_ns=10)
    assert times.percent is not None
    assert times.percent > 250


def test_response_time_of_a_prompt_without_predicted_time_is_bounded() -> None:
    times = ResponseTimes()
    for _ in range(MEASURED_MIN):
        times.learn(measured_ns=10**12, predicted_ns=0)
    assert times.percent == PERCENT_MAX


# Endpoints


def test_ranking_prefers_the_endpoint_that_was_measured_to_be_faster() -> None:
    endpoints = an_endpoint("e1", places=4), an_endpoint("e2", places=4)
    scheduler = a_scheduler(*endpoints, policy=with_targets())
    fleet = scheduler._state.fleet
    for _ in range(MEASURED_MIN):
        for name, took_ns in (("e1", 300), ("e2", 100)):
            fleet.endpoints[EndpointId(name)].response_times.learn(measured_ns=took_ns, predicted_ns=100)

    sent = scheduler.handle(ranking("r"), at(1))
    assert endpoint_of(sent) == "e2"
    assert isinstance(sent[0], Dispatch)
    assert dict(sent[0].costs)["measured_response"] < 0
    needs = "of which the response needs about 0.163 s"
    assert sent[0].reason.endswith(f'; decisive: the e2e target of class "ranking" (1 s, {needs})')


def a_scheduler_with_a_busy_endpoint() -> Scheduler:
    """Returns a scheduler with an endpoint "decodes" that decodes many responses and one "prefills" with a prompt."""
    health = HealthRules(stall_ns_max=duration(1_000))
    scheduler = a_scheduler(an_endpoint("decodes", places=100), policy=with_targets(health=health))
    for number in range(40):
        commands_for(scheduler, at(0), arrived(f"s{number}", service_class="chat"), first_token(f"s{number}"))
    commands_for(scheduler, at(0), joined("prefills", places=100), readied("prefills"))
    sent = scheduler.handle(arrived("prompt", service_class="chat", prompt_bytes=1_200), at(60))
    assert endpoint_of(sent) == "prefills"
    return scheduler


def test_ranking_goes_to_the_endpoint_that_computes_its_prompt_first() -> None:
    scheduler = a_scheduler_with_a_busy_endpoint()

    assert endpoint_of(scheduler.handle(ranking("r"), at(60))) == "decodes"


def test_long_response_goes_to_the_endpoint_that_completes_it_first() -> None:
    scheduler = a_scheduler_with_a_busy_endpoint()

    [sent] = scheduler.handle(chat("r"), at(60))
    assert isinstance(sent, Dispatch)
    assert sent.endpoint_id == "prefills"
    assert dict(sent.costs)["later_tokens"] > 0


def test_long_response_without_a_target_goes_to_the_least_loaded_endpoint() -> None:
    scheduler = a_scheduler_with_a_busy_endpoint()

    assert endpoint_of(scheduler.handle(chat("r", service_class="chat"), at(60))) == "decodes"


def test_request_with_a_target_waits_if_no_endpoint_has_capacity() -> None:
    scheduler = a_busy_scheduler()

    assert commands_for(scheduler, at(0), ranking("waits")) == []


# Long prompts


def long_prompts(*classes: ServiceClass, pool: Pool | None = None, headroom: HeadroomRules | None = None) -> object:
    policy = with_targets(*classes, pools=(pool or a_pool(),))
    return Rules(policy if headroom is None else replace(policy, headroom=headroom), "h").long_prompts


def test_prompt_that_takes_half_of_the_strictest_target_counts_as_long() -> None:
    strict, loose = (replace(RANKING, e2e_ns=duration(e2e)) for e2e in (0.3, 0.4))

    assert long_prompts(strict, loose, CHAT) == {"p": 5_000}
    assert long_prompts(loose, strict, CHAT) == {"p": 5_000}


@pytest.mark.parametrize(
    ("classes", "pool"),
    [
        ((CHAT,), a_pool()),
        ((replace(RANKING, e2e_ns=duration(10)),), a_pool()),
        ((replace(RANKING, e2e_ns=duration(0.3)),), replace(a_pool(), speed_assumed=True)),
        ((replace(RANKING, e2e_ns=duration(0.3), pools=(PoolName("q"),)),), a_pool()),
    ],
    ids=["no target", "loose target", "assumed speed", "another pool"],
)
def test_long_prompts_have_the_usual_length_without_a_strict_target(
    classes: tuple[ServiceClass, ...], pool: Pool
) -> None:
    assert long_prompts(*classes, pool=pool) == {}


def test_prompt_that_fits_into_one_step_is_never_long() -> None:
    assert long_prompts(replace(RANKING, e2e_ns=duration(0.01))) == {"p": 2_048}


def test_long_prompts_of_neighbours_leave_an_endpoint_to_rankings() -> None:
    endpoints = an_endpoint("e1", places=4), an_endpoint("e2", places=4)
    strict = replace(RANKING, e2e_ns=duration(0.3))
    neighbours = [arrived(f"n{number}", service_class="chat", prompt_bytes=24_000) for number in range(2)]
    scheduler = a_scheduler(*endpoints, policy=with_targets(strict, CHAT))

    assert [each.request_id for each in commands_for(scheduler, at(0), *neighbours) if isinstance(each, Dispatch)] == [
        "n0"
    ]
    assert endpoint_of(scheduler.handle(ranking("r"), at(0))) == "e2"
    without = a_scheduler(*endpoints, policy=with_targets(replace(strict, e2e_ns=None), CHAT))
    assert len([each for each in commands_for(without, at(0), *neighbours) if isinstance(each, Dispatch)]) == 2


def test_long_prompt_with_the_target_itself_does_not_use_the_lane() -> None:
    endpoints = an_endpoint("e1", places=4), an_endpoint("e2", places=4)
    scheduler = a_scheduler(*endpoints, policy=with_targets(replace(RANKING, e2e_ns=duration(0.3)), CHAT))
    commands_for(scheduler, at(0), arrived("n", service_class="chat", prompt_bytes=24_000))

    assert endpoint_of(scheduler.handle(ranking("r", prompt_bytes=24_000), at(0))) == "e2"


# Hedging

HEDGED = replace(RANKING, hedging=True, e2e_ns=duration(5))
USUAL_S, SOON_S = 0.1, 0.104
"""Usual time to the response, and its 95th percentile at the resolution of the histogram, in seconds."""


def a_hedging_scheduler(*classes: ServiceClass) -> Scheduler:
    endpoints = an_endpoint("e1", places=4), an_endpoint("e2", places=4)
    scheduler = a_scheduler(*endpoints, policy=with_targets(*(classes or (HEDGED, CHAT)), retry=RICH))
    for number in range(SAMPLES_MIN):
        start = float(number)
        commands_for(scheduler, at(start), ranking(f"taught {number}"))
        # A report of progress does not end the wait of a caller that does not stream.
        commands_for(scheduler, at(start + 0.05), first_token(f"taught {number}", delivered=False))
        commands_for(scheduler, at(start + 0.05), progressed(f"taught {number}"))
        commands_for(scheduler, at(start + USUAL_S), completed(f"taught {number}", first_token=True))
    return scheduler


def hedges(scheduler: Scheduler, now: float) -> list[Dispatch]:
    return [each for each in scheduler.handle(TimerFired(), at(now)) if isinstance(each, Dispatch)]


def test_response_that_is_not_streamed_is_hedged_by_the_usual_time_to_its_end() -> None:
    scheduler = a_hedging_scheduler()
    first = endpoint_of(scheduler.handle(ranking("r"), at(1_000)))

    assert hedges(scheduler, 1_000 + SOON_S - 0.002) == []
    [hedge] = hedges(scheduler, 1_000 + SOON_S + 0.001)
    assert hedge.hedge
    assert hedge.endpoint_id != first

    commands = scheduler.handle(completed("r", 2, first_token=True), at(1_000.2))
    assert [each.attempt for each in commands if isinstance(each, Abort)] == [1]
    assert [each.outcome for each in commands if isinstance(each, End)] == [Outcome.COMPLETED]


def test_response_that_is_not_streamed_is_not_hedged_without_a_target() -> None:
    scheduler = a_hedging_scheduler(replace(HEDGED, e2e_ns=None), CHAT)
    scheduler.handle(ranking("r"), at(1_000))

    assert hedges(scheduler, 1_010) == []


def test_usual_response_times_of_removed_classes_are_forgotten() -> None:
    scheduler = a_hedging_scheduler()
    hedging = scheduler._state.hedging
    assert len(hedging._responses) == 1
    commands_for(scheduler, at(1_000), policy_changed(with_targets(HEDGED, CHAT, retry=RICH)))
    assert len(hedging._responses) == 1
    commands_for(scheduler, at(1_000), policy_changed(with_targets(RANKING, CHAT, retry=RICH)))
    assert len(hedging._responses) == 0


# Overload and takeover


def a_request(service_class: ServiceClass, **ticket: object) -> Request:
    event = ranking("r", **ticket)
    assert hasattr(event, "ticket")
    return Request(event.ticket, service_class, (PoolName("p"),), 1, at(0))


@pytest.mark.parametrize(
    ("ttft", "e2e", "later", "expected"),
    [(None, None, 0, None), (2, None, 0, 2), (None, 10, 4, 6), (2, 10, 4, 2), (8, 10, 4, 6)],
)
def test_overload_is_measured_against_the_stricter_target(
    ttft: float | None, e2e: float | None, later: float, expected: float | None
) -> None:
    service_class = replace(
        RANKING,
        ttft_ns=None if ttft is None else duration(ttft),
        e2e_ns=None if e2e is None else duration(e2e),
    )
    request = a_request(service_class)
    request.set_service_time(Duration(0), duration(later))

    assert request.overload_ttft_ns == (None if expected is None else duration(expected))


@pytest.mark.parametrize(
    ("ttft", "e2e", "expected"), [(None, None, None), (2, None, 2), (None, 10, 10), (2, 10, 2), (20, 10, 10)]
)
def test_latency_target_of_a_class_is_the_stricter_one(
    ttft: float | None, e2e: float | None, expected: float | None
) -> None:
    service_class = replace(
        RANKING,
        ttft_ns=None if ttft is None else duration(ttft),
        e2e_ns=None if e2e is None else duration(e2e),
    )

    assert service_class.latency_target_ns == (None if expected is None else duration(expected))


def test_minimum_share_is_measured_against_the_target() -> None:
    classes = (CHAT, replace(RANKING, band=1, min_share_percent=50))
    policy = replace(with_targets(*classes), shedding=SheddingRules(enabled=True))
    state = a_scheduler(policy=policy)._state
    request = a_request(classes[1])
    request.work_key = ((PoolName("p"),), 1, False)
    queue, overload = state.queue, state.overload

    assert overload._is_within_min_share(request, queue.backlog, state.fleet)
    request.cost_ns = duration(0.6)
    queue.backlog.work.add(request)
    assert not overload._is_within_min_share(request, queue.backlog, state.fleet)


def test_target_is_removed_with_that_of_the_class() -> None:
    request = a_request(RANKING)
    request.service_class = CHAT
    request.set_e2e_target(at(1))

    assert (request.e2e_ns, request.e2e_target) == (None, None)


def test_new_scheduler_keeps_the_target_of_a_waiting_request() -> None:
    scheduler = a_successor(policy=with_targets(replace(RANKING, e2e_ns=duration(20)), CHAT))
    commands_for(scheduler, at(0), joined("e1"), readied("e1"), running_report("runs", service_class="chat"))
    report = waiting_report("waits", waited=0.2, service_class="ranking", stream=False)
    commands_for(scheduler, at(0), report)

    assert scheduler._state.requests.by_id[RequestId("waits")].e2e_target == at(19.8)


def test_new_scheduler_does_not_count_hold_time_towards_the_target() -> None:
    scheduler = a_successor(policy=with_targets())
    commands_for(scheduler, at(0), joined("e1"), readied("e1"))
    report = running_report("r", service_class="ranking", held=5, age=5.5, stream=False)
    commands_for(scheduler, at(0), report)

    assert scheduler._state.requests.by_id[RequestId("r")].e2e_target == at(0.5)
