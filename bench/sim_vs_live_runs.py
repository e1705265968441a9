"""Run the same requests through a live gateway and through the simulator, and record the result of each.

The live side is three processes: `headgate engine` with four engines, `headgate serve`, and `headgate loadtest`, which
sends the requests. The simulator gets the same requests, the same policy from the same file, and the same engine
profile. Both sides report one `RequestTrace` per request, in the order of the list.
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

from bench.cli import FailedRequests
from bench.sim_vs_live_workload import CLASS, ROLE_TOKENS, Workload, write_trace
from headgate.config.load import load
from headgate.config.settings import Settings
from headgate.core.scheduler import Scheduler
from headgate.engines.dialects import DIALECTS
from headgate.loadtest.request import LoadTestOutcome as Seen
from headgate.model.engine_profile import PROFILES, EngineProfile
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.options import CallerBehaviour, EngineSpec
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from testing.gateway import Config, a_config, gateway_process
from testing.processes import ChildProcess
from testing.simulated_engines import simulated_engines

MODEL = "llama"
DRAIN_S = 60
SETTLED_NS = SECOND
"""Due time of the simulator's first request. By then the gateway has found its engines ready, as on the live side."""
START_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Settings that both sides share, besides the requests."""

    seed: int
    engines: int
    profile: EngineProfile
    in_flight_max: int
    pool: Config = field(default_factory=Config)
    """Additional pool settings in the gateway's configuration."""
    settings: Config
    """All other settings in the gateway's configuration."""
    callers: Mapping[ClassName, CallerBehaviour]
    """Client behaviour by class. All classes have the same timeout, or none."""
    keys: Mapping[TenantId, str] = field(default_factory=dict[TenantId, str])
    """The tenants' API keys. Empty if none are required."""

    def config(self, urls: Sequence[str]) -> Config:
        made = a_config(*urls, served_model=MODEL, model=MODEL, in_flight_max=self.in_flight_max, **self.settings)
        [pool] = made["pools"].values()
        pool |= self.pool
        return made

    @property
    def leave_ns(self) -> Duration | None:
        [leave_ns] = {each.client_timeout_ns for each in self.callers.values()}
        return leave_ns


def steady_setup(workload: Workload) -> RunSetup:
    """Return a setup with one class and one tenant, whose clients never disconnect."""
    return RunSetup(
        seed=workload.seed,
        engines=workload.engines,
        profile=workload.profile,
        in_flight_max=workload.in_flight_max,
        settings={"classes": {CLASS: {"priority_band": 0, "queue_wait_max": "60s"}}},
        callers={CLASS: CallerBehaviour(sends_max_tokens=True)},
    )


