"""A cell member's requests avoid an endpoint that only this member cannot reach."""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import EndpointJoined, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, RetryRules
from headgate.model.units import SECOND, Duration, Instant
from testing.builders import (
    a_model,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    endpoint_summary,
    failed,
    first_token,
    leaving,
    policy_changed,
    unreadied,
)

HEALTH = HealthRules(
    consecutive_failures_max=3, ejection_ns=Duration(10 * SECOND), ejection_ns_max=Duration(40 * SECOND)
)
EJECT_S, EJECT_S_MAX = 10, 40


def a_cell(*names: str, places: int = 100, attempts_max: int = 3) -> Scheduler:
    """Returns a scheduler with several endpoints in one pool and a retry budget that is never exhausted."""
    retry = RetryRules(attempts_max=attempts_max, credit_burst=1_000_000, pool_retries_min=1_000)
    policy = a_policy(retry=retry, health=HEALTH)
    return a_scheduler(*(an_endpoint(name, places=places) for name in names), policy=policy)


def dispatches(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def serve_others(scheduler: Scheduler, now: Instant, *, count: int = 2) -> None:
    """Completes `count` requests from each of two other members."""
    for member in ("g1", "g2"):
        names = [f"{member} at {now}, {number}" for number in range(count)]
        commands_for(scheduler, now, *(arrived(name, gateway=member) for name in names))
        commands_for(scheduler, now, *(completed(name) for name in names))


def ask(
    scheduler: Scheduler, now: Instant, lost: tuple[str, ...], *, count: int = 1, member: str = "g3"
) -> tuple[list[str], list[Command]]:
    """Sends requests from a member that cannot reach the `lost` endpoints. Returns their endpoints and all commands."""
    went: list[str] = []
    out: list[Command] = []
    for number in range(count):
        name, attempt = f"{member} at {now}, {number}", 1
        said = scheduler.handle(arrived(name, gateway=member), now)
        while not any(isinstance(each, End) for each in said):
            [where] = dispatches(said)
            went.append(where)
            ending = failed(name, attempt, fault=Fault.CONNECTION) if where in lost else completed(name, attempt)
            said = scheduler.handle(ending, now)
            out += said
            attempt += 1
    return went, out


def in_flight(scheduler: Scheduler, endpoint: str) -> list[tuple[str, int]]:
    """Returns the request and the number of each attempt on an endpoint."""
    attempts = scheduler._state.attempts.by_number
    return [name for name, attempt in attempts.items() if attempt.endpoint.id == endpoint]


def keep_away(scheduler: Scheduler, now: Instant, *lost: str, count: int = 20) -> None:
    serve_others(scheduler, now)
    ask(scheduler, now, lost, count=count)


def test_member_avoids_endpoint_after_failures_max_failures() -> None:
    scheduler = a_cell("e1", "e2")
    serve_others(scheduler, at(0))
    went, out = ask(scheduler, at(1), ("e1",), count=40)

    assert went.count("e1") == HEALTH.consecutive_failures_max
    assert not any(isinstance(each, Eject) for each in out)
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)


def test_other_members_still_use_endpoint() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")

    went, _ = ask(scheduler, at(1), (), count=20, member="g1")
    assert set(went) == {"e1", "e2"}


def test_success_between_failures_resets_failure_count() -> None:
    scheduler = a_cell("e1", "e2")
    for second in range(8):
        serve_others(scheduler, at(second))
        went, _ = ask(scheduler, at(second), ("e1",), count=2)
        assert "e1" in went
        assert "e1" in ask(scheduler, at(second + 0.5), (), count=4)[0]


def test_one_trial_request_at_a_time_is_sent_after_exclusion() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(EJECT_S - 1))
    assert "e1" not in ask(scheduler, at(EJECT_S - 1), ("e1",), count=10)[0]

    serve_others(scheduler, at(EJECT_S))
    sent = commands_for(scheduler, at(EJECT_S), *(arrived(f"trial {number}", gateway="g3") for number in range(10)))
    assert dispatches(sent).count("e1") == 1


def test_completed_request_ends_exclusion() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(EJECT_S))

    went, _ = ask(scheduler, at(EJECT_S), (), count=20)
    assert went.count("e1") > 5
    assert endpoint_summary(scheduler, "e1").unserved_members == ()


