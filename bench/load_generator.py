"""Load generator, run as a process.

    python -m bench.load_generator PLAN

PLAN is a `LoadPlan` in JSON; the output is a `LoadResult` in JSON on one line. In a closed loop each connection sends
its next request as soon as it has the response, which shows the target's capacity. In an open loop requests are due at
random times, independent of earlier ones, and each is timed from when it was due. A stall in the target therefore
counts against every request it delayed, and so does a late generator.

The generator reads the target's CPU time at both ends of the window, so that it matches the requests and chunks
counted. All of the target's work in the window counts, including housekeeping.
"""

import asyncio
import gc
import json
import random
import ssl
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from time import monotonic_ns, process_time_ns

import msgspec
import uvloop

from bench.connection import Answer, Connection, a_request, chat_body, connect
from bench.cpu_cores import CpuTimes, core_busy_ns, cpu_ns_between, cpu_times
from bench.mock_upstream import EVENTS_AFTER_TOKENS
from bench.precise_timer import PreciseTimer

FINISH_SECONDS_MAX = 30.0
"""Timeout, after the window, for requests that were due inside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    port: int
    key: str
    model: str
    connections: int
    rate: float | None = None
    """Requests per second in an open loop. None for a closed loop."""
    chunks: int = 0
    """Token chunks per streamed response. 0 for a non-streaming response."""
    pace_ms: int = 0
    tokens: int | None = None
    """Exact number of output tokens per response; None lets the engine choose."""
    metadata: dict[str, str] | None = None
    """Request metadata for the ledger."""
    warm_up_s: float = 1.0
    seconds: float
    """Length of the measurement window, which follows the warm-up."""
    pids: tuple[int, ...] = ()
    """Processes whose CPU time is counted."""
    ca: str | None = None
    """PEM file with the authority that issued the target's certificate. None without TLS."""
    core: int | None = None
    """Core that these processes should have to themselves."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    seconds: float
    requests: int
    """Responses that ended inside the window or, in an open loop, whose requests were due inside it."""
    chunks: int
    """Token chunks received inside the window."""
    failed: int
    problem: str | None
    """Error from the first failed request."""
    first_ms: dict[str, float]
    """Quantiles of the time to the first byte of the body."""
    cpu_ns: int
    others_share: float
    """Share of the target's core used by other processes."""
    generator_share: float
    """Share of the generator's core used by the generator."""


@dataclass(slots=True)
class Window:
    """Counts within a time window."""

    start_ns: int = 0
    end_ns: int = 0
    requests: int = 0
    events: int = 0
    events_after_tokens: int = 0
    failed: int = 0
    problem: str | None = None
    firsts_ns: list[int] = field(default_factory=list[int])
    cpu: tuple[CpuTimes, CpuTimes] = ({}, {})
    core_busy_ns: tuple[int, int] = (0, 0)
    own_cpu_ns: tuple[int, int] = (0, 0)

    def holds(self, moment_ns: int) -> bool:
        return self.start_ns <= moment_ns < self.end_ns


