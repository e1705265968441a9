"""Does the diagnosis name the right cause within thirty seconds, and nothing where nothing is wrong?

    python -m bench.diagnosis [--seeds N] [--from N] [--processes N] [--quick] [--assert] [--only NAME ...]
    python -m bench.diagnosis --seed N --only NAME

Each seed makes a world of its own for each incident (`incidents.py`) and each kind of healthy runs (`healthy.py`), on
the virtual host with the serving scheduler. `run.py` says from when on harm counts and what is right. An incident that
harms nobody is not judged, and a healthy run in which somebody is harmed is left out. What was told of a run that went
wrong is printed with its seed; with `--seed` and `--only` everything that is told in a run is. Progress goes to stderr;
the last line is one JSON object.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from bench.command import stop_cleanly_on_sigterm, tell
from bench.diagnosis.healthy import HEALTHY
from bench.diagnosis.incidents import INCIDENTS
from bench.diagnosis.run import Result, judge, play
from bench.diagnosis.world import Case, world
from headgate.core.diagnosis.diagnosis import CAUSES
from headgate.model.units import SECOND
from headgate.model.verdict import Cause, Incident

ACCURACY_BAR = 0.95
HELD_OUT = 10_000
"""Seeds from here on were not looked at while the patterns were made."""
QUICK_SEEDS = 3
"""With fewer some incident harms nobody in any of them."""


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    if arguments.seed is not None:
        return _one(arguments.only, arguments.seed)
    names = arguments.only or [*INCIDENTS, *HEALTHY]
    seeds = range(arguments.first, arguments.first + (QUICK_SEEDS if arguments.quick else arguments.seeds))
    jobs = [(name, seed) for seed in seeds for name in names]
    began, results = time.monotonic(), list[Result]()
    for result in _results(jobs, arguments.processes):
        results.append(result)
        _tell_wrong(result)
        if len(results) % 50 == 0:
            tell(f"{len(results)} of {len(jobs)} runs, {time.monotonic() - began:.0f} s")
    _tell_table(results)
    figures = figures_of(results)
    print(json.dumps(figures))
    missed = figures["accuracy"] < ACCURACY_BAR or figures["false_alarms"] > 0
    return 1 if arguments.check and missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many of each (20)")
    parser.add_argument("--from", dest="first", type=int, default=HELD_OUT, help=f"the first of them ({HELD_OUT})")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time (2)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds of each")
    parser.add_argument("--only", nargs="+", choices=[*INCIDENTS, *HEALTHY], metavar="NAME", help="these alone")
    parser.add_argument("--seed", type=int, help="with --only: this one alone, and all that is told")
    parser.add_argument("--assert", dest="check", action="store_true", help="exit 1 when a bar is missed")
    arguments = parser.parse_args(words)
    if arguments.seed is not None and not arguments.only:
        parser.error("--seed shows one run; name it with --only")
    return arguments


def made(name: str, seed: int) -> Case:
    return {**INCIDENTS, **HEALTHY}[name](world(seed))


def _judged(job: tuple[str, int]) -> Result:
    return judge(made(*job))


def _results(jobs: Sequence[tuple[str, int]], processes: int) -> Iterator[Result]:
    if processes == 1:
        yield from map(_judged, jobs)
        return
    with ProcessPoolExecutor(processes) as workers:
        yield from workers.map(_judged, jobs, chunksize=1)


def figures_of(results: Sequence[Result]) -> dict[str, float]:
    judged = [each for each in results if each.incident is not Incident.HEALTHY and each.onset_s is not None]
    healthy = [each for each in results if each.incident is Incident.HEALTHY]
    unharmed = sum(each.onset_s is None for each in healthy)
    alarms = sum(bool(each.alarms) for each in results)
    took = sorted(each.seconds for each in judged if each.seconds is not None)
    return {
        "incidents": len({each.name for each in judged}),
        "runs": len(judged),
        "accuracy": round(sum(each.right for each in judged) / max(1, len(judged)), 4),
        "named": round(sum(each.right and each.said is each.incident for each in judged) / max(1, len(judged)), 4),
        "healthy_runs": unharmed,
        "left_out": len(healthy) - unharmed,
        "false_alarms": alarms,
        "seconds_p50": _at(took, 50),
        "seconds_p95": _at(took, 95),
    }


def _at(ordered: Sequence[float], percent: int) -> float:
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1) if ordered else 0.0


# What people see


def _tell_wrong(result: Result) -> None:
    again = f"run it again: just diagnosis --seed {result.seed} --only {result.name}"
    if result.alarms:
        print(f"false alarm: {result.name} seed {result.seed}: {result.alarms[0]}; {again}")
    elif result.incident is not Incident.HEALTHY and result.onset_s is not None and not result.right:
        said = result.sample.sentence if result.sample is not None else "nothing in time"
        print(f"wrong: {result.name} seed {result.seed}: {result.said}: {said} {again}")


def _tell_table(results: Sequence[Result]) -> None:
    print(f"{'incident':<20}{'cause':<15}{'runs':>5}{'right':>7}{'named':>7}{'p50 s':>7}{'p95 s':>7}  told instead")
    for name in INCIDENTS:
        of = [each for each in results if each.name == name and each.onset_s is not None]
        if not of:
            continue
        took = sorted(each.seconds for each in of if each.seconds is not None)
        right, named = sum(each.right for each in of), sum(each.right and each.said is each.incident for each in of)
        others = Counter(each.said.value for each in of if each.said is not of[0].incident)
        told = ", ".join(f"{other} {count}" for other, count in others.most_common())
        cause = CAUSES[of[0].incident].value
        print(f"{name:<20}{cause:<15}{len(of):>5}{right:>7}{named:>7}{_at(took, 50):>7}{_at(took, 95):>7}  {told}")
    unharmed = Counter(each.name for each in results if each.incident is not Incident.HEALTHY and each.onset_s is None)
    if unharmed:
        print("nobody was harmed: " + ", ".join(f"{name} {count}" for name, count in unharmed.items()))
    _tell_healthy([each for each in results if each.incident is Incident.HEALTHY])


def _tell_healthy(results: Sequence[Result]) -> None:
    for name in HEALTHY:
        if of := [each for each in results if each.name == name and (each.alarms or each.onset_s is None)]:
            print(f"{name:<20}{'healthy':<15}{len(of):>5}{sum(not each.alarms for each in of):>7}")
    if harmed := Counter(each.name for each in results if each.onset_s is not None):
        print("left out, callers were harmed: " + ", ".join(f"{name} {count}" for name, count in harmed.items()))
    unharmed = [each for each in results if each.onset_s is None]
    if unharmed and not any(each.alarms for each in results):
        bound = min(100.0, 300 / len(unharmed))
        print(
            f"no alarm in {len(unharmed)} healthy runs: fewer than {bound:.1f} % of such runs alarm (95 % confidence)"
        )


def _one(names: Sequence[str], seed: int) -> int:
    for name in names:
        case = made(name, seed)
        before: tuple[Cause, Incident] | None = None
        print(f"{name}, seed {seed}: {case.world.endpoints} endpoints of {case.world.profile.name}, ", end="")
        print(f"{case.world.rate:.1f} requests/s, begins at {case.scenario.span_ns // SECOND - case.world.tail_s} s")
        for each in play(case).told:
            present = (each.verdict.cause, each.verdict.incident)
            if present != before:
                print(f"{each.at_s:5.0f} s  {each.verdict.cause}: {each.verdict.sentence}")
                for fact in (*each.verdict.evidence, *map(str, each.verdict.affected), each.verdict.action):
                    print(f"         {fact}" if fact else "", end="\n" if fact else "")
            before = present
        result = judge(case)
        print(json.dumps({"onset_s": result.onset_s, "seconds": result.seconds, "said": result.said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
