"""The autoscaler's decisions reach the right pool's fleet."""

import asyncio
from pathlib import Path

import pytest

from headgate.control.autoscaling import SAMPLE_EVERY, UNSAMPLED_MAX, AutoscalingService
from headgate.core.autoscaling.starts import StartPhase
from headgate.core.events import EndpointJoined, EndpointReady, Event, PolicyChanged, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.overrides import MinimumEndpoints
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.scaling import ScalingRules
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, Instant, PoolName
from headgate.ports.fleet import Phase
from tests.fleets.scaled import SIMULATED, Streams, a_scaled_config, a_scaled_gateway, streaming

POOL = PoolName("small")
NOW = Instant(1_000 * SECOND)


def a_scheduler(*observers: AutoscalingService) -> Scheduler:
    """Scheduler with one ready endpoint."""
    scheduler = Scheduler()
    policy = Policy(classes=(ServiceClass("chat", band=0),), pools=(Pool("small"),))
    for event in (
        PolicyChanged(policy, "h"),
        EndpointJoined(Endpoint("small/0", "small", 4)),
        EndpointReady("small/0"),
    ):
        commands = scheduler.handle(event, NOW)
        for each in observers:
            each.observe(event, commands, NOW)
    return scheduler


async def orders_of(scaling: AutoscalingService, scheduler: Scheduler, *, orders: int) -> list[tuple[PoolName, int]]:
    """Run the autoscaler until it has sent `orders` scale commands, and return them."""
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


async def test_warm_minimum_is_applied_to_the_fleet() -> None:
    scaling = AutoscalingService({POOL: rules(warm_endpoints_min=3)})
    scheduler = a_scheduler(scaling)

    told = await orders_of(scaling, scheduler, orders=2)

    assert set(told) == {(POOL, 3)}, "the command is repeated until the fleet has this size"
    assert scaling.desired() == {POOL: 3}


async def test_minimum_set_by_an_operator_reaches_the_fleet_before_the_end_of_the_period() -> None:
    scaling = AutoscalingService({POOL: ScalingRules(endpoints_max=5, period_ns=Duration(3_600 * SECOND))})
    scheduler = a_scheduler(scaling)
    scaling.change_overrides([MinimumEndpoints(POOL, 2, Instant(NOW + 60 * SECOND))])

    assert await orders_of(scaling, scheduler, orders=1) == [(POOL, 2)]
    assert scaling.pools_status()[POOL]["desired"] == 2


async def test_expired_minimum_and_unknown_pools_are_ignored() -> None:
    scaling = AutoscalingService({POOL: rules(warm_endpoints_min=2)})
    scheduler = a_scheduler(scaling)
    scaling.change_overrides(
        [MinimumEndpoints(POOL, 4, NOW), MinimumEndpoints(PoolName("other"), 4, Instant(NOW + 60 * SECOND))]
    )

    assert set(await orders_of(scaling, scheduler, orders=2)) == {(POOL, 2)}


async def test_pool_is_not_reported_before_its_first_measurement() -> None:
    """An autoscaler that reads the metrics would otherwise remove endpoints that existed before the gateway started."""
    scaling = AutoscalingService({POOL: rules(warm_endpoints_min=3)})
    scheduler = a_scheduler(scaling)
    assert scaling.metrics() == ()

    await orders_of(scaling, scheduler, orders=1)

    assert [(each.pool, each.endpoints_desired) for each in scaling.metrics()] == [(POOL, 3)]


async def test_changed_rules_apply_from_the_next_period() -> None:
    scaling = AutoscalingService({})
    scheduler = a_scheduler(scaling)
    scaling.change_rules({POOL: rules(warm_endpoints_min=2)})

    assert await orders_of(scaling, scheduler, orders=1) == [(POOL, 2)]


async def test_endpoint_start_in_an_unscaled_pool_is_ignored() -> None:
    scaling = AutoscalingService({})

    scaling.started(POOL, Duration(SECOND))

    assert scaling.desired() == {}


# Cold starts


JOINED, READIED = EndpointJoined(Endpoint("small/1", "small", 4)), EndpointReady("small/1")


