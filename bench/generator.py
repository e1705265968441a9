"""What does a target do under this load? The load generator, as a process.

    python -m bench.generator PLAN

PLAN is a `Plan` in JSON; a `Measured` in JSON comes back as one line. In a closed loop each connection asks again as
soon as it has its answer, which shows what the target can do. In an open loop requests are due at random moments,
whatever became of those before, and each is timed from the moment it was due: a target that stalls pays for every
request that the stall delayed, and so does a generator that is late.

The target's CPU is read by the generator itself at both ends of the window, so that it belongs to exactly the requests
and chunks that are counted. All that the target does in the window counts, its housekeeping included.
"""

import asyncio
import gc
import json
import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from time import monotonic_ns, process_time_ns

import msgspec
import uvloop

from bench.alarm import Alarm
from bench.connection import Answer, Connection, a_request, connect
from bench.cores import CpuTimes, core_busy_ns, cpu_ns_between, cpu_times
from bench.upstream import EVENTS_AFTER_TOKENS

FINISH_SECONDS_MAX = 30.0
"""How long requests that were due inside the window may still run after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    port: int
    key: str
    model: str
    connections: int
    rate: float | None = None
    """Requests a second in an open loop; None for a closed one."""
    chunks: int = 0
    """Token chunks of each answer, which is streamed; 0 for an answer that is not."""
    pace_ms: int = 0
    tokens: int | None = None
    """Exact number of output tokens per response; None lets the engine choose."""
    metadata: dict[str, str] | None = None
    """What each request brings along for the accounts."""
    warm_up_s: float = 1.0
    seconds: float
    """The window, which follows the warm-up."""
    pids: tuple[int, ...] = ()
    """Whose CPU is counted."""
    core: int | None = None
    """Where they run, if they should have it to themselves."""
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    seconds: float
    requests: int
    """Answers that ended inside the window; in an open loop those that were due inside it."""
    chunks: int
    """Token chunks that came inside the window."""
    failed: int
    problem: str | None
    """What was wrong with the first that failed."""
    first_ms: dict[str, float]
    """Quantiles of the time to the first byte of the body."""
    cpu_ns: int
    others_share: float
    """What other processes took of the core that the target should have to itself."""
    generator_share: float
    """What the generator took of its own core."""


@dataclass(slots=True)
class Window:
    """What is counted between two moments."""

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
    """Sends by a plan. An `Asker`."""

    def __init__(self, plan: Plan, alarm: Alarm) -> None:
        self._plan = plan
        self._alarm = alarm
        self.window = Window()
        self._open_window = False
        self._over = False
        self._request = self._request_of(plan.chunks)
        self._chunks_of: dict[Connection, int] = {}
        """Of the streams that are not as long as all others."""
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        """When requests were due for which there is no connection, the oldest first."""
        self._running = 0
        self._arrivals: Iterator[int] = iter(())
        self.finished = asyncio.Event()

    def start(self, connections: list[Connection], start_ns: int) -> None:
        window, plan = self.window, self._plan
        window.start_ns = start_ns + round(plan.warm_up_s * 1e9)
        window.end_ns = window.start_ns + round(plan.seconds * 1e9)
        self._alarm.at(window.start_ns, self._begin_window)
        self._alarm.at(window.end_ns, self._end_window)
        if plan.rate is None:
            self._start_closed(connections)
        else:
            self._idle.extend(connections)
            self._arrivals = arrivals(start_ns, plan.rate, plan.seed)
            self._next_arrival()

    def _start_closed(self, connections: list[Connection]) -> None:
        """The first streams have all lengths up to the full one, so that ever after as many end as begin."""
        count = len(connections)
        for number, connection in enumerate(connections, start=1):
            chunks = -(-self._plan.chunks * number // count)
            self._chunks_of[connection] = chunks
            self._ask(connection, self._request_of(chunks), monotonic_ns())

    # -- what connections tell

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
                self._ask(connection, self._request, monotonic_ns())
        elif self._waiting:
            self._ask(connection, self._request, self._waiting.popleft())
        else:
            self._idle.append(connection)
            self._stop_if_finished()

    def _count(self, answer: Answer, chunks: int) -> None:
        window = self.window
        if answer.problem is None and chunks and answer.events != chunks + EVENTS_AFTER_TOKENS:
            answer.problem = f"{answer.events} events came where {chunks + EVENTS_AFTER_TOKENS} were asked for"
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
        body: dict[str, object] = {
            "model": self._plan.model,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": f"chunks={chunks} pace_ms={self._plan.pace_ms} Tell me about water gates."},
            ],
            "max_tokens": 256,
            "temperature": 0.7,
        }
        if self._plan.tokens is not None:
            body |= {"max_tokens": self._plan.tokens, "min_tokens": self._plan.tokens, "ignore_eos": True}
        if self._plan.metadata is not None:
            body["metadata"] = self._plan.metadata
        if chunks:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return a_request(json.dumps(body).encode(), port=self._plan.port, key=self._plan.key)

    def _ask(self, connection: Connection, request: bytes, due_ns: int) -> None:
        self._running += 1
        connection.ask(request, due_ns)

    def _next_arrival(self) -> None:
        due_ns = next(self._arrivals)
        if due_ns < self.window.end_ns:
            self._alarm.at(due_ns, lambda: self._arrive(due_ns))

    def _arrive(self, due_ns: int) -> None:
        if self._idle:
            self._ask(self._idle.pop(), self._request, due_ns)
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
        """In an open loop also what was due at the window's last moment is waited for; a failure ends it at once."""
        if self.window.failed or (self._over and not self._running and not self._waiting):
            self.finished.set()


def arrivals(start_ns: int, rate: float, seed: int) -> Iterator[int]:
    """Moments of a Poisson process."""
    chance = random.Random(seed)
    moment_ns = float(start_ns)
    while True:
        moment_ns += chance.expovariate(rate) * 1e9
        yield round(moment_ns)


def quantile(values: list[int], share: float) -> float:
    """The value below which this share of all lies; values must be sorted."""
    return float(values[min(len(values) - 1, round(share * (len(values) - 1)))]) if values else float("nan")


async def run(plan: Plan) -> Measured:
    alarm = Alarm(asyncio.get_running_loop())
    generator = Generator(plan, alarm)
    # All of them first, so that no request is timed while hundreds connect.
    connections = [await connect(plan.port, generator) for _ in range(plan.connections)]
    try:
        generator.start(connections, monotonic_ns())
        async with asyncio.timeout(plan.warm_up_s + plan.seconds + FINISH_SECONDS_MAX):
            await generator.finished.wait()
    except TimeoutError:
        generator.window.failed += 1
        generator.window.problem = f"answers were still open {FINISH_SECONDS_MAX:g} s after the window"
    finally:
        for connection in connections:
            connection.abort()
        alarm.close()
    return measured(generator.window, plan.seconds)


def measured(window: Window, seconds: float) -> Measured:
    firsts = sorted(window.firsts_ns)
    cpu_ns = cpu_ns_between(*window.cpu)
    return Measured(
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
    # A collection would be a pause in the figures of a run that is over before memory matters.
    gc.disable()
    print(json.dumps(asdict(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Plan))))))
