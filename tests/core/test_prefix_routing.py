"""Routing to endpoints that have a prompt's prefix cached."""

from dataclasses import replace
from typing import TypeGuard

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HeadroomRules, Policy, RoutingRules
from headgate.model.prefix import PREFIX_LENGTHS, pack_hashes, prefix_tokens, unpack_hashes
from headgate.model.units import RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    BATCH,
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    failed,
    first_token,
    joined,
    leaving,
    policy_changed,
    readied,
    unreadied,
)

NO_LANE = HeadroomRules(long_lane_percent=100)


def asked(
    request: str, tenant: str = "acme", *, document: int = 1, tokens: int = 6_000, shared: int | None = None
) -> RequestArrived:
    """Returns a request whose prompt starts with `shared` tokens from a document and then differs from all others."""
    shared = tokens if shared is None else shared
    own = int.from_bytes(request.encode()[:6].ljust(6, b"."))
    hashes = [
        (document * 100 if distance <= shared else own * 100) + number
        for number, distance in enumerate(PREFIX_LENGTHS)
        if distance <= tokens
    ]
    event = arrived(request, tenant, prompt_bytes=4 * tokens)
    return RequestArrived(replace(event.ticket, prefix_hashes=pack_hashes(hashes)))


def sent(commands: list[Command]) -> dict[str, str]:
    return {each.request_id: each.endpoint_id for each in commands if isinstance(each, Dispatch)}


def with_endpoints(count: int = 3, *, policy: Policy | None = None, places: int = 8) -> Scheduler:
    policy = policy or replace(a_policy(), headroom=NO_LANE)
    return a_scheduler(*(an_endpoint(f"e{number}", places=places) for number in range(1, count + 1)), policy=policy)


def served(scheduler: Scheduler, event: RequestArrived, second: float) -> str:
    """Sends a request, completes it and returns its endpoint."""
    request_id = event.ticket.request_id
    [endpoint] = sent(commands_for(scheduler, at(second), event)).values()
    commands_for(scheduler, at(second), first_token(request_id), completed(request_id))
    return endpoint


def pending_tokens(scheduler: Scheduler, name: str) -> int:
    return next(each.pending_tokens for key, each in scheduler._state.fleet.endpoints.items() if key == name)


def test_prompt_goes_to_endpoint_that_holds_its_prefix() -> None:
    scheduler = with_endpoints()
    first = served(scheduler, asked("a", document=1), 0)
    other = served(scheduler, asked("b", document=2), 1)

    assert first != other
    assert served(scheduler, asked("c", document=1), 2) == first
    assert served(scheduler, asked("d", document=2), 3) == other
    assert served(scheduler, asked("e", document=1), 4) == first


def test_reason_includes_cached_tokens() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("a"), 0)

    [dispatch] = commands_for(scheduler, at(1), asked("b", tokens=6_200, shared=6_000))

    assert isinstance(dispatch, Dispatch)
    assert dispatch.reason == "least loaded, 1 of 8 requests in flight; about 5632 of 6200 prompt tokens cached"


def test_cached_tokens_are_not_pending() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("a"), 0)

    commands_for(scheduler, at(1), asked("b", tokens=6_200, shared=6_000))
    assert pending_tokens(scheduler, "e1") == 6_200 - 5_632

    commands_for(scheduler, at(1), first_token("b"))
    assert pending_tokens(scheduler, "e1") == 0


def test_attempt_failing_before_first_token_leaves_no_pending_tokens() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("a"), 0)

    commands_for(scheduler, at(1), asked("b", tokens=6_200, shared=6_000), failed("b"))
    commands_for(scheduler, at(1), completed("b", attempt=2))

    assert pending_tokens(scheduler, "e1") == 0


def test_last_token_of_fully_cached_prompt_is_pending() -> None:
    scheduler = with_endpoints(1)
    tokens = prefix_tokens(10)
    served(scheduler, asked("a", tokens=tokens), 0)

    commands_for(scheduler, at(1), asked("b", tokens=tokens))

    assert pending_tokens(scheduler, "e1") == 1