def test_first_token_ends_exclusion() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(EJECT_S))
    commands_for(scheduler, at(EJECT_S), arrived("a", gateway="g3"), arrived("b", gateway="g3"))
    commands_for(scheduler, at(EJECT_S), first_token("a"), first_token("b"))

    assert "e1" in ask(scheduler, at(EJECT_S), (), count=4)[0]


def test_each_failed_trial_doubles_exclusion_up_to_maximum() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    moment = 0
    for length in (EJECT_S, 2 * EJECT_S, EJECT_S_MAX, EJECT_S_MAX):
        serve_others(scheduler, at(moment + length - 1))
        assert "e1" not in ask(scheduler, at(moment + length - 1), ("e1",), count=4)[0]
        moment += length
        serve_others(scheduler, at(moment))
        assert ask(scheduler, at(moment), ("e1",), count=10)[0].count("e1") == 1


def test_trial_is_repeated_if_caller_disconnects() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    names = ("a", "b", "c")
    assert "e1" in dispatches(commands_for(scheduler, at(EJECT_S), *(arrived(name, gateway="g3") for name in names)))
    commands_for(scheduler, at(EJECT_S), *(client_disconnected(name) for name in names))

    again = commands_for(scheduler, at(2 * EJECT_S), *(arrived(f"again {name}", gateway="g3") for name in names))
    assert dispatches(again).count("e1") == 1


def test_exclusion_is_ignored_if_no_other_endpoint_remains() -> None:
    scheduler = a_cell("e1", attempts_max=1)
    serve_others(scheduler, at(0))
    went, _ = ask(scheduler, at(1), ("e1",), count=9)
    assert went == ["e1"] * 9

    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1", "e2", count=6)
    assert len(ask(scheduler, at(1), (), count=4)[0]) == 4


def test_excluded_endpoint_is_tried_if_only_other_endpoint_failed_the_request() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(1))

    went, out = ask(scheduler, at(1), ("e2",))
    assert went == ["e2", "e1"]
    assert [each.outcome for each in out if isinstance(each, End)] == [Outcome.COMPLETED]


def test_unready_endpoint_is_not_counted_as_remaining() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    commands_for(scheduler, at(1), unreadied("e2"))

    assert ask(scheduler, at(1), ())[0] == ["e1"]


def test_requests_waiting_for_reachable_endpoint_do_not_block_other_members() -> None:
    """All requests belong to one tenant. In a shared queue, the member that cannot reach e1 would block the others."""
    scheduler = a_cell("e1", "e2", places=3, attempts_max=1)
    serve_others(scheduler, at(0))
    commands_for(scheduler, at(0), *(arrived(f"runs {number}", gateway="g3") for number in range(6)))
    commands_for(scheduler, at(0), *(arrived(f"g3 waits {number}", gateway="g3") for number in range(8)))
    commands_for(scheduler, at(0), *(arrived(f"g1 waits {number}", gateway="g1") for number in range(8)))
    commands_for(scheduler, at(1), *(failed(*each, fault=Fault.CONNECTION) for each in in_flight(scheduler, "e1")))

    names = [name for name, _ in in_flight(scheduler, "e1")]
    assert len(names) == 3
    assert names[-1].startswith("g1"), "the last free slot must go to a member that can reach the endpoint"
    assert all(name.startswith("runs") for name, _ in in_flight(scheduler, "e2"))


def test_member_uses_an_unreachable_endpoint_if_no_other_holds_the_adapter() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    models = (*a_policy().models, *(replace(a_model(name, "p"), adapter=name) for name in "ab"))
    commands_for(scheduler, at(1), policy_changed(a_policy(models=models, health=HEALTH), "h2"))
    for name, held in (("e1", ("a", "b")), ("e2", ("b",))):
        commands_for(scheduler, at(1), EndpointJoined(replace(an_endpoint(name, places=100), adapters=held)))

    for model, where in (("a", "e1"), ("b", "e2")):
        assert dispatches(scheduler.handle(arrived(model, model=model, gateway="g3"), at(1))) == [where]


