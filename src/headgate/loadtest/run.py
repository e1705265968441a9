"""How does a whole load test go, from its plan to its result?"""

import gc
import resource
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns, time
from typing import IO

from headgate.loadtest.client import Client
from headgate.loadtest.connections import CONNECTIONS_MAX, Connections
from headgate.loadtest.endings import Story
from headgate.loadtest.generator import Course, Generator
from headgate.loadtest.prompts import Prompts
from headgate.loadtest.questions import Questions
from headgate.loadtest.record import Recorder
from headgate.loadtest.report import Result
from headgate.loadtest.retries import RETRIES
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import Sender
from headgate.loadtest.tally import Tally, Targets
from headgate.loadtest.target import Target

_FILES_BESIDE_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    target: Target
    model: str
    schedule: Schedule
    senders: tuple[Sender, ...]
    targets: Targets = field(default_factory=Targets)
    seed: int = 0
    stream: bool = True
    exact_output: bool = False
    shared_prefix_tokens: int = 0
    patience_s: float | None = None
    retries_most: int = RETRIES
    ask_again_s: float | None = None
    """After so long without a first token the same is asked once more beside it."""
    connections_most: int = CONNECTIONS_MAX
    drain_s: float = 120.0
    """How long the last requests may take after the last has begun."""


class LoadTest:
    """One run. Built inside an event loop, since its clock starts there."""

    def __init__(self, plan: Plan, *, record: IO[bytes] | None = None) -> None:
        self._plan = plan
        self._run_id = f"lt-{secrets.token_hex(4)}"
        self._tallies = [Tally() for _ in plan.senders]
        prompts = Prompts(plan.seed, shared_prefix_tokens=plan.shared_prefix_tokens)
        self._questions = Questions(
            plan.target,
            plan.schedule,
            plan.senders,
            prompts,
            model=plan.model,
            stream=plan.stream,
            exact_output=plan.exact_output,
            run_id=self._run_id,
        )
        self._record_file = record
        self._generator: Generator | None = None
        self._stopped = False

    def stop(self) -> None:
        """Ends the run early; what there is will be reported."""
        self._stopped = True
        if self._generator is not None:
            self._generator.stop()

    async def run(self, on_start: Callable[[Course], None] = lambda _: None) -> Result:
        plan = self._plan
        start_ns, start_unix_s = monotonic_ns(), time()
        connections = Connections(plan.target, start_ns=start_ns, most=plan.connections_most)
        await connections.resolve()
        client = Client(
            connections,
            self._questions,
            start_ns=start_ns,
            seed=plan.seed,
            patience_s=plan.patience_s,
            retries_most=plan.retries_most,
            ask_again_s=plan.ask_again_s,
        )
        recorder = Recorder(self._record_file, plan.senders, start_unix_s=start_unix_s) if self._record_file else None

        def on_story(story: Story) -> None:
            self._tallies[story.sender].add(story, plan.targets)
            if recorder is not None:
                recorder.write(story)

        generator = Generator(
            plan.schedule, connections, client, start_ns=start_ns, on_story=on_story, drain_s=plan.drain_s
        )
        self._generator = generator
        if self._stopped:
            generator.stop()
        on_start(generator.course)
        return self._result(await generator.run())

    def _result(self, course: Course) -> Result:
        plan = self._plan
        length_ns = plan.schedule.length_ns
        return Result(
            url=str(plan.target),
            model=plan.model,
            seed=plan.seed,
            run_id=self._run_id,
            schedule_ns=min(length_ns, course.elapsed_ns) if course.stopped_early else length_ns,
            targets=plan.targets,
            course=course,
            senders=plan.senders,
            tallies=self._tallies,
        )


def files_allow_connections(wanted: int) -> int:
    """How many connections the system lets this process have; asks for as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _FILES_BESIDE_CONNECTIONS
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _FILES_BESIDE_CONNECTIONS))


def collect_garbage_seldom() -> None:
    """A collection stops everything for milliseconds, and hardly anything here is in a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
