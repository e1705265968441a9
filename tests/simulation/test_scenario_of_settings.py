"""Tests for converting a scenario file to a simulation."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from headgate.compose.simulation import SCHEDULERS, build_scenario
from headgate.config.scenarios.load import parse
from headgate.core.commands import Command
from headgate.core.events import Event, RequestArrived
from headgate.model.engine_profile import PROFILES
from headgate.model.tenant import Plan, Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import SECOND, Instant
from headgate.simulation.options import Crash, Slowdown
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.random_faults import window_of
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.virtual.scenario_warnings import late_fault_warnings
from headgate.simulation.workload.error import WorkloadError

FILE = """
pools:
  main: {engines: [tiny, {profile: tiny, kv_tokens: 8192, block_tokens: 32}], in_flight_max: 8}
traffic:
  - {rate: 5, duration: 20s, classes: batch, tenants: {a: 1, b: 1}, prompt: 50:100, output: 10}
  - {rate: 5, shift: 30s, duration: 10s, classes: long, tenants: c, prompt: 50, output: {median: 5, p95: 9, max: 20}}
"""


def made(*lines: str, seed: int = 0) -> Scenario:
    text = "\n".join([FILE, *lines])
    return build_scenario(parse(text, Path("a.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS), seed)


def test_traffic_tenants_are_known_and_send_in_their_time_range() -> None:
    whole = made()
    arrivals = list(whole.arrivals())

    assert [each.id for each in whole.policy.tenants] == ["a", "b", "c"]
    assert {each.tenant for each in arrivals} == {"a", "b", "c"}
    assert all(30 * SECOND <= each.at < 40 * SECOND for each in arrivals if each.tenant == "c")
    assert all(each.at < 20 * SECOND for each in arrivals if each.tenant != "c")
    assert whole.span_ns == 40 * SECOND


def test_tenant_settings_in_the_file_are_applied() -> None:
    whole = made("tenants: {b: {weight: 300}, b/c: {plan: free}}")

    assert whole.policy.tenants == (Tenant("b", weight=300), Tenant("b/c", plan=Plan.FREE), Tenant("a"), Tenant("c"))


def test_requests_use_the_first_model_in_the_file() -> None:
    assert made().model == "model"
    assert made("models: {big: main, small: main}").model == "big"


def test_duration_only_truncates_the_traffic() -> None:
    whole, cut = made(), made("duration: 10s")

    assert list(cut.arrivals()) == [each for each in whole.arrivals() if each.at < 10 * SECOND]
    assert cut.span_ns == 10 * SECOND


def test_traffic_depends_only_on_the_seed() -> None:
    first, other = made(seed=1), made(seed=2)

    assert list(first.arrivals()) == list(first.arrivals())
    assert list(first.arrivals()) != list(other.arrivals())


def test_file_overrides_engine_profile_parameters() -> None:
    plain, smaller = (each.profile for each in made().engines)

    assert plain == PROFILES["tiny"]
    assert (smaller.name, smaller.step_ps, smaller.kv_blocks, smaller.block_tokens) == ("tiny", plain.step_ps, 256, 32)


def test_only_random_faults_depend_on_the_seed() -> None:
    faults = "faults: [{slow: main/1, at: 5s, duration: 1s, speed: 0.25}, {random: {crash: 1}}]"
    [slow, crash], [same, other] = made(faults, seed=1).faults, made(faults, seed=2).faults

    assert slow == same == Slowdown("main/1", 5 * SECOND, SECOND, 250)
    assert isinstance(crash, Crash)
    assert crash.at <= 40 * SECOND
    assert crash != other


def test_random_faults_do_not_overlap_other_faults_on_their_engine() -> None:
    short = "duration_min: 1s, duration_max: 2s"
    drawn, written = (f"{{random: {{slow: 3, crash: 1, {short}}}}}", "{crash: main/0, at: 1s, recover_after: 39s}")
    faults = f"faults: [{drawn}, {written}, {drawn}]"
    for seed in range(20):
        places = [window_of(each) for each in made(faults, seed=seed).faults]

        assert len(places) == 9
        for one, other in combinations(places, 2):
            apart = one.at + one.duration_ns < other.at or other.at + other.duration_ns < one.at
            assert apart or one.endpoint_id != other.endpoint_id


def test_random_faults_start_after_their_engine_is_up() -> None:
    later = FILE.replace("[tiny", "[{profile: tiny, count: 3, starts_at: 20s, cold_start: 10s}")
    settings = parse(
        later + "faults: [{random: {hang: 4, duration_max: 5s}}]",
        Path("a.yaml"),
        {},
        profiles=PROFILES,
        schedulers=SCHEDULERS,
    )
    faults = [each for seed in range(20) for each in build_scenario(settings, seed).faults]

    assert len(faults) == 80
    assert all(each.at > 30 * SECOND or each.endpoint_id == "main/3" for each in faults)


def test_fault_after_the_traffic_produces_a_warning() -> None:
    crash, hang = "{crash: main, at: 1h, recover_after: 1s}", "{hang: main/1, at: 40s, duration: 1s}"
    late = f"faults: [{crash}, {hang}, {{random: {{slow: 9}}}}]"

    assert late_fault_warnings(made(late)) == (
        "crash of main/0 and 1 more at 3600 s: requests arrive only until 40 s; lower at",
        "hang of main/1 at 40 s: requests arrive only until 40 s; lower at",
    )
    assert late_fault_warnings(made(late, "duration: 2s"))[1].endswith("until 2 s; lower at")
    assert late_fault_warnings(made("faults: [{hang: main/1, at: 39s, duration: 1h}]")) == ()


def test_file_sets_asynchronous_scheduling_per_engine() -> None:
    text = FILE.replace("[tiny", "[{profile: tiny, async_scheduling: true}")
    settings = parse(text, Path("a.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert [each.profile.async_scheduling for each in build_scenario(settings, 0).engines] == [True, False]


def test_file_sets_probe_scrape_and_progress_intervals() -> None:
    often = made("probe_interval: 2s", "scrape_interval: 20ms", "progress_interval: 1s")

    assert (often.probe_interval_ns, often.scrape_interval_ns) == (2 * SECOND, SECOND // 50)
    assert often.progress_interval_ns == SECOND


NOBODY = "pools: {main: {engines: [tiny], in_flight_max: 8}}\ntraffic: [{classes: batch, "
TRACE = "trace: mine.csv, tenants: a, "


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            "rate: 5, prompt: 9, output: 9}]\nduration: 1ms",
            "none was drawn at 5 per second within 0.001 s; raise rate or duration",
        ),
        (
            TRACE + "shift: 100s}]\nduration: 10s",
            (
                "the first would arrive after 100 s, but duration is 10 s; raise duration, or change the traffic's "
                "shift or speed_up"
            ),
        ),
        (TRACE + "sample: 0.00001}]", "sample 1e-05 drops all requests of mine.csv; raise sample"),
        (TRACE + "start: 1h}]", "mine.csv has no request in the selected range; lower start or raise duration"),
    ],
)
def test_scenario_without_arrivals_is_rejected_with_the_reason(tmp_path: Path, lines: str, why: str) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens\n0,20,5\n1,20,5\n")
    settings = parse(NOBODY + lines, tmp_path / "a.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)

    with pytest.raises(WorkloadError) as caught:
        build_scenario(settings, 0).arrivals()
    assert str(caught.value) == f"no request arrives: {why}"


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_run_has_its_own_scheduler(name: str) -> None:
    simulated = made(f"scheduler: {name}")
    first, second = simulated.decider(), simulated.decider()

    assert first is not second
    assert first.next_wakeup() is None


MODELS_OF_TRACE = """{"headgate_trace":1}
{"at_us":0,"prompt_tokens":10,"output_tokens":1,"model":"small","class":"batch","tenant":"a","stream":false}
{"at_us":9,"prompt_tokens":10,"output_tokens":1,"model":"big","class":"batch","tenant":"a","api":"responses"}
"""


def of_trace(folder: Path, *lines: str) -> Scenario:
    (folder / "trace.jsonl").write_text(MODELS_OF_TRACE)
    file = ["pools: {main: {engines: [tiny], in_flight_max: 8}}", "traffic: [{trace: trace.jsonl}]", *lines]
    settings = parse("\n".join(file), folder / "a.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)
    return build_scenario(settings, 0)


def tickets_of(scenario: Scenario) -> list[Ticket]:
    """The tickets of all requests, by arrival."""

    class Watcher:
        def __init__(self) -> None:
            self.tickets: list[Ticket] = []

        def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
            if isinstance(event, RequestArrived):
                self.tickets.append(event.ticket)

    watcher = Watcher()
    VirtualHost(scenario, SimulationReport(scenario), observers=(watcher,)).run()
    return watcher.tickets


def test_requests_of_a_recorded_trace_have_its_models_apis_and_streams(tmp_path: Path) -> None:
    tickets = tickets_of(of_trace(tmp_path, "models: {big: main, small: main}"))

    assert [(each.model, each.api, each.stream) for each in tickets] == [
        ("small", Api.CHAT, False),
        ("big", Api.RESPONSES, True),
    ]


def test_models_of_a_trace_are_ignored_if_the_scenario_has_only_one(tmp_path: Path) -> None:
    assert {each.model for each in tickets_of(of_trace(tmp_path))} == {"model"}
    assert {each.model for each in tickets_of(of_trace(tmp_path, "models: {other: main}"))} == {"other"}


def test_unknown_model_of_a_trace_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        WorkloadError, match='unknown model "small"; add it to the scenario\'s models, or keep only one'
    ):
        of_trace(tmp_path, "models: {big: main, medium: main}")


def test_only_headgates_scheduler_can_be_autoscaled() -> None:
    text = FILE.replace("in_flight_max: 8", "in_flight_max: 8, scaling: {endpoints_max: 4}")
    settings = parse(text, Path("a.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert list(build_scenario(settings, 0).scaling) == ["main"]
    with pytest.raises(WorkloadError, match="scheduler round-robin cannot be autoscaled; use headgate, or remove"):
        build_scenario(replace(settings, scheduler="round-robin"), 0)
