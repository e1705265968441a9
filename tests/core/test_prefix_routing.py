"""Does a prompt go where its beginning was sent before, and only as far as that is worth it?"""

from dataclasses import replace
from typing import TypeGuard

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HeadroomRules, Policy, RoutingRules
from headgate.model.prefix import DISTANCES, pack, reach, unpack
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
    completed,
    failed,
    first_token,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    told,
    unreadied,
)

NO_LANE = HeadroomRules(long_percent=100)


def asked(
    request: str, tenant: str = "acme", *, document: int = 1, tokens: int = 6_000, shared: int | None = None
) -> RequestArrived:
    """A prompt that begins with a document, up to `shared` tokens of it, and goes on in its own way."""
    shared = tokens if shared is None else shared
    own = int.from_bytes(request.encode()[:6].ljust(6, b"."))
    hashes = [
        (document * 100 if distance <= shared else own * 100) + number
        for number, distance in enumerate(DISTANCES)
        if distance <= tokens
    ]
    event = arrived(request, tenant, prompt_bytes=4 * tokens)
    return RequestArrived(replace(event.ticket, prefix=pack(hashes)))


def sent(commands: list[Command]) -> dict[str, str]:
    return {each.request_id: each.endpoint_id for each in commands if isinstance(each, Dispatch)}


def with_endpoints(count: int = 3, *, policy: Policy | None = None, places: int = 8) -> Scheduler:
    policy = policy or replace(a_policy(), headroom=NO_LANE)
    return a_scheduler(*(an_endpoint(f"e{number}", places=places) for number in range(1, count + 1)), policy=policy)


def served(scheduler: Scheduler, event: RequestArrived, second: float) -> str:
    """Where a request went that has had its whole answer since."""
    request_id = event.ticket.request_id
    [endpoint] = sent(told(scheduler, at(second), event)).values()
    told(scheduler, at(second), first_token(request_id), completed(request_id))
    return endpoint


def pending_tokens(scheduler: Scheduler, name: str) -> int:
    return next(each.pending_tokens for key, each in scheduler._state.fleet.endpoints.items() if key == name)


def test_a_prompt_goes_where_its_beginning_was_sent_before() -> None:
    scheduler = with_endpoints()
    first = served(scheduler, asked("a", document=1), 0)
    other = served(scheduler, asked("b", document=2), 1)

    assert first != other
    assert served(scheduler, asked("c", document=1), 2) == first
    assert served(scheduler, asked("d", document=2), 3) == other
    assert served(scheduler, asked("e", document=1), 4) == first


def test_the_reason_says_how_much_of_it_is_held() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("a"), 0)

    [dispatch] = told(scheduler, at(1), asked("b", tokens=6_200, shared=6_000))

    assert isinstance(dispatch, Dispatch)
    assert dispatch.reason == "least load, 1 of 8 in flight with it; it holds about 5632 of 6200 prompt tokens"


def test_what_is_held_is_no_work_that_is_pending() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("a"), 0)

    told(scheduler, at(1), asked("b", tokens=6_200, shared=6_000))
    assert pending_tokens(scheduler, "e1") == 6_200 - 5_632

    told(scheduler, at(1), first_token("b"))
    assert pending_tokens(scheduler, "e1") == 0


def test_who_fails_before_its_first_token_leaves_nothing_pending() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("a"), 0)

    told(scheduler, at(1), asked("b", tokens=6_200, shared=6_000), failed("b"))
    told(scheduler, at(1), completed("b", attempt=2))

    assert pending_tokens(scheduler, "e1") == 0


def test_a_prompt_that_is_all_there_still_computes_its_last_token() -> None:
    scheduler = with_endpoints(1)
    tokens = reach(10)
    served(scheduler, asked("a", tokens=tokens), 0)

    told(scheduler, at(1), asked("b", tokens=tokens))

    assert pending_tokens(scheduler, "e1") == 1