async def test_cold_start_is_measured_from_the_scale_up_if_the_fleet_only_lists_endpoints() -> None:
    scaling = AutoscalingService({POOL: rules(warm_endpoints_min=2, cold_start_ns=Duration(SECOND))})
    scheduler = a_scheduler(scaling)
    await orders_of(scaling, scheduler, orders=1)
    [start] = scaling.starts()
    assert (start.phase, start.endpoint_id) == (StartPhase.NOT_SCHEDULED, None)

    for event, moment in ((JOINED, start.since + 30 * SECOND), (READIED, start.since + 90 * SECOND)):
        scaling.observe(event, scheduler.handle(event, Instant(moment)), Instant(moment))
    await ticked(scaling, scheduler, Instant(start.since + 91 * SECOND))

    [told] = scaling.metrics()
    assert told.lead_time_ns == 90 * SECOND + 10 * MILLISECOND
    assert told.cold_starts is not None
    assert (told.cold_starts.total, sum(told.cold_starts.counts)) == (90 * SECOND, 1)
    assert scaling.starts() == []


async def test_status_shows_the_phase_observed_by_the_fleet() -> None:
    scaling = AutoscalingService({POOL: rules(warm_endpoints_min=2)})
    scheduler = a_scheduler(scaling)
    scaling.observe(JOINED, scheduler.handle(JOINED, NOW), NOW)
    shown = {"pool": POOL, "endpoint": "small/1", "age_s": 20.0}
    assert scaling.starts_status(Instant(NOW + 20 * SECOND)) == [shown | {"phase": "starting"}]

    scaling.phases = lambda: {EndpointId("small/1"): Phase.WARM_UP}
    assert scaling.starts_status(Instant(NOW + 20 * SECOND)) == [shown | {"phase": "warming"}]


async def test_start_age_is_passed_to_the_autoscaler_until_the_process_stops_deciding() -> None:
    scaling = AutoscalingService({POOL: rules(warm_endpoints_min=2, cold_start_ns=Duration(SECOND))})
    scheduler = a_scheduler(scaling)
    await orders_of(scaling, scheduler, orders=1)
    [start] = scaling.starts()
    await ticked(scaling, scheduler, Instant(start.since + 500 * SECOND))
    [told] = scaling.metrics()
    assert (told.oldest_start_age_ns, told.lead_time_ns) == (500 * SECOND, 500 * SECOND)
    assert told.starting == {StartPhase.NOT_SCHEDULED: 1}

    running = asyncio.create_task(scaling.run(scheduler.summary, lambda: NOW, no_fleet, lambda: False))
    async with asyncio.timeout(60):
        while scaling.starts():
            await asyncio.sleep(0.01)
    running.cancel()
    assert scaling.metrics() == ()


async def ticked(scaling: AutoscalingService, scheduler: Scheduler, now: Instant) -> None:
    """Run the autoscaler at this time until it has made one decision."""
    decided = asyncio.Event()

    def moment() -> Instant:
        decided.set()
        return now

    running = asyncio.create_task(scaling.run(scheduler.summary, moment, no_fleet))
    async with asyncio.timeout(60):
        await decided.wait()
    await asyncio.sleep(0)
    running.cancel()


# Pools without endpoints


NONE_YET = ScalingRules(endpoints_min=0, endpoints_max=5, scale_to_zero_after_ns=Duration(SECOND))
"""Rules for a pool scaled to zero. The ten-second period is longer than these tests, so it never causes a command."""


def an_empty_pool(scaling: AutoscalingService, *classes: ServiceClass) -> Scheduler:
    policy = Policy(
        classes=classes,
        tenants=(Tenant("acme"),),
        pools=(Pool("small", hold_max=2),),
        models=(Model("m", ("small",)),),
    )
    scheduler = Scheduler()
    tell(scaling, scheduler, PolicyChanged(policy, "h"))
    return scheduler


def tell(scaling: AutoscalingService, scheduler: Scheduler, *events: Event) -> None:
    for event in events:
        scaling.observe(event, scheduler.handle(event, NOW), NOW)


