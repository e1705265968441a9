"""Does a host keep its promise to the door? One suite for every host."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReadied,
    Event,
    PolicyChanged,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.views import Mode
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost
from headgate.model.endpoint import Endpoint
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
)
from headgate.ports.host import Host
from tests.hosts.cell.fake_store import FakeServer, FakeStore

POOL, MODEL, TENANT, ENDPOINT = PoolName("p"), ModelName("m"), TenantId("t"), EndpointId("p/e1")

# Longer than any pause of the machine; a test of expiry sets its own.
PATIENT = ServiceClass(ClassName("only"), band=0, queue_wait_ns_max=Duration(60 * SECOND))
POLICY = Policy(
    classes=(PATIENT,),
    tenants=(Tenant(TENANT),),
    pools=(Pool(POOL),),
    models=(Model(MODEL, (POOL,)),),
)


class Recorder:
    """An observer that keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[Event, list[Command], int]] = []

    def saw(self, event: Event, commands: object, now: int) -> None:
        assert isinstance(commands, list)
        self.seen.append((event, list(commands), now))


@asynccontextmanager
async def local_host(recorder: Recorder) -> AsyncIterator[Host]:
    faults: list[BaseException] = []
    host = LocalHost(Scheduler(), SystemClock(), (recorder,), faults.append)
    yield host
    host.stop()
    assert faults == []


@asynccontextmanager
async def cell_host(recorder: Recorder) -> AsyncIterator[Host]:
    """The scheduler is the same process, but what it says and hears goes through the store."""
    faults: list[BaseException] = []
    clock = SystemClock()
    node = Node("gateway", 1, clock.now(), lambda: "id")
    store, nobody = FakeStore(FakeServer(), "gateway"), lambda _: None
    host = CellHost(node, store, clock, (recorder,), faults.append, on_duty=nobody, on_agreed=nobody)
    host.start()
    async with asyncio.timeout(20):
        while "gateway" not in host.view().members or host.view().mode is not Mode.FOLLOWING:
            await asyncio.sleep(0.01)
    yield host
    host.stop()
    await store.stop()
    assert faults == []


@pytest.fixture(params=[local_host, cell_host], ids=["local", "cell"])
async def host(request: pytest.FixtureRequest, recorder: Recorder) -> AsyncIterator[Host]:
    async with request.param(recorder) as host:
        host.tell(PolicyChanged(POLICY, "hash"))
        host.tell(EndpointJoined(Endpoint(ENDPOINT, POOL, in_flight_max=1)))
        host.tell(EndpointReadied(ENDPOINT))
        yield host


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def a_ticket(name: str, model: str = MODEL) -> Ticket:
    return Ticket(RequestId(name), Api.CHAT, ModelName(model), TENANT, stream=True, prompt_bytes=100)


def never(abort: Abort) -> None:
    raise AssertionError(f"nobody asked for {abort}")


async def order(line: object, within: float = 20.0) -> Dispatch | End:
    async with asyncio.timeout(within):
        return await line.next()  # type: ignore[attr-defined]


async def test_a_request_is_dispatched_and_ends_with_its_attempt(host: Host) -> None:
    line = host.open(a_ticket("a"), never)
    dispatch = await order(line)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.endpoint_id == ENDPOINT

    host.tell(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
    end = await order(line)
    assert isinstance(end, End)
    assert end.outcome is Outcome.COMPLETED


async def test_a_request_that_waits_is_dispatched_when_there_is_room(host: Host) -> None:
    first, second = host.open(a_ticket("a"), never), host.open(a_ticket("b"), never)
    await order(first)
    waiting = asyncio.create_task(order(second))
    await asyncio.sleep(0)
    assert not waiting.done()

    host.tell(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
    assert isinstance(await waiting, Dispatch)


async def test_time_passes_without_events(host: Host) -> None:
    assert isinstance(await order(host.open(a_ticket("a"), never)), Dispatch)
    impatient = replace(PATIENT, queue_wait_ns_max=Duration(30 * MILLISECOND))
    host.tell(PolicyChanged(replace(POLICY, classes=(impatient,)), "impatient"))
    end = await order(host.open(a_ticket("b"), never))
    assert isinstance(end, End)
    assert end.outcome is Outcome.EXPIRED


async def test_a_refusal_comes_at_once(host: Host) -> None:
    end = await order(host.open(a_ticket("a", model="unknown"), never))
    assert isinstance(end, End)
    assert end.outcome is Outcome.MODEL_NOT_FOUND


async def test_a_withdrawn_request_has_its_attempt_aborted(host: Host) -> None:
    aborts: list[Abort] = []
    line = host.open(a_ticket("a"), aborts.append)
    await order(line)
    host.tell(RequestWithdrawn(RequestId("a"), WithdrawalCause.CLIENT_LEFT))
    end = await order(line)

    assert [(abort.request_id, abort.attempt) for abort in aborts] == [("a", 1)]
    assert isinstance(end, End)
    assert end.outcome is Outcome.CANCELLED


async def test_a_closed_line_is_forgotten_and_nothing_breaks(host: Host) -> None:
    line = host.open(a_ticket("a"), never)
    await order(line)
    line.close()
    host.tell(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
    async with asyncio.timeout(20):
        while host.summary().requests:
            await asyncio.sleep(0.005)


async def test_observers_see_every_decision_in_order_with_times_that_never_fall(host: Host, recorder: Recorder) -> None:
    line = host.open(a_ticket("a"), never)
    await order(line)
    host.tell(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))

    # That time has passed is how a host says that a command follows from nothing that was told here.
    names = [type(event).__name__ for event, _, _ in recorder.seen if not isinstance(event, TimerFired)]
    times = [now for _, _, now in recorder.seen]
    assert names == ["PolicyChanged", "EndpointJoined", "EndpointReadied", "RequestArrived", "AttemptEnded"]
    assert times == sorted(times)
    assert [type(command).__name__ for command in recorder.seen[-1][1]] == ["End"]


async def test_a_mistake_of_ours_is_reported_and_not_swallowed() -> None:
    faults: list[BaseException] = []
    fault: Callable[[BaseException], None] = faults.append
    host = LocalHost(Scheduler(), SystemClock(), (), fault)
    host.tell(PolicyChanged(POLICY, "hash"))
    host.tell(EndpointJoined(Endpoint(ENDPOINT, POOL, in_flight_max=1)))
    host.tell(EndpointReadied(ENDPOINT))
    host.open(a_ticket("a"), never)
    with pytest.raises(AssertionError, match="arrived twice"):
        host.open(a_ticket("a"), never)
    assert len(faults) == 1
    host.stop()
