"""Rate limits of hosted providers: an endpoint with nothing left receives nothing until its reset."""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import AttemptEnded, EndpointJoined, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, Pool, RetryRules
from headgate.model.provider_limits import ProviderLimits
from headgate.model.units import ModelName, PoolName
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    endpoint_summary,
    failed,
    first_token,
    leaving,
    readied,
)

HOSTED: Policy = a_policy(pools=(Pool(PoolName("p"), hosted=True),), retry=RetryRules(attempts_max=9))


def hosted_scheduler(*names: str, places: int = 9) -> Scheduler:
    return a_scheduler(*(an_endpoint(name, places=places) for name in names or ("e1",)), policy=HOSTED)


def rejected(request: str, *, wait: float = 5, attempt: int = 1) -> AttemptEnded:
    """The end of an attempt that the provider has rejected because of its rate."""
    limits = ProviderLimits(blocked_ns=duration(wait))
    return replace(failed(request, attempt, "status 429", fault=Fault.UNAVAILABLE), limits=limits)


def sent(commands: list[Command]) -> list[tuple[str, str]]:
    return [(each.request_id, each.endpoint_id) for each in commands if isinstance(each, Dispatch)]


def fire(scheduler: Scheduler, until: float) -> list[Command]:
    out: list[Command] = []
    while (due := scheduler.next_wakeup()) is not None and due <= at(until):
        out += scheduler.handle(TimerFired(), due)
    return out


def test_endpoint_receives_no_more_requests_than_the_provider_accepts() -> None:
    scheduler = hosted_scheduler()
    commands_for(scheduler, at(0), arrived("a"))
    limits = ProviderLimits(requests_left=2, requests_reset_ns=duration(10))
    commands_for(scheduler, at(0), replace(first_token("a"), limits=limits))

    accepted = [sent(scheduler.handle(arrived(name), at(1))) for name in "bcd"]

    assert accepted == [[("b", "e1")], [("c", "e1")], []]
    assert fire(scheduler, 9.9) == []
    assert sent(fire(scheduler, 10)) == [("d", "e1")]


def test_endpoint_receives_nothing_once_the_tokens_are_spent() -> None:
    scheduler = hosted_scheduler()
    commands_for(scheduler, at(0), arrived("a"))
    limits = ProviderLimits(tokens_left=1, tokens_reset_ns=duration(3))
    commands_for(scheduler, at(0), replace(completed("a"), limits=limits))

    assert sent(scheduler.handle(arrived("b"), at(1))) == [("b", "e1")]
    assert sent(scheduler.handle(arrived("c"), at(1))) == []
    assert sent(fire(scheduler, 3)) == [("c", "e1")]


def test_rate_limited_endpoint_is_not_ejected_and_serves_again_after_the_wait() -> None:
    scheduler = hosted_scheduler()
    commands: list[Command] = []
    for number in range(6):
        commands += scheduler.handle(arrived(f"r{number}"), at(0))
    for number in range(6):
        commands += scheduler.handle(rejected(f"r{number}"), at(1))

    assert not [each for each in commands if isinstance(each, Eject | End)]
    summary = endpoint_summary(scheduler, "e1")
    assert (summary.quota_exhausted, summary.suspected, summary.state.value) == (True, False, "ready")
    assert fire(scheduler, 5.9) == []
    assert len(sent(fire(scheduler, 6))) == 6
    assert not endpoint_summary(scheduler, "e1").quota_exhausted


def test_rate_limited_request_goes_to_another_endpoint_at_once() -> None:
    scheduler = hosted_scheduler("e1", "e2")
    [(_, first)] = sent(scheduler.handle(arrived("a"), at(0)))

    [(_, second)] = sent(scheduler.handle(rejected("a"), at(1)))

    assert {first, second} == {"e1", "e2"}


def test_failures_without_a_rate_limit_still_eject_the_endpoint() -> None:
    scheduler = hosted_scheduler()
    commands = commands_for(scheduler, at(0), *(arrived(f"r{number}") for number in range(3)))
    for number in range(3):
        commands += scheduler.handle(failed(f"r{number}", detail="status 500"), at(1))

    assert [each.endpoint_id for each in commands if isinstance(each, Eject)] == ["e1"]


