"""Each tenant's queued and in-flight requests."""

from dataclasses import replace

from headgate.core.events import AttemptEnding
from headgate.model.outcome import Outcome
from headgate.model.units import BYTES_PER_TOKEN, RequestId
from headgate.model.usage import Usage, UsageSource
from headgate.telemetry.meters import OTHER, Meters
from tests.telemetry.histories import arrived, at, attempt_over, over, sent


def figures(meters: Meters) -> dict[str, tuple[int, int, int]]:
    return {each.name: (each.arrived, each.queued, each.in_flight) for each in meters.activities}


def test_request_is_counted_as_queued_then_in_flight_then_not_at_all() -> None:
    meters = Meters()
    meters.observe(arrived(), [], at(0))
    assert figures(meters) == {"acme": (1, 1, 0)}

    meters.observe(arrived("other"), [sent()], at(1))
    assert figures(meters) == {"acme": (2, 1, 1)}

    meters.observe(attempt_over(), [over()], at(2))
    assert figures(meters) == {"acme": (2, 1, 0)}


def test_request_is_counted_as_queued_between_two_attempts() -> None:
    meters = Meters()
    meters.observe(arrived(), [sent()], at(0))
    meters.observe(attempt_over(AttemptEnding.FAILED), [], at(1))
    assert figures(meters) == {"acme": (1, 1, 0)}

    meters.observe(arrived("x", "bolt"), [sent(attempt=2)], at(2))
    assert figures(meters) == {"acme": (1, 0, 1), "bolt": (1, 1, 0)}


def test_hedge_is_not_counted_as_another_request() -> None:
    meters = Meters()
    meters.observe(arrived(), [sent()], at(0))
    meters.observe(arrived("x", "bolt"), [sent(attempt=2, hedge=True)], at(1))
    assert figures(meters)["acme"] == (1, 0, 1)

    meters.observe(attempt_over(AttemptEnding.ABORTED), [], at(2))
    assert figures(meters)["acme"] == (1, 0, 1)


def test_request_ending_before_its_attempt_is_removed_immediately() -> None:
    meters = Meters()
    meters.observe(arrived(), [sent()], at(0))
    meters.observe(arrived("x", "bolt"), [over(Outcome.CANCELLED)], at(1))
    meters.observe(attempt_over(AttemptEnding.ABORTED), [], at(2))

    assert figures(meters)["acme"] == (1, 0, 0)


def test_requests_that_arrived_before_the_start_are_ignored() -> None:
    meters = Meters()
    meters.observe(attempt_over(), [sent(), over()], at(0))

    assert figures(meters) == {}


def test_idle_tenants_make_room_and_excess_tenants_are_counted_as_other() -> None:
    meters = Meters(active_tenants_max=2)
    for name in ("a", "b", "c"):
        meters.observe(arrived(name, name), [], at(0))
    assert figures(meters) == {"a": (1, 1, 0), "b": (1, 1, 0), OTHER: (1, 1, 0)}

    meters.observe(arrived("x", "b"), [replace(over(), request_id="a")], at(1))
    meters.observe(arrived("d", "d"), [], at(2))
    assert "a" not in figures(meters)
    assert figures(meters)["d"] == (1, 1, 0)


def test_attempt_that_was_never_observed_does_not_change_the_counts() -> None:
    meters = Meters()
    meters.observe(arrived(), [], at(0))
    meters.observe(attempt_over(AttemptEnding.FAILED), [], at(1))
    assert figures(meters) == {"acme": (1, 1, 0)}

    meters.observe(arrived("x", "bolt"), [sent()], at(2))
    assert figures(meters)["acme"] == (1, 0, 1)


def test_second_attempt_of_an_ended_request_is_not_counted() -> None:
    meters = Meters()
    meters.observe(arrived(), [sent(), sent(attempt=2, hedge=True)], at(0))
    meters.observe(attempt_over(), [over()], at(1))
    meters.observe(attempt_over(AttemptEnding.ABORTED), [], at(2))

    assert figures(meters) == {"acme": (1, 0, 0)}
    assert not meters.open_requests


def test_tokens_of_a_request_are_those_of_its_prompt_and_the_mean_output() -> None:
    meters = Meters()
    first = arrived()
    meters.observe(first, [sent()], at(0))
    [acme] = meters.activities
    prompt = first.ticket.prompt_bytes // BYTES_PER_TOKEN
    assert (acme.tokens, acme.open_tokens) == (prompt, prompt)

    meters.observe(attempt_over(usage=Usage(prompt, 80, 0, UsageSource.ENGINE)), [over()], at(1))
    assert (acme.tokens, acme.open_tokens, acme.output_tokens) == (prompt, 0, 10)

    meters.observe(arrived("other"), [], at(2))
    assert (acme.tokens, acme.open_tokens) == (2 * prompt + 10, prompt + 10)
    meters.observe(arrived("third"), [replace(over(Outcome.RATE_LIMITED), request_id=RequestId("third"))], at(3))
    assert (acme.tokens, acme.open_tokens) == (3 * prompt + 20, prompt + 10)
