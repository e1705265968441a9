"""Run benchmarks, experiments, kill tests, soaks and tests that are too long or too timing-sensitive for CI.

    python -m bench.nightly [PART ...]    run these parts, or all of them
    python -m bench.nightly --smoke       run every benchmark for seconds and check only that it works
    python -m bench.nightly --list        list the parts and their commands

Each part is a separate command. Its last line is a JSON object whose figures are checked against targets. After the
last part a table shows every target with its figure. The last line is one JSON object:
`{target: {"value": …, "must": …, "met": …}}`. The exit status is 1 if a target was missed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench import (
    batching,
    calibrate_live,
    cell_speed,
    defaults_live,
    directory_changes,
    engine_throughput,
    hosted_overflow_live,
    ledger_faults,
    ledger_reconciliation,
    ledger_speed,
    metric_series,
    mirror,
    plan_live,
    scale_live,
    scheduler_speed,
    several_cells,
    sim_vs_live,
    tracing_overhead,
    tune_faults,
    tune_live,
)
from bench import sim_vs_live_overload as overload
from bench.attack.__main__ import HEALTH_P99_MS_MAX, LONGEST_TURN_MS_MAX
from bench.cell_overhead.__main__ import AT_LEAST as CELL_LEAST
from bench.cell_overhead.__main__ import AT_MOST as CELL_MOST
from bench.cell_streams.__main__ import AT_MOST as STREAMS_MOST
from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.diagnosis.__main__ import ACCURACY_BAR
from bench.incidents_live import score as incidents_live
from bench.kill_cell.__main__ import READMIT_S_MAX
from bench.relay_thresholds import THRESHOLDS as RELAY
from scripts.image.check import FIRST_ANSWER_S_MAX as IMAGE_FIRST_ANSWER_S_MAX
from scripts.release.check import FIRST_ANSWER_S_MAX

ROOT: Final = Path(__file__).parents[1]
COLD_START_S: Final = 20.0
COMPILED_TESTS: Final = (
    "contracts",
    "control",
    "edge",
    "engines",
    "fleets",
    "hosts",
    "lessons",
    "security",
    "telemetry",
    "wire",
)
"""Directories whose process tests run on the compiled build. CI runs only some of them (`just test-compiled`)."""
_ENGINES: Final = "llamacpp or vllm or triton or ray or litellm"
FAILED: Final = "exit_status"
"""Name of the figure for a command's exit status."""


