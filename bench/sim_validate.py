"""Check the simulated engine's predictions against recorded vLLM runs.

The times of the first 100 requests are used to calibrate the five step parameters; the other 200 are predicted. The
output shows fifteen errors for each run. The last line is JSON: the mean error of each run's prediction.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.cli import print_progress
from headgate.model.engine_profile import EngineProfile
from headgate.planning.accuracy import latency_stats, mean_error, relative_errors
from headgate.planning.calibration import Calibration, calibrate
from headgate.planning.engine_replay import replay
from headgate.planning.recorded_run import RecordedRun, read_run, run_names

FITTED = 100
COLUMNS = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Verdict:
    profile: EngineProfile
    fitted: dict[str, float]
    """Errors over the requests used for calibration."""
    predicted: dict[str, float]
    """Errors over the predicted requests."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="sim-validate", description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="append", metavar="NAME", help="run to check (repeatable; default all)")
    arguments = parser.parse_args()
    folder = Path(os.environ.get("HEADGATE_DATA", "")) / "vllm_runs"
    known = run_names(folder)
    if not known:
        sys.exit("no recorded runs found; set HEADGATE_DATA to the directory that contains vllm_runs/")
    names: list[str] = arguments.run or known
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown run {unknown[0]!r}; available: {', '.join(known)}")
    found = {name: _judged(read_run(folder, name)) for name in names}
    print(json.dumps({name: round(mean_error(each.predicted), 4) for name, each in found.items()}))


def _judged(run: RecordedRun) -> Verdict:
    started = perf_counter()
    rounds = 0

    def progress(best: Calibration) -> None:
        nonlocal rounds
        rounds += 1
        print_progress(
            f"{run.name}: round {rounds}, sum of squares {best.squared_error:.4f}, {perf_counter() - started:.1f} s"
        )

    profile = calibrate(run.profile, run.requests, run.token_times[:FITTED], on_round=progress).profile
    made = replay(profile, run.requests)
    first, rest = slice(0, FITTED), slice(FITTED, None)
    fitted, predicted = (
        relative_errors(
            latency_stats(run.requests[part], run.token_times[part]), latency_stats(run.requests[part], made[part])
        )
        for part in (first, rest)
    )
    verdict = Verdict(profile, fitted, predicted)
    _show(run.name, verdict)
    return verdict


def _show(name: str, verdict: Verdict) -> None:
    profile = verdict.profile
    print(f"\n{name}")
    print(
        f"  a {profile.step_ps / 1e9:.2f} ms, bp {profile.prefill_token_ps / 1e6:.1f} µs, "
        f"bd {profile.decode_sequence_ps / 1e6:.1f} µs, c {profile.kv_token_ps / 1e3:.1f} ns, "
        f"q {profile.attention_ps / 1e3:.2f} ns"
    )
    print(f"  {'':12}{''.join(f'{column:>9}' for column in COLUMNS)}")
    for part, found in (("fitted", verdict.fitted), ("predicted", verdict.predicted)):
        _show_part(part, found)


def _show_part(part: str, found: Mapping[str, float]) -> None:
    for series in ("ttft", "tpot", "e2e"):
        row = "".join(f"{found[f'{series}_{column}']:+9.1%}" for column in COLUMNS)
        print(f"  {part if series == 'ttft' else '':12}{row}  {series}")
    print(f"  {'':12}mean error {mean_error(found):.2%}", flush=True)


if __name__ == "__main__":
    main()