def test_waiting_for_a_holder_is_worth_as_much_as_it_saves() -> None:
    # The holder computes 3,000 tokens for somebody else and would have no room for anyone.
    scheduler = with_endpoints(2)
    holder = served(scheduler, asked("a", tokens=6_000), 0)
    busy = asked("busy", document=1, tokens=9_000, shared=6_000)
    assert sent(told(scheduler, at(1), busy)) == {"busy": holder}
    assert pending_tokens(scheduler, holder) > 1_228

    # To compute 1,000 tokens elsewhere is quicker, to compute 6,000 is not.
    other = "e2" if holder == "e1" else "e1"
    assert sent(told(scheduler, at(1), asked("short", tokens=1_000))) == {"short": other}
    assert sent(told(scheduler, at(1), asked("long", tokens=6_000))) == {"long": holder}


def test_a_holder_without_a_place_is_not_waited_for() -> None:
    scheduler = with_endpoints(2, places=1)
    holder = served(scheduler, asked("a"), 0)
    assert sent(told(scheduler, at(1), asked("b"))) == {"b": holder}

    assert list(sent(told(scheduler, at(1), asked("c"))).values()) != [holder]


@pytest.mark.parametrize("happens", [[unreadied("e1"), readied("e1")], [failed("x"), failed("y"), failed("z")]])
def test_an_endpoint_that_starts_anew_or_was_ejected_holds_nothing(happens: list[object]) -> None:
    policy = replace(a_policy(), headroom=NO_LANE)
    scheduler = with_endpoints(1, policy=policy)
    served(scheduler, asked("a"), 0)
    told(scheduler, at(1), *(asked(name, document=7) for name in "xyz"))
    for event in happens:
        told(scheduler, at(1), event)  # type: ignore[arg-type]

    assert scheduler._state.fleet.pools[a_pool().name].prefixes.size == 0


def test_an_endpoint_that_leaves_is_forgotten_with_all_that_it_held() -> None:
    scheduler = with_endpoints(2)
    holder = served(scheduler, asked("a"), 0)

    told(scheduler, at(1), leaving(holder))

    assert scheduler._state.fleet.pools[a_pool().name].prefixes.size == 0
    assert served(scheduler, asked("b"), 2) != holder


def test_a_slot_that_became_free_is_given_to_the_next_who_joins() -> None:
    scheduler = with_endpoints(3)
    told(scheduler, at(0), leaving("e2"))
    told(scheduler, at(1), joined("e9", places=8), joined("e10", places=8))

    assert {each.id: each.slot for each in scheduler._state.fleet.endpoints.values()} == {
        "e1": 0,
        "e3": 2,
        "e9": 1,
        "e10": 3,
    }


def test_the_summary_says_how_much_is_known() -> None:
    scheduler = with_endpoints(2)
    assert scheduler.summary().prefix_hashes == ()

    served(scheduler, asked("a", tokens=1_024), 0)

    assert scheduler.summary().prefix_hashes == (("p", 3),)


def test_the_endpoint_that_failed_a_request_is_avoided_whatever_it_holds() -> None:
    scheduler = with_endpoints(2)
    holder = served(scheduler, asked("a"), 0)

    assert sent(told(scheduler, at(1), asked("b"))) == {"b": holder}
    assert list(sent(told(scheduler, at(1), failed("b"))).values()) != [holder]


def test_a_policy_may_say_that_beginnings_do_not_count() -> None:
    scheduler = with_endpoints(policy=replace(a_policy(), headroom=NO_LANE, routing=RoutingRules(prefix=False)))

    assert [served(scheduler, asked(name), second) for second, name in enumerate("abc")] == ["e1", "e2", "e3"]


def test_a_request_that_waits_follows_the_policy_that_comes() -> None:
    policy = replace(a_policy(), headroom=NO_LANE)
    scheduler = a_scheduler(an_endpoint("e1", places=0), policy=policy)
    told(scheduler, at(0), asked("a"))
    assert scheduler._state.requests.by_id[RequestId("a")].hashes

    told(scheduler, at(1), policy_changed(replace(policy, routing=RoutingRules(prefix=False))))

    assert scheduler._state.requests.by_id[RequestId("a")].hashes == ()


