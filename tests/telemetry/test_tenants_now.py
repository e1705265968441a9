"""Is it known at each moment whose requests wait and whose are in flight?"""

from dataclasses import replace

from headgate.core.events import AttemptEnding
from headgate.model.outcome import Outcome
from headgate.telemetry.meters import OTHER
from headgate.telemetry.tenants_now import TenantsNow
from tests.telemetry.histories import arrived, at, attempt_over, over, sent


def figures(tenants: TenantsNow) -> dict[str, tuple[int, int, int]]:
    return {each.name: (each.asked, each.queued, each.in_flight) for each in tenants}


def test_a_request_waits_is_in_flight_and_is_gone() -> None:
    tenants = TenantsNow()
    tenants.saw(arrived(), [], at(0))
    assert figures(tenants) == {"acme": (1, 1, 0)}

    tenants.saw(arrived("other"), [sent()], at(1))
    assert figures(tenants) == {"acme": (2, 1, 1)}

    tenants.saw(attempt_over(), [over()], at(2))
    assert figures(tenants) == {"acme": (2, 1, 0)}


def test_between_two_attempts_it_waits_again() -> None:
    tenants = TenantsNow()
    tenants.saw(arrived(), [sent()], at(0))
    tenants.saw(attempt_over(AttemptEnding.FAILED), [], at(1))
    assert figures(tenants) == {"acme": (1, 1, 0)}

    tenants.saw(arrived("x", "bolt"), [sent(attempt=2)], at(2))
    assert figures(tenants) == {"acme": (1, 0, 1), "bolt": (1, 1, 0)}


def test_a_hedge_beside_an_attempt_is_the_same_request() -> None:
    tenants = TenantsNow()
    tenants.saw(arrived(), [sent()], at(0))
    tenants.saw(arrived("x", "bolt"), [sent(attempt=2, hedge=True)], at(1))
    assert figures(tenants)["acme"] == (1, 0, 1)

    tenants.saw(attempt_over(AttemptEnding.ABORTED), [], at(2))
    assert figures(tenants)["acme"] == (1, 0, 1)


def test_a_request_that_ends_while_its_attempt_runs_is_gone_at_once() -> None:
    tenants = TenantsNow()
    tenants.saw(arrived(), [sent()], at(0))
    tenants.saw(arrived("x", "bolt"), [over(Outcome.CANCELLED)], at(1))
    tenants.saw(attempt_over(AttemptEnding.ABORTED), [], at(2))

    assert figures(tenants)["acme"] == (1, 0, 0)


def test_what_arrived_before_is_passed_over() -> None:
    tenants = TenantsNow()
    tenants.saw(attempt_over(), [sent(), over()], at(0))

    assert figures(tenants) == {}


def test_the_idle_make_room_and_what_is_left_is_other() -> None:
    tenants = TenantsNow(tenants_max=2)
    for name in ("a", "b", "c"):
        tenants.saw(arrived(name, name), [], at(0))
    assert figures(tenants) == {"a": (1, 1, 0), "b": (1, 1, 0), OTHER: (1, 1, 0)}

    tenants.saw(arrived("x", "b"), [replace(over(), request_id="a")], at(1))
    tenants.saw(arrived("d", "d"), [], at(2))
    assert "a" not in figures(tenants)
    assert figures(tenants)["d"] == (1, 1, 0)
