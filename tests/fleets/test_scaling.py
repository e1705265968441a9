"""Does what the autoscaler wants reach the fleet of its pool, and only that one?"""

import asyncio
from pathlib import Path

import pytest

from headgate.control.autoscaling import SAMPLED, WHOLE_MAX, Scaling
from headgate.core.autoscaling.starts import StartPhase
from headgate.core.events import EndpointJoined, EndpointReadied, Event, PolicyChanged, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.scaling import ScalingRules
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, Instant, PoolName
from headgate.ports.fleet import Phase
from tests.fleets.scaled import SIMULATED, Streams, a_scaled_config, a_scaled_gateway, streaming

POOL = PoolName("small")
NOW = Instant(1_000 * SECOND)


def a_scheduler(*observers: Scaling) -> Scheduler:
    """With one endpoint that is ready."""
    scheduler = Scheduler()
    policy = Policy(classes=(ServiceClass("chat", band=0),), pools=(Pool("small"),))
    for event in (
        PolicyChanged(policy, "h"),
        EndpointJoined(Endpoint("small/0", "small", 4)),
        EndpointReadied("small/0"),
    ):
        commands = scheduler.handle(event, NOW)
        for each in observers:
            each.saw(event, commands, NOW)
    return scheduler


async def orders_of(scaling: Scaling, scheduler: Scheduler, *, orders: int) -> list[tuple[PoolName, int]]:
    """What the fleets are told until so many orders have come."""
    told: list[tuple[PoolName, int]] = []
    ticks = 0

    def now() -> Instant:
        nonlocal ticks
        ticks += 1
        return Instant(NOW + ticks * 10 * MILLISECOND)

    async def scale(pool: PoolName, endpoints: int) -> bool:
        told.append((pool, endpoints))
        return True

    running = asyncio.create_task(scaling.run(scheduler.summary, now, scale))
    try:
        async with asyncio.timeout(60):
            while len(told) < orders:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
    return told


def rules(**settings: int) -> ScalingRules:
    return ScalingRules(endpoints_max=5, period_ns=Duration(10 * MILLISECOND), **settings)


async def test_a_warm_minimum_reaches_the_fleet() -> None:
    scaling = Scaling({POOL: rules(warm_min=3)})
    scheduler = a_scheduler(scaling)

    told = await orders_of(scaling, scheduler, orders=2)

    assert set(told) == {(POOL, 3)}, "said again as long as it is not so"
    assert scaling.wanted() == {POOL: 3}


async def test_nothing_is_told_of_a_pool_before_it_was_measured() -> None:
    """Whoever scales by the metrics would give back what was there before the gateway."""
    scaling = Scaling({POOL: rules(warm_min=3)})
    scheduler = a_scheduler(scaling)
    assert scaling.told() == ()

    await orders_of(scaling, scheduler, orders=1)

    assert [(each.pool, each.endpoints_wanted) for each in scaling.told()] == [(POOL, 3)]


async def test_other_rules_hold_from_the_next_period_on() -> None:
    scaling = Scaling({})
    scheduler = a_scheduler(scaling)
    scaling.change_rules({POOL: rules(warm_min=2)})

    assert await orders_of(scaling, scheduler, orders=1) == [(POOL, 2)]


async def test_the_start_of_an_endpoint_of_a_pool_that_is_not_scaled_teaches_nothing() -> None:
    scaling = Scaling({})

    scaling.started(POOL, Duration(SECOND))

    assert scaling.wanted() == {}


# Cold starts


JOINED, READIED = EndpointJoined(Endpoint("small/1", "small", 4)), EndpointReadied("small/1")