def test_request_goes_to_busy_holder_only_if_doing_so_saves_time() -> None:
    # The endpoint with the cached prefix is computing 3,000 tokens for another request and has no headroom for pending
    # prompts.
    scheduler = with_endpoints(2)
    holder = served(scheduler, asked("a", tokens=6_000), 0)
    busy = asked("busy", document=1, tokens=9_000, shared=6_000)
    assert sent(commands_for(scheduler, at(1), busy)) == {"busy": holder}
    assert pending_tokens(scheduler, holder) > 1_228

    # It is faster to compute 1,000 tokens elsewhere, but not 6,000.
    other = "e2" if holder == "e1" else "e1"
    assert sent(commands_for(scheduler, at(1), asked("short", tokens=1_000))) == {"short": other}
    assert sent(commands_for(scheduler, at(1), asked("long", tokens=6_000))) == {"long": holder}


def test_request_does_not_wait_for_holder_without_free_slot() -> None:
    scheduler = with_endpoints(2, places=1)
    holder = served(scheduler, asked("a"), 0)
    assert sent(commands_for(scheduler, at(1), asked("b"))) == {"b": holder}

    assert list(sent(commands_for(scheduler, at(1), asked("c"))).values()) != [holder]


@pytest.mark.parametrize("happens", [[unreadied("e1"), readied("e1")], [failed("x"), failed("y"), failed("z")]])
def test_prefixes_are_forgotten_when_endpoint_restarts_or_is_ejected(happens: list[object]) -> None:
    policy = replace(a_policy(), headroom=NO_LANE)
    scheduler = with_endpoints(1, policy=policy)
    served(scheduler, asked("a"), 0)
    commands_for(scheduler, at(1), *(asked(name, document=7) for name in "xyz"))
    for event in happens:
        commands_for(scheduler, at(1), event)  # type: ignore[arg-type]

    assert scheduler._state.fleet.pools[a_pool().name].prefixes.size == 0


def test_prefixes_are_forgotten_when_endpoint_leaves() -> None:
    scheduler = with_endpoints(2)
    holder = served(scheduler, asked("a"), 0)

    commands_for(scheduler, at(1), leaving(holder))

    assert scheduler._state.fleet.pools[a_pool().name].prefixes.size == 0
    assert served(scheduler, asked("b"), 2) != holder


def test_index_slot_is_reused_after_its_endpoint_is_removed() -> None:
    scheduler = with_endpoints(3)
    commands_for(scheduler, at(0), leaving("e2"))
    commands_for(scheduler, at(1), joined("e9", places=8), joined("e10", places=8))

    assert {each.id: each.slot for each in scheduler._state.fleet.endpoints.values()} == {
        "e1": 0,
        "e3": 2,
        "e9": 1,
        "e10": 3,
    }


def test_summary_includes_the_number_of_prefix_hashes() -> None:
    scheduler = with_endpoints(2)
    assert scheduler.summary().prefix_hashes == ()

    served(scheduler, asked("a", tokens=1_024), 0)

    assert scheduler.summary().prefix_hashes == (("p", 3),)


def test_retry_avoids_failed_endpoint_that_holds_prefix() -> None:
    scheduler = with_endpoints(2)
    holder = served(scheduler, asked("a"), 0)

    assert sent(commands_for(scheduler, at(1), asked("b"))) == {"b": holder}
    assert list(sent(commands_for(scheduler, at(1), failed("b"))).values()) != [holder]


def test_policy_can_disable_prefix_routing() -> None:
    scheduler = with_endpoints(
        policy=replace(a_policy(), headroom=NO_LANE, routing=RoutingRules(prefix_affinity=False))
    )

    assert [served(scheduler, asked(name), second) for second, name in enumerate("abc")] == ["e1", "e2", "e3"]


def test_policy_change_disables_prefix_routing_for_queued_request() -> None:
    policy = replace(a_policy(), headroom=NO_LANE)
    scheduler = a_scheduler(an_endpoint("e1", places=0), policy=policy)
    commands_for(scheduler, at(0), asked("a"))
    assert scheduler._state.requests.by_id[RequestId("a")].hashes

    commands_for(scheduler, at(1), policy_changed(replace(policy, routing=RoutingRules(prefix_affinity=False))))

    assert scheduler._state.requests.by_id[RequestId("a")].hashes == ()


