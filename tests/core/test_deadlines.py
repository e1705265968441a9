"""What becomes of a request whose caller no longer wants the answer?"""

import pytest

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_scheduler_without_endpoints,
    abort,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    joined,
    policy_changed,
    progressed,
    readied,
    refused,
    the_end,
    told,
)
from testing.inside import inside

PASSED = "the caller's deadline has passed"
LESS = "allow more time or ask for less"


def over(allowed: str, how: str, goal: str = "the whole answer") -> str:
    return f"the {allowed} that the caller allows for {goal} were over {how}; {LESS}"


# While it waits


@pytest.mark.parametrize(
    ("limits", "goal"),
    [({"complete_within": 5}, "the whole answer"), ({"first_token_within": 5}, "the first token")],
)
def test_a_queued_request_ends_the_moment_its_deadline_passes(limits: dict[str, float], goal: str) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False))
    told(scheduler, at(1), arrived("waits", **limits))

    assert scheduler.next_wakeup() == at(6)
    assert scheduler.handle(TimerFired(), at(5.999)) == []
    assert scheduler.handle(TimerFired(), at(6)) == [
        end("waits", Outcome.TOO_LATE, over("5 s", 'while it waited in class "interactive"', goal), waited=5)
    ]
    assert scheduler.next_wakeup() is None
    assert scheduler.summary().queued["interactive"] == 0


def test_nothing_is_sent_whose_deadline_has_passed_even_where_the_timer_is_late() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("dead", complete_within=5), arrived("alive"))

    assert scheduler.handle(completed("runs"), at(5)) == [
        end("dead", Outcome.TOO_LATE, over("5 s", 'while it waited in class "interactive"'), waited=5),
        end("runs", Outcome.COMPLETED, attempts=1),
        dispatch("alive", waited=5),
    ]


@pytest.mark.parametrize(
    ("allowed", "outcome"), [(29.999, Outcome.TOO_LATE), (30, Outcome.TOO_LATE), (30.001, Outcome.EXPIRED)]
)
def test_patience_and_deadline_the_first_to_end_decides(allowed: float, outcome: Outcome) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits", complete_within=allowed))
    told(scheduler, at(1), TimerFired())

    assert scheduler.next_wakeup() == at(min(allowed, 30))
    # Whoever looks late sees what was over first all the same.
    assert the_end(scheduler.handle(TimerFired(), at(40))).outcome is outcome
    assert scheduler.next_wakeup() is None


def test_a_deadline_is_told_as_such_where_nothing_is_live() -> None:
    scheduler = a_scheduler_without_endpoints()
    told(scheduler, at(0), joined("e1"), arrived("r", complete_within=3))

    assert the_end(scheduler.handle(TimerFired(), at(3))).outcome is Outcome.TOO_LATE


@pytest.mark.parametrize("left", [0, -3])
@pytest.mark.parametrize("which", ["complete_within", "first_token_within"])
def test_a_request_that_is_too_late_on_arrival_ends_at_once(which: str, left: float) -> None:
    scheduler = a_scheduler()
    goal = "the whole answer" if which == "complete_within" else "the first token"

    assert scheduler.handle(arrived("r", **{which: left}), at(1)) == [
        end(
            "r",
            Outcome.TOO_LATE,
            f"the caller's deadline for {goal} had passed before the request arrived; allow more time",
        )
    ]
    assert (scheduler.summary().requests, scheduler.next_wakeup()) == (0, None)


def test_what_is_wrong_with_a_request_is_said_before_that_it_is_late() -> None:
    scheduler = a_scheduler()

    assert the_end(scheduler.handle(arrived("r", model="gpt", complete_within=0), at(1))).outcome is (
        Outcome.MODEL_NOT_FOUND
    )


def test_the_nearer_of_two_deadlines_counts_and_the_whole_answer_if_they_are_one() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False))
    told(scheduler, at(0), arrived("a", first_token_within=2, complete_within=9))
    told(scheduler, at(0), arrived("b", first_token_within=9, complete_within=3))
    told(scheduler, at(0), arrived("c", first_token_within=4, complete_within=4))

    reasons = [the_end(scheduler.handle(TimerFired(), at(moment))).reason for moment in (2, 3, 4)]

    where = 'while it waited in class "interactive"'
    assert reasons == [over("2 s", where, "the first token"), over("3 s", where), over("4 s", where)]


# While it runs


def test_a_running_request_is_stopped_when_the_whole_answer_comes_too_late() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", complete_within=5))
    told(scheduler, at(1), first_token("r"))
    told(scheduler, at(4), progressed("r"))

    assert scheduler.next_wakeup() == at(5)
    assert scheduler.handle(TimerFired(), at(5)) == [
        abort("r", reason=PASSED),
        end("r", Outcome.TOO_LATE, over("5 s", "while attempt 1 was running"), attempts=1),
    ]


def test_a_running_request_is_stopped_when_no_first_token_has_come_in_time() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", first_token_within=2, complete_within=9))

    assert scheduler.handle(TimerFired(), at(2)) == [
        abort("r", reason=PASSED),
        end("r", Outcome.TOO_LATE, over("2 s", "while attempt 1 was running", "the first token"), attempts=1),
    ]


def test_a_first_token_in_time_leaves_the_deadline_of_the_whole_answer() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(stall_ns_max=10**12)))
    told(scheduler, at(0), arrived("r", first_token_within=2, complete_within=9))
    told(scheduler, at(1.999), first_token("r"))

    assert scheduler.next_wakeup() == at(9)
    assert scheduler.handle(TimerFired(), at(8.999)) == []
    assert scheduler.handle(TimerFired(), at(9))[0] == abort("r", reason=PASSED)


