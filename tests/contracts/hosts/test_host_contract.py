"""Contract tests for the host port, for the local host and the cell host."""

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
    EndpointReady,
    Event,
    PolicyChanged,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.views import MemberMode
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

# Longer than the machine ever stalls. The expiry test sets a shorter wait.
PATIENT = ServiceClass(ClassName("only"), band=0, queue_wait_ns_max=Duration(60 * SECOND))
POLICY = Policy(
    classes=(PATIENT,),
    tenants=(Tenant(TENANT),),
    pools=(Pool(POOL),),
    models=(Model(MODEL, (POOL,)),),
)


class Recorder:
    """Observer that records its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[Event, list[Command], int]] = []

    def observe(self, event: Event, commands: object, now: int) -> None:
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
    """Yields a cell host whose scheduler runs in the same process and exchanges messages through the store."""
    faults: list[BaseException] = []
    clock = SystemClock()
    node = Node("gateway", 1, clock.now(), lambda: "id")
    store, nobody = FakeStore(FakeServer(), "gateway"), lambda _: None
    host = CellHost(node, store, clock, (recorder,), faults.append, on_engine_watch=nobody, on_policy_agreed=nobody)
    host.start()
    async with asyncio.timeout(20):
        while "gateway" not in host.view().members or host.view().mode is not MemberMode.FOLLOWING:
            await asyncio.sleep(0.01)
    yield host
    host.stop()
    await store.stop()
    assert faults == []


@pytest.fixture(params=[local_host, cell_host], ids=["local", "cell"])
async def host(request: pytest.FixtureRequest, recorder: Recorder) -> AsyncIterator[Host]:
    async with request.param(recorder) as host:
        host.report(PolicyChanged(POLICY, "hash"))
        host.report(EndpointJoined(Endpoint(ENDPOINT, POOL, in_flight_max=1)))
        host.report(EndpointReady(ENDPOINT))
        yield host


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def a_ticket(name: str, model: str = MODEL) -> Ticket:
    return Ticket(RequestId(name), Api.CHAT, ModelName(model), TENANT, stream=True, prompt_bytes=100)


def never(abort: Abort) -> None:
    raise AssertionError(f"unexpected command: {abort}")


async def order(line: object, within: float = 20.0) -> Dispatch | End:
    async with asyncio.timeout(within):
        return await line.next()  # type: ignore[attr-defined]


async def test_request_is_dispatched_and_ends_with_its_attempt(host: Host) -> None:
    line = host.open(a_ticket("a"), never)
    dispatch = await order(line)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.endpoint_id == ENDPOINT

    host.report(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
    end = await order(line)
    assert isinstance(end, End)
    assert end.outcome is Outcome.COMPLETED


async def test_queued_request_is_dispatched_when_a_slot_is_free(host: Host) -> None:
    first, second = host.open(a_ticket("a"), never), host.open(a_ticket("b"), never)
    await order(first)
    waiting = asyncio.create_task(order(second))
    await asyncio.sleep(0)
    assert not waiting.done()

    host.report(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
    assert isinstance(await waiting, Dispatch)


async def test_queued_request_expires_without_further_events(host: Host) -> None:
    assert isinstance(await order(host.open(a_ticket("a"), never)), Dispatch)
    impatient = replace(PATIENT, queue_wait_ns_max=Duration(30 * MILLISECOND))
    host.report(PolicyChanged(replace(POLICY, classes=(impatient,)), "impatient"))
    end = await order(host.open(a_ticket("b"), never))
    assert isinstance(end, End)
    assert end.outcome is Outcome.QUEUE_TIMEOUT


async def test_added_observer_sees_requests_until_it_is_removed(host: Host) -> None:
    first, second = Recorder(), Recorder()
    remove_first, remove_second = host.add_observer(first), host.add_observer(second)
    await order(host.open(a_ticket("a"), never))
    remove_first()
    host.open(a_ticket("b"), never)
    remove_second()
    host.open(a_ticket("c"), never)

    def arrived(recorder: Recorder) -> list[str]:
        return [event.ticket.request_id for event, _, _ in recorder.seen if isinstance(event, RequestArrived)]

    assert (arrived(first), arrived(second)) == (["a"], ["a", "b"])


async def test_request_for_an_unknown_model_is_rejected_immediately(host: Host) -> None:
    end = await order(host.open(a_ticket("a", model="unknown"), never))
    assert isinstance(end, End)
    assert end.outcome is Outcome.MODEL_NOT_FOUND


async def test_withdrawing_a_request_aborts_its_attempt(host: Host) -> None:
    aborts: list[Abort] = []
    line = host.open(a_ticket("a"), aborts.append)
    await order(line)
    host.report(RequestWithdrawn(RequestId("a"), WithdrawalCause.CLIENT_DISCONNECTED))
    end = await order(line)

    assert [(abort.request_id, abort.attempt) for abort in aborts] == [("a", 1)]
    assert isinstance(end, End)
    assert end.outcome is Outcome.CANCELLED


async def test_request_with_a_closed_command_channel_is_removed_when_it_ends(host: Host) -> None:
    line = host.open(a_ticket("a"), never)
    await order(line)
    line.close()
    host.report(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))
    async with asyncio.timeout(20):
        while host.summary().requests:
            await asyncio.sleep(0.005)


async def test_observers_see_decisions_in_order_with_non_decreasing_times(host: Host, recorder: Recorder) -> None:
    line = host.open(a_ticket("a"), never)
    await order(line)
    host.report(AttemptEnded(RequestId("a"), 1, AttemptEnding.COMPLETED))

    # A host reports `TimerFired` for commands that are not caused by one of this process's events.
    names = [type(event).__name__ for event, _, _ in recorder.seen if not isinstance(event, TimerFired)]
    times = [now for _, _, now in recorder.seen]
    assert names == ["PolicyChanged", "EndpointJoined", "EndpointReady", "RequestArrived", "AttemptEnded"]
    assert times == sorted(times)
    assert [type(command).__name__ for command in recorder.seen[-1][1]] == ["End"]


async def test_internal_error_is_reported_and_raised() -> None:
    faults: list[BaseException] = []
    fault: Callable[[BaseException], None] = faults.append
    host = LocalHost(Scheduler(), SystemClock(), (), fault)
    host.report(PolicyChanged(POLICY, "hash"))
    host.report(EndpointJoined(Endpoint(ENDPOINT, POOL, in_flight_max=1)))
    host.report(EndpointReady(ENDPOINT))
    host.open(a_ticket("a"), never)
    with pytest.raises(AssertionError, match="arrived twice"):
        host.open(a_ticket("a"), never)
    assert len(faults) == 1
    host.stop()
