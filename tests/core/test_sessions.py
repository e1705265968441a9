"""Session affinity: a preference for the endpoint that served a session last."""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch
from headgate.core.routing.session_index import SESSIONS_MAX, SessionIndex
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy, RoutingRules
from headgate.model.units import SECOND, Duration, EndpointId, PoolName
from testing.builders import (
    a_model,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    first_token,
    leaving,
    readied,
    unreadied,
)


def policy(seconds: float = 5.0, *, prefix: bool = True) -> Policy:
    rules = RoutingRules(session_preference_ns=Duration(int(seconds * SECOND)), prefix_affinity=prefix)
    return replace(a_policy(), routing=rules)


def test_session_with_another_adapter_has_another_cache() -> None:
    rules = policy(prefix=False)
    models = (*rules.models, *(replace(a_model(name, "p"), adapter=name) for name in "ab"))
    scheduler = two_endpoints(replace(rules, models=models, pools=(replace(rules.pools[0], max_lora=4),)))
    ask(scheduler, "r1", "chat", model="a")
    ask(scheduler, "r2", "chat", model="b")

    visits = {
        each: scheduler._state.fleet.pools[PoolName("p")].sessions.last(each) for each in ("chat a", "chat b", "chat")
    }
    assert visits["chat a"] is not None
    assert visits["chat b"] is not None
    assert visits["chat"] is None


def two_endpoints(rules: Policy | None = None, *, places: int = 4) -> Scheduler:
    endpoints = (an_endpoint("e1", places=places), an_endpoint("e2", places=places))
    return a_scheduler(*endpoints, policy=policy() if rules is None else rules)


def ask(scheduler: Scheduler, name: str, session: str = "", *, prompt: int = 400, model: str = "m") -> list[Command]:
    """Sends a request that has computed its prompt as soon as it is sent."""
    event = arrived(name, model=model, prompt_bytes=4 * prompt)
    commands = scheduler.handle(replace(event, ticket=replace(event.ticket, session=session)), at(0))
    return commands + scheduler.handle(first_token(name), at(0))


def endpoints_of(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def test_session_returns_to_its_endpoint_although_another_is_less_loaded() -> None:
    scheduler = two_endpoints()
    home = endpoints_of(ask(scheduler, "a", "s"))

    assert endpoints_of(ask(scheduler, "b", "s")) == home
    assert endpoints_of(ask(scheduler, "c")) != home


def test_sessions_are_ignored_by_default() -> None:
    scheduler = two_endpoints(a_policy())
    home = endpoints_of(ask(scheduler, "a", "s"))

    assert endpoints_of(ask(scheduler, "b", "s")) != home


def test_session_is_a_preference_and_not_a_requirement() -> None:
    scheduler = two_endpoints(places=1)
    home = endpoints_of(ask(scheduler, "a", "s"))

    assert endpoints_of(ask(scheduler, "b", "s")) not in ([], home)


def test_load_outweighs_a_small_preference() -> None:
    scheduler = two_endpoints(policy(0.000_001), places=64)
    home = endpoints_of(ask(scheduler, "a", "s"))
    used = [endpoints_of(ask(scheduler, f"b{number}", "s")) for number in range(2)]

    assert used[0] != home


def test_preference_is_proportional_to_the_part_of_the_prompt_that_was_seen() -> None:
    scheduler = two_endpoints()
    ask(scheduler, "a", "s", prompt=100)
    [command] = [each for each in ask(scheduler, "b", "s", prompt=400) if isinstance(each, Dispatch)]
    assert dict(command.costs).get("session_preference") is None

    commands_for(scheduler, at(1), completed("a"), completed("b"))
    other = two_endpoints(places=1)
    ask(other, "a", "s", prompt=100)
    [command] = [each for each in ask(other, "b", "s", prompt=400) if isinstance(each, Dispatch)]
    seen, whole = [request.prompt_tokens for request in other._state.requests.by_id.values()]
    assert dict(command.costs)["session_preference"] == 5 * SECOND * seen // whole


def test_session_follows_the_conversation_to_its_latest_endpoint() -> None:
    scheduler = two_endpoints(places=1)
    [first] = endpoints_of(ask(scheduler, "a", "s"))
    [second] = endpoints_of(ask(scheduler, "b", "s"))
    commands_for(scheduler, at(0), completed("a"), completed("b"))

    assert first != second
    assert endpoints_of(ask(scheduler, "c", "s")) == [second]


def test_restarted_endpoint_has_lost_its_sessions() -> None:
    scheduler = two_endpoints()
    [home] = endpoints_of(ask(scheduler, "a", "s"))
    commands_for(scheduler, at(0), unreadied(home), readied(home))

    assert endpoints_of(ask(scheduler, "b", "s")) != [home]


def test_session_of_an_endpoint_that_left_goes_to_another() -> None:
    scheduler = two_endpoints()
    [home] = endpoints_of(ask(scheduler, "a", "s"))
    commands_for(scheduler, at(0), completed("a"), leaving(home))

    assert endpoints_of(ask(scheduler, "b", "s")) not in ([], [home])


def test_models_of_different_pools_have_their_own_sessions() -> None:
    rules = a_policy(pools=("p", "q"), models=(a_model("m", "p"), a_model("n", "q")))
    rules = replace(rules, routing=policy().routing)
    endpoints = [an_endpoint(name, pool=pool, places=4) for name, pool in (("p1", "p"), ("q1", "q"), ("q2", "q"))]
    scheduler = a_scheduler(*endpoints, policy=rules)
    ask(scheduler, "a", "s")
    home = endpoints_of(ask(scheduler, "b", "s", model="n"))

    assert endpoints_of(ask(scheduler, "c", "s", model="n")) == home


def test_oldest_sessions_are_dropped_when_the_index_is_full() -> None:
    index, endpoint = SessionIndex(), EndpointId("e1")
    for number in range(SESSIONS_MAX):
        index.record(f"s{number}", endpoint, 10)
    index.record("s0", endpoint, 20)
    index.record("more", endpoint, 10)

    assert index.size == SESSIONS_MAX
    assert (index.last("s0"), index.last("s1")) == ((endpoint, 20), None)


def test_session_index_is_cleared_when_restarts_fill_it() -> None:
    index = SessionIndex()
    index.forget(EndpointId("unused"))
    index.record("s", EndpointId("e"), 10)
    for number in range(4_096):
        index.forget(EndpointId(f"e{number}"))
    assert index.last("s") == (EndpointId("e"), 10)

    index.forget(EndpointId("another"))
    assert index.size == 0
