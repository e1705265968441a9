"""What became of each request, in life and in the simulator?

Life is three processes as anybody would start them: `headgate engine` with four engines, `headgate serve` before them,
and `headgate loadtest`, which sends the list. The simulator gets the same list, the same policy from the same file and
the same engines' profile. Both tell one `Story` per request, in the order of the list.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.command import WrongAnswers
from bench.sim_live_workload import CLASS, ROLE_TOKENS, Workload, write_trace
from headgate.config.load import load
from headgate.config.settings import Settings
from headgate.core.scheduler import Scheduler
from headgate.engines.dialects import DIALECTS
from headgate.loadtest.endings import Ending as Seen
from headgate.model.engine_profile import PROFILES, EngineProfile
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Callers, EngineSpec, Scenario
from headgate.simulation.virtual.story import Ending, Sample, Story
from headgate.simulation.workload.arrival import Arrival
from testing.gateway import Config, a_config, gateway_process
from testing.processes import ChildProcess
from testing.simulated import simulated_engines

MODEL = "llama"
DRAIN_S = 60
SETTLED_NS = SECOND
"""When the simulator's first request is due: as in life, the gateway has found its engines ready before."""
START_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What both sides have in common beside the list."""

    seed: int
    engines: int
    profile: EngineProfile
    in_flight_max: int
    pool: Config = field(default_factory=Config)
    """What the gateway's file says of the engines besides."""
    settings: Config
    """What it says of everything else."""
    callers: Mapping[ClassName, Callers]
    """All of them leave after the same time, or none ever."""
    keys: Mapping[TenantId, str] = field(default_factory=dict[TenantId, str])
    """With which tenants call; none where they need none."""

    def config(self, urls: Sequence[str]) -> Config:
        made = a_config(*urls, served_model=MODEL, model=MODEL, in_flight_max=self.in_flight_max, **self.settings)
        [pool] = made["pools"].values()
        pool |= self.pool
        return made

    @property
    def leave_ns(self) -> Duration | None:
        [leave_ns] = {each.leave_ns for each in self.callers.values()}
        return leave_ns


def steady(workload: Workload) -> Stage:
    """One class, one tenant, and everybody waits."""
    return Stage(
        seed=workload.seed,
        engines=workload.engines,
        profile=workload.profile,
        in_flight_max=workload.in_flight_max,
        settings={"classes": {CLASS: {"band": 0, "queue_wait_max": "60s"}}},
        callers={CLASS: Callers(names_length=True)},
    )


