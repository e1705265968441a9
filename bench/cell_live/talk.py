"""What can one scheduler take, where members talk to it and nobody speaks HTTP? Its processes.

    python -m bench.cell_live.talk PLAN

A plan names the members of one process: gateways that hold requests, or one that only schedules. Each is a `CellHost`
on a real store, as in a gateway. A request arrives, waits for its grant, tells of its first token at once, and ends a
twentieth of a second later: what a scheduler is told of an answer, without the answer.

Talk with whoever started it is by lines of JSON: `{"ready": true}` when all of its members follow, or schedule; then
for each `Step` that comes in, one `Told`.
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

from bench.alarm import Alarm
from bench.busy import ENDPOINTS, busy_endpoints, busy_policy, busy_ticket
from bench.generator import arrivals
from headgate.cli.serve import calm_the_collector
from headgate.core.commands import Abort, Dispatch
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointReadied,
    FirstToken,
    PolicyChanged,
)
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.views import Mode
from headgate.hosts.cell.redis.store import RedisStore
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
    """How many members the cell has."""
    schedules: bool
    seed: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    start_s: float
    """By the monotonic clock."""
    warm_up_s: float
    seconds: float
    """The window, which follows the warm-up."""
    rate: float
    """Of this process."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    offered: int
    """Requests that arrived inside the window."""
    ended: int
    """Requests that ended as they should inside the window."""
    refused: dict[str, int]
    """Of the whole step, by how they ended and why."""
    left: int
    """Still open when the step was over."""
    grant_us: list[int]
    """From arrival to grant, of those that arrived inside the window."""
    cpu_s: float
    """Of this process, inside the window."""


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

    def look(looks: bool) -> None:  # noqa: FBT001  A state, told as it is.
        """Whoever is to look at the engines finds all of them ready, be it the scheduler or an island."""
        if looks:
            asyncio.get_running_loop().call_soon(_find_all_ready, host)

    host = CellHost(node, store, clock, (), _stop, on_duty=look, on_agreed=lambda _: None)
    return host


def _find_all_ready(host: CellHost) -> None:
    for endpoint in busy_endpoints(ENDPOINTS, PLACES):
        host.tell(EndpointReadied(endpoint.id))


def _stop(mistake: BaseException) -> None:
    """As in a gateway: nothing after a mistake can be trusted."""
    print(f"a mistake: {mistake!r}", file=sys.stderr, flush=True)
    os._exit(70)


class Talk:
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
            host.tell(PolicyChanged(busy_policy(TENANTS, kv_tokens=500_000, requests_per_minute=10_000_000), "bench"))
            for endpoint in busy_endpoints(ENDPOINTS, PLACES):
                host.tell(EndpointJoined(endpoint))
        while not all(self._is_ready(host) for host in self._hosts):
            # Whoever started it may have been interrupted before it knew of it.
            if lines.at_eof():
                return
            await asyncio.sleep(0.05)
        calm_the_collector()
        _say({"ready": True})
        while line := await lines.readline():
            _say(await self._step(msgspec.json.decode(line, type=Step)))
        for host in self._hosts:
            host.stop()
            await host.store.stop()

    def _is_ready(self, host: CellHost) -> bool:
        return host.leads if self._plan.schedules else host.view().mode is Mode.FOLLOWING

    async def _step(self, step: Step) -> Told:
        self._grants_us, self._offered, self._ended, self._refused = [], 0, 0, {}
        begin_s = step.start_s + step.warm_up_s
        end_s = begin_s + step.seconds
        self._window_s = (begin_s, end_s)
        await asyncio.sleep(max(0.0, step.start_s - time.monotonic()))
        alarm = Alarm(asyncio.get_running_loop())
        if step.rate:
            self._arrive_by(alarm, arrivals(time.monotonic_ns(), step.rate, self._plan.seed), round(end_s * 1e9))
        await asyncio.sleep(max(0.0, begin_s - time.monotonic()))
        cpu_s = time.process_time()
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))
        cpu_s = time.process_time() - cpu_s
        give_up_s = time.monotonic() + DRAIN_S_MAX
        # Arrivals that are late may come after the window; they count for nothing, and are waited for.
        while self._open and time.monotonic() < give_up_s:
            await asyncio.wait(self._open, timeout=0.1)
        alarm.close()
        return Told(
            offered=self._offered,
            ended=self._ended,
            refused=self._refused,
            left=len(self._open),
            grant_us=self._grants_us,
            cpu_s=cpu_s,
        )

    def _arrive_by(self, alarm: Alarm, moments: Iterator[int], end_ns: int) -> None:
        due_ns = next(moments)
        if due_ns < end_ns:

            def arrive() -> None:
                self._arrive()
                self._arrive_by(alarm, moments, end_ns)

            alarm.at(due_ns, arrive)

    def _arrive(self) -> None:
        self._number += 1
        host = self._hosts[self._number % len(self._hosts)]
        task = asyncio.get_running_loop().create_task(self._live(host, self._ticket()))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _live(self, host: CellHost, ticket: Ticket) -> None:
        request_id = ticket.request_id
        arrived_s = time.monotonic()
        counts = self._window_s[0] <= arrived_s < self._window_s[1]
        self._offered += counts
        line = host.open(ticket, _aside)
        order = await line.next()
        if isinstance(order, Dispatch):
            if counts:
                self._grants_us.append(round((time.monotonic() - arrived_s) * 1e6))
            host.tell(FirstToken(request_id, order.attempt))
            await asyncio.sleep(HOLD_S)
            usage = Usage(300, 120, 0, UsageSource.ENGINE)
            host.tell(AttemptEnded(request_id, order.attempt, AttemptEnding.COMPLETED, usage=usage))
            order = await line.next()
        line.close()
        assert not isinstance(order, Dispatch), "an answer that was whole is not asked for again"
        if order.outcome is Outcome.COMPLETED:
            self._ended += self._window_s[0] <= time.monotonic() < self._window_s[1]
        else:
            what = f"{order.outcome.value}: {order.reason}"
            self._refused[what] = self._refused.get(what, 0) + 1

    def _ticket(self) -> Ticket:
        return busy_ticket(f"{self._plan.members[0]}-{self._number}", self._number, TENANTS, self._chance)


def _aside(order: Abort | Dispatch) -> None:
    raise AssertionError(f"nothing is aborted or hedged here: {order}")


def _say(what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    uvloop.run(Talk(msgspec.json.decode(sys.argv[1], type=Plan)).run())
