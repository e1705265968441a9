"""Measure whether the diagnosis identifies the right cause within thirty seconds and raises no false alarms.

    python -m bench.diagnosis [--seeds N] [--from N] [--processes N] [--quick] [--assert] [--only NAME ...]
    python -m bench.diagnosis --seed N --only NAME

Each seed creates a separate world for each incident (`incidents.py`) and each kind of healthy run (`healthy.py`), on
the virtual host with the production scheduler. `run.py` defines the onset of harm and a correct verdict. An incident
that affects no caller is not scored, and a healthy run that affects callers is excluded. Wrong verdicts are printed
with their seed. `--seed` with `--only` prints all verdicts from one run. Progress goes to stderr. The last line of
stdout is one JSON object.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.diagnosis.healthy import HEALTHY
from bench.diagnosis.incidents import INCIDENTS
from bench.diagnosis.scored_run import Result, run_case, score_case
from bench.diagnosis.world import Case, world
from headgate.core.diagnosis.diagnosis import CAUSES
from headgate.model.units import SECOND
from headgate.model.verdict import Cause, Incident

ACCURACY_BAR = 0.95
HELD_OUT = 10_000
"""First seed not used to develop the patterns."""
QUICK_SEEDS = 3
"""Number of seeds in a quick run. With fewer, some incidents would affect no caller in any run."""


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    if arguments.seed is not None:
        return _run_one(arguments.only, arguments.seed)
    names = arguments.only or [*INCIDENTS, *HEALTHY]
    seeds = range(arguments.first, arguments.first + (QUICK_SEEDS if arguments.quick else arguments.seeds))
    jobs = [(name, seed) for seed in seeds for name in names]
    began, results = time.monotonic(), list[Result]()
    for result in _results(jobs, arguments.processes):
        results.append(result)
        _print_wrong(result)
        if len(results) % 50 == 0:
            print_progress(f"{len(results)} of {len(jobs)} runs, {time.monotonic() - began:.0f} s")
    _print_table(results)
    figures = figures_of(results)
    print(json.dumps(figures))
    missed = figures["accuracy"] < ACCURACY_BAR or figures["false_alarms"] > 0
    return 1 if arguments.check and missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="Number of seeds per incident (default 20).")
    parser.add_argument("--from", dest="first", type=int, default=HELD_OUT, help=f"First seed (default {HELD_OUT}).")
    parser.add_argument(
        "--processes", type=int, default=min(2, os.cpu_count() or 1), help="Number of parallel runs (default 2)."
    )
    parser.add_argument("--quick", action="store_true", help=f"Run {QUICK_SEEDS} seeds per incident.")
    parser.add_argument(
        "--only", nargs="+", choices=[*INCIDENTS, *HEALTHY], metavar="NAME", help="Run only these incidents."
    )
    parser.add_argument("--seed", type=int, help="Run only this seed and print all verdicts. Requires --only.")
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit with status 1 if a target is missed.")
    arguments = parser.parse_args(words)
    if arguments.seed is not None and not arguments.only:
        parser.error("--seed requires --only")
    return arguments


def make_case(name: str, seed: int) -> Case:
    return {**INCIDENTS, **HEALTHY}[name](world(seed))


def _scored(job: tuple[str, int]) -> Result:
    return score_case(make_case(*job))


def _results(jobs: Sequence[tuple[str, int]], processes: int) -> Iterator[Result]:
    if processes == 1:
        yield from map(_scored, jobs)
        return
    with ProcessPoolExecutor(processes) as workers:
        yield from workers.map(_scored, jobs, chunksize=1)


def figures_of(results: Sequence[Result]) -> dict[str, float]:
    judged = [each for each in results if each.incident is not Incident.HEALTHY and each.onset_s is not None]
    healthy = [each for each in results if each.incident is Incident.HEALTHY]
    unharmed = sum(each.onset_s is None for each in healthy)
    alarms = sum(bool(each.alarms) for each in results)
    took = sorted(each.seconds for each in judged if each.seconds is not None)
    return {
        "incidents": len({each.name for each in judged}),
        "runs": len(judged),
        "accuracy": round(sum(each.correct for each in judged) / max(1, len(judged)), 4),
        "named": round(
            sum(each.correct and each.diagnosed is each.incident for each in judged) / max(1, len(judged)), 4
        ),
        "healthy_runs": unharmed,
        "left_out": len(healthy) - unharmed,
        "false_alarms": alarms,
        "seconds_p50": _percentile(took, 50),
        "seconds_p95": _percentile(took, 95),
    }


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1) if ordered else 0.0


# Output


def _print_wrong(result: Result) -> None:
    again = f"reproduce with: just diagnosis --seed {result.seed} --only {result.name}"
    if result.alarms:
        print(f"false alarm: {result.name} seed {result.seed}: {result.alarms[0]}; {again}")
    elif result.incident is not Incident.HEALTHY and result.onset_s is not None and not result.correct:
        said = result.sample.summary if result.sample is not None else "no verdict in time."
        print(f"wrong: {result.name} seed {result.seed}: {result.diagnosed}: {said} {again}")


def _print_table(results: Sequence[Result]) -> None:
    print(f"{'incident':<20}{'cause':<15}{'runs':>5}{'right':>7}{'named':>7}{'p50 s':>7}{'p95 s':>7}  other verdicts")
    for name in INCIDENTS:
        of = [each for each in results if each.name == name and each.onset_s is not None]
        if not of:
            continue
        took = sorted(each.seconds for each in of if each.seconds is not None)
        right, named = (
            sum(each.correct for each in of),
            sum(each.correct and each.diagnosed is each.incident for each in of),
        )
        others = Counter(each.diagnosed.value for each in of if each.diagnosed is not of[0].incident)
        told = ", ".join(f"{other} {count}" for other, count in others.most_common())
        cause = CAUSES[of[0].incident].value
        print(
            f"{name:<20}{cause:<15}{len(of):>5}{right:>7}{named:>7}"
            f"{_percentile(took, 50):>7}{_percentile(took, 95):>7}  {told}"
        )
    unharmed = Counter(each.name for each in results if each.incident is not Incident.HEALTHY and each.onset_s is None)
    if unharmed:
        print("no caller affected: " + ", ".join(f"{name} {count}" for name, count in unharmed.items()))
    _print_healthy([each for each in results if each.incident is Incident.HEALTHY])


def _print_healthy(results: Sequence[Result]) -> None:
    for name in HEALTHY:
        if of := [each for each in results if each.name == name and (each.alarms or each.onset_s is None)]:
            print(f"{name:<20}{'healthy':<15}{len(of):>5}{sum(not each.alarms for each in of):>7}")
    if harmed := Counter(each.name for each in results if each.onset_s is not None):
        print("excluded, callers affected: " + ", ".join(f"{name} {count}" for name, count in harmed.items()))
    unharmed = [each for each in results if each.onset_s is None]
    if unharmed and not any(each.alarms for each in results):
        bound = min(100.0, 300 / len(unharmed))
        print(f"no false alarms in {len(unharmed)} healthy runs: the rate is below {bound:.1f} % (95 % confidence)")


def _run_one(names: Sequence[str], seed: int) -> int:
    for name in names:
        case = make_case(name, seed)
        before: tuple[Cause, Incident] | None = None
        print(f"{name}, seed {seed}: {case.world.endpoints} endpoints of {case.world.profile.name}, ", end="")
        print(f"{case.world.rate:.1f} requests/s, starts at {case.scenario.span_ns // SECOND - case.world.tail_s} s")
        for each in run_case(case).verdicts:
            present = (each.verdict.cause, each.verdict.incident)
            if present != before:
                print(f"{each.at_s:5.0f} s  {each.verdict.cause}: {each.verdict.summary}")
                for fact in (*each.verdict.evidence, *map(str, each.verdict.affected), each.verdict.action):
                    print(f"         {fact}" if fact else "", end="\n" if fact else "")
            before = present
        result = score_case(case)
        print(json.dumps({"onset_s": result.onset_s, "seconds": result.seconds, "said": result.diagnosed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