Side = tuple[Story, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """Whether the machine kept up with life; the simulator needs no machine that does."""

    behind: bool
    """Whether the load generator fell behind, by its own measure."""
    late_ms_p99: float
    loop_lag_ms_p99: float
    """Of the gateway: 99 in 100 of its wakings were at most so late."""


# ---------------------------------------------------------------------------------------------------------------- life


def live(stage: Stage, asked: Sequence[Arrival], folder: Path) -> tuple[Side, Machine]:
    write_trace(folder / "trace.csv", asked)
    with ExitStack() as stack:
        profile = ("--profile", stage.profile.name)
        urls = stack.enter_context(simulated_engines(stage.engines, *profile, model=MODEL))
        config = stage.config(urls)
        log = ("--log-level", "debug", "--log-format", "json")
        gateway = stack.enter_context(gateway_process(config, folder, arguments=log))
        _wait_until_all_serve(gateway, config)
        record, said = _send(stage, config, folder)
        # The last of them is logged a moment after its caller has the answer.
        _wait_until(gateway, config, lambda status: not status["requests_open"], "come to the end of its requests")
        lag_ms = _loop_lag_ms_p99(_page(config, "/metrics").decode())
        ends = dict(_ends(gateway.log()))
    generator = said["generator"]
    machine = Machine(generator["behind"], generator["lateness_s"]["p99"] * 1000, lag_ms)
    return tuple(_lived(line, ends.get(line["request_id"])) for line in record), machine


def _wait_until_all_serve(gateway: ChildProcess, config: Config) -> None:
    def serve(status: Config) -> bool:
        return all(each["state"] == "ready" for each in status["endpoints"])

    _wait_until(gateway, config, serve, "find its engines ready")


def _wait_until(gateway: ChildProcess, config: Config, reached: Callable[[Config], bool], what: str) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while not reached(json.loads(_page(config, "/status"))):
        if time.monotonic() > give_up_at:
            raise WrongAnswers(f"the gateway did not {what}; its log ends in:\n{gateway.log()[-2000:]}")
        time.sleep(0.05)


def _send(stage: Stage, config: Config, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the load generator wrote of each request, in the order of the list, and what it says of the whole."""
    command = [sys.executable, "-m", "headgate.cli.main", "loadtest", f"http://{config['listen']}", "--model", MODEL]
    how = ["--trace", folder / "trace.csv", "--exact-output", "--retries", "0", "--drain", str(DRAIN_S), "--json"]
    if stage.leave_ns is not None:
        how += ["--patience", str(stage.leave_ns / SECOND)]
    names = {tenant: f"KEY_{number}" for number, tenant in enumerate(stage.keys)}
    for tenant, name in names.items():
        how += ["--mix", f"tenant={tenant},key=env:{name}"]
    done = subprocess.run(
        [*command, *how, "--record", folder / "record.jsonl"],
        env={**os.environ, **{names[tenant]: key for tenant, key in stage.keys.items()}},
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        check=False,
    )
    record = (json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines())
    return sorted(record, key=lambda line: line["number"]), json.loads(done.stdout)


@dataclass(frozen=True, slots=True)
class _End:
    """How a request ended, as the gateway tells it."""

    outcome: Outcome
    attempts: int
    waited_ns: int


def _ends(log: str) -> Iterator[tuple[str, _End]]:
    """By the request's id. Waits are told in whole milliseconds."""
    for line in log.splitlines():
        said = json.loads(line)
        if said["message"] == "request ended":
            yield said["request"], _End(Outcome(said["outcome"]), said["attempts"], said["queue_ms"] * MILLISECOND)


def _lived(line: Mapping[str, Any], end: _End | None) -> Story:
    """Who left before anything was heard knows no id, and so nothing of what the gateway did."""
    completed = line["ending"] == Seen.COMPLETED
    return Story(
        line["number"],
        ClassName(line["class"]),
        TenantId(line["tenant"]),
        Instant(round(line["scheduled_s"] * SECOND)),
        prompt_tokens=line["prompt_tokens"] if completed else line["prompt_tokens_asked"] + ROLE_TOKENS,
        answer_tokens=line["output_tokens_asked"],
        tries=1,
        attempts=0 if end is None else end.attempts,
        waited_ns=0 if end is None else end.waited_ns,
        outcome=_outcome(line, end),
        first_token_at=None if line["first_token_s"] is None else Instant(round(line["first_token_s"] * SECOND)),
        ended_at=Instant(round(line["end_s"] * SECOND)),
        output_tokens=line["output_tokens"],
    )


def _outcome(line: Mapping[str, Any], end: _End | None) -> Outcome:
    match line["ending"]:
        case Seen.COMPLETED:
            return Outcome.COMPLETED
        case Seen.ABANDONED:
            return Outcome.CANCELLED
        case Seen.REFUSED if end is not None:
            return end.outcome
        case ending:
            raise WrongAnswers(
                f"request {line['number']} was {ending} ({line['code']}); the machine or the code failed"
            )


def _page(config: Config, path: str) -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{config['admin_listen']}{path}", timeout=30) as page:
        said: bytes = page.read()
        return said


def _loop_lag_ms_p99(metrics: str) -> float:
    """The upper bound of the histogram's bucket in which the 99th of 100 lies."""
    samples = [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "headgate_loop_lag_seconds_bucket"
    ]
    most = max(count for _, count in samples)
    return next(bound for bound, count in sorted(samples) if count >= 0.99 * most) * 1000


# ------------------------------------------------------------------------------------------------------- the simulator


class _Listener:
    """Keeps what is told of each request."""

    def __init__(self) -> None:
        self.stories: dict[int, Story] = {}

    def ended(self, story: Story) -> None:
        self.stories[story.number] = story

    def sampled(self, sample: Sample) -> None: ...

    def over(self, ending: Ending) -> None: ...


def simulated(stage: Stage, asked: Sequence[Arrival], folder: Path) -> Side:
    listener = _Listener()
    VirtualHost(_scenario(stage, asked, folder), listener).run()
    return tuple(listener.stories[number] for number in sorted(listener.stories))


def _scenario(stage: Stage, asked: Sequence[Arrival], folder: Path) -> Scenario:
    settings = _settings(stage, folder)
    return Scenario(
        title="Sim against life",
        seed=stage.seed,
        policy=settings.policy,
        model=ModelName(MODEL),
        engines=tuple(
            EngineSpec(id=each.id, pool=pool.name, profile=stage.profile, in_flight_max=each.in_flight_max)
            for pool in settings.pools
            for each in pool.endpoints
        ),
        callers=stage.callers,
        arrivals=lambda: (replace(each, at=Instant(SETTLED_NS + each.at)) for each in asked),
        span_ns=Duration(SETTLED_NS + asked[-1].at),
        decider=Scheduler,
    )


def _settings(stage: Stage, folder: Path) -> Settings:
    """By way of the same file as in life, though nobody answers at its addresses."""
    file = folder / "simulated.yaml"
    nobody = [f"http://127.0.0.1:{port}" for port in range(1, stage.engines + 1)]
    file.write_text(json.dumps(stage.config(nobody)))
    return load(file, {}, engines=DIALECTS.keys(), profiles=PROFILES)