async def test_cold_start_is_measured_from_the_raised_want_for_a_fleet_that_only_lists_endpoints() -> None:
    scaling = Scaling({POOL: rules(warm_min=2, cold_start_ns=Duration(SECOND))})
    scheduler = a_scheduler(scaling)
    await orders_of(scaling, scheduler, orders=1)
    [start] = scaling.starts()
    assert (start.phase, start.endpoint_id) == (StartPhase.NOT_SCHEDULED, None)

    for event, moment in ((JOINED, start.since + 30 * SECOND), (READIED, start.since + 90 * SECOND)):
        scaling.saw(event, scheduler.handle(event, Instant(moment)), Instant(moment))
    await ticked(scaling, scheduler, Instant(start.since + 91 * SECOND))

    [told] = scaling.told()
    assert told.lead_ns == 90 * SECOND + 10 * MILLISECOND
    assert told.cold_starts is not None
    assert (told.cold_starts.total, sum(told.cold_starts.counts)) == (90 * SECOND, 1)
    assert scaling.starts() == []


async def test_status_shows_the_phase_that_the_fleet_observes() -> None:
    scaling = Scaling({POOL: rules(warm_min=2)})
    scheduler = a_scheduler(scaling)
    scaling.saw(JOINED, scheduler.handle(JOINED, NOW), NOW)
    shown = {"pool": POOL, "endpoint": "small/1", "age_s": 20.0}
    assert scaling.starts_status(Instant(NOW + 20 * SECOND)) == [shown | {"phase": "starting"}]

    scaling.phases = lambda: {EndpointId("small/1"): Phase.WARM_UP}
    assert scaling.starts_status(Instant(NOW + 20 * SECOND)) == [shown | {"phase": "warming"}]


async def test_age_of_a_start_reaches_the_autoscaler_until_the_process_stops_deciding() -> None:
    scaling = Scaling({POOL: rules(warm_min=2, cold_start_ns=Duration(SECOND))})
    scheduler = a_scheduler(scaling)
    await orders_of(scaling, scheduler, orders=1)
    [start] = scaling.starts()
    await ticked(scaling, scheduler, Instant(start.since + 500 * SECOND))
    [told] = scaling.told()
    assert (told.oldest_start_ns, told.lead_ns) == (500 * SECOND, 500 * SECOND)
    assert told.starting == {StartPhase.NOT_SCHEDULED: 1}

    running = asyncio.create_task(scaling.run(scheduler.summary, lambda: NOW, no_fleet, lambda: False))
    async with asyncio.timeout(60):
        while scaling.starts():
            await asyncio.sleep(0.01)
    running.cancel()
    assert scaling.told() == ()


async def ticked(scaling: Scaling, scheduler: Scheduler, now: Instant) -> None:
    """Runs the autoscaler at this moment until it has decided once."""
    decided = asyncio.Event()

    def moment() -> Instant:
        decided.set()
        return now

    running = asyncio.create_task(scaling.run(scheduler.summary, moment, no_fleet))
    async with asyncio.timeout(60):
        await decided.wait()
    await asyncio.sleep(0)
    running.cancel()


# A pool that has no endpoint


NONE_YET = ScalingRules(endpoints_min=0, endpoints_max=5, idle_ns=Duration(SECOND))
"""Its period is ten seconds, so that nothing in these tests is ordered by the period."""


def an_empty_pool(scaling: Scaling, *classes: ServiceClass) -> Scheduler:
    policy = Policy(
        classes=classes,
        tenants=(Tenant("acme"),),
        pools=(Pool("small", hold_max=2),),
        models=(Model("m", ("small",)),),
    )
    scheduler = Scheduler()
    tell(scaling, scheduler, PolicyChanged(policy, "h"))
    return scheduler


def tell(scaling: Scaling, scheduler: Scheduler, *events: Event) -> None:
    for event in events:
        scaling.saw(event, scheduler.handle(event, NOW), NOW)


def asked(name: str) -> RequestArrived:
    return RequestArrived(Ticket(name, Api.CHAT, "m", "acme", stream=True, prompt_bytes=40))


