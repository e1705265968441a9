"""Measure whether a live gateway diagnoses incidents correctly from their start until recovery.

    just incidents-live [--only NAME ... | --incidents | --healthy] [--quick] [--smoke] [--assert] [--show]
                        [--healthy-minutes M]

Each incident runs with real processes: a gateway, two simulated engines over HTTP and callers on loopback. The
benchmark reads the verdict once a second from the admin listener, before, during and after the incident. The first
correct verdict must come within 30 s. At most 5 % of all incident seconds may have a wrong verdict, or a healthy
verdict after the first correct one. The verdict must be healthy again within 30 s of recovery. There is one healthy run
per traffic shape, in which every verdict other than healthy is a false alarm. A table is written to stdout, followed by
the figures as JSON on the last line.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.incidents_live.healthy import HEALTHY
from bench.incidents_live.incidents import INCIDENTS, LiveIncident
from bench.incidents_live.score import Sample, Score, figures_of, misses_thresholds, score_run
from bench.incidents_live.world import World, a_world

LASTS_S, QUICK_S, SMOKE_S = 120.0, 40.0, 15.0
CLEAR_S_MAX = 45.0
"""Maximum time for which verdicts are still read after recovery, in seconds."""
CALM_S = 5.0
"""How many seconds the verdict must stay healthy after recovery before the run ends."""
SMOKE = ("kill-one",)
RUNS = {**INCIDENTS, **HEALTHY}


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    names = arguments.only or (SMOKE if arguments.smoke else arguments.runs)
    lasts_s = SMOKE_S if arguments.smoke else QUICK_S if arguments.quick else LASTS_S
    healthy_s = lasts_s if arguments.healthy_minutes is None else 60 * arguments.healthy_minutes
    results = list[Score]()
    for name in names:
        run_s = lasts_s if RUNS[name].right else healthy_s
        results.append(asyncio.run(run(RUNS[name], run_s, show=arguments.show)))
        print_progress(_row(results[-1]))
    _print_table(results)
    figures = figures_of(results, CLEAR_S_MAX)
    print(json.dumps(figures))
    return 1 if arguments.check and misses_thresholds(figures) else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just incidents-live", description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(RUNS),
        metavar="NAME",
        help="Run only these incidents and healthy runs (default: all).",
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--incidents", dest="runs", action="store_const", const=list(INCIDENTS), help="Run only the incidents."
    )
    part.add_argument(
        "--healthy", dest="runs", action="store_const", const=list(HEALTHY), help="Run only the healthy runs."
    )
    parser.set_defaults(runs=list(RUNS))
    parser.add_argument(
        "--healthy-minutes", type=float, metavar="M", help="Length of each healthy run (default: same as incidents)."
    )
    parser.add_argument("--quick", action="store_true", help=f"Run each incident for {QUICK_S:g} s.")
    parser.add_argument("--smoke", action="store_true", help=f"Run {', '.join(SMOKE)} for {SMOKE_S:g} s.")
    parser.add_argument("--show", action="store_true", help="Print the verdict whenever it changes.")
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit with status 1 if a target is missed.")
    return parser.parse_args(words)


async def run(incident: LiveIncident, lasts_s: float, *, show: bool) -> Score:
    with tempfile.TemporaryDirectory(prefix="headgate-incident-") as folder:
        async with a_world(Path(folder), real=incident.real, **incident.pool) as world:
            await incident.prepare(world)
            world.start_traffic()
            samples, ended_s = await _play(world, incident, lasts_s, show=show)
    return score_run(incident.name, incident.right, samples, ended_s=ended_s)


async def _play(world: World, incident: LiveIncident, lasts_s: float, *, show: bool) -> tuple[list[Sample], float]:
    """Return all verdicts and the time at which recovery was complete, in seconds since the start of the incident."""
    loop = asyncio.get_running_loop()
    begins = loop.time() + incident.usual_s
    samples = list[Sample]()

    async def sample_until(at_s: float) -> None:
        while loop.time() - begins < at_s:
            samples.append(await _sample(world, loop.time() - begins, samples[-1] if samples else None, show=show))
            await asyncio.sleep(1.0)

    await sample_until(0.0)
    await incident.begin(world)
    await sample_until(lasts_s)
    await incident.end(world)
    ended_s = loop.time() - begins
    while loop.time() - begins < ended_s + CLEAR_S_MAX and not _is_calm(samples, ended_s):
        await sample_until(loop.time() - begins + 1.0)
    return samples, ended_s


def _is_calm(samples: Sequence[Sample], ended_s: float) -> bool:
    since = max((each.at_s for each in samples if each.incident != "healthy"), default=ended_s)
    return samples[-1].at_s - max(since, ended_s) > CALM_S


async def _sample(world: World, at_s: float, before: Sample | None, *, show: bool) -> Sample:
    verdict = await world.verdict()
    sample = Sample(at_s, verdict["incident"], verdict["sentence"])
    if show and (before is None or before.incident != sample.incident):
        print_progress(f"{at_s:6.1f} s  {sample.incident}: {sample.sentence}")
    return sample


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _row(each: Score) -> str:
    if each.healthy_run_s is not None:
        return f"{each.name:<28}{each.healthy_run_s:>5.0f} s healthy{each.alarms:>32}  {', '.join(each.told)}"
    return (
        f"{each.name:<28}{each.seconds:>5}{_seconds(each.first_right_s):>9}{each.wrong_s:>7}{each.healthy_s:>9}"
        f"{_seconds(each.cleared_s):>9}{each.alarms:>8}  {', '.join(each.told)}"
    )


def _print_table(results: Sequence[Score]) -> None:
    print(f"{'incident':<28}{'s':>5}{'right s':>9}{'wrong':>7}{'healthy':>9}{'cleared':>9}{'alarms':>8}  verdicts")
    for each in results:
        print(_row(each))


if __name__ == "__main__":
    sys.exit(main())