def asked(name: str) -> RequestArrived:
    return RequestArrived(Ticket(name, Api.CHAT, "m", "acme", stream=True, prompt_bytes=40))


async def test_demand_on_an_unscaled_pool_is_estimated_from_a_sample() -> None:
    """Counting each request would cost more than all other metrics combined."""
    scaling, exact = AutoscalingService({}, unscaled=rules()), AutoscalingService({POOL: rules()})
    for each in (scaling, exact):
        scheduler = an_empty_pool(each, ServiceClass("chat", band=0))
        tell(each, scheduler, EndpointJoined(Endpoint("small/0", "small", 4)), EndpointReady("small/0"))
        tell(each, scheduler, *(asked(f"r{number}") for number in range(UNSAMPLED_MAX + 20 * SAMPLE_EVERY)))
        running = asyncio.create_task(each.run(scheduler.summary, lambda: Instant(NOW + SECOND), no_fleet))
        async with asyncio.timeout(60):
            while not each.metrics():
                await asyncio.sleep(0.01)
        running.cancel()

    [estimated], [counted] = scaling.metrics(), exact.metrics()
    assert (estimated.pool, estimated.endpoints_desired) == (POOL, None)
    assert estimated.demand_ppm > 0
    assert estimated.demand_ppm == pytest.approx(counted.demand_ppm, rel=0.01)


async def no_fleet(pool: PoolName, endpoints: int) -> bool:
    return False


@pytest.mark.parametrize("start_wait_ns", [Duration(SECOND), None], ids=["held", "rejected"])
async def test_request_without_an_endpoint_triggers_a_start_before_the_period_ends(
    start_wait_ns: Duration | None,
) -> None:
    scaling = AutoscalingService({POOL: NONE_YET})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0, cold_start_wait_ns_max=start_wait_ns))
    tell(scaling, scheduler, asked("a"))

    assert await orders_of(scaling, scheduler, orders=1) == [(POOL, 1)]
    assert scaling.reasons[POOL]


async def test_many_requests_without_an_endpoint_cause_one_scale_command() -> None:
    scaling = AutoscalingService({POOL: NONE_YET})
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

    assert len(told) == 1, "the fleet gets one command while the first start is pending"


async def test_pool_with_a_starting_endpoint_is_not_scaled_before_the_period_ends() -> None:
    scaling = AutoscalingService({POOL: NONE_YET})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0))
    tell(scaling, scheduler, EndpointJoined(Endpoint("small/0", "small", 4)), asked("a"))
    assert not scaling._endpoint_missing.is_set(), "the request waits for the starting endpoint"
    scaling._endpoint_missing.set()
    told: list[int] = []

    async def scale(_: PoolName, endpoints: int) -> bool:
        told.append(endpoints)
        return True

    running = asyncio.create_task(scaling.run(scheduler.summary, lambda: NOW, scale))
    await asyncio.sleep(0.05)
    running.cancel()

    assert told == []


async def test_requests_without_an_endpoint_are_ignored_if_every_pool_keeps_one() -> None:
    scaling = AutoscalingService({POOL: NONE_YET})
    scaling.change_rules({POOL: ScalingRules(endpoints_max=5)})
    scheduler = an_empty_pool(scaling, ServiceClass("chat", band=0))
    tell(scaling, scheduler, asked("a"))
    assert not scaling._endpoint_missing.is_set()

    scaling.change_rules({POOL: NONE_YET})
    tell(scaling, scheduler, asked("b"))
    assert scaling._endpoint_missing.is_set()


@pytest.mark.process
async def test_process_fleet_grows_with_demand(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, SIMULATED, in_flight_max=2, scaling={"period": "200ms", "cold_start": "1s"})
    async with a_scaled_gateway(config, tmp_path) as gateway:
        streams = Streams(gateway, streaming(tokens=200))
        async with streams.going(8):
            await gateway.wait_until_ready(3, seconds_max=60)
            await streams.until_whole(8)

    assert set(streams.seen) == {"whole"}, streams.seen
