"""How hard are those pressed who wait, and who has a say in it?"""

from dataclasses import replace

from headgate.core.pressure import ALL, Pressure, kv_promised, pressing, standing
from headgate.core.routing.fleet import Fleet
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.policy import Promise
from headgate.model.tenant import Plan
from headgate.model.units import MILLISECOND, Duration, EndpointId, PoolName
from testing.builders import a_class, a_policy, a_pool, an_endpoint, arrived, at, lasting

PERIOD = Duration(100 * MILLISECOND)
CRITICAL, STANDARD, FREE = 0, 1, 2
EVERYBODY = -1


def a_request(
    *, cost: float = 1.0, ttft: float | None = 2.0, waited: float = 0.0, of: int = STANDARD, promise: str = "latency"
) -> Request:
    service_class = replace(a_class(), ttft_ns=None if ttft is None else lasting(ttft), promise=Promise(promise))
    request = Request(arrived("r").ticket, service_class, (PoolName("p"),), sequence=1, now=at(0))
    request.cost_ns, request.waited_ns, request.standing = lasting(cost), lasting(waited), of
    request.pressing = pressing(request)
    return request


def measured(pressure: Pressure, *, endpoints: int = 1, kv: int = 0) -> list[int]:
    return list(pressure.measure(PERIOD, endpoints=endpoints, kv=kv))


def test_nobody_waits_and_nobody_is_pressed() -> None:
    pressure = Pressure()
    pressure.went(a_request(waited=10))

    assert measured(pressure, kv=900) == [0, 0, 0, 0, 0, 0]


def test_what_waits_presses_by_its_work_beside_its_target() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=1, ttft=2))
    pressure.queued(a_request(cost=3, ttft=30))

    assert measured(pressure)[ALL] == 600
    assert measured(pressure, endpoints=2)[ALL] == 300


def test_who_has_no_target_presses_nobody() -> None:
    pressure = Pressure()
    patient = a_request(ttft=None)
    pressure.queued(patient)
    pressure.went(patient)
    pressure.left(patient)

    assert pressing(patient) == 0
    assert measured(pressure) == [0, 0, 0, 0, 0, 0]


def test_who_leaves_takes_its_pressure_along() -> None:
    pressure = Pressure()
    request = a_request(cost=1, ttft=2)
    pressure.queued(request)
    pressure.left(request)

    assert measured(pressure)[ALL] == 0


def test_a_queue_stands_where_even_the_quickest_waited_long() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=0))
    pressure.went(a_request(waited=1.5))
    pressure.went(a_request(waited=0.75))

    # 0.75 s beside a quarter of 2 s.
    assert measured(pressure)[ALL] == 1_500


def test_one_who_went_at_once_means_that_no_queue_stands() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=0))
    pressure.went(a_request(waited=0))
    pressure.went(a_request(waited=1.5))

    assert measured(pressure)[ALL] == 0


def test_the_wait_of_the_last_who_went_counts_until_another_goes_or_nobody_waits() -> None:
    pressure = Pressure()
    waiting = a_request(cost=0)
    pressure.queued(waiting)
    pressure.went(a_request(waited=0.75))

    assert [measured(pressure)[ALL], measured(pressure)[ALL]] == [1_500, 1_500]
    pressure.left(waiting)
    assert measured(pressure)[ALL] == 0


def test_a_full_kv_cache_presses_while_anybody_waits() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=0))

    assert measured(pressure, kv=940)[ALL] == 940


def test_with_no_endpoint_at_work_waiting_for_one_says_nothing() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=100))

    assert measured(pressure, endpoints=0)[ALL] == 0


def test_those_who_were_lost_press_as_if_they_waited_and_are_forgotten_within_seconds() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=0))
    for _ in range(200):
        # Two engine-seconds each second, at one endpoint.
        pressure.lost(a_request(cost=0.2))
        measured(pressure)

    assert 1_900 <= pressure.felt[ALL] <= 2_000
    for _ in range(100):
        measured(pressure)
    assert pressure.felt[ALL] < 10


def test_nobody_of_a_higher_standing_has_a_say_in_what_those_below_feel() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=1, of=FREE))
    pressure.queued(a_request(cost=1, of=STANDARD))

    assert measured(pressure) == [0, 500, 1_000, 1_000, 1_000, 1_000]


def test_work_that_keeps_costs_low_is_felt_by_nobody_else() -> None:
    pressure = Pressure()
    pressure.queued(a_request(cost=2, promise="cost", of=CRITICAL))

    assert measured(pressure) == [0, 0, 0, 0, 0, 1_000]
    assert pressure.felt[EVERYBODY] == 1_000


def test_over_its_share_a_plan_stands_behind_all_that_are_within_theirs_but_critical() -> None:
    within = [standing(plan, over_share=False) for plan in (Plan.CRITICAL, Plan.STANDARD, Plan.FREE)]
    over = [standing(plan, over_share=True) for plan in (Plan.CRITICAL, Plan.STANDARD, Plan.FREE)]

    assert within == [0, 1, 2]
    assert over == [0, 3, 4]


def test_the_kv_cache_of_pools_is_that_of_the_endpoints_that_take_work() -> None:
    known = replace(a_pool("p"), kv_tokens=1_000)
    fleet = Fleet(Rules(a_policy(pools=(known, "unknown")), "h"))
    for name, pool in (("e1", "p"), ("e2", "p"), ("warming", "p"), ("u", "unknown")):
        fleet.join(an_endpoint(name, pool=pool), at(0))
    for name in ("e1", "e2", "u"):
        fleet.ready(EndpointId(name), at(0))
    fleet.endpoints[EndpointId("e1")].kv_reserved = 500
    pools = PoolName("p"), PoolName("unknown"), PoolName("gone")

    assert kv_promised(fleet, pools) == 250
    assert kv_promised(fleet, pools[1:]) == 0