@dataclass(frozen=True, slots=True)
class Threshold:
    figure: str
    most: float | None = None
    least: float | None = None

    @property
    def must(self) -> str:
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"

    def met_by(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


@dataclass(frozen=True, slots=True)
class Result:
    value: float | None
    must: str
    met: bool


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: tuple[str, ...]
    """Arguments for the Python interpreter."""
    bars: tuple[Threshold, ...] = ()
    smoke: tuple[str, ...] | None = None
    """Arguments for a run that takes a few seconds. None if CI already runs a short version."""
    environment: tuple[tuple[str, str], ...] = ()


def _at_most(**figures: float) -> tuple[Threshold, ...]:
    return tuple(Threshold(name, most=value) for name, value in figures.items())


def _at_least(**figures: float) -> tuple[Threshold, ...]:
    return tuple(Threshold(name, least=value) for name, value in figures.items())


def _bench(module: str, words: str = "") -> tuple[str, ...]:
    return "-m", f"bench.{module}", *words.split()


def _tests(marks: str, *words: str) -> tuple[str, ...]:
    return "-m", "pytest", "-q", "-m", marks, *words


PARTS: Final = (
    Part("relay", _bench("relay_overhead"), _at_most(**RELAY), _bench("relay_overhead", "--seconds 0.3")),
    Part(
        "attack",
        _bench("attack"),
        _at_most(not_held=0, health_failures=0, longest_turn_ms=LONGEST_TURN_MS_MAX, health_p99_ms=HEALTH_P99_MS_MAX),
        _bench("attack", "endless_trailer_without_a_key dns_rebinding engine_usage_bomb"),
    ),
    Part("tls", _bench("tls"), _at_most(broken=0), _bench("tls", "--quick")),
    Part("whole-answers", _bench("non_streaming_overhead"), (), _bench("non_streaming_overhead", "--quick")),
    Part(
        "mirror",
        _bench("mirror"),
        (*_at_most(p99_ratio=mirror.RATIO_MAX), *_at_least(mirrored=1)),
        _bench("mirror", "--pairs 1 --seconds 2 --percent 100"),
    ),
    Part("engine", _bench("engine_throughput"), _at_least(ratio=engine_throughput.RATIO_MIN)),
    Part(
        "batching",
        _bench("batching"),
        (*_at_least(requests_per_s_ratio=batching.RATIO_MIN), *_at_most(p99_ms=batching.BUDGET_MS)),
        _bench("batching", "--engine llamacpp --quick --seconds 0.3 --rounds 1 --concurrency 4"),
    ),
    Part(
        "core",
        _bench("scheduler_speed"),
        (
            *_at_least(requests_per_s_over_yardstick=scheduler_speed.OVER_YARDSTICK_MIN),
            *_at_most(endpoints_512_over_8=scheduler_speed.ENDPOINTS_RATIO_MAX),
        ),
        _bench("scheduler_speed", "--requests 50"),
    ),
    Part("compare-speed", _bench("compare_speed", "e43d013"), (), _bench("compare_speed", "e43d013 --quick")),
    Part(
        "cell",
        _bench("cell_overhead"),
        (*_at_most(**CELL_MOST), *_at_least(**CELL_LEAST)),
        _bench("cell_overhead", "--quick --parts throughput"),
    ),
    Part(
        "cell-speed",
        _bench("cell_speed"),
        _at_least(requests_per_s_over_yardstick=cell_speed.OVER_YARDSTICK_MIN),
        _bench("cell_speed", "--requests 200"),
    ),
    Part(
        "kill-cell",
        _bench("kill_cell", "--store both"),
        _at_most(lost=0, severed=0, rejected_unexpectedly=0, mixed=0, readmit_s_worst=READMIT_S_MAX),
        _bench("kill_cell", "--kinds scheduler --kills 1"),
    ),
    Part("cell-streams", _bench("cell_streams"), _at_most(**STREAMS_MOST), _bench("cell_streams", "--smoke")),
    Part(
        "several-cells",
        _bench("several_cells"),
        _at_most(lost=0, overspent_ppm=0, violations=0, budget_overspent_ppm=several_cells.BUDGET_PPM_MAX),
        _bench("several_cells", "--smoke"),
    ),
    Part("cell-seeds", _bench("cell_faults", "20000 --processes 2"), _at_most(violations=0)),
    Part(
        "ledger",
        _bench("ledger_speed"),
        _at_most(cpu_ratio_on_off=ledger_speed.RATIO_MAX),
        _bench("ledger_speed", "--quick --pairs 1 --rows 2000"),
    ),
    Part(
        "ledger-faults",
        _bench("ledger_faults"),
        _at_most(lost=0, doubled=0, sums_differ=0, difference_ppm=ledger_faults.DIFFERENCE_PPM_MAX),
        _bench("ledger_faults", "--smoke"),
    ),
    Part(
        "skew",
        _bench("version_skew"),
        _at_most(lost=0, doubled=0, sums_differ=0, unready_s=0.0),
        _bench("version_skew", "--smoke"),
    ),
    Part(
        "ledger-adds-up",
        _bench("ledger_reconciliation"),
        _at_most(unexplained_fraction=ledger_reconciliation.UNEXPLAINED_MAX),
        _bench("ledger_reconciliation", "--seconds 3"),
    ),
    Part(
        "directory-changes",
        _bench("directory_changes"),
        _at_most(longest_ms=directory_changes.TURN_MS_MAX),
        _bench("directory_changes", "--tenants 2000 --times 1"),
    ),
    Part("reports", _bench("ledger_reports"), (), _bench("ledger_reports", "--rows 2000")),
    Part("records", _bench("records_speed"), (), _bench("records_speed", "--rows 2000")),
    Part(
        "tracing",
        _bench("tracing_overhead"),
        _at_most(cpu_ratio_on_off=tracing_overhead.RATIO_MAX),
        _bench("tracing_overhead", "--quick --pairs 1"),
    ),
    Part(
        "scale-live",
        _bench("scale_live", f"--cold-start {COLD_START_S:g}"),
        _at_most(recovered_s=COLD_START_S + scale_live.RECOVER_S_MAX, severed=0),
        _bench("scale_live", "--cold-start 2 --smoke"),
    ),
    Part(
        "sim-live",
        _bench("sim_vs_live"),
        _at_most(worst_ratio=sim_vs_live.RATIO_MAX),
        _bench("sim_vs_live", "--requests 50"),
    ),
    Part(
        "sim-live-overload",
        _bench("sim_vs_live_overload"),
        _at_most(difference_points=overload.POINTS_MAX),
        _bench("sim_vs_live_overload", "--seconds 3"),
    ),
    Part(
        "hosted-overflow-live",
        _bench("hosted_overflow_live"),
        (*_at_least(attainment_gain=hosted_overflow_live.GAIN_MIN), *_at_most(ledger_difference_nano_usd=0)),
        _bench("hosted_overflow_live", "--seconds 2"),
    ),
    Part(
        "plan-live",
        _bench("plan_live"),
        (*_at_least(planned_holds=len(plan_live.SEEDS)), *_at_most(one_fewer_holds=0)),
        _bench("plan_live", "--seconds 3 --seeds 0"),
    ),
    Part(
        "plan-scale",
        _bench("scale_plans", "--write"),
        (),
        _bench("scale_plans", "--scenario scenarios/plan.yaml --volumes 200k"),
    ),
    Part("metric-series", _bench("metric_series"), _at_most(process=metric_series.PROCESS_MAX)),
    Part(
        "tune-live",
        _bench("tune_live"),
        (*_at_least(kept=tune_live.RUNS, reverted=tune_live.RUNS), *_at_most(revert_s=tune_live.REVERT_S_MAX)),
        _bench("tune_live", "--smoke --runs 1"),
    ),
    Part(
        "tune-faults",
        _bench("tune_faults", "--processes 2"),
        (*_at_least(in_top_two=tune_faults.FOUND_MIN), *_at_most(false_alarms=0)),
        _bench("tune_faults", "--faults 1 --checks 0 --settings pools.chat.in_flight_max"),
    ),
    Part("experiments", _bench("policy", "--write --processes 2")),
    Part("scaling", _bench("scaling", "--whole --write --processes 2")),
    Part(
        "incidents-live",
        _bench("incidents_live", "--incidents"),
        _at_most(
            first_right_s_worst=incidents_live.RIGHT_S_MAX,
            wrong_share=incidents_live.WRONG_SHARE_MAX,
            cleared_s_worst=incidents_live.CLEARED_S_MAX,
            false_alarms=0,
        ),
        _bench("incidents_live", "--smoke"),
    ),
    Part(
        "healthy-live",
        _bench("incidents_live", "--healthy --healthy-minutes 20"),
        _at_most(false_alarms=0),
        _bench("incidents_live", "--only healthy-steady --healthy-minutes 0.05"),
    ),
    Part(
        "defaults-live",
        _bench("defaults_live"),
        _at_least(attainment_ratio=defaults_live.RATIO_MIN),
        _bench("defaults_live", "--smoke"),
    ),
    Part("diagnosis", _bench("diagnosis"), (*_at_least(accuracy=ACCURACY_BAR), *_at_most(false_alarms=0))),
    Part("sim-validate", _bench("sim_validate")),
    Part(
        "calibrate-live",
        _bench("calibrate_live"),
        _at_most(**calibrate_live.LIMITS),
        _bench("calibrate_live", "--engines simulated --smoke"),
    ),
    Part("sim-day", _bench("sim_day"), (), _bench("sim_day", "--hours 0.01 --profiled-minutes 0.5")),
    Part(
        "sim-overload",
        _bench("sim_overload"),
        (),
        _bench("sim_overload", "--first 5 --loads 1.2 --profile h200 --policy headgate"),
    ),
    Part(
        "release",
        ("-m", "scripts.release", "--check"),
        _at_most(first_answer_s=FIRST_ANSWER_S_MAX, differing_files=0),
    ),
    Part(
        "image",
        ("-m", "scripts.image", "--base-from-debian", "--check"),
        _at_most(first_answer_s=IMAGE_FIRST_ANSWER_S_MAX, failed=0),
    ),
    Part("soak", _tests("endurance", "tests/acceptance/test_soak.py")),
    Part("endurance", _tests("endurance", "--ignore=tests/acceptance/test_soak.py")),
    Part("engines", _tests(f"({_ENGINES}) and nightly")),
    Part("console", _tests("observability and nightly")),
    Part(
        "tests",
        _tests(f"nightly and not ({_ENGINES} or observability or cell)", "-n", "2"),
        environment=(("HYPOTHESIS_PROFILE", "nightly"),),
    ),
    Part(
        "compiled-tests",
        (
            *_bench("compiled_tests", "-n 2 -m"),
            f"process and not (timing or nightly or endurance or cell or observability or {_ENGINES})",
            *(f"tests/{name}" for name in COMPILED_TESTS),
        ),
    ),
    Part("cell-tests", _tests("cell and nightly")),
    Part(
        "properties",
        ("-m", "pytest", "-q", "-n", "2", "tests/properties", "tests/wire", "tests/config"),
        environment=(("HYPOTHESIS_PROFILE", "nightly"),),
    ),
)


def main(words: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    stop_cleanly_on_sigterm()
    by_name = {part.name: part for part in parts}
    arguments = _arguments(words, by_name)
    if arguments.list:
        for part in parts:
            print(f"{part.name:20} python {' '.join(part.command)}")
        return 0
    chosen = [by_name[name] for name in arguments.parts or by_name]
    if arguments.smoke:
        chosen = [part for part in chosen if part.smoke is not None]
    results: dict[str, Result] = {}
    # A smoke run's figures are not checked, so two parts can share the machine.
    with ThreadPoolExecutor(2 if arguments.smoke else 1) as workers:
        for found in workers.map(run_smoke if arguments.smoke else run_part, chosen):
            results |= found
    print(table_of(results))
    print(json.dumps({name: asdict(each) for name, each in results.items()}), flush=True)
    return 0 if all(each.met for each in results.values()) else 1


def _arguments(words: Sequence[str] | None, names: Mapping[str, Part]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.nightly", description=str(__doc__).partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"One of {', '.join(names)} (default: all).")
    parser.add_argument(
        "--smoke", action="store_true", help="Run each benchmark for seconds and check only that it works."
    )
    parser.add_argument("--list", action="store_true", help="List the parts and their commands.")
    arguments = parser.parse_args(words)
    if unknown := [name for name in arguments.parts if name not in names]:
        parser.error(f"unknown part {unknown[0]!r}; choose from {', '.join(names)}")
    return arguments


def run_part(part: Part) -> dict[str, Result]:
    status, figures = _run(part, part.command)
    found = {f"{part.name}.{bar.figure}": check(bar, figures) for bar in part.bars}
    if not found or status not in {0, 1}:
        # For parts without targets, the exit status decides.
        found[f"{part.name}.{FAILED}"] = Result(status, "<= 0", status == 0)
    return found


def run_smoke(part: Part) -> dict[str, Result]:
    assert part.smoke is not None
    status, _ = _run(part, part.smoke)
    return {f"{part.name}.{FAILED}": Result(status, "<= 0", status == 0)}


def check(bar: Threshold, figures: Mapping[str, object]) -> Result:
    """Check a figure against its target. A figure that is missing or not a number misses its target."""
    value = figures.get(bar.figure)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Result(None, bar.must, met=False)
    return Result(value, bar.must, bar.met_by(value))


def _run(part: Part, command: Sequence[str]) -> tuple[int, Mapping[str, object]]:
    print_progress(f"nightly: {part.name}: python {' '.join(command)}")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **dict(part.environment)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    print_progress(f"nightly: {part.name}: exit status {done.returncode} after {time.monotonic() - started:.0f} s")
    return done.returncode, last_object(done.stdout)


def last_object(output: str) -> Mapping[str, object]:
    """JSON object on the last line, or an empty one if there is none."""
    lines = output.strip().splitlines()
    try:
        found: object = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def table_of(results: Mapping[str, Result]) -> str:
    rows = [("figure", "value", "target", "")]
    for name, each in results.items():
        rows.append(
            (name, "none" if each.value is None else f"{each.value:g}", each.must, "met" if each.met else "MISSED")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
