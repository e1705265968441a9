"""Measurements of the routes of a rollout."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.control.rollouts.samples import RolloutSamples, RouteSamples
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import Event, PolicyChanged, TimerFired
from headgate.model.money import Bill, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy
from headgate.model.routes import ModelRoute
from headgate.model.units import SECOND
from testing.builders import (
    a_class,
    a_policy,
    arrived,
    at,
    completed,
    dispatch,
    duration,
    end,
    failed,
    first_token,
    timed_out,
)

ROUTES = (ModelRoute("old", ("p",), 0), ModelRoute("new", ("q",), 1))
TARGETS = replace(a_class("interactive"), ttft_ns=duration(1), tpot_ns=duration(0.1))
POLICY = replace(
    a_policy(pools=("p", "q"), models=(Model("m", ("p",), routes=ROUTES), Model("n", ("p",)))), classes=(TARGETS,)
)


class Watched:
    """Samples of model "m" after these moments: time in seconds, event and commands."""

    def __init__(
        self, *moments: tuple[float, Event, Sequence[Command]], policy: Policy = POLICY, **limits: int
    ) -> None:
        self.samples = RolloutSamples(**limits)
        self.samples.observe(PolicyChanged(policy, "h"), [], at(0))
        self.samples.watch("m", ("old", "new"))
        self.see(*moments)

    def see(self, *moments: tuple[float, Event, Sequence[Command]]) -> None:
        for moment, event, commands in moments:
            self.samples.observe(event, commands, at(moment))

    def route(self, name: str) -> RouteSamples:
        return self.samples.of("m")[name]


def sent(request: str = "r", route: str = "new", attempt: int = 1) -> Dispatch:
    return replace(dispatch(request, attempt=attempt), route=route)


def over(outcome: Outcome = Outcome.COMPLETED, request: str = "r", *bills: Bill) -> End:
    return replace(end(request, outcome, attempts=1), bills=bills)


def test_completed_stream_is_measured_for_its_route() -> None:
    bill = Bill(1, BillCause.ANSWER, *(duration(0),) * 3, NanoUsd(3), NanoUsd(4), NanoUsd(5))
    watched = Watched(
        (0, arrived("r"), [sent()]),
        (0.5, first_token("r"), []),
        (1.5, completed("r", tokens=21), [over(Outcome.COMPLETED, "r", bill)]),
    )
    new, old = watched.route("new"), watched.route("old")

    assert new.ttft_ns.mean == pytest.approx(math.log(0.5 * SECOND))
    assert new.tpot_ns.mean == pytest.approx(math.log(0.05 * SECOND))
    assert new.cost_nano_usd.mean == pytest.approx(math.log(12))
    assert (new.errors.count, new.errors.hits, new.missed.count, new.missed.hits) == (1, 0, 1, 0)
    assert old.errors.count == 0


@pytest.mark.parametrize(("first_at", "ends_at"), [(1.1, 1.2), (0.5, 3)])
def test_response_that_misses_a_target_counts(first_at: float, ends_at: float) -> None:
    watched = Watched(
        (0, arrived("r"), [sent()]), (first_at, first_token("r"), []), (ends_at, completed("r", tokens=21), [over()])
    )

    assert (watched.route("new").missed.count, watched.route("new").missed.hits) == (1, 1)


def test_class_without_targets_misses_none() -> None:
    watched = Watched(
        (0, arrived("r"), [sent()]),
        (9, completed("r", tokens=1, first_token=True), [over()]),
        policy=replace(POLICY, classes=(a_class("interactive"),)),
    )

    assert (watched.route("new").missed.count, watched.route("new").ttft_ns.count) == (0, 1)
    assert watched.route("new").tpot_ns.count == 0


@pytest.mark.parametrize(("ends_at", "missed"), [(2, 0), (2.1, 1)])
def test_whole_response_is_compared_with_the_e2e_target(ends_at: float, missed: int) -> None:
    watched = Watched(
        (0, arrived("r", stream=False), [sent()]),
        (ends_at, completed("r", tokens=9, first_token=True), [over()]),
        policy=replace(POLICY, classes=(replace(a_class("interactive"), e2e_ns=duration(2)),)),
    )

    assert (watched.route("new").missed.count, watched.route("new").missed.hits) == (1, missed)


def test_whole_response_has_no_latency() -> None:
    watched = Watched(
        (0, arrived("r", stream=False), [sent()]), (1, first_token("r"), []), (2, completed("r", tokens=9), [over()])
    )

    assert (watched.route("new").errors.count, watched.route("new").ttft_ns.count) == (1, 0)


def test_failed_attempt_is_an_error_even_if_a_retry_succeeds() -> None:
    watched = Watched(
        (0, arrived("r"), [sent()]), (1, failed("r"), [sent(attempt=2)]), (2, completed("r", 2), [over()])
    )

    assert (watched.route("new").errors.count, watched.route("new").errors.hits) == (1, 1)


def test_request_that_no_endpoint_of_its_route_serves_is_an_error() -> None:
    watched = Watched((0, arrived("r"), [over(Outcome.NO_ENDPOINTS)]))

    assert watched.route("new").errors.hits == 1


def test_request_that_a_fallback_model_serves_is_an_error_of_its_route() -> None:
    fallback = replace(sent(route=""), model="n")
    watched = Watched((0, arrived("r"), [fallback]), (1, first_token("r"), []), (2, completed("r", tokens=9), [over()]))

    assert (watched.route("new").errors.hits, watched.route("new").ttft_ns.count) == (1, 0)
    assert watched.route("old").errors.count == 0


@pytest.mark.parametrize("ending", [failed("r"), timed_out("r")])
def test_failed_attempt_at_an_overflow_provider_is_not_an_error_of_the_route(ending: Event) -> None:
    watched = Watched(
        (0, arrived("r"), [sent(route="")]), (1, ending, [sent(attempt=2)]), (2, completed("r", 2), [over()])
    )

    assert (watched.route("new").errors.count, watched.route("new").errors.hits) == (1, 0)


@pytest.mark.parametrize(
    ("outcome", "errors"),
    [(Outcome.ENGINE_ERROR, 0), (Outcome.COMPLETED, 0), (Outcome.QUEUE_TIMEOUT, 1), (Outcome.NO_ENDPOINTS, 1)],
)
def test_request_that_only_the_provider_tried_counts_if_its_route_then_fails_to_serve_it(
    outcome: Outcome, errors: int
) -> None:
    watched = Watched((0, arrived("r"), [sent(route="")]), (1, failed("r"), [over(outcome)]))

    assert (watched.route("new").errors.count, watched.route("new").errors.hits) == (errors, errors)


def test_request_that_overflows_after_its_route_failed_is_an_error_without_latency_or_cost() -> None:
    bill = Bill(2, BillCause.ANSWER, *(duration(0),) * 3, NanoUsd(3), NanoUsd(4), NanoUsd(5))
    watched = Watched(
        (0, arrived("r"), [sent()]),
        (1, failed("r"), [sent(route="", attempt=2)]),
        (2, completed("r", 2, tokens=9, first_token=True), [over(Outcome.COMPLETED, "r", bill)]),
    )
    new = watched.route("new")

    assert (new.errors.count, new.errors.hits, new.ttft_ns.count, new.cost_nano_usd.count) == (1, 1, 0, 0)


def test_latencies_of_a_smaller_model_under_overload_are_left_out() -> None:
    smaller = replace(sent(), model="n")
    watched = Watched((0, arrived("r"), [smaller]), (1, first_token("r"), []), (2, completed("r", tokens=9), [over()]))

    errors = watched.route("new").errors
    assert (errors.count, errors.hits, watched.route("new").ttft_ns.count) == (1, 0, 0)


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.RATE_LIMITED, Outcome.SHED])
def test_outcomes_that_the_route_does_not_cause_are_left_out(outcome: Outcome) -> None:
    watched = Watched((0, arrived("r"), [sent()]), (1, TimerFired(), [over(outcome)]))

    assert watched.route("new").errors.count == 0


def test_other_models_and_unknown_requests_are_ignored() -> None:
    watched = Watched(
        (0, arrived("x", model="n"), [sent("x")]),
        (1, failed("gone"), [over(request="gone")]),
        (1, first_token("gone"), []),
        (2, completed("x"), [over(request="x")]),
        (3, arrived("y", tenant="stranger"), [over(Outcome.NO_ENDPOINTS, "y")]),
    )

    assert watched.route("new").errors.count == watched.route("old").errors.count == 0


def test_number_of_open_requests_is_bounded() -> None:
    watched = Watched((0, arrived("a"), [sent("a")]), (0, arrived("b"), [sent("b")]), open_max=1)
    watched.see((1, completed("b"), [over(request="b")]), (1, completed("a"), [over(request="a")]))

    assert watched.route("new").errors.count == 1


def test_new_step_measures_anew_except_for_kept_routes() -> None:
    watched = Watched((0, arrived("r"), [sent()]), (1, completed("r"), [over()]))
    watched.samples.watch("m", ("old", "new"), kept=("new",))
    assert watched.route("new").errors.count == 1
    watched.samples.watch("m", ("old", "new"))
    assert watched.route("new").errors.count == 0


def test_forgotten_model_is_not_measured() -> None:
    watched = Watched((0, arrived("r"), [sent()]))
    watched.samples.forget("m")
    watched.samples.forget("m")
    watched.see((1, completed("r"), [over()]))

    assert watched.samples.of("m") == {}
