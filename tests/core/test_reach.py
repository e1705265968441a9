"""Requests of a cell member avoid an endpoint that only this member cannot reach."""

from headgate.core.commands import Command, Dispatch, Eject, End
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, RetryRules
from headgate.model.units import SECOND, Duration, Instant
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    endpoint_summary,
    failed,
    first_token,
    leaving,
    told,
    unreadied,
)

HEALTH = HealthRules(failures_max=3, eject_ns=Duration(10 * SECOND), eject_ns_max=Duration(40 * SECOND))
EJECT_S, EJECT_S_MAX = 10, 40


def a_cell(*names: str, places: int = 100, attempts_max: int = 3) -> Scheduler:
    """Endpoints of one pool, and a retry budget that is never used up."""
    retry = RetryRules(attempts_max=attempts_max, credit_burst=1_000_000, pool_extra_min=1_000)
    policy = a_policy(retry=retry, health=HEALTH)
    return a_scheduler(*(an_endpoint(name, places=places) for name in names), policy=policy)


def dispatches(commands: list[Command]) -> list[str]:
    return [each.endpoint_id for each in commands if isinstance(each, Dispatch)]


def serve_others(scheduler: Scheduler, now: Instant, *, count: int = 2) -> None:
    """The endpoints answer requests of two other members."""
    for member in ("g1", "g2"):
        names = [f"{member} at {now}, {number}" for number in range(count)]
        told(scheduler, now, *(arrived(name, gateway=member) for name in names))
        told(scheduler, now, *(completed(name) for name in names))


def ask(
    scheduler: Scheduler, now: Instant, lost: tuple[str, ...], *, count: int = 1, member: str = "g3"
) -> tuple[list[str], list[Command]]:
    """Sends requests of a member that cannot reach the `lost` endpoints. Returns their endpoints and all commands."""
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
    """The attempts at an endpoint: request and number."""
    attempts = scheduler._state.attempts.by_number
    return [name for name, attempt in attempts.items() if attempt.endpoint.id == endpoint]


def keep_away(scheduler: Scheduler, now: Instant, *lost: str, count: int = 20) -> None:
    serve_others(scheduler, now)
    ask(scheduler, now, lost, count=count)


def test_member_avoids_an_endpoint_after_as_many_failures_as_eject_one() -> None:
    scheduler = a_cell("e1", "e2")
    serve_others(scheduler, at(0))
    went, out = ask(scheduler, at(1), ("e1",), count=40)

    assert went.count("e1") == HEALTH.failures_max
    assert not any(isinstance(each, Eject) for each in out)
    assert endpoint_summary(scheduler, "e1").unserved_members == ("g3",)


def test_other_members_still_use_the_endpoint() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")

    went, _ = ask(scheduler, at(1), (), count=20, member="g1")
    assert set(went) == {"e1", "e2"}


def test_success_between_failures_resets_the_count() -> None:
    scheduler = a_cell("e1", "e2")
    for second in range(8):
        serve_others(scheduler, at(second))
        went, _ = ask(scheduler, at(second), ("e1",), count=2)
        assert "e1" in went
        assert "e1" in ask(scheduler, at(second + 0.5), (), count=4)[0]


def test_one_trial_request_at_a_time_is_sent_after_the_exclusion() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(EJECT_S - 1))
    assert "e1" not in ask(scheduler, at(EJECT_S - 1), ("e1",), count=10)[0]

    serve_others(scheduler, at(EJECT_S))
    sent = told(scheduler, at(EJECT_S), *(arrived(f"trial {number}", gateway="g3") for number in range(10)))
    assert dispatches(sent).count("e1") == 1


def test_response_ends_the_exclusion() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(EJECT_S))

    went, _ = ask(scheduler, at(EJECT_S), (), count=20)
    assert went.count("e1") > 5
    assert endpoint_summary(scheduler, "e1").unserved_members == ()


def test_first_token_ends_the_exclusion() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(EJECT_S))
    told(scheduler, at(EJECT_S), arrived("a", gateway="g3"), arrived("b", gateway="g3"))
    told(scheduler, at(EJECT_S), first_token("a"), first_token("b"))

    assert "e1" in ask(scheduler, at(EJECT_S), (), count=4)[0]


def test_each_failed_trial_doubles_the_exclusion_up_to_a_bound() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    moment = 0
    for length in (EJECT_S, 2 * EJECT_S, EJECT_S_MAX, EJECT_S_MAX):
        serve_others(scheduler, at(moment + length - 1))
        assert "e1" not in ask(scheduler, at(moment + length - 1), ("e1",), count=4)[0]
        moment += length
        serve_others(scheduler, at(moment))
        assert ask(scheduler, at(moment), ("e1",), count=10)[0].count("e1") == 1


def test_trial_is_repeated_if_its_caller_leaves() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    names = ("a", "b", "c")
    assert "e1" in dispatches(told(scheduler, at(EJECT_S), *(arrived(name, gateway="g3") for name in names)))
    told(scheduler, at(EJECT_S), *(client_left(name) for name in names))

    again = told(scheduler, at(2 * EJECT_S), *(arrived(f"again {name}", gateway="g3") for name in names))
    assert dispatches(again).count("e1") == 1