def test_exclusion_ends_when_endpoint_is_ejected_or_leaves() -> None:
    for happens in ("ejected", "gone"):
        scheduler = a_cell("e1", "e2")
        keep_away(scheduler, at(0), "e1")
        assert scheduler._state.fleet.health.reach.avoided
        if happens == "gone":
            commands_for(scheduler, at(1), leaving("e1"))
        else:
            for member in ("g1", "g2"):
                ask(scheduler, at(1), ("e1",), count=20, member=member)
            assert endpoint_summary(scheduler, "e1").state.value == "ejected"
        assert not scheduler._state.fleet.health.reach.avoided


def test_state_for_an_inactive_member_is_forgotten() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    commands_for(scheduler, at(EJECT_S), TimerFired())
    commands_for(scheduler, at(EJECT_S + EJECT_S_MAX), TimerFired())
    reach = scheduler._state.fleet.health.reach
    assert (reach.avoided, reach.failing) == ({}, {})

    serve_others(scheduler, at(60))
    ask(scheduler, at(60), ("e1",), count=1)
    ask(scheduler, at(60), ("e1",), count=1)
    assert reach.failing
    commands_for(scheduler, at(60 + EJECT_S_MAX), TimerFired())
    assert not reach.failing


def test_failed_requests_sent_before_exclusion_do_not_extend_it() -> None:
    scheduler = a_cell("e1", "e2", attempts_max=1)
    serve_others(scheduler, at(0))
    names = [f"r{number}" for number in range(40)]
    sent = commands_for(scheduler, at(0), *(arrived(name, gateway="g3") for name in names))
    lost = [each.request_id for each in sent if isinstance(each, Dispatch) and each.endpoint_id == "e1"]
    assert len(lost) == 20
    commands_for(scheduler, at(1), *(failed(name, fault=Fault.CONNECTION) for name in lost))
    serve_others(scheduler, at(1 + EJECT_S))

    assert "e1" in ask(scheduler, at(1 + EJECT_S), (), count=4)[0]


def test_member_lacking_resources_for_one_endpoint_avoids_it() -> None:
    scheduler = a_cell("e1", "e2", "e3", "e4")
    serve_others(scheduler, at(0), count=4)
    went: list[str] = []
    for number in range(40):
        name, attempt = f"r{number}", 1
        said = scheduler.handle(arrived(name, gateway="g3"), at(1))
        while not any(isinstance(each, End) for each in said):
            went += dispatches(said)
            lost = went[-1] == "e1"
            ending = failed(name, attempt, fault=Fault.GATEWAY) if lost else completed(name, attempt)
            said = scheduler.handle(ending, at(1))
            attempt += 1

    assert went.count("e1") == HEALTH.consecutive_failures_max


def test_member_unable_to_reach_least_loaded_endpoints_uses_the_remaining_one() -> None:
    names = [f"e{number}" for number in range(12)]
    scheduler = a_cell(*names, attempts_max=12)
    serve_others(scheduler, at(0), count=12)
    commands_for(scheduler, at(1), *(arrived(f"load {number}", gateway="g1") for number in range(12)))
    commands_for(scheduler, at(1), *(completed(f"load {number}") for number in range(12)))
    lost = tuple(names[:-1])
    keep_away(scheduler, at(1), *lost, count=60)
    commands_for(scheduler, at(2), arrived("busy", gateway="g3"))

    went, _ = ask(scheduler, at(2), lost, count=3)
    assert went == [names[-1]] * 3


def test_member_can_be_isolated_after_a_policy_change_while_nothing_is_queued() -> None:
    scheduler = a_cell("e1", "e2")
    serve_others(scheduler, at(0))
    commands_for(scheduler, at(1), *(arrived(f"r{number}", gateway="g3") for number in range(8)))
    scheduler.handle(policy_changed(replace(scheduler._state.rules.policy, fairness_depth=2), "h2"), at(1))
    lost = [name for name, _ in in_flight(scheduler, "e1")]
    commands_for(scheduler, at(1), *(client_disconnected(name) for name in lost))

    commands_for(scheduler, at(1), *(failed(name, fault=Fault.CONNECTION) for name in lost))
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)