def test_a_first_token_in_time_is_all_that_some_callers_want() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", first_token_within=2, stream=False))
    told(scheduler, at(1), first_token("r"), first_token("r"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(completed("r"), at(999)) == [end("r", Outcome.COMPLETED, attempts=1)]


def test_a_first_token_that_comes_with_the_deadline_is_too_late() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", first_token_within=2))

    assert [type(each).__name__ for each in scheduler.handle(first_token("r"), at(2))] == ["Abort", "End"]


def test_the_place_of_a_request_that_was_too_late_is_free_only_when_its_attempt_has_ended() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", complete_within=5), arrived("next"))

    assert scheduler.handle(TimerFired(), at(5))[1:] == [
        end("r", Outcome.TOO_LATE, over("5 s", "while attempt 1 was running"), attempts=1)
    ]
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    assert scheduler.handle(aborted("r"), at(6)) == [dispatch("next", waited=6)]


def test_an_endpoint_is_neither_blamed_nor_praised_for_a_deadline() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=2)), places=2)
    told(scheduler, at(0), arrived("x"), failed("x"))
    told(scheduler, at(1), arrived("late", complete_within=1))
    told(scheduler, at(2), aborted("late"))

    # One failure came before; the deadline neither makes it two nor wipes it out.
    assert endpoint_summary(scheduler, "e1").state == "ready"
    commands = scheduler.handle(failed("x", attempt=2), at(3))
    assert [type(each).__name__ for each in commands] == ["Eject"]


def test_a_trial_that_ends_by_a_deadline_decides_nothing() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("x"), first_token("x"), failed("x"))
    told(scheduler, at(10), arrived("late", complete_within=1))
    told(scheduler, at(11), aborted("late"))

    assert endpoint_summary(scheduler, "e1").state == "trial"


# When the deadline and the end meet


def test_an_answer_that_is_complete_as_its_deadline_passes_is_complete() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", complete_within=5))

    assert scheduler.handle(completed("r"), at(6)) == [end("r", Outcome.COMPLETED, attempts=1)]
    assert scheduler.next_wakeup() is None


def test_an_engines_own_verdict_stands_as_the_deadline_passes() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", complete_within=5))

    assert the_end(scheduler.handle(refused("r"), at(5))).outcome is Outcome.ENGINE_REFUSED


@pytest.mark.parametrize("ends", [failed, fell_silent])
def test_an_attempt_that_fails_as_the_deadline_passes_is_not_made_again(ends: type) -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r", complete_within=5))

    assert scheduler.handle(ends("r", detail="it broke"), at(5)) == [
        end("r", Outcome.TOO_LATE, over("5 s", "when attempt 1 ended: it broke"), attempts=1)
    ]
    assert scheduler.next_wakeup() is None


def test_a_word_about_an_earlier_attempt_does_not_keep_a_late_one_alive() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r", complete_within=5))
    told(scheduler, at(1), failed("r"))

    assert scheduler.handle(failed("r", attempt=1), at(5)) == [
        abort("r", "e2", attempt=2, reason=PASSED),
        end("r", Outcome.TOO_LATE, over("5 s", "while attempt 2 was running"), attempts=2),
    ]


def test_a_word_about_another_request_does_not_keep_a_late_one_alive() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("r", complete_within=5), arrived("other"))

    commands = scheduler.handle(completed("other"), at(5))

    assert [each.request_id for each in commands] == ["r", "r", "other"]


def test_a_deadline_ends_what_was_to_be_moved_away_from_a_hung_endpoint() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(stall_ns_max=4 * 10**9)))
    told(scheduler, at(0), arrived("r", complete_within=5), first_token("r"))
    told(scheduler, at(4), TimerFired())

    assert scheduler.handle(TimerFired(), at(5))[-1] == end(
        "r", Outcome.TOO_LATE, over("5 s", "while attempt 1 was running"), attempts=1
    )


# It goes with the request


def test_a_retry_has_what_is_left_of_the_deadline() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("full", stream=False), arrived("r", "bolt", complete_within=5))
    told(scheduler, at(3), failed("r"))

    # It waits for the other endpoint and its patience would last for 30 s.
    assert scheduler.next_wakeup() == at(5)
    assert scheduler.handle(TimerFired(), at(5)) == [
        end("r", Outcome.TOO_LATE, over("5 s", 'while it waited in class "interactive"'), attempts=1, waited=2)
    ]


def test_a_change_of_policy_keeps_deadlines() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", complete_within=5), arrived("waits", first_token_within=7))
    told(scheduler, at(1), policy_changed(a_policy(classes=(a_class("interactive", queue_wait=1),))))

    assert scheduler.next_wakeup() == at(5)
    assert [each.request_id for each in scheduler.handle(TimerFired(), at(5))] == ["runs", "runs"]
    assert the_end(scheduler.handle(TimerFired(), at(7))).request_id == "waits"


@pytest.mark.parametrize("last", [client_left, completed])
def test_a_deadline_is_forgotten_with_its_request(last: type) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", complete_within=5, first_token_within=1), last("r"))

    assert inside(scheduler).deadlines == 0
    assert scheduler.next_wakeup() is None


def test_a_deadline_that_a_refused_request_had_is_never_kept() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=1),)))
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits"), arrived("no place", complete_within=5))

    assert inside(scheduler).deadlines == 0


def test_many_deadlines_pass_in_the_order_of_their_moments() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("a", complete_within=3), arrived("b", complete_within=1))
    told(scheduler, at(0), arrived("c", complete_within=2), readied("e1"))

    ended = [each.request_id for each in scheduler.handle(TimerFired(), at(9)) if type(each).__name__ == "End"]

    assert ended == ["b", "c", "a"]
