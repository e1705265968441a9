"""Fixed work for throughput comparisons.

The same client sends the same requests in the same order, with a fixed concurrency, and is timed from the first request
to the last. Both sides of a comparison therefore do the same amount of work.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic_ns

from bench.connection import Answer, Connection, a_request, connect

SUBJECTS = ("rivers", "bridges", "clocks", "lighthouses", "looms", "orchards", "harbours", "windmills")
QUESTIONS = (
    "Tell me how {} came to be, from the first ones to those of today.",
    "What should a child know about {}? Answer in plain words.",
    "Write a short letter to a friend who has never seen any {}.",
    "Which three things do people most often get wrong about {}?",
)
TOKENS_MIN, TOKENS_MAX = 16, 48


class WorkFailed(Exception):
    """A response was incorrect, so its duration is meaningless."""


@dataclass(frozen=True, slots=True)
class Task:
    prompt: str
    """Prompt shorter than an engine's cache block, so that no request gets a prefix cache hit."""
    tokens: int

    def body(self, model: str) -> bytes:
        """Return the body of a streaming request for exactly this number of tokens."""
        fields = {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "temperature": 0,
            "max_tokens": self.tokens,
            "min_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class WorkResult:
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def tasks(count: int) -> list[Task]:
    """Return a fixed list of tasks of many lengths, so that responses do not all end at the same time."""
    return [
        Task(
            QUESTIONS[number // len(SUBJECTS) % len(QUESTIONS)].format(SUBJECTS[number % len(SUBJECTS)]),
            TOKENS_MIN + number * 7 % (TOKENS_MAX - TOKENS_MIN + 1),
        )
        for number in range(count)
    ]


@dataclass(slots=True)
class _Worker:
    """Sends one request after another. Implements `TierCriteria`."""

    left: deque[bytes]
    open: int = 0
    tokens: list[int] = field(default_factory=list[int])
    problem: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, connection: Connection) -> None:
        if self.left and self.problem is None:
            self.open += 1
            connection.ask(self.left.popleft(), monotonic_ns())
        elif not self.open:
            self.over.set()

    def got_events(self, count: int) -> None:
        pass

    def ended(self, connection: Connection, answer: Answer) -> None:
        self.open -= 1
        self.problem = self.problem or answer.problem
        self.tokens.append(answer.tokens or 0)
        if answer.problem is None:
            self.ask(connection)
        else:
            self.over.set()


async def run_tasks(
    work: Sequence[Task], *, port: int, key: str, model: str, at_once: int, seconds_max: float
) -> WorkResult:
    worker = _Worker(deque(a_request(task.body(model), port=port, key=key) for task in work))
    connections = [await connect(port, worker) for _ in range(min(at_once, len(work)))]
    start_ns = monotonic_ns()
    try:
        for connection in connections:
            worker.ask(connection)
        async with asyncio.timeout(seconds_max):
            await worker.over.wait()
    except TimeoutError:
        raise WorkFailed(f"only {len(worker.tokens)} of {len(work)} responses ended within {seconds_max:g} s") from None
    finally:
        for connection in connections:
            connection.abort()
    seconds = (monotonic_ns() - start_ns) / 1e9
    if worker.problem is not None:
        raise WorkFailed(worker.problem)
    asked, given = sum(task.tokens for task in work), sum(worker.tokens)
    if asked != given:
        raise WorkFailed(f"the responses report {given} tokens, expected {asked}")
    return WorkResult(given, seconds)
