"""Run the policy experiments and check their results against the targets.

    python -m bench.policy [EXPERIMENT ...] [--quick] [--seeds N ...] [--write] [--processes N]

Runs the named experiments, or all of them, and prints a results table and the targets for each. A full run uses all
seeds; `--quick` uses one seed and a shorter workload. `--write` writes tables and charts to `docs/project/results/`.
Progress goes to stderr. The last line of stdout is one JSON object: the figures for the experiment, or figures keyed by
experiment name if there are several. The exit status is 1 if a target is missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.policy import (
    ablation,
    degradation,
    hosted_overflow,
    long_prompts,
    long_streams,
    noisy_tenant,
    overload,
    prefix_routing,
    ranking,
    retry_storm,
    session_affinity,
    wrong_predictions,
)
from bench.policy.experiment import (
    RESULTS,
    DataMissing,
    Experiment,
    Figures,
    Threshold,
    data_folder,
    means,
    thresholds_table,
)

EXPERIMENTS = {
    each.name: each
    for each in (
        overload.EXPERIMENT,
        noisy_tenant.EXPERIMENT,
        long_prompts.EXPERIMENT,
        prefix_routing.EXPERIMENT,
        retry_storm.EXPERIMENT,
        long_streams.EXPERIMENT,
        wrong_predictions.EXPERIMENT,
        ablation.EXPERIMENT,
        degradation.EXPERIMENT,
        session_affinity.EXPERIMENT,
        ranking.EXPERIMENT,
        hosted_overflow.EXPERIMENT,
    )
}


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    experiment: Experiment
    seeds: tuple[int, ...]
    quick: bool
    write: bool

    @property
    def command(self) -> str:
        quick = " --quick" if self.quick else ""
        return f"python -m bench.policy {self.experiment.name}{quick} --seeds {' '.join(map(str, self.seeds))} --write"


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    try:
        data_folder()
    except DataMissing as missing:
        print_progress(str(missing))
        return 2
    asked = [_experiment_run(EXPERIMENTS[name], arguments) for name in arguments.experiments or EXPERIMENTS]
    told: dict[str, Figures] = {}
    missed: list[str] = []
    with ProcessPoolExecutor(arguments.processes) as workers:
        for each in asked:
            figures, bars = _run_seeds(each, workers)
            told[each.experiment.name] = figures
            missed += [f"{each.experiment.name}: {bar}" for bar in bars if not bar.met]
    for line in missed:
        print_progress(line)
    print(json.dumps(told if len(told) > 1 else next(iter(told.values()))))
    return 1 if missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy", description="Run the policy experiments and check their targets."
    )
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT", help=f"One of {', '.join(EXPERIMENTS)} (default: all)."
    )
    parser.add_argument("--quick", action="store_true", help="Use one seed and a shorter workload.")
    parser.add_argument("--seeds", nargs="+", type=int, help="Random seeds (default: the seeds of each experiment).")
    parser.add_argument("--write", action="store_true", help="Write tables and charts to docs/project/results/.")
    parser.add_argument("--processes", type=int, default=1, help="Number of seeds to run in parallel (default 1).")
    arguments = parser.parse_args(words)
    for name in arguments.experiments:
        if name not in EXPERIMENTS:
            parser.error(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return arguments


def _experiment_run(experiment: Experiment, arguments: argparse.Namespace) -> ExperimentRun:
    usual = experiment.seeds[:1] if arguments.quick else experiment.seeds
    return ExperimentRun(experiment, tuple(arguments.seeds or usual), arguments.quick, arguments.write)


def _run_seeds(asked: ExperimentRun, workers: Executor) -> tuple[Figures, Sequence[Threshold]]:
    experiment = asked.experiment
    started = time.monotonic()
    print_progress(f"{experiment.name}, seeds {', '.join(map(str, asked.seeds))}")
    runs = [workers.submit(_run, experiment.name, seed, quick=asked.quick) for seed in asked.seeds]
    figures = means([each.result() for each in runs])
    table, bars = experiment.table(figures), experiment.thresholds(figures)
    print(f"\n{experiment.title}\n\n{table}\n")
    for bar in bars:
        print(bar)
    sys.stdout.flush()
    if asked.write:
        _write(asked, table, bars, figures)
    print_progress(f"{experiment.name} took {time.monotonic() - started:.0f} s")
    return figures, bars


def _run(name: str, seed: int, *, quick: bool) -> Figures:
    return EXPERIMENTS[name].run(seed, quick=quick)


def _write(asked: ExperimentRun, table: str, bars: Sequence[Threshold], figures: Figures) -> None:
    experiment = asked.experiment
    charts = experiment.charts(figures, RESULTS) if experiment.charts is not None else ()
    parts = [
        f"# {experiment.title}",
        experiment.about,
        f"Figures are means over all seeds ({', '.join(map(str, asked.seeds))}).",
        f"```bash\n{asked.command}\n```",
        *(f"![{experiment.title}]({name})" for name in charts),
        table,
        thresholds_table(bars),
    ]
    (RESULTS / f"{experiment.name}.md").write_text("\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    sys.exit(main())