def test_of_many_that_hold_as_much_only_a_few_are_looked_at() -> None:
    scheduler = with_endpoints(20)
    index = scheduler._state.fleet.pools[a_pool().name].prefixes
    for slot in range(3, 20):
        index.note(slot, unpacked(asked("x", tokens=4_000)), None)

    # The least loaded holds nothing; whoever is looked at first of the others is as good as all of them.
    [endpoint] = sent(told(scheduler, at(1), asked("a", tokens=4_000))).values()

    assert int(endpoint[1:]) > 3


def test_a_long_prompt_that_is_nearly_all_there_does_not_wait_for_its_lane() -> None:
    scheduler = with_endpoints(2, policy=a_policy())
    holder = served(scheduler, asked("a", tokens=32_000), 0)
    told(scheduler, at(1), asked("busy", document=2, tokens=32_000))

    assert sent(told(scheduler, at(1), asked("other", document=3, tokens=32_000))) == {}
    assert sent(told(scheduler, at(1), asked("half", "coil", tokens=32_000, shared=16_000))) == {}
    assert sent(told(scheduler, at(1), asked("again", "bolt", tokens=32_000))) == {"again": holder}


def test_a_prompt_that_could_not_be_computed_in_time_may_wait_where_it_is_held() -> None:
    # Two seconds to the first token; 60,000 tokens take more.
    hurried = replace(a_class("interactive"), ttft_ns=lasting(2))
    scheduler = with_endpoints(1, policy=replace(a_policy(classes=(hurried, BATCH)), headroom=NO_LANE), places=1)
    served(scheduler, in_class(asked("a", tokens=60_000), "batch"), 0)
    told(scheduler, at(1), arrived("busy"))

    commands = told(scheduler, at(1), asked("new", tokens=60_000, document=2), asked("known", tokens=60_000))

    # Its time is over as soon as it has come, so the next event finds it gone.
    assert [(each.request_id, each.outcome) for each in commands if is_end(each)] == [("new", Outcome.EXPIRED)]
    assert sent(told(scheduler, at(1.1), completed("busy"))) == {"known": "e1"}


def test_a_tenant_is_not_charged_for_what_the_engine_held() -> None:
    scheduler = with_endpoints(1)
    served(scheduler, asked("warm", "coil", document=1), 0)

    assert charged(scheduler, asked("a", "acme", document=1)) * 2 < charged(scheduler, asked("b", "bolt", document=2))


def test_the_engines_own_word_on_what_it_found_settles_the_charge() -> None:
    def settled(cached_tokens: int) -> int:
        scheduler = with_endpoints(1)
        event = asked("a", "acme", tokens=6_000)
        told(scheduler, at(0), event, asked("more", "acme", document=5), first_token("a"))
        usage = Usage(6_000, 10, cached_tokens, UsageSource.ENGINE)
        [attempt] = [each for key, each in scheduler._state.attempts.by_number.items() if key[0] == "a"]
        told(scheduler, at(1), AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED, usage=usage))
        return attempt.charged

    assert settled(5_900) < settled(3_000) < settled(0)
    # An engine that says more than can be is not believed.
    assert settled(60_000) == settled(6_000) > 0


def test_hashes_mean_nothing_while_the_first_pool_has_no_endpoint() -> None:
    policy = replace(a_policy(pools=("p", "q")), headroom=NO_LANE)
    scheduler = a_scheduler(an_endpoint("e2", pool="q", places=8), policy=policy)

    assert served(scheduler, asked("a"), 0) == "e2"


def charged(scheduler: Scheduler, event: RequestArrived) -> int:
    """What a tenant is charged for a request when it is sent."""
    told(scheduler, at(1), event)
    [attempt] = [each for key, each in scheduler._state.attempts.by_number.items() if key[0] == event.ticket.request_id]
    told(scheduler, at(1), first_token(event.ticket.request_id))
    return attempt.charged


def in_class(event: RequestArrived, name: str) -> RequestArrived:
    return RequestArrived(replace(event.ticket, class_named=name))


def unpacked(event: RequestArrived) -> tuple[int, ...]:
    return unpack(event.ticket.prefix)


def is_end(command: Command) -> TypeGuard[End]:
    return isinstance(command, End)
