"""What became of each request, in life and in the simulator?

Life is three processes as anybody would start them: `headgate engine` with four engines, `headgate serve` before them,
and `headgate loadtest`, which sends the list. The simulator gets the same list, the same policy from the same file and
the same engines' profile. Both give one `Fate` per request, in the order of the list.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.sim_live_workload import Asked, Workload, write_trace
from headgate.config.load import load
from headgate.config.settings import Settings
from headgate.core.scheduler import Scheduler
from headgate.engines.dialects import DIALECTS
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Callers, EngineSpec, Scenario
from headgate.simulation.virtual.story import Ending, Sample, Story
from headgate.simulation.workload.arrival import Arrival
from tests.support.gateway import Config, a_config, gateway_process
from tests.support.processes import ChildProcess
from tests.support.simulated import simulated_engines

MODEL = "llama"
TENANT = TenantId("laptop")
CLASS = ClassName("only")
DRAIN_S = 60
SETTLED_NS = SECOND
"""When the simulator's first request is due: as in life, the gateway has found its engines ready before."""
START_SECONDS_MAX = 20.0


class WrongAnswers(Exception):
    """Figures of a run in which something failed say nothing."""


@dataclass(frozen=True, slots=True)
class Fate:
    """One request. Time counts from the start of the run, durations from the moment it was due."""

    prompt_tokens: int
    output_tokens: int
    waited_ns: int
    ttft_ns: int
    ended_ns: int


Side = tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """Whether the machine kept up with life; the simulator needs no machine that does."""

    behind: bool
    """Whether the load generator fell behind, by its own measure."""
    late_ms_p99: float
    loop_lag_ms_p99: float
    """Of the gateway: 99 in 100 of its wakings were at most so late."""


# ---------------------------------------------------------------------------------------------------------------- life


def live(workload: Workload, asked: Sequence[Asked], folder: Path) -> tuple[Side, Machine]:
    write_trace(folder / "trace.csv", asked)
    with ExitStack() as stack:
        profile = ("--profile", workload.profile.name)
        urls = stack.enter_context(simulated_engines(workload.engines, *profile, model=MODEL))
        config = _config(workload, urls)
        log = ("--log-level", "debug", "--log-format", "json")
        gateway = stack.enter_context(gateway_process(config, folder, arguments=log))
        _wait_until_all_serve(gateway, config)
        record, said = _send(config, folder)
        lag_ms = _loop_lag_ms_p99(_page(config, "/metrics").decode())
        waits = dict(_waits(gateway.log()))
    generator = said["generator"]
    machine = Machine(generator["behind"], generator["lateness_s"]["p99"] * 1000, lag_ms)
    return tuple(_lived(line, waits) for line in record), machine


def _config(workload: Workload, urls: Sequence[str]) -> Config:
    return a_config(
        *urls,
        served_model=MODEL,
        model=MODEL,
        in_flight_max=workload.in_flight_max,
        classes={CLASS: {"band": 0, "queue_wait_max": "60s"}},
    )


def _wait_until_all_serve(gateway: ChildProcess, config: Config) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while any(each["state"] != "ready" for each in json.loads(_page(config, "/status"))["endpoints"]):
        if time.monotonic() > give_up_at:
            raise WrongAnswers(f"the gateway did not find its engines ready; its log ends in:\n{gateway.log()[-2000:]}")
        time.sleep(0.05)


def _send(config: Config, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the load generator wrote of each request, in the order of the list, and what it says of the whole."""
    command = [sys.executable, "-m", "headgate.cli.main", "loadtest", f"http://{config['listen']}", "--model", MODEL]
    how = ["--trace", folder / "trace.csv", "--exact-output", "--retries", "0", "--drain", str(DRAIN_S), "--json"]
    done = subprocess.run(
        [*command, *how, "--record", folder / "record.jsonl"], stdout=subprocess.PIPE, stderr=sys.stderr, check=False
    )
    record = sorted(
        (json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()),
        key=lambda line: line["number"],
    )
    if any(line["ending"] != "completed" for line in record):
        odd = next(line for line in record if line["ending"] != "completed")
        raise WrongAnswers(f"request {odd['number']} was {odd['ending']} ({odd['code']}), and all must be completed")
    return record, json.loads(done.stdout)


def _lived(line: Mapping[str, Any], waits: Mapping[str, int]) -> Fate:
    return Fate(
        prompt_tokens=line["prompt_tokens"],
        output_tokens=line["output_tokens"],
        waited_ns=waits[line["request_id"]],
        ttft_ns=round((line["first_token_s"] - line["scheduled_s"]) * SECOND),
        ended_ns=round(line["end_s"] * SECOND),
    )


def _waits(log: str) -> Iterator[tuple[str, int]]:
    """How long each request waited in the gateway's queue, by its id; the log tells whole milliseconds."""
    for line in log.splitlines():
        said = json.loads(line)
        if said["message"] == "request ended":
            yield said["request"], said["queue_ms"] * MILLISECOND


def _page(config: Config, path: str) -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{config['admin_listen']}{path}", timeout=5) as page:
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


def simulated(workload: Workload, asked: Sequence[Asked], folder: Path) -> Side:
    listener = _Listener()
    VirtualHost(_scenario(workload, asked, folder), listener).run()
    return tuple(_imagined(listener.stories[number]) for number in sorted(listener.stories))


def _scenario(workload: Workload, asked: Sequence[Asked], folder: Path) -> Scenario:
    settings = _settings(workload, folder)
    return Scenario(
        title="Sim against life",
        seed=workload.seed,
        policy=settings.policy,
        model=ModelName(MODEL),
        engines=tuple(
            EngineSpec(id=each.id, pool=pool.name, profile=workload.profile, in_flight_max=each.in_flight_max)
            for pool in settings.pools
            for each in pool.endpoints
        ),
        callers={CLASS: Callers()},
        arrivals=lambda: (
            Arrival(Instant(SETTLED_NS + each.at_ns), each.prompt_tokens, each.output_tokens, CLASS, TENANT)
            for each in asked
        ),
        span_ns=Duration(SETTLED_NS + asked[-1].at_ns),
        decider=Scheduler,
    )


def _settings(workload: Workload, folder: Path) -> Settings:
    """By way of the same file as in life, though nobody answers at its addresses."""
    file = folder / "simulated.yaml"
    nobody = [f"http://127.0.0.1:{port}" for port in range(1, workload.engines + 1)]
    file.write_text(json.dumps(_config(workload, nobody)))
    return load(file, {}, engines=DIALECTS.keys())


def _imagined(story: Story) -> Fate:
    if story.outcome is not Outcome.COMPLETED or story.first_token_at is None:
        raise WrongAnswers(f"request {story.number} of the simulator was {story.outcome}, and all must be completed")
    return Fate(
        prompt_tokens=story.prompt_tokens,
        output_tokens=story.output_tokens,
        waited_ns=story.waited_ns,
        ttft_ns=story.first_token_at - story.arrived_at,
        ended_ns=story.ended_at - SETTLED_NS,
    )
