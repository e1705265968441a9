"""Results, progress and errors from `headgate simulate`."""

import json
import os
import pty
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.cli.output.simulation_progress import SimulationProgress, clock_time, describe
from headgate.compose.simulation import SCHEDULERS
from headgate.config.scenarios.load import parse
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from headgate.simulation.virtual.scenario_warnings import size_warnings
from tests.cli.conftest import Headgate
from tests.house.small_tree import BIN, PROJECT

SCENARIOS = PROJECT / "scenarios"
SHORT = {
    "cold-start": "1m",
    "day": "2m",
    "long-prompts": "20s",
    "mixed-fleet": "30s",
    "noisy-tenant": "40s",
    "overload-h200": "4s",
    "overload-rtxpro6000": "8s",
    "plan": "30s",
    "quickstart": "30s",
    "retry-storm": "70s",
    "servegen-mix": "3s",
    "tune": "15s",
}
"""How long requests keep arriving in a test; a whole scenario would take too long."""
# Most of the time of these scenarios goes into reading their traces, however short the run is.
LONG_TRACES = ("day", "servegen-mix")

SMALL = """
pools:
  main: {engines: [tiny], in_flight_max: 8}
classes: {interactive: {}, batch: {queue_wait_max: 4s}}
callers:
  batch: {ttft: 5s}
traffic:
  - {rate: 5, duration: 20s, classes: {batch: 1, interactive: 1}, tenants: {a: 1, b: 1}, prompt: 50:100, output: 10:20}
"""