Side = tuple[RequestTrace, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """Whether the machine kept up with the live side."""

    behind: bool
    """Whether the load generator reported that it was behind schedule."""
    late_ms_p99: float
    loop_lag_ms_p99: float
    """99th percentile of the gateway's loop lag."""


# --------------------------------------------------------------------------------------------------------------- live


def live(stage: RunSetup, asked: Sequence[Arrival], folder: Path) -> tuple[Side, Machine]:
    write_trace(folder / "trace.csv", asked)
    with ExitStack() as stack:
        profile = ("--profile", stage.profile.name)
        urls = stack.enter_context(simulated_engines(stage.engines, *profile, model=MODEL))
        config = stage.config(urls)
        log = ("--log-level", "debug", "--log-format", "json")
        gateway = stack.enter_context(gateway_process(config, folder, arguments=log))
        _wait_until_all_serve(gateway, config)
        record, said = _send(stage, config, folder)
        # The last request is logged shortly after its client has the response.
        _wait_until(gateway, config, lambda status: not status["requests_open"], "finish its requests")
        lag_ms = _loop_lag_ms_p99(_page(config, "/metrics").decode())
        ends = dict(_ends(gateway.log()))
    generator = said["generator"]
    machine = Machine(generator["behind"], generator["lateness_s"]["p99"] * 1000, lag_ms)
    return tuple(_live_trace(line, ends.get(line["request_id"])) for line in record), machine


def _wait_until_all_serve(gateway: ChildProcess, config: Config) -> None:
    def serve(status: Config) -> bool:
        return all(each["state"] == "ready" for each in status["endpoints"])

    _wait_until(gateway, config, serve, "find its engines ready")


def _wait_until(gateway: ChildProcess, config: Config, reached: Callable[[Config], bool], what: str) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while not reached(json.loads(_page(config, "/status"))):
        if time.monotonic() > give_up_at:
            raise FailedRequests(f"the gateway did not {what}; end of its log:\n{gateway.log()[-2000:]}")
        time.sleep(0.05)


def _send(stage: RunSetup, config: Config, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the load generator's records in the order of the list, and its report."""
    command = [
        sys.executable,
        "-m",
        "headgate.cli.main",
        "loadtest",
        "--url",
        f"http://{config['listen']}",
        "--model",
        MODEL,
    ]
    how = ["--trace", folder / "trace.csv", "--ignore-eos", "--retries", "0", "--drain-timeout", str(DRAIN_S), "--json"]
    if stage.leave_ns is not None:
        how += ["--client-timeout", str(stage.leave_ns / SECOND)]
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
class _GatewayEnd:
    """Result of a request, as the gateway logged it."""

    outcome: Outcome
    attempts: int
    waited_ns: int


def _ends(log: str) -> Iterator[tuple[str, _GatewayEnd]]:
    """Yield results by request ID. Waits are logged in whole milliseconds."""
    for line in log.splitlines():
        said = json.loads(line)
        if said["message"] == "request ended":
            yield (
                said["request"],
                _GatewayEnd(Outcome(said["outcome"]), said["attempts"], said["queue_ms"] * MILLISECOND),
            )


def _live_trace(line: Mapping[str, Any], end: _GatewayEnd | None) -> RequestTrace:
    """Build a request's trace. `end` is None if the client disconnected before it received a request ID."""
    completed = line["outcome"] == Seen.COMPLETED
    return RequestTrace(
        line["number"],
        ClassName(line["class"]),
        TenantId(line["tenant"]),
        Instant(round(line["scheduled_s"] * SECOND)),
        prompt_tokens=line["prompt_tokens"] if completed else line["prompt_tokens_requested"] + ROLE_TOKENS,
        full_output_tokens=line["output_tokens_requested"],
        tries=1,
        attempts=0 if end is None else end.attempts,
        waited_ns=0 if end is None else end.waited_ns,
        outcome=_outcome(line, end),
        first_token_at=None if line["first_token_s"] is None else Instant(round(line["first_token_s"] * SECOND)),
        ended_at=Instant(round(line["end_s"] * SECOND)),
        output_tokens=line["output_tokens"],
    )


def _outcome(line: Mapping[str, Any], end: _GatewayEnd | None) -> Outcome:
    match line["outcome"]:
        case Seen.COMPLETED:
            return Outcome.COMPLETED
        case Seen.ABANDONED:
            return Outcome.CANCELLED
        case Seen.HTTP_ERROR if end is not None:
            return end.outcome
        case ending:
            raise FailedRequests(
                f"request {line['number']} ended as {ending} ({line['code']}); the machine or the code failed"
            )


def _page(config: Config, path: str) -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{config['admin_listen']}{path}", timeout=30) as page:
        said: bytes = page.read()
        return said


def _loop_lag_ms_p99(metrics: str) -> float:
    """Return the upper bound of the histogram bucket that contains the 99th percentile, in milliseconds."""
    samples = [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "headgate_event_loop_lag_seconds_bucket"
    ]
    most = max(count for _, count in samples)
    return next(bound for bound, count in sorted(samples) if count >= 0.99 * most) * 1000


# ---------------------------------------------------------------------------------------------------------- simulator


class _TraceRecorder:
    """Keeps the trace of each request."""

    def __init__(self) -> None:
        self.stories: dict[int, RequestTrace] = {}

    def request_ended(self, story: RequestTrace) -> None:
        self.stories[story.number] = story

    def sample_taken(self, sample: FleetSample) -> None: ...

    def run_ended(self, ending: RunSummary) -> None: ...


def simulated(stage: RunSetup, asked: Sequence[Arrival], folder: Path) -> Side:
    listener = _TraceRecorder()
    VirtualHost(_scenario(stage, asked, folder), listener).run()
    return tuple(listener.stories[number] for number in sorted(listener.stories))


def _scenario(stage: RunSetup, asked: Sequence[Arrival], folder: Path) -> Scenario:
    settings = _settings(stage, folder)
    return Scenario(
        title="Simulator versus live gateway",
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


def _settings(stage: RunSetup, folder: Path) -> Settings:
    """Load the same configuration file as the live side, with endpoint addresses where no engine is listening."""
    file = folder / "simulated.yaml"
    nobody = [f"http://127.0.0.1:{port}" for port in range(1, stage.engines + 1)]
    file.write_text(json.dumps(stage.config(nobody)))
    return load(file, {}, engines=DIALECTS.keys(), profiles=PROFILES)
