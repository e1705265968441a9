"""Tests for cell hosts that share a store that can fail."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
)
from headgate.hosts.cell.host import CellHost, LeaderObserver
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.messages import GrantDeclined, SnapshotCoverage
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence
from headgate.hosts.cell.timing import DEFAULT_TIMING, Timing
from headgate.hosts.local.clock import SystemClock
from headgate.model.endpoint import Endpoint
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import (
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
)
from headgate.ports.clock import Clock
from testing.stalls import rerun_if_stalled
from tests.hosts.cell.fake_store import FakeServer, FakeStore

POOL, ENDPOINT = PoolName("p"), EndpointId("p/e")
POLICY = Policy(
    classes=(ServiceClass(ClassName("only"), band=0),),
    tenants=(Tenant(TenantId("t")),),
    pools=(Pool(POOL),),
    models=(Model(ModelName("m"), (POOL,)),),
)

PATIENT = Timing(
    start_within_ns=Duration(20 * SECOND),
    answer_ns_max=Duration(20 * SECOND),
    island_after_ns=Duration(40 * SECOND),
    lease_ns=Duration(20 * SECOND),
)
"""Long timeouts, because a busy machine may stall a test for longer than the default timeouts."""


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[Event, list[Command]]] = []

    def observe(self, event: Event, commands: Sequence[Command], now: int) -> None:
        self.seen.append((event, list(commands)))

    def events(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event, _ in self.seen)

    def commands(self, kind: type) -> int:
        return sum(isinstance(command, kind) for _, commands in self.seen for command in commands)


@dataclass
class Member:
    host: CellHost
    watcher: Watcher
    of_scheduler: Watcher
    duties: list[bool] = field(default_factory=list)
    agreed: list[str] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

    async def serve(self, name: str) -> tuple[Dispatch, End]:
        """Serves one request and returns its dispatch and its end."""
        line = self.host.open(a_ticket(name), lambda _: None)
        async with asyncio.timeout(60):
            order = await line.next()
            assert isinstance(order, Dispatch)
            self.host.report(FirstToken(order.request_id, order.attempt))
            self.host.report(AttemptEnded(order.request_id, order.attempt, AttemptEnding.COMPLETED))
            end = await line.next()
        assert isinstance(end, End)
        line.close()
        return order, end


def a_ticket(name: str) -> Ticket:
    return Ticket(RequestId(name), Api.CHAT, ModelName("m"), TenantId("t"), stream=True, prompt_bytes=100)


class MovableClock:
    def __init__(self) -> None:
        self._clock, self.ahead_ns = SystemClock(), 0

    def now(self) -> Instant:
        return Instant(self._clock.now() + self.ahead_ns)


def a_member(
    server: FakeServer,
    name: str,
    *,
    candidate: bool = True,
    incarnation: int = 1,
    timing: Timing = PATIENT,
    clock: Clock | None = None,
) -> Member:
    clock, watcher, of_scheduler = clock or SystemClock(), Watcher(), Watcher()
    watching = (of_scheduler, LeaderObserver([watcher]))
    node = Node(
        name,
        incarnation,
        clock.now(),
        lambda: f"id of {name}",
        candidate=candidate,
        observers=watching,
        timing=timing,
    )
    duties: list[bool] = []
    agreed: list[str] = []
    faults: list[BaseException] = []
    store = FakeStore(server, name)
    host = CellHost(
        node, store, clock, (watcher,), faults.append, on_engine_watch=duties.append, on_policy_agreed=agreed.append
    )
    host.report(PolicyChanged(POLICY, "first"))
    host.report(EndpointJoined(Endpoint(ENDPOINT, POOL, in_flight_max=4)))
    return Member(host, watcher, of_scheduler, duties, agreed, faults)


@asynccontextmanager
async def a_cell(server: FakeServer, *names: str, timing: Timing = PATIENT) -> AsyncIterator[list[Member]]:
    """Yields the members of a cell. The first one is the scheduler."""
    members = [a_member(server, name, candidate=not at, timing=timing) for at, name in enumerate(names)]
    for member in members:
        member.host.start()
    first = members[0].host
    await until(
        lambda: [each.presence for each in first.view().members.values()] == [MemberPresence.PRESENT] * len(names)
    )
    await until(lambda: all(member.host.view().mode is MemberMode.FOLLOWING for member in members))
    first.report(EndpointReady(ENDPOINT))
    yield members
    for member in members:
        member.host.stop()
        await member.host.store.stop()
        assert member.faults == []


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_request_is_scheduled_by_another_process() -> None:
    async with a_cell(FakeServer(), "a", "b") as (scheduler, other):
        order, end = await other.serve("r1")

        assert (order.endpoint_id, end.outcome) == (ENDPOINT, Outcome.COMPLETED)
        assert scheduler.host.is_leader
        assert not other.host.is_leader


async def test_gateway_observes_its_own_requests_and_the_scheduler_all_requests() -> None:
    async with a_cell(FakeServer(), "a", "b") as (scheduler, other):
        await scheduler.serve("r1")
        await other.serve("r2")

        for member in (scheduler, other):
            assert member.watcher.events(RequestArrived) == 1
            assert (member.watcher.commands(Dispatch), member.watcher.commands(End)) == (1, 1)
        await until(lambda: scheduler.of_scheduler.commands(End) == 2)
        assert other.of_scheduler.seen == []


@pytest.mark.timing
@rerun_if_stalled
async def test_only_the_scheduler_and_islands_probe_engines() -> None:
    server = FakeServer()
    async with a_cell(server, "a", "b", timing=DEFAULT_TIMING) as (scheduler, other):
        assert (scheduler.duties, other.duties) == ([True], [])
        await until(lambda: other.host.ready_endpoints() == [ENDPOINT])

        server.kill()
        await until(lambda: other.host.view().mode is MemberMode.ISLAND)
        assert other.duties == [True]

        server.restart()
        await until(lambda: other.host.view().mode is MemberMode.FOLLOWING)
        assert other.duties == [True, False]


async def test_island_serves_requests_while_the_store_is_unreachable() -> None:
    server = FakeServer()
    async with a_cell(server, "a", "b", timing=DEFAULT_TIMING) as (_, other):
        await until(lambda: other.host.ready_endpoints() == [ENDPOINT])
        server.kill()

        _, end = await other.serve("r1")

        assert end.outcome is Outcome.COMPLETED
        assert other.host.view().mode is MemberMode.ISLAND
        server.restart()
        await until(lambda: other.host.view().mode is MemberMode.FOLLOWING)
        await other.serve("r2")


async def test_policy_is_applied_when_all_members_have_read_it() -> None:
    async with a_cell(FakeServer(), "a", "b") as (scheduler, other):
        scheduler.host.stage("second")
        # Both members have exchanged messages since then.
        await scheduler.serve("r1")
        await other.serve("r2")
        assert (scheduler.agreed, other.agreed) == ([], [])

        other.host.stage("second")
        await until(lambda: scheduler.agreed == ["second"])
        assert other.agreed == []
        scheduler.host.report(PolicyChanged(POLICY, "second"))
        await until(lambda: other.agreed == ["second"])


async def test_scheduler_stepping_down_is_replaced_before_its_lease_expires() -> None:
    server = FakeServer()
    async with a_cell(server, "a", "b") as (scheduler, other):
        third = a_member(server, "c")
        third.host.start()
        await until(lambda: third.host.view().mode is MemberMode.FOLLOWING)
        await until(lambda: third.host.ready_endpoints() == [ENDPOINT])

        scheduler.host.step_down()

        await until(lambda: third.host.is_leader, seconds=15)
        await scheduler.serve("r1")
        await other.serve("r2")
        await scheduler.host.leave()
        await until(lambda: "a" not in third.host.view().members)
        third.host.stop()
        await third.host.store.stop()
        assert third.faults == []


async def test_undecodable_entry_is_skipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with a_cell(FakeServer(), "a") as (alone,):
        alone.host.receiver.from_inbox([b"nonsense"])
        alone.host.receiver.from_outbox([b"\x92\x80\x90", b""])
        alone.host.receiver.snapshot_read(b"old")

        assert alone.host.unreadable_entries == 4
        assert len([record for record in caplog.records if "skipped a cell entry" in record.getMessage()]) == 1
        await alone.serve("r1")


async def test_unencodable_entry_for_a_member_is_dropped_and_the_member_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_cell(FakeServer(), "a", "b") as (scheduler, other):
        leader = scheduler.host._node.leader
        assert leader is not None
        leader._assignments.send(leader._roster.peers["b"], SnapshotCoverage(1 << 70), SystemClock().now())
        await other.serve("r1")
        await scheduler.serve("r2")

    (told,) = [record.getMessage() for record in caplog.records if "dropped an entry" in record.getMessage()]
    assert told.startswith('dropped an entry for member "b" that cannot be encoded: OverflowError')


async def test_unencodable_entry_from_a_member_is_dropped_and_the_member_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_cell(FakeServer(), "a", "b") as (_, other):
        beyond = GrantDeclined(RequestId("r0"), 1, False, Duration(1 << 70), "late")
        other.host._node.member._connection.send(beyond, SystemClock().now())
        await other.serve("r1")

    (told,) = [record.getMessage() for record in caplog.records if "dropped an entry" in record.getMessage()]
    assert told.startswith("dropped an entry for the scheduler that cannot be encoded: OverflowError")


async def test_internal_error_while_receiving_is_reported_as_a_fault() -> None:
    member = a_member(FakeServer(), "a")

    def wrong(*_: object) -> None:
        raise AssertionError("simulated bug")

    # The receiver's own reference is replaced, because methods of compiled classes cannot be.
    member.host.receiver._node = SimpleNamespace(handle_read_snapshot=wrong)
    with pytest.raises(AssertionError, match="simulated bug"):
        member.host.receiver.snapshot_read(None)
    assert len(member.faults) == 1


async def test_two_processes_with_the_same_name_both_report_it(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer()
    async with a_cell(server, "a", "twin") as (_, first):
        assert first.host.name_problem is None
        second = a_member(server, "twin", candidate=False, incarnation=2)
        second.host.start()
        await until(lambda: None not in (first.host.name_problem, second.host.name_problem))
        second.host.stop()
        await second.host.store.stop()
        assert second.faults == []

    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2
    assert all('is also named "twin"' in each and "different cell.member_name" in each for each in told)


async def test_restart_after_a_clock_moved_backwards_is_not_reported_as_a_duplicate_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FakeServer()
    async with a_cell(server, "a") as (scheduler,):
        for incarnation in (9, 3):
            life = a_member(server, "b", candidate=False, incarnation=incarnation)
            life.host.start()
            await until(lambda life=life: life.host.view().mode is MemberMode.FOLLOWING)
            await life.serve(f"r{incarnation}")
            life.host.stop()
            await life.host.store.stop()
            assert life.host.name_problem is None
        assert scheduler.faults == life.faults == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_leaving_during_a_running_attempt_keeps_the_member_registered() -> None:
    async with a_cell(FakeServer(), "a", "b") as (scheduler, other):
        line = other.host.open(a_ticket("r1"), lambda _: None)
        assert isinstance(await line.next(), Dispatch)
        await other.host.leave()

        assert "b" in scheduler.host.view().members


async def test_blocked_process_reads_its_entries_before_it_becomes_an_island() -> None:
    clock = MovableClock()
    member = a_member(FakeServer(), "g1", candidate=False, clock=clock)
    member.host.start()
    clock.ahead_ns = PATIENT.island_after_ns + SECOND

    # The event loop was blocked for longer than a scheduler may be silent.
    member.host._timer.fire()
    assert member.host.view().mode is MemberMode.SEEKING

    await until(lambda: member.host.view().mode is MemberMode.ISLAND)
    member.host.stop()
    await member.host.store.stop()


async def test_garbage_is_not_collected_while_a_scheduler_starts() -> None:
    clock = MovableClock()
    timing = replace(PATIENT, gather_ns_min=Duration(10 * SECOND), gather_ns_max=Duration(10 * SECOND))
    member = a_member(FakeServer(), "g1", timing=timing, clock=clock)
    member.host.start()
    try:
        await until(lambda: member.host.is_leader)
        assert not gc.isenabled()

        clock.ahead_ns = 10 * SECOND
        await until(lambda: member.of_scheduler.events(PolicyChanged) > 0)
        member.host.report(EndpointReady(ENDPOINT))
        assert gc.isenabled()
    finally:
        member.host.stop()
        await member.host.store.stop()


async def test_garbage_is_collected_again_when_a_starting_scheduler_stops() -> None:
    timing = replace(PATIENT, gather_ns_min=Duration(30 * SECOND), gather_ns_max=Duration(30 * SECOND))
    member = a_member(FakeServer(), "g1", timing=timing)
    member.host.start()
    await until(lambda: member.host.is_leader)

    member.host.stop()

    assert gc.isenabled()
    await member.host.store.stop()