def test_request_that_cannot_wait_for_the_reset_ends_with_the_time_of_the_reset() -> None:
    scheduler = hosted_scheduler()
    commands_for(scheduler, at(0), arrived("a"))
    retried = scheduler.handle(rejected("a", wait=50), at(1))
    new = scheduler.handle(arrived("b"), at(2))

    ends = [each for each in (*retried, *new) if isinstance(each, End)]

    assert [(each.outcome, each.retry_after_ns) for each in ends] == [
        (Outcome.NO_ENDPOINTS, duration(50)),
        (Outcome.NO_ENDPOINTS, duration(49)),
    ]
    assert ends[1].reason == "the provider of pool p accepts no requests for another 49 s (rate limit)"


def test_request_waits_for_a_reset_that_comes_before_its_wait_limit() -> None:
    scheduler = hosted_scheduler()
    commands_for(scheduler, at(0), arrived("a"))
    commands_for(scheduler, at(1), rejected("a", wait=20), arrived("b"))

    assert sorted(sent(fire(scheduler, 21))) == [("a", "e1"), ("b", "e1")]


def test_request_goes_to_a_fallback_model_while_the_provider_is_rate_limited() -> None:
    pools = tuple(Pool(PoolName(name), hosted=True) for name in ("p", "q", "r"))
    names = [ModelName(each) for each in "mno"]
    models = (
        Model(names[0], (pools[0].name,), fallbacks=(names[1], names[2])),
        Model(names[1], (pools[1].name,)),
        Model(names[2], (pools[2].name,)),
    )
    scheduler = a_scheduler(
        *(an_endpoint(f"e-{pool.name}", pool=pool.name, places=9) for pool in pools),
        policy=replace(HOSTED, pools=pools, models=models),
    )
    commands_for(scheduler, at(0), arrived("a"), arrived("n", model="n"))
    # The rest of the tokens is reset before the rest of the requests.
    limits = ProviderLimits(0, duration(300), 0, duration(10))
    commands_for(scheduler, at(1), replace(completed("n"), limits=limits))

    assert sent(scheduler.handle(rejected("a", wait=300), at(1))) == [("a", "e-r")]
    assert sent(scheduler.handle(arrived("b"), at(2))) == [("b", "e-r")]


def test_request_waits_for_an_ejected_endpoint_if_the_other_is_rate_limited() -> None:
    scheduler = hosted_scheduler("e1")
    commands_for(scheduler, at(0), *(arrived(f"r{number}") for number in range(3)))
    commands_for(scheduler, at(0), EndpointJoined(an_endpoint("e2")), readied("e2"))
    commands = [each for number in range(3) for each in scheduler.handle(failed(f"r{number}"), at(1))]
    assert [each.endpoint_id for each in commands if isinstance(each, Eject)] == ["e1"]
    [(request, _)] = sent(commands)
    commands_for(scheduler, at(1), replace(rejected(request, wait=300), attempt=2))

    assert scheduler.handle(arrived("new"), at(1)) == []
    assert "e1" in [endpoint for _, endpoint in sent(fire(scheduler, 20))]


def test_limits_of_an_endpoint_that_has_left_are_ignored() -> None:
    scheduler = hosted_scheduler("e1", "e2")
    [(_, name)] = sent(scheduler.handle(arrived("a"), at(0)))
    commands_for(scheduler, at(1), leaving(name))
    commands_for(scheduler, at(2), rejected("a", wait=5))

    assert [each.id for each in scheduler.summary().endpoints] == [{"e1": "e2", "e2": "e1"}[name]]
    assert not [each for each in fire(scheduler, 100) if isinstance(each, End)]


def test_class_targets_and_prompt_lengths_do_not_limit_a_provider() -> None:
    """Only the number of requests in flight does: many other customers share the provider's engines."""
    own = a_scheduler(an_endpoint(places=9))
    hosted = hosted_scheduler()

    counts: list[int] = []
    for scheduler in (own, hosted):
        long = (arrived(f"r{number}", prompt_bytes=200_000) for number in range(5))
        counts.append(len(sent(commands_for(scheduler, at(0), *long))))

    assert counts == [1, 5]


def test_limits_of_an_endpoint_of_an_earlier_policy_are_ignored() -> None:
    earlier, current = hosted_scheduler(), hosted_scheduler()
    gone = earlier._state.fleet.endpoints["e1"]

    current._state.fleet.quotas.record(gone, ProviderLimits(blocked_ns=duration(5)), at(0))

    assert gone.quota is None
    assert sent(current.handle(arrived("a"), at(0))) == [("a", "e1")]