def test_one_of_many_equal_holders_is_selected() -> None:
    scheduler = with_endpoints(20)
    index = scheduler._state.fleet.pools[a_pool().name].prefixes
    for slot in range(3, 20):
        index.record(slot, unpacked(asked("x", tokens=4_000)), None)

    # The least loaded endpoint has nothing cached. The router considers only a few of the endpoints that do, which are
    # all equal.
    [endpoint] = sent(commands_for(scheduler, at(1), asked("a", tokens=4_000))).values()

    assert int(endpoint[1:]) > 3


def test_mostly_cached_long_prompt_does_not_wait_for_long_lane() -> None:
    scheduler = with_endpoints(2, policy=a_policy())
    holder = served(scheduler, asked("a", tokens=32_000), 0)
    commands_for(scheduler, at(1), asked("busy", document=2, tokens=32_000))

    assert sent(commands_for(scheduler, at(1), asked("other", document=3, tokens=32_000))) == {}
    assert sent(commands_for(scheduler, at(1), asked("half", "coil", tokens=32_000, shared=16_000))) == {}
    assert sent(commands_for(scheduler, at(1), asked("again", "bolt", tokens=32_000))) == {"again": holder}


def test_cached_prompt_waits_even_if_computing_it_would_miss_target() -> None:
    # The target for the first token is 2 s. Computing 60,000 tokens takes longer.
    hurried = replace(a_class("interactive"), ttft_ns=duration(2))
    scheduler = with_endpoints(1, policy=replace(a_policy(classes=(hurried, BATCH)), headroom=NO_LANE), places=1)
    served(scheduler, in_class(asked("a", tokens=60_000), "batch"), 0)
    commands_for(scheduler, at(1), arrived("busy"))

    commands = commands_for(scheduler, at(1), asked("new", tokens=60_000, document=2), asked("known", tokens=60_000))

    # The uncached request has already expired when it arrives, so the next event ends it.
    assert [(each.request_id, each.outcome) for each in commands if is_end(each)] == [("new", Outcome.QUEUE_TIMEOUT)]
    assert sent(commands_for(scheduler, at(1.1), completed("busy"))) == {"known": "e1"}


def test_tenant_is_not_charged_for_cached_tokens() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("warm", "coil", document=1), 0)

    assert charged(scheduler, asked("a", "acme", document=1)) * 2 < charged(scheduler, asked("b", "bolt", document=2))


def test_charge_is_settled_with_cached_tokens_reported_by_engine() -> None:
    def settled(cached_tokens: int) -> int:
        scheduler = with_endpoints(1)
        event = asked("a", "acme", tokens=6_000)
        commands_for(scheduler, at(0), event, asked("more", "acme", document=5), first_token("a"))
        usage = Usage(6_000, 10, cached_tokens, UsageSource.ENGINE)
        [attempt] = [each for key, each in scheduler._state.attempts.by_number.items() if key[0] == "a"]
        commands_for(scheduler, at(1), AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED, usage=usage))
        return attempt.charged

    assert settled(5_900) < settled(3_000) < settled(0)
    # If more cached tokens than prompt tokens are reported, the prompt counts as fully cached.
    assert settled(60_000) == settled(6_000) > 0


def test_prefix_hashes_are_ignored_if_first_pool_has_no_endpoint() -> None:
    policy = replace(a_policy(pools=("p", "q")), headroom=NO_LANE)
    scheduler = a_scheduler(an_endpoint("e2", pool="q", places=8), policy=policy)

    assert served(scheduler, asked("a"), 0) == "e2"


def charged(scheduler: Scheduler, event: RequestArrived) -> int:
    """Returns the charge for a request when it is sent."""
    commands_for(scheduler, at(1), event)
    [attempt] = [each for key, each in scheduler._state.attempts.by_number.items() if key[0] == event.ticket.request_id]
    commands_for(scheduler, at(1), first_token(event.ticket.request_id))
    return attempt.charged


def in_class(event: RequestArrived, name: str) -> RequestArrived:
    return RequestArrived(replace(event.ticket, requested_class=name))


def unpacked(event: RequestArrived) -> tuple[int, ...]:
    return unpack_hashes(event.ticket.prefix_hashes)


def is_end(command: Command) -> TypeGuard[End]:
    return isinstance(command, End)