def test_member_is_excluded_from_no_endpoint_if_none_would_remain() -> None:
    scheduler = a_cell("e1", attempts_max=1)
    serve_others(scheduler, at(0))
    went, _ = ask(scheduler, at(1), ("e1",), count=9)
    assert went == ["e1"] * 9

    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1", "e2", count=6)
    assert len(ask(scheduler, at(1), (), count=4)[0]) == 4


def test_excluded_endpoint_is_tried_if_the_only_other_one_failed_the_request() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    serve_others(scheduler, at(1))

    went, out = ask(scheduler, at(1), ("e2",))
    assert went == ["e2", "e1"]
    assert [each.outcome for each in out if isinstance(each, End)] == [Outcome.COMPLETED]


def test_endpoint_that_accepts_no_work_does_not_count_as_remaining() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    told(scheduler, at(1), unreadied("e2"))

    assert ask(scheduler, at(1), ())[0] == ["e1"]


def test_requests_waiting_for_a_reachable_endpoint_do_not_block_other_members() -> None:
    """All requests belong to one tenant. The head of a common queue would belong to the member that cannot reach e1."""
    scheduler = a_cell("e1", "e2", places=3, attempts_max=1)
    serve_others(scheduler, at(0))
    told(scheduler, at(0), *(arrived(f"runs {number}", gateway="g3") for number in range(6)))
    told(scheduler, at(0), *(arrived(f"g3 waits {number}", gateway="g3") for number in range(8)))
    told(scheduler, at(0), *(arrived(f"g1 waits {number}", gateway="g1") for number in range(8)))
    told(scheduler, at(1), *(failed(*each, fault=Fault.CONNECTION) for each in in_flight(scheduler, "e1")))

    names = [name for name, _ in in_flight(scheduler, "e1")]
    assert len(names) == 3
    assert names[-1].startswith("g1"), "the place that came free last goes to a member that reaches the endpoint"
    assert all(name.startswith("runs") for name, _ in in_flight(scheduler, "e2"))


def test_exclusion_ends_when_the_endpoint_is_ejected_or_leaves() -> None:
    for happens in ("ejected", "gone"):
        scheduler = a_cell("e1", "e2")
        keep_away(scheduler, at(0), "e1")
        assert scheduler._state.fleet.health.reach.away
        if happens == "gone":
            told(scheduler, at(1), leaving("e1"))
        else:
            for member in ("g1", "g2"):
                ask(scheduler, at(1), ("e1",), count=20, member=member)
            assert endpoint_summary(scheduler, "e1").state.value == "ejected"
        assert not scheduler._state.fleet.health.reach.away


def test_state_of_a_member_that_is_gone_is_forgotten() -> None:
    scheduler = a_cell("e1", "e2")
    keep_away(scheduler, at(0), "e1")
    told(scheduler, at(EJECT_S), TimerFired())
    told(scheduler, at(EJECT_S + EJECT_S_MAX), TimerFired())
    reach = scheduler._state.fleet.health.reach
    assert (reach.away, reach._failing) == ({}, {})

    serve_others(scheduler, at(60))
    ask(scheduler, at(60), ("e1",), count=1)
    ask(scheduler, at(60), ("e1",), count=1)
    assert reach._failing
    told(scheduler, at(60 + EJECT_S_MAX), TimerFired())
    assert not reach._failing


def test_failures_of_requests_sent_before_the_exclusion_do_not_extend_it() -> None:
    scheduler = a_cell("e1", "e2", attempts_max=1)
    serve_others(scheduler, at(0))
    names = [f"r{number}" for number in range(40)]
    sent = told(scheduler, at(0), *(arrived(name, gateway="g3") for name in names))
    lost = [each.request_id for each in sent if isinstance(each, Dispatch) and each.endpoint_id == "e1"]
    assert len(lost) == 20
    told(scheduler, at(1), *(failed(name, fault=Fault.CONNECTION) for name in lost))
    serve_others(scheduler, at(1 + EJECT_S))

    assert "e1" in ask(scheduler, at(1 + EJECT_S), (), count=4)[0]


def test_member_that_lacks_resources_for_one_endpoint_avoids_it() -> None:
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

    assert went.count("e1") == HEALTH.failures_max


def test_member_that_cannot_reach_the_least_loaded_endpoints_uses_the_remaining_one() -> None:
    names = [f"e{number}" for number in range(12)]
    scheduler = a_cell(*names, attempts_max=12)
    serve_others(scheduler, at(0), count=12)
    told(scheduler, at(1), *(arrived(f"load {number}", gateway="g1") for number in range(12)))
    told(scheduler, at(1), *(completed(f"load {number}") for number in range(12)))
    lost = tuple(names[:-1])
    keep_away(scheduler, at(1), *lost, count=60)
    told(scheduler, at(2), arrived("busy", gateway="g3"))

    went, _ = ask(scheduler, at(2), lost, count=3)
    assert went == [names[-1]] * 3
