"""Does `headgate simulate` run a scenario, show how far it is, and say what is wrong?"""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from headgate.cli.simulation_progress import Progress, clock_time, describe
from headgate.model.units import SECOND
from tests.cli.conftest import Headgate
from tests.house.small_tree import BIN, PROJECT

SCENARIOS = PROJECT / "scenarios"
SHORT = {"day": "2m", "long-prompts": "1m", "overload-rtxpro6000": "30s", "overload-h200": "15s"}
"""How long requests arrive in a test, where the whole takes too long for one."""

SMALL = """
pools:
  main: {engines: [tiny], in_flight_max: 8}
callers:
  batch: {ttft: 5s}
traffic:
  - {rate: 5, for: 20s, classes: {batch: 1, interactive: 1}, tenants: {a: 1, b: 1}, prompt: 50:100, output: 10:20}
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


@pytest.mark.parametrize("name", sorted(path.stem for path in SCENARIOS.glob("*.yaml")))
def test_every_scenario_runs_and_accounts_for_each_request(headgate: Headgate, data: None, name: str) -> None:
    cut = ("--duration", SHORT[name]) if name in SHORT else ()

    said = headgate("simulate", str(SCENARIOS / f"{name}.yaml"), "--json", "--quiet", *cut)

    assert (said.code, said.err) == (0, "")
    total = json.loads(said.out)["total"]
    assert total["arrivals"] > 100
    assert sum(total["fates"].values()) == total["arrivals"]
    assert total["good"] > 0


def test_the_table_is_on_stdout(headgate: Headgate, scenario: Path) -> None:
    said = headgate("simulate", str(scenario), "--quiet")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("small\n")
    assert "scheduler headgate, seed 0" in said.out


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(headgate: Headgate, scenario: Path) -> None:
    first, again, other = (
        headgate("simulate", str(scenario), "--json", "--seed", seed).out for seed in ("1", "1", "2")
    )

    assert first == again
    assert first != other


def test_the_hash_seed_changes_nothing(scenario: Path) -> None:
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


@pytest.mark.slow
def test_a_page_is_written(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    said = headgate("simulate", str(scenario), "--html", "report.html", "--quiet")

    assert said.code == 0
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_page_without_a_folder_is_said_before_the_run(headgate: Headgate, scenario: Path) -> None:
    said = headgate("simulate", str(scenario), "--html", "gone/report.html")

    assert (said.code, said.out) == (2, "")
    assert said.err == "headgate simulate: gone/report.html: there is no folder gone; make it first\n"


def test_duration_and_scheduler_of_the_command_line_go_first(headgate: Headgate, scenario: Path) -> None:
    said = headgate("simulate", str(scenario), "--duration", "5s", "--scheduler", "round-robin", "--quiet")

    assert "scheduler round-robin" in said.out
    assert " requests in 5 s" in said.out


def test_a_cap_goes_with_the_scheduler_that_has_one(headgate: Headgate, scenario: Path) -> None:
    without = headgate("simulate", str(scenario), "--cap", "1")
    capped = headgate("simulate", str(scenario), "--cap", "1", "--scheduler", "static-cap", "--quiet")

    assert (without.code, without.out) == (2, "")
    assert "--cap means nothing with headgate; add --scheduler static-cap" in without.err
    assert "refused: queue_full" in capped.out


@pytest.mark.parametrize("text", ["5", "0s", "soon"])
def test_a_duration_is_some_time_with_its_unit(headgate: Headgate, scenario: Path, text: str) -> None:
    said = headgate("simulate", str(scenario), "--duration", text)

    assert (said.code, said.out) == (2, "")
    assert "argument --duration" in said.err


def test_a_scenario_that_is_wrong_is_code_two_with_every_problem(headgate: Headgate, scenario: Path) -> None:
    scenario.write_text(SMALL.replace("tiny", "tinny").replace("5s", "5"))

    said = headgate("simulate", str(scenario))

    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 2
    assert 'did you mean "tiny"?' in said.err


def test_a_trace_that_is_wrong_is_code_two(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    scenario.write_text(SMALL.replace("rate: 5, for: 20s", "trace: mine.csv").partition(", prompt")[0] + "}\n")

    said = headgate("simulate", str(scenario))

    assert (said.code, said.out) == (2, "")
    assert "mine.csv:1: its columns are not known" in said.err


def test_a_trace_may_bring_its_classes_and_tenants(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    rows = ["at_s,prompt_tokens,output_tokens,class,tenant", "0,20,5,batch,acme", "1,20,5,interactive,globex"]
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv}]\n")

    told = json.loads(headgate("simulate", str(scenario), "--json").out)

    assert list(told["tenants"]) == ["acme", "globex"]
    assert told["total"]["good"] == 2


def test_a_class_of_a_trace_that_the_scenario_does_not_have_is_named(
    headgate: Headgate, scenario: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens,class,tenant\n0,20,5,bulk,acme\n")
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv}]\n")

    said = headgate("simulate", str(scenario))

    assert said.code == 2
    assert 'mine.csv names class "bulk", which the scenario does not have; add it to classes' in said.err


def test_nobody_asking_is_a_problem(headgate: Headgate, scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens,class,tenant\n0,20,5,batch,acme\n")
    scenario.write_text(SMALL.partition("traffic")[0] + "traffic: [{trace: mine.csv, start: 1h}]\n")

    said = headgate("simulate", str(scenario))

    assert said.code == 2
    assert "no request arrives" in said.err


def test_ctrl_c_stops_and_says_so(scenario: Path) -> None:
    scenario.write_text(SMALL.replace("for: 20s", "for: 20h"))
    ours, theirs = pty.openpty()
    with subprocess.Popen([BIN / "headgate", "simulate", scenario], stderr=theirs) as running:
        os.close(theirs)
        said = os.read(ours, 1000)
        running.send_signal(signal.SIGINT)
        while b"stopped" not in said:
            said += os.read(ours, 1000)
        code = running.wait()
    os.close(ours)

    assert b"requests ended" in said
    assert b"headgate simulate: stopped at " in said
    assert b"Traceback" not in said
    assert code == 1


class Terminal:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.written: list[str] = []


def test_a_terminal_shows_one_line_with_a_bar() -> None:
    shown = Terminal()
    progress = Progress(100 * SECOND, shown.written.append, lambda: shown.seconds, terminal=True, width=200)
    shown.seconds = 2.0

    progress(25 * SECOND, 1234)
    progress(26 * SECOND, 1235)
    progress.clear()

    assert shown.written == [
        "\r\x1b[K[#####...............] 0:25 of 1:40, 1,234 requests ended, 12 times real time, about 0:06 left",
        "\r\x1b[K",
    ]


def test_a_log_gets_a_line_every_five_seconds() -> None:
    shown = Terminal()
    progress = Progress(100 * SECOND, shown.written.append, lambda: shown.seconds, terminal=False)
    for tenths in range(120):
        shown.seconds = tenths / 10
        progress(tenths * SECOND // 2, tenths)
    progress.clear()

    assert [line.partition(",")[0] for line in shown.written] == ["0:25 of 1:40", "0:50 of 1:40"]


def test_after_the_last_arrival_only_answers_are_waited_for() -> None:
    assert describe(101 * SECOND, 100 * SECOND, 7, 1.0).endswith("last answers")


@pytest.mark.parametrize(("seconds", "text"), [(4, "0:04"), (245, "4:05"), (3845, "1:04:05"), (90_000, "25:00:00")])
def test_times_are_told_as_on_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text
