"""Processes for the scheduler throughput benchmark: cell members without HTTP.

    python -m bench.cell_overhead.member_load PLAN

A plan lists the members of one process: gateways with requests, or one scheduler-only node. Each is a `CellHost` on a
real store, as in a gateway. A request arrives, waits for its grant, reports its first token immediately, and ends 50 ms
later. The scheduler receives the same events as for a real response.

The process exchanges lines of JSON with its parent: it sends `{"ready": true}` once all of its members follow a
scheduler or schedule themselves, then one `StepResult` for each `Step` it receives.
"""

import asyncio
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from bench.load_generator import arrivals
from bench.precise_timer import PreciseTimer
from bench.scheduler_workload import ENDPOINTS, workload_endpoints, workload_policy, workload_ticket
from headgate.core.commands import Abort, Dispatch
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReady,
    FirstToken,
    PolicyChanged,
)
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.cell.redis.store import RedisStore
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.hosts.local.clock import SystemClock
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.usage import Usage, UsageSource

CELL = "throughput"
PLACES = 32
TENANTS = 100
HOLD_S = 0.05
DRAIN_S_MAX = 4.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    members: tuple[str, ...]
    of: int
    """Number of members in the cell."""
    schedules: bool
    seed: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    start_s: float
    """Start time on the monotonic clock."""
    warm_up_s: float
    seconds: float
    """Length of the measurement window, which follows the warm-up."""
    rate: float
    """Requests per second from this process."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    offered: int
    """Requests that arrived inside the window."""
    ended: int
    """Requests that completed inside the window."""
    rejected: dict[str, int]
    """Number of requests in the step that did not complete, by outcome and reason."""
    unfinished: int
    """Requests still open at the end of the step."""
    grant_us: list[int]
    """Time from arrival to grant, for requests that arrived inside the window."""
    cpu_s: float
    """CPU time of this process inside the window."""


def a_host(plan: Plan, number: int) -> CellHost:
    clock = SystemClock()
    name = plan.members[number]
    node = Node(
        name,
        time.time_ns(),
        clock.now(),
        lambda: secrets.token_hex(8),
        share=Share(number, plan.of),
        candidate=plan.schedules,
        serves=not plan.schedules,
    )
    store = RedisStore(plan.store, cell=CELL, member=name)

    def look(looks: bool) -> None:  # noqa: FBT001  The parameter is a state.
        """Report all endpoints as ready when this host starts probing them as the scheduler or as an island."""
        if looks:
            asyncio.get_running_loop().call_soon(_find_all_ready, host)

    host = CellHost(node, store, clock, (), _stop, on_engine_watch=look, on_policy_agreed=lambda _: None)
    return host


def _find_all_ready(host: CellHost) -> None:
    for endpoint in workload_endpoints(ENDPOINTS, PLACES):
        host.report(EndpointReady(endpoint.id))


def _stop(mistake: BaseException) -> None:
    """Exit as a gateway would, because the process state cannot be trusted after an internal error."""
    print(f"internal error: {mistake!r}", file=sys.stderr, flush=True)
    os._exit(70)


class MemberLoad:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._hosts = [a_host(plan, number) for number in range(len(plan.members))]
        self._chance = random.Random(f"{plan.seed} {plan.members}")
        self._number = 0
        self._open: set[asyncio.Task[None]] = set()
        self._window_s = (0.0, 0.0)
        self._grants_us: list[int] = []
        self._offered = self._ended = 0
        self._refused: dict[str, int] = {}

    async def run(self) -> None:
        lines = await _stdin()
        for host in self._hosts:
            host.start()
            host.report(
                PolicyChanged(workload_policy(TENANTS, kv_tokens=500_000, requests_per_minute=10_000_000), "bench")
            )
            for endpoint in workload_endpoints(ENDPOINTS, PLACES):
                host.report(EndpointJoined(endpoint))
        while not all(self._is_ready(host) for host in self._hosts):
            # The parent may have been interrupted before it could stop this process.
            if lines.at_eof():
                return
            await asyncio.sleep(0.05)
        tune_garbage_collector()
        _print_json({"ready": True})
        while line := await lines.readline():
            _print_json(await self._step(msgspec.json.decode(line, type=Step)))
        for host in self._hosts:
            host.stop()
            await host.store.stop()

    def _is_ready(self, host: CellHost) -> bool:
        return host.is_leader if self._plan.schedules else host.view().mode is MemberMode.FOLLOWING

    async def _step(self, step: Step) -> StepResult:
        self._grants_us, self._offered, self._ended, self._refused = [], 0, 0, {}
        begin_s = step.start_s + step.warm_up_s
        end_s = begin_s + step.seconds
        self._window_s = (begin_s, end_s)
        await asyncio.sleep(max(0.0, step.start_s - time.monotonic()))
        alarm = PreciseTimer(asyncio.get_running_loop())
        if step.rate:
            self._schedule_arrivals(
                alarm, arrivals(time.monotonic_ns(), step.rate, self._plan.seed), round(end_s * 1e9)
            )
        await asyncio.sleep(max(0.0, begin_s - time.monotonic()))
        cpu_s = time.process_time()
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))
        cpu_s = time.process_time() - cpu_s
        give_up_s = time.monotonic() + DRAIN_S_MAX
        # Late arrivals can fall outside the window. They are not counted but must end before the step does.
        while self._open and time.monotonic() < give_up_s:
            await asyncio.wait(self._open, timeout=0.1)
        alarm.close()
        return StepResult(
            offered=self._offered,
            ended=self._ended,
            rejected=self._refused,
            unfinished=len(self._open),
            grant_us=self._grants_us,
            cpu_s=cpu_s,
        )

    def _schedule_arrivals(self, alarm: PreciseTimer, moments: Iterator[int], end_ns: int) -> None:
        due_ns = next(moments)
        if due_ns < end_ns:

            def arrive() -> None:
                self._arrive()
                self._schedule_arrivals(alarm, moments, end_ns)

            alarm.schedule(due_ns, arrive)

    def _arrive(self) -> None:
        self._number += 1
        host = self._hosts[self._number % len(self._hosts)]
        task = asyncio.get_running_loop().create_task(self._run_request(host, self._ticket()))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _run_request(self, host: CellHost, ticket: Ticket) -> None:
        request_id = ticket.request_id
        arrived_s = time.monotonic()
        counts = self._window_s[0] <= arrived_s < self._window_s[1]
        self._offered += counts
        line = host.open(ticket, _unexpected_command)
        order = await line.next()
        if isinstance(order, Dispatch):
            if counts:
                self._grants_us.append(round((time.monotonic() - arrived_s) * 1e6))
            host.report(FirstToken(request_id, order.attempt))
            await asyncio.sleep(HOLD_S)
            usage = Usage(300, 120, 0, UsageSource.ENGINE)
            host.report(AttemptEnded(request_id, order.attempt, AttemptEnding.COMPLETED, usage=usage))
            order = await line.next()
        line.close()
        assert not isinstance(order, Dispatch), "a completed request was dispatched again"
        if order.outcome is Outcome.COMPLETED:
            self._ended += self._window_s[0] <= time.monotonic() < self._window_s[1]
        else:
            what = f"{order.outcome.value}: {order.reason}"
            self._refused[what] = self._refused.get(what, 0) + 1

    def _ticket(self) -> Ticket:
        return workload_ticket(f"{self._plan.members[0]}-{self._number}", self._number, TENANTS, self._chance)


def _unexpected_command(order: Abort | Dispatch) -> None:
    raise AssertionError(f"unexpected abort or hedge: {order}")


def _print_json(what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    uvloop.run(MemberLoad(msgspec.json.decode(sys.argv[1], type=Plan)).run())