async def test_what_is_asked_of_a_pool_that_is_not_scaled_is_told_by_a_part_of_its_requests() -> None:
    """Counting each would cost more than all other figures together."""
    scaling, exact = Scaling({}, unscaled=rules()), Scaling({POOL: rules()})
    for each in (scaling, exact):
        scheduler = an_empty_pool(each, ServiceClass("chat", band=0))
        tell(each, scheduler, EndpointJoined(Endpoint("small/0", "small", 4)), EndpointReadied("small/0"))
        tell(each, scheduler, *(asked(f"r{number}") for number in range(WHOLE_MAX + 20 * SAMPLED)))
        running = asyncio.create_task(each.run(scheduler.summary, lambda: Instant(NOW + SECOND), no_fleet))
        async with asyncio.timeout(60):
            while not each.told():
                await asyncio.sleep(0.01)
        running.cancel()

    [estimated], [counted] = scaling.told(), exact.told()
    assert (estimated.pool, estimated.endpoints_wanted) == (POOL, None)
    assert estimated.demand_ppm > 0
    assert estimated.demand_ppm == pytest.approx(counted.demand_ppm, rel=0.01)


async def no_fleet(pool: PoolName, endpoints: int) -> bool:
    return False


@pytest.mark.parametrize("start_wait_ns", [Duration(SECOND), None], ids=["held", "refused"])
async def test_whoever_finds_no_endpoint_has_one_ordered_before_the_period_is_over(
    start_wait_ns: Duration | None,
) -> None:
    scaling = Scaling({POOL: NONE_YET})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0, start_wait_ns=start_wait_ns))
    tell(scaling, scheduler, asked("a"))

    assert await orders_of(scaling, scheduler, orders=1) == [(POOL, 1)]
    assert scaling.reasons[POOL]


async def test_a_flood_of_requests_that_find_no_endpoint_is_not_a_flood_of_orders() -> None:
    scaling = Scaling({POOL: NONE_YET})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0))
    told: list[int] = []

    async def scale(_: PoolName, endpoints: int) -> bool:
        told.append(endpoints)
        return True

    running = asyncio.create_task(scaling.run(scheduler.summary, lambda: NOW, scale))
    for number in range(200):
        tell(scaling, scheduler, asked(f"r{number}"))
        await asyncio.sleep(0)
    running.cancel()

    assert len(told) == 1, "a fleet that has yet to say that it has begun is not asked for each of them"


async def test_nobody_is_asked_early_for_a_pool_that_has_an_endpoint() -> None:
    scaling = Scaling({POOL: NONE_YET})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0))
    tell(scaling, scheduler, EndpointJoined(Endpoint("small/0", "small", 4)), asked("a"))
    assert not scaling._found_none.is_set(), "it waits for the one that is starting"
    scaling._found_none.set()
    told: list[int] = []

    async def scale(_: PoolName, endpoints: int) -> bool:
        told.append(endpoints)
        return True

    running = asyncio.create_task(scaling.run(scheduler.summary, lambda: NOW, scale))
    await asyncio.sleep(0.05)
    running.cancel()

    assert told == []


async def test_where_every_pool_keeps_an_endpoint_nobody_listens_for_requests_that_find_none() -> None:
    scaling = Scaling({POOL: NONE_YET})
    scaling.change_rules({POOL: ScalingRules(endpoints_max=5)})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0))
    tell(scaling, scheduler, asked("a"))
    assert not scaling._found_none.is_set()

    scaling.change_rules({POOL: NONE_YET})
    tell(scaling, scheduler, asked("b"))
    assert scaling._found_none.is_set()


@pytest.mark.process
async def test_a_live_fleet_grows_with_what_is_asked_of_it(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, SIMULATED, in_flight_max=2, scaling={"period": "200ms", "cold_start": "1s"})
    async with a_scaled_gateway(config, tmp_path) as gateway:
        streams = Streams(gateway, streaming(tokens=200))
        async with streams.going(8):
            await gateway.until_ready(3, seconds_max=60)
            await streams.until_whole(8)

    assert set(streams.seen) == {"whole"}, streams.seen