class Generator:
    """Sends requests according to a plan. Implements `TierCriteria`."""

    def __init__(self, plan: LoadPlan, alarm: PreciseTimer) -> None:
        self._plan = plan
        self._alarm = alarm
        self.window = Window()
        self._open_window = False
        self._over = False
        self._request = self._request_of(plan.chunks)
        self._chunks_of: dict[Connection, int] = {}
        """Chunks per stream, for streams whose length differs from the plan's."""
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        """Due times of requests waiting for a connection, oldest first."""
        self._running = 0
        self._arrivals: Iterator[int] = iter(())
        self.finished = asyncio.Event()

    def start(self, connections: list[Connection], start_ns: int) -> None:
        window, plan = self.window, self._plan
        window.start_ns = start_ns + round(plan.warm_up_s * 1e9)
        window.end_ns = window.start_ns + round(plan.seconds * 1e9)
        self._alarm.schedule(window.start_ns, self._begin_window)
        self._alarm.schedule(window.end_ns, self._end_window)
        if plan.rate is None:
            self._start_closed(connections)
        else:
            self._idle.extend(connections)
            self._arrivals = arrivals(start_ns, plan.rate, plan.seed)
            self._next_arrival()

    def _start_closed(self, connections: list[Connection]) -> None:
        """Start streams of all lengths up to the full one, so that from then on starts and ends are spread evenly."""
        count = len(connections)
        for number, connection in enumerate(connections, start=1):
            chunks = -(-self._plan.chunks * number // count)
            self._chunks_of[connection] = chunks
            self._send(connection, self._request_of(chunks), monotonic_ns())

    # -- callbacks from connections

    def got_events(self, count: int) -> None:
        if self._open_window:
            self.window.events += count

    def ended(self, connection: Connection, answer: Answer) -> None:
        self._running -= 1
        self._count(answer, self._chunks_of.pop(connection, self._plan.chunks))
        if answer.problem is not None:
            self._stop_if_finished()
        elif self._plan.rate is None:
            if not self._over:
                self._send(connection, self._request, monotonic_ns())
        elif self._waiting:
            self._send(connection, self._request, self._waiting.popleft())
        else:
            self._idle.append(connection)
            self._stop_if_finished()

    def _count(self, answer: Answer, chunks: int) -> None:
        window = self.window
        if answer.problem is None and chunks and answer.events != chunks + EVENTS_AFTER_TOKENS:
            answer.problem = f"received {answer.events} events, expected {chunks + EVENTS_AFTER_TOKENS}"
        if answer.problem is not None:
            window.failed += 1
            window.problem = window.problem or answer.problem
            return
        if self._open_window and chunks:
            window.events_after_tokens += EVENTS_AFTER_TOKENS
        if window.holds(answer.due_ns if self._plan.rate else answer.end_ns):
            window.requests += 1
            window.firsts_ns.append((answer.first_ns or answer.end_ns) - answer.due_ns)

    # -- sending

    def _request_of(self, chunks: int) -> bytes:
        body = chat_body(self._plan.model, chunks=chunks, pace_ms=self._plan.pace_ms)
        if self._plan.tokens is not None:
            body |= {"max_tokens": self._plan.tokens, "min_tokens": self._plan.tokens, "ignore_eos": True}
        if self._plan.metadata is not None:
            body["metadata"] = self._plan.metadata
        return a_request(json.dumps(body).encode(), port=self._plan.port, key=self._plan.key)

    def _send(self, connection: Connection, request: bytes, due_ns: int) -> None:
        self._running += 1
        connection.ask(request, due_ns)

    def _next_arrival(self) -> None:
        due_ns = next(self._arrivals)
        if due_ns < self.window.end_ns:
            self._alarm.schedule(due_ns, lambda: self._arrive(due_ns))

    def _arrive(self, due_ns: int) -> None:
        if self._idle:
            self._send(self._idle.pop(), self._request, due_ns)
        else:
            self._waiting.append(due_ns)
        self._next_arrival()

    # -- the window

    def _begin_window(self) -> None:
        self.window.cpu = (cpu_times(self._plan.pids), {})
        self.window.core_busy_ns = (self._core_busy_ns(), 0)
        self.window.own_cpu_ns = (process_time_ns(), 0)
        self._open_window = True

    def _end_window(self) -> None:
        window = self.window
        self._open_window, self._over = False, True
        window.cpu = (window.cpu[0], cpu_times(self._plan.pids))
        window.core_busy_ns = (window.core_busy_ns[0], self._core_busy_ns())
        window.own_cpu_ns = (window.own_cpu_ns[0], process_time_ns())
        if self._plan.rate is None:
            self.finished.set()
        else:
            self._stop_if_finished()

    def _core_busy_ns(self) -> int:
        return 0 if self._plan.core is None else core_busy_ns(self._plan.core)

    def _stop_if_finished(self) -> None:
        """Finish after the last response that was due inside the window, or immediately after a failure."""
        if self.window.failed or (self._over and not self._running and not self._waiting):
            self.finished.set()


def arrivals(start_ns: int, rate: float, seed: int) -> Iterator[int]:
    """Yield the times of a Poisson process."""
    chance = random.Random(seed)
    moment_ns = float(start_ns)
    while True:
        moment_ns += chance.expovariate(rate) * 1e9
        yield round(moment_ns)


def quantile(values: list[int], share: float) -> float:
    """Return the value below which this fraction of the sorted values lies."""
    return float(values[min(len(values) - 1, round(share * (len(values) - 1)))]) if values else float("nan")


async def run(plan: LoadPlan) -> LoadResult:
    alarm = PreciseTimer(asyncio.get_running_loop())
    generator = Generator(plan, alarm)
    # Open all connections first, so that connecting does not affect request times.
    tls = None if plan.ca is None else ssl.create_default_context(cafile=plan.ca)
    connections = [await connect(plan.port, generator, tls) for _ in range(plan.connections)]
    try:
        generator.start(connections, monotonic_ns())
        async with asyncio.timeout(plan.warm_up_s + plan.seconds + FINISH_SECONDS_MAX):
            await generator.finished.wait()
    except TimeoutError:
        generator.window.failed += 1
        generator.window.problem = f"responses were still open {FINISH_SECONDS_MAX:g} s after the window"
    finally:
        for connection in connections:
            connection.abort()
        alarm.close()
    return load_result(generator.window, plan.seconds)


def load_result(window: Window, seconds: float) -> LoadResult:
    firsts = sorted(window.firsts_ns)
    cpu_ns = cpu_ns_between(*window.cpu)
    return LoadResult(
        seconds=seconds,
        requests=window.requests,
        chunks=window.events - window.events_after_tokens,
        failed=window.failed,
        problem=window.problem,
        first_ms={f"p{share}": quantile(firsts, share / 100) / 1e6 for share in (50, 99)} if firsts else {},
        cpu_ns=cpu_ns,
        others_share=max(0.0, (window.core_busy_ns[1] - window.core_busy_ns[0] - cpu_ns) / (seconds * 1e9)),
        generator_share=(window.own_cpu_ns[1] - window.own_cpu_ns[0]) / (seconds * 1e9),
    )


if __name__ == "__main__":
    # A garbage collection would add a pause to the results, and the run ends before memory matters.
    gc.disable()
    print(json.dumps(asdict(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=LoadPlan))))))
