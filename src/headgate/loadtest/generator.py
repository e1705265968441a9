"""How is the schedule carried out, whatever the server does?

An open loop: each request begins at its moment, no matter how many are still open. How late the generator itself was,
through a busy processor or for want of a connection, is measured for every request. A run whose generator fell behind
says little about the server, and says so.
"""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns, process_time
from typing import Final

from headgate.loadtest.client import Client
from headgate.loadtest.connections import Connections
from headgate.loadtest.endings import Ending, Story
from headgate.loadtest.schedule import Schedule
from headgate.simulation.report.spread import Spread

LATE_P99_NS_MAX: Final = 20_000_000
"""Beyond this lateness at p99 the generator has fallen behind."""
_STARTS_AT_ONCE: Final = 32
"""Overdue requests that begin before answers are read again."""


def _nanoseconds() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Course:
    """How a run goes: counts that grow while it runs."""

    planned: int
    begun: int = 0
    ended: int = 0
    endings: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))
    lateness_ns: "array[int]" = field(default_factory=_nanoseconds)
    elapsed_ns: int = 0
    """From the start to the last ending."""
    cpu_s: float = 0.0
    stopped_early: bool = False
    connections: Connections | None = None

    @property
    def open(self) -> int:
        return self.begun - self.ended

    @property
    def lateness(self) -> Spread | None:
        return Spread.of(self.lateness_ns)

    @property
    def connection_waits(self) -> int:
        return 0 if self.connections is None else self.connections.waits

    @property
    def is_behind(self) -> bool:
        spread = self.lateness
        return self.connection_waits > 0 or (spread is not None and spread.at[99] > LATE_P99_NS_MAX)


class Generator:
    def __init__(
        self,
        schedule: Schedule,
        connections: Connections,
        client: Client,
        *,
        start_ns: int,
        on_story: Callable[[Story], None],
        drain_s: float = 120.0,
    ) -> None:
        self._schedule = schedule
        self._connections = connections
        self._client = client
        self._start_ns = start_ns
        self._on_story = on_story
        self._drain_s = drain_s
        self._stopping = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._mistake: BaseException | None = None
        self.course = Course(len(schedule), connections=connections)

    def stop(self) -> None:
        """Begins nothing more and lets go of what is open; `run` returns with what there is."""
        self.course.stopped_early = True
        self._stopping.set()

    async def run(self) -> Course:
        cpu_s = process_time()
        stopping = asyncio.create_task(self._stopping.wait())
        sending = asyncio.create_task(self._send())
        await asyncio.wait([sending, stopping], return_when=asyncio.FIRST_COMPLETED)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if self._open:
            drained = asyncio.gather(*self._open, return_exceptions=True)
            await asyncio.wait([drained, stopping], timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        stopping.cancel()
        if self._mistake is not None:
            raise self._mistake
        self._connections.close()
        await asyncio.sleep(0)  # Closed transports say so in the loop's next round.
        self.course.elapsed_ns = self._now_ns()
        self.course.cpu_s = process_time() - cpu_s
        return self.course

    async def _send(self) -> None:
        due_at_ns = self._schedule.at_ns
        for number in range(len(self._schedule)):
            await self._until(due_at_ns[number])
            self._begin(number)
            if number % _STARTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _until(self, due_ns: int) -> None:
        # A timer has a grain of a millisecond and may fire early by half of one.
        while (wait_ns := due_ns - self._now_ns()) > 0:  # noqa: ASYNC110 Time is what is waited for.
            await asyncio.sleep(wait_ns / 1e9)

    def _begin(self, number: int) -> None:
        schedule = self._schedule
        story = Story(
            number=number,
            sender=schedule.sender[number],
            prompt_tokens_asked=schedule.prompt_tokens[number],
            output_tokens_asked=schedule.output_tokens[number],
            scheduled_ns=schedule.at_ns[number],
        )
        self.course.begun += 1
        task = asyncio.create_task(self._client.live(story))
        self._open.add(task)
        task.add_done_callback(lambda done: self._end(done, story))

    def _end(self, task: asyncio.Task[None], story: Story) -> None:
        self._open.discard(task)
        if task.cancelled():  # Perhaps before it took its first step.
            story.end_ns = self._now_ns()
        elif (mistake := task.exception()) is not None:
            self._mistake = mistake
            self._stopping.set()
        begun_ns = story.end_ns if story.begun_ns is None else story.begun_ns
        self.course.lateness_ns.append(max(0, begun_ns - story.scheduled_ns))
        self.course.ended += 1
        self.course.endings[story.ending] += 1
        self._on_story(story)

    def _now_ns(self) -> int:
        return monotonic_ns() - self._start_ns
