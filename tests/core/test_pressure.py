"""Pressure on queued requests."""

from dataclasses import replace

from headgate.core.pressure import SHEDDABILITY_MAX, Pressure, added_pressure, kv_reserved_permille, sheddability
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.rules import Rules
from headgate.model.policy import OptimizationGoal
from headgate.model.tenant import Plan
from headgate.model.units import MILLISECOND, Duration, EndpointId, PoolName
from testing.builders import a_class, a_policy, a_pool, an_endpoint, arrived, at, duration

PERIOD = Duration(100 * MILLISECOND)
CRITICAL, STANDARD, FREE = 0, 1, 2
EVERYBODY = -1


def a_request(
    *, cost: float = 1.0, ttft: float | None = 2.0, waited: float = 0.0, of: int = STANDARD, promise: str = "latency"
) -> Request:
    service_class = replace(
        a_class(), ttft_ns=None if ttft is None else duration(ttft), optimize_for=OptimizationGoal(promise)
    )
    request = Request(arrived("r").ticket, service_class, (PoolName("p"),), sequence=1, now=at(0))
    request.cost_ns, request.waited_ns, request.sheddability = duration(cost), duration(waited), of
    request.added_pressure = added_pressure(request)
    return request


def record_dispatched(pressure: Pressure, request: Request) -> None:
    if ttft_ns := request.overload_ttft_ns:
        pressure.record_dispatched(request, ttft_ns)


def measured(pressure: Pressure, *, endpoints: int = 1, kv: int = 0) -> list[int]:
    return list(pressure.measure(PERIOD, endpoints=endpoints, kv=kv))


def test_pressure_is_zero_without_queued_requests() -> None:
    pressure = Pressure()
    record_dispatched(pressure, a_request(waited=10))

    assert measured(pressure, kv=900) == [0, 0, 0, 0, 0, 0]


def test_pressure_is_queued_work_relative_to_target() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=1, ttft=2))
    pressure.enqueued(a_request(cost=3, ttft=30))

    assert measured(pressure)[SHEDDABILITY_MAX] == 600
    assert measured(pressure, endpoints=2)[SHEDDABILITY_MAX] == 300


def test_request_without_target_adds_no_pressure() -> None:
    pressure = Pressure()
    patient = a_request(ttft=None)
    pressure.enqueued(patient)
    record_dispatched(pressure, patient)
    pressure.dequeued(patient)

    assert added_pressure(patient) == 0
    assert measured(pressure) == [0, 0, 0, 0, 0, 0]


def test_request_leaving_the_queue_no_longer_adds_pressure() -> None:
    pressure = Pressure()
    request = a_request(cost=1, ttft=2)
    pressure.enqueued(request)
    pressure.dequeued(request)

    assert measured(pressure)[SHEDDABILITY_MAX] == 0


def test_pressure_is_minimum_wait_relative_to_quarter_of_target() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=0))
    record_dispatched(pressure, a_request(waited=1.5))
    record_dispatched(pressure, a_request(waited=0.75))

    # 0.75 s relative to a quarter of the target of 2 s.
    assert measured(pressure)[SHEDDABILITY_MAX] == 1_500


def test_pressure_is_zero_if_any_request_was_sent_without_waiting() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=0))
    record_dispatched(pressure, a_request(waited=0))
    record_dispatched(pressure, a_request(waited=1.5))

    assert measured(pressure)[SHEDDABILITY_MAX] == 0


def test_minimum_wait_applies_until_queue_is_empty() -> None:
    pressure = Pressure()
    waiting = a_request(cost=0)
    pressure.enqueued(waiting)
    record_dispatched(pressure, a_request(waited=0.75))

    assert [measured(pressure)[SHEDDABILITY_MAX], measured(pressure)[SHEDDABILITY_MAX]] == [1_500, 1_500]
    pressure.dequeued(waiting)
    assert measured(pressure)[SHEDDABILITY_MAX] == 0


def test_full_kv_cache_adds_pressure_while_requests_are_waiting() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=0))

    assert measured(pressure, kv=940)[SHEDDABILITY_MAX] == 940


def test_pressure_is_zero_without_endpoints() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=100))

    assert measured(pressure, endpoints=0)[SHEDDABILITY_MAX] == 0


def test_lost_work_adds_pressure_that_decays_within_seconds() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=0))
    for _ in range(200):
        # Two seconds of engine time are lost per second at one endpoint.
        pressure.record_lost(a_request(cost=0.2))
        measured(pressure)

    assert 1_900 <= pressure.values[SHEDDABILITY_MAX] <= 2_000
    for _ in range(100):
        measured(pressure)
    assert pressure.values[SHEDDABILITY_MAX] < 10


def test_more_sheddable_requests_add_no_pressure_on_less_sheddable_ones() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=1, of=FREE))
    pressure.enqueued(a_request(cost=1, of=STANDARD))

    assert measured(pressure) == [0, 500, 1_000, 1_000, 1_000, 1_000]


def test_cost_optimised_request_adds_no_pressure_on_others() -> None:
    pressure = Pressure()
    pressure.enqueued(a_request(cost=2, promise="cost", of=CRITICAL))

    assert measured(pressure) == [0, 0, 0, 0, 0, 1_000]
    assert pressure.values[EVERYBODY] == 1_000


def test_plans_over_fair_share_are_shed_first_except_critical() -> None:
    within = [sheddability(plan, over_share=False) for plan in (Plan.CRITICAL, Plan.STANDARD, Plan.FREE)]
    over = [sheddability(plan, over_share=True) for plan in (Plan.CRITICAL, Plan.STANDARD, Plan.FREE)]

    assert within == [0, 1, 2]
    assert over == [0, 3, 4]


def test_kv_cache_usage_covers_only_endpoints_that_accept_requests() -> None:
    known = replace(a_pool("p"), kv_tokens=1_000)
    fleet = FleetState(Rules(a_policy(pools=(known, "unknown")), "h"))
    for name, pool in (("e1", "p"), ("e2", "p"), ("warming", "p"), ("u", "unknown")):
        fleet.join(an_endpoint(name, pool=pool), at(0))
    for name in ("e1", "e2", "u"):
        fleet.mark_ready(EndpointId(name), at(0))
    fleet.endpoints[EndpointId("e1")].kv_reserved = 500
    pools = PoolName("p"), PoolName("unknown"), PoolName("gone")

    assert kv_reserved_permille(fleet, pools) == 250
    assert kv_reserved_permille(fleet, pools[1:]) == 0
