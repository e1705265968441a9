"""Runs a load test, from plan to results."""

import gc
import resource
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns, time
from typing import IO

from headgate.loadtest.answer_text import answer_text
from headgate.loadtest.client import LoadTestClient
from headgate.loadtest.comparison import RequestSample
from headgate.loadtest.connection_pool import CONNECTIONS_MAX, ConnectionPool
from headgate.loadtest.conversation import Turn
from headgate.loadtest.cost import Price
from headgate.loadtest.generator import Generator, RunCounts
from headgate.loadtest.prompts import Prompts
from headgate.loadtest.report import LoadTestResult
from headgate.loadtest.request import LoadTestRequest
from headgate.loadtest.request_log import RequestLog
from headgate.loadtest.request_writer import RequestWriter
from headgate.loadtest.retries import RETRIES
from headgate.loadtest.schedule import Schedule
from headgate.loadtest.senders import Sender
from headgate.loadtest.sessions import next_turn
from headgate.loadtest.tally import LoadTestTally, LoadTestTargets
from headgate.loadtest.target import TargetUrl
from headgate.model.units import Duration
from headgate.simulation.options import CallerBehaviour

_FILES_BESIDE_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestPlan:
    target: TargetUrl
    model: str
    schedule: Schedule
    senders: tuple[Sender, ...]
    targets: LoadTestTargets = field(default_factory=LoadTestTargets)
    seed: int = 0
    stream: bool = True
    exact_output: bool = False
    shared_prefix_tokens: int = 0
    patience_s: float | None = None
    retries_max: int = RETRIES
    duplicate_after_s: float | None = None
    """Seconds without a first token after which a duplicate of the request is sent. None disables duplicates.
    """
    connections_max: int = CONNECTIONS_MAX
    drain_s: float = 120.0
    """Maximum time to wait for open requests after the end of the schedule, in seconds."""
    price: Price | None = None


class LoadTest:
    """One run. Must be created inside an event loop."""

    def __init__(
        self,
        plan: LoadTestPlan,
        *,
        record: IO[bytes] | None = None,
        on_sample: Callable[[RequestSample], None] | None = None,
        on_request: Callable[[LoadTestRequest], None] = lambda _: None,
    ) -> None:
        """With `record`, each request is written there. `on_sample` gets the results that a comparison uses, and
        `on_request` each finished request.
        """
        self._on_request = on_request
        self._plan = plan
        self._on_sample = on_sample
        self._run_id = f"lt-{secrets.token_hex(4)}"
        self._tallies = [LoadTestTally() for _ in plan.senders]
        prompts = Prompts(plan.seed, shared_prefix_tokens=plan.shared_prefix_tokens)
        self._questions = RequestWriter(
            plan.target,
            plan.senders,
            prompts,
            model=plan.model,
            stream=plan.stream,
            exact_output=plan.exact_output,
            run_id=self._run_id,
            seed=plan.seed,
        )
        self._record_file = record
        self._generator: Generator | None = None
        self._stopped = False

    def stop(self) -> None:
        """Ends the run early. The results so far are still reported."""
        self._stopped = True
        if self._generator is not None:
            self._generator.stop()

    async def run(self, on_start: Callable[[RunCounts], None] = lambda _: None) -> LoadTestResult:
        plan = self._plan
        start_ns, start_unix_s = monotonic_ns(), time()
        connections = ConnectionPool(plan.target, start_ns=start_ns, most=plan.connections_max)
        await connections.resolve()
        client = LoadTestClient(
            connections,
            self._questions,
            plan.senders,
            caller=_caller(plan),
            start_ns=start_ns,
            seed=plan.seed,
            duplicate_after_s=plan.duplicate_after_s,
        )
        recorder = RequestLog(self._record_file, plan.senders, start_unix_s=start_unix_s) if self._record_file else None

        def on_story(story: LoadTestRequest) -> None:
            good = self._tallies[story.sender].add(story, plan.senders[story.sender].caller or plan.targets)
            if self._on_sample is not None:
                self._on_sample(RequestSample.of(story, good=good))
            if recorder is not None:
                recorder.write(story, good=good)
            self._on_request(story)

        generator = Generator(
            plan.schedule,
            connections,
            client,
            start_ns=start_ns,
            on_request=on_story,
            next_turn=self._next_turn,
            drain_s=plan.drain_s,
        )
        self._generator = generator
        if self._stopped:
            generator.stop()
        on_start(generator.counts)
        return self._result(await generator.run())

    def _next_turn(self, ended: LoadTestRequest, number: int) -> LoadTestRequest | None:
        sender = self._plan.senders[ended.sender]
        if sender.session is None:
            return None
        turn = Turn(self._questions.prompt(ended), answer_text(sender.api, ended.body))
        return next_turn(sender.session, ended, turn, number=number, seed=self._plan.seed)

    def _result(self, course: RunCounts) -> LoadTestResult:
        plan = self._plan
        length_ns = plan.schedule.length_ns
        return LoadTestResult(
            url=str(plan.target),
            model=plan.model,
            seed=plan.seed,
            run_id=self._run_id,
            schedule_ns=min(length_ns, course.elapsed_ns) if course.stopped_early else length_ns,
            targets=plan.targets,
            counts=course,
            senders=plan.senders,
            tallies=self._tallies,
            price=plan.price,
        )


def _caller(plan: LoadTestPlan) -> CallerBehaviour:
    """Behaviour of clients whose sender has none of its own."""
    return CallerBehaviour(
        client_timeout_ns=None if plan.patience_s is None else Duration(round(plan.patience_s * 1e9)),
        retries=plan.retries_max,
        stream=plan.stream,
    )


def raise_file_limit(wanted: int) -> int:
    """Raises the limit on open files as needed. Returns the number of connections that the limit allows, capped at
    `wanted`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _FILES_BESIDE_CONNECTIONS
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _FILES_BESIDE_CONNECTIONS))


def relax_gc() -> None:
    """Makes garbage collection rare, because each collection pauses the process for milliseconds and few objects are in
    cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