OVERLOAD = """
pools:
  main: {engines: [{profile: h200-llama-8b, count: 1}], in_flight_max: 256}
classes:
  interactive: &patient
    {priority_band: 0, queue_wait_max: 1h, queue_length_max: 9999, queue_length_per_tenant_max: 9999}
  batch: {<<: *patient, priority_band: 1}
callers:
  interactive: {ttft: 2s, tpot: 100ms, client_timeout: 10s}
  batch: {ttft: 60s, client_timeout: 120s}
traffic:
  - rate: 40
    duration: 20s
    classes: {interactive: 70%, batch: 30%}
    tenants: {a: 1, b: 1}
    prompt: 1000:4000
    output: 50:300
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def data() -> None:
    if "HEADGATE_DATA" not in os.environ and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA does not name a folder with traces")
    assert "HEADGATE_DATA" in os.environ, "CI must name the folder with traces in HEADGATE_DATA"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=pytest.mark.nightly if path.stem in LONG_TRACES else ())
        for path in sorted(SCENARIOS.glob("*.yaml"))
    ],
)
def test_every_scenario_runs_and_counts_every_request(headgate: Headgate, data: None, name: str) -> None:
    said = headgate("simulate", str(SCENARIOS / f"{name}.yaml"), "--json", "--quiet", "--duration", SHORT[name])

    assert (said.code, said.err) == (0, "")
    total = json.loads(said.out)["total"]
    assert total["arrivals"] > 100
    assert sum(total["results"].values()) == total["arrivals"]
    assert total["good"] > 0


def test_table_is_printed_on_stdout(headgate: Headgate, scenario: Path) -> None:
    said = headgate("simulate", str(scenario), "--quiet")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("small\n")
    assert "scheduler headgate, seed 0" in said.out


def test_same_seed_produces_same_output(headgate: Headgate, scenario: Path) -> None:
    first, again, other = (
        headgate("simulate", str(scenario), "--json", "--seed", seed).out for seed in ("1", "1", "2")
    )

    assert first == again
    assert first != other


@pytest.mark.process
def test_hash_seed_does_not_change_the_output(scenario: Path) -> None:
    said = {
        subprocess.run(
            [BIN / "headgate", "simulate", scenario, "--json"],
            env={"PYTHONHASHSEED": number},
            capture_output=True,
            check=True,
        ).stdout
        for number in ("0", "1")
    }

    assert len(said) == 1


def test_html_report_is_written(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    said = headgate("simulate", str(scenario), "--html", "report.html", "--quiet")

    assert (said.code, said.err) == (0, "wrote report.html\n")
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.process
def test_unwritable_report_is_reported_in_one_line(scenario: Path) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [BIN / "headgate", "simulate", scenario, "--quiet"], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert said.returncode == 1
    assert said.stderr == b"headgate simulate: cannot write the report: No space left on device\n"


def test_missing_report_directory_is_reported_before_the_run(headgate: Headgate, scenario: Path) -> None:
    said = headgate("simulate", str(scenario), "--html", "gone/report.html")

    assert (said.code, said.out) == (2, "")
    assert said.err == "headgate simulate: gone/report.html: directory gone does not exist; create it first\n"


@pytest.mark.parametrize("json_", [(), ("--json",)])
def test_other_output_is_kept_if_html_report_is_unwritable(
    headgate: Headgate, scenario: Path, json_: tuple[str, ...]
) -> None:
    plain = headgate("simulate", str(scenario), "--quiet", *json_)
    said = headgate("simulate", str(scenario), "--quiet", "--html", "/dev/full", *json_)

    assert (said.code, said.out) == (2, plain.out)
    assert said.err == "headgate simulate: cannot write /dev/full: No space left on device\n"


def test_report_path_naming_a_directory_is_reported_before_the_run(
    headgate: Headgate, scenario: Path, tmp_path: Path
) -> None:
    (tmp_path / "pages").mkdir()

    said = headgate("simulate", str(scenario), "--html", "pages")

    assert (said.code, said.out, said.err) == (2, "", "headgate simulate: pages is a directory; specify a file\n")


def test_fault_without_effect_causes_a_warning(headgate: Headgate, scenario: Path) -> None:
    scenario.write_text(SMALL + "faults: [{crash: main, at: 10h, recover_after: 1s}]\n")

    said = headgate("simulate", str(scenario), "--quiet")

    assert said.code == 0
    assert said.err == "warning: crash of main/0 at 36000 s: requests arrive only until 20 s; lower at\n"
    assert "warning" not in said.out


def test_scheduler_has_higher_goodput_than_baselines_under_overload(headgate: Headgate, scenario: Path) -> None:
    """Small version of the overload in docs/project/simulation-accuracy.md: one H200 overloaded for 20 s."""
    scenario.write_text(OVERLOAD)

    def figures(scheduler: str) -> tuple[float, float]:
        said = headgate("simulate", str(scenario), "--seed", "1", "--scheduler", scheduler, "--json", "--quiet")
        told = json.loads(said.out)
        return told["total"]["goodput_per_s"], told["classes"]["interactive"]["attainment"]

    goodput_per_s, interactive = figures("headgate")
    for other in ("saturation-gate", "round-robin"):
        others_goodput_per_s, others_interactive = figures(other)
        assert goodput_per_s > 1.5 * others_goodput_per_s
        assert interactive > 3 * others_interactive


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "scheduler", "goodput_per_s", "interactive"),
    [
        ("overload-rtxpro6000", "headgate", 48.9, 0.986),
        ("overload-h200", "headgate", 115.2, 0.993),
        ("overload-h200", "saturation-gate", 79, 0.98),
    ],
)
def test_overload_results_match_the_docs(
    headgate: Headgate, data: None, *, name: str, scheduler: str, goodput_per_s: float, interactive: float
) -> None:
    file = SCENARIOS / f"{name}.yaml"
    told = json.loads(headgate("simulate", str(file), "--seed", "1", "--scheduler", scheduler, "--json", "--quiet").out)

    assert told["total"]["goodput_per_s"] == pytest.approx(goodput_per_s, rel=0.03)
    assert told["classes"]["interactive"]["attainment"] == pytest.approx(interactive, abs=0.015)


def test_command_line_overrides_duration_and_scheduler(headgate: Headgate, scenario: Path) -> None:
    said = headgate("simulate", str(scenario), "--duration", "5s", "--scheduler", "round-robin", "--quiet")

    assert "scheduler round-robin" in said.out
    assert " requests in 5 s" in said.out


@pytest.mark.parametrize("option", ["--seed", "--cap"])
def test_non_integer_option_is_rejected(headgate: Headgate, scenario: Path, option: str) -> None:
    said = headgate("simulate", str(scenario), option, "abc")

    assert (said.code, said.out) == (2, "")
    assert f'argument {option}: expected a whole number, such as 7, not "abc"' in said.err


@pytest.mark.parametrize(
    ("rate", "duration", "warned"),
    [
        ("1000000", "10m", "about 600 million requests take about 50 hours"),
        ("10000", "10m", "about 6 million requests take about 30 minutes"),
        ("10000", "8m", None),
    ],
)
def test_large_number_of_requests_is_announced(tmp_path: Path, rate: str, duration: str, warned: str | None) -> None:
    text = SMALL.replace("rate: 5, duration: 20s", f"rate: {rate}, duration: 10h, shift: 1h") + "duration: 1h\n"
    settings = parse(text, tmp_path / "many.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)
    settings = replace(settings, duration_ns=60 * 60 * SECOND + int(duration[:-1]) * 60 * SECOND)

    told = size_warnings(settings.traffic, settings.duration_ns)

    assert told == (() if warned is None else (f"{warned}; lower rate, for or duration",))


@pytest.mark.process
def test_documented_sizing_loop_works(tmp_path: Path) -> None:
    page = (PROJECT / "docs/reference/scenarios.md").read_text()
    [loop] = re.findall(r"```bash\n(for n in .*?)```", page, re.DOTALL)
    fleet = (SCENARIOS / "quickstart.yaml").read_text()
    (tmp_path / "fleet.yaml").write_text(
        fleet.replace("count: 2", 'count: "${N}"')
        .replace("duration: 3m", "duration: 5s")
        .replace("rate: 24", "rate: 80")
    )

    said = subprocess.run(
        ["bash", "-c", loop], cwd=tmp_path, env={"PATH": f"{BIN}:{os.environ['PATH']}"}, capture_output=True, check=True
    )

    found = [line.split() for line in said.stdout.decode().splitlines()]
    assert said.stderr == b""
    assert [(line[0], line[2]) for line in found] == [(n, each) for n in "2345" for each in ("interactive", "batch")]
    few, *_, many = (float(line[3].rstrip("%")) for line in found if line[2] == "interactive")
    assert few < many


def test_cap_applies_to_static_cap_only(headgate: Headgate, scenario: Path) -> None:
    without = headgate("simulate", str(scenario), "--cap", "1")
    capped = headgate("simulate", str(scenario), "--cap", "1", "--scheduler", "static-cap", "--quiet")

    assert (without.code, without.out) == (2, "")
    assert "--cap has no effect with headgate; add --scheduler static-cap" in without.err
    assert "rejected: queue_full" in capped.out


@pytest.mark.parametrize("text", ["5", "0s", "soon"])
def test_invalid_duration_is_rejected(headgate: Headgate, scenario: Path, text: str) -> None:
    said = headgate("simulate", str(scenario), "--duration", text)

    assert (said.code, said.out) == (2, "")
    assert "argument --duration" in said.err


def test_invalid_scenario_exits_with_code_2_and_lists_all_problems(headgate: Headgate, scenario: Path) -> None:
    scenario.write_text(SMALL.replace("tiny", "tinny").replace("5s", "5"))

    said = headgate("simulate", str(scenario))

    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 2
    assert 'did you mean "tiny"?' in said.err


def test_invalid_trace_exits_with_code_2(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    scenario.write_text(SMALL.replace("rate: 5, duration: 20s", "trace: mine.csv").partition(", prompt")[0] + "}\n")

    said = headgate("simulate", str(scenario))

    assert (said.code, said.out) == (2, "")
    assert 'mine.csv:1: unknown columns: "a", "b"; expected' in said.err


def test_trace_may_have_classes_and_tenants(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    rows = ["at_s,prompt_tokens,output_tokens,class,tenant", "0,20,5,batch,acme", "1,20,5,interactive,globex"]
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv}]\n")

    told = json.loads(headgate("simulate", str(scenario), "--json").out)

    assert list(told["tenants"]) == ["acme", "globex"]
    assert told["total"]["good"] == 2


def test_trace_without_tenants_uses_the_default_tenant(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens\n0,20,5\n1,20,5\n")
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv, classes: batch}]\n")

    told = json.loads(headgate("simulate", str(scenario), "--json").out)

    assert list(told["tenants"]) == ["everyone"]
    assert told["total"]["good"] == 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("at_s,prompt_tokens,output_tokens\n0,20,5\n", "no class"),
        ("at_s,prompt_tokens,output_tokens,class\n0,20,5,batch\n0,20,5,\n", "a class for only some rows"),
    ],
)
def test_trace_without_classes_is_reported_with_next_step(
    headgate: Headgate, scenario: Path, tmp_path: Path, text: str, names: str
) -> None:
    (tmp_path / "mine.csv").write_text(text)
    scenario.write_text(SMALL.partition("traffic")[0].lstrip() + "traffic: [{trace: mine.csv}]\n")

    said = headgate("simulate", "small.yaml")

    assert (said.code, said.out) == (2, "")
    place = "small.yaml:6: traffic[0]"
    assert said.err == (
        f"headgate simulate: {place}: mine.csv has {names}; add classes: NAME, one of: batch, interactive\n"
    )


def test_unknown_class_in_a_trace_is_named_in_the_error(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens,class,tenant\n0,20,5,bulk,acme\n")
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv}]\n")

    said = headgate("simulate", str(scenario))

    assert said.code == 2
    assert 'mine.csv uses unknown class "bulk"; add it to the scenario\'s classes' in said.err


def test_scenario_without_requests_is_reported_as_a_problem(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens,class,tenant\n0,20,5,batch,acme\n")
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv, start: 1h}]\n")

    said = headgate("simulate", str(scenario))

    assert said.code == 2
    assert said.out == ""
    assert "no request arrives: mine.csv has no request in the selected range" in said.err


@pytest.mark.process
def test_ctrl_c_stops_the_run_with_a_message(scenario: Path) -> None:
    scenario.write_text(SMALL.replace("duration: 20s", "duration: 2h"))
    ours, theirs = pty.openpty()
    # A shell starts background jobs with SIGINT ignored, and children inherit that. A handler is reset to the default.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        running = subprocess.Popen([BIN / "headgate", "simulate", scenario], stderr=theirs)
    finally:
        signal.signal(signal.SIGINT, inherited)
    with running:
        os.close(theirs)
        said = os.read(ours, 1000)
        running.send_signal(signal.SIGINT)
        while b"stopped" not in said:
            said += os.read(ours, 1000)
        code = running.wait()
    os.close(ours)

    assert b"requests done" in said
    assert b"headgate simulate: stopped at " in said
    assert b"Traceback" not in said
    assert code == 1


class Terminal:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.written: list[str] = []


def test_terminal_shows_a_progress_bar() -> None:
    shown = Terminal()
    progress = SimulationProgress(100 * SECOND, shown.written.append, lambda: shown.seconds, terminal=True, width=200)
    shown.seconds = 2.0

    progress(25 * SECOND, 1234)
    progress(26 * SECOND, 1235)
    progress.clear()

    assert shown.written == [
        "\r\x1b[K[##........] about 0:06 left, 0:25 of 1:40, 1,234 requests done, 12x real time",
        "\r\x1b[K",
    ]


def test_log_gets_a_progress_line_every_five_seconds() -> None:
    shown = Terminal()
    progress = SimulationProgress(100 * SECOND, shown.written.append, lambda: shown.seconds, terminal=False)
    for tenths in range(120):
        shown.seconds = tenths / 10
        progress(tenths * SECOND // 2, tenths)
    progress.clear()

    assert [line.split(", ")[:2] for line in shown.written] == [
        ["about 0:15 left", "0:25 of 1:40"],
        ["about 0:10 left", "0:50 of 1:40"],
    ]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "[#####.....] about 1:00:00 left, 12:00:00 of 24:00:00, 1,234,567 requests done"),
        (60, "[#####.....] about 1:00:00 left, 12:00:00 of 24:00:00"),
        (40, "[#####.....] about 1:00:00 left"),
        (20, "about 1:00:00 left"),
    ],
)
def test_narrow_terminal_shows_remaining_time_first(width: int, line: str) -> None:
    shown = Terminal()
    progress = SimulationProgress(
        86_400 * SECOND, shown.written.append, lambda: shown.seconds, terminal=True, width=width
    )
    shown.seconds = 3600.0

    progress(43_200 * SECOND, 1_234_567)

    assert shown.written == ["\r\x1b[K" + line]


def test_progress_after_the_last_arrival_shows_last_responses() -> None:
    assert describe(101 * SECOND, 100 * SECOND, 7, 1.0)[0] == "last responses"


@pytest.mark.parametrize(("seconds", "text"), [(4, "0:04"), (245, "4:05"), (3845, "1:04:05"), (90_000, "25:00:00")])
def test_times_are_formatted_as_clock_times(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text
