"""Does the policy hold what it promises?

    python -m bench.policy [EXPERIMENT ...] [--quick] [--seeds N ...] [--write] [--processes N]

Runs the experiments, all of them if none is named, and prints a table of each and the bars that it must meet. Whole
runs take all seeds; `--quick` takes one, and less of each workload. `--write` puts tables and charts into
`docs/project/results/`. Progress goes to stderr. The last line is one JSON object: the figures of the experiment, or of
each by its name if there are several. The exit status is 1 if a bar is missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass

from bench.command import stop_cleanly_on_sigterm, tell
from bench.policy import (
    ablation,
    giving_way,
    long_prompts,
    long_streams,
    noisy_tenant,
    overload,
    prefix_routing,
    retry_storm,
    wrong_predictions,
)
from bench.policy.experiment import RESULTS, Bar, DataMissing, Experiment, Figures, data, means

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
        giving_way.EXPERIMENT,
    )
}


@dataclass(frozen=True, slots=True)
class Asked:
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
        data()
    except DataMissing as missing:
        tell(str(missing))
        return 2
    asked = [_asked(EXPERIMENTS[name], arguments) for name in arguments.experiments or EXPERIMENTS]
    told: dict[str, Figures] = {}
    missed: list[str] = []
    with ProcessPoolExecutor(arguments.processes) as workers:
        for each in asked:
            figures, bars = _performed(each, workers)
            told[each.experiment.name] = figures
            missed += [f"{each.experiment.name}: {bar}" for bar in bars if not bar.met]
    for line in missed:
        tell(line)
    print(json.dumps(told if len(told) > 1 else next(iter(told.values()))))
    return 1 if missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.policy", description="Does the policy hold what it promises?"
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}; or all")
    parser.add_argument("--quick", action="store_true", help="one seed, and less of each workload")
    parser.add_argument("--seeds", nargs="+", type=int, help="other seeds than the usual")
    parser.add_argument("--write", action="store_true", help="put tables and charts into docs/project/results/")
    parser.add_argument("--processes", type=int, default=1, help="how many seeds are run at a time (1)")
    arguments = parser.parse_args(words)
    for name in arguments.experiments:
        if name not in EXPERIMENTS:
            parser.error(f"there is no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return arguments


def _asked(experiment: Experiment, arguments: argparse.Namespace) -> Asked:
    usual = experiment.seeds[:1] if arguments.quick else experiment.seeds
    return Asked(experiment, tuple(arguments.seeds or usual), arguments.quick, arguments.write)


def _performed(asked: Asked, workers: Executor) -> tuple[Figures, Sequence[Bar]]:
    experiment = asked.experiment
    started = time.monotonic()
    tell(f"{experiment.name}, seeds {', '.join(map(str, asked.seeds))}")
    runs = [workers.submit(_run, experiment.name, seed, quick=asked.quick) for seed in asked.seeds]
    figures = means([each.result() for each in runs])
    table, bars = experiment.table(figures), experiment.bars(figures)
    print(f"\n{experiment.title}\n\n{table}\n")
    for bar in bars:
        print(bar)
    sys.stdout.flush()
    if asked.write:
        _write(asked, table, bars, figures)
    tell(f"{experiment.name} took {time.monotonic() - started:.0f} s")
    return figures, bars


def _run(name: str, seed: int, *, quick: bool) -> Figures:
    return EXPERIMENTS[name].run(seed, quick=quick)


def _write(asked: Asked, table: str, bars: Sequence[Bar], figures: Figures) -> None:
    experiment = asked.experiment
    charts = experiment.charts(figures, RESULTS) if experiment.charts is not None else ()
    parts = [
        f"# {experiment.title}",
        experiment.about,
        f"Seeds {', '.join(map(str, asked.seeds))}; figures are means over them.",
        f"```bash\n{asked.command}\n```",
        *(f"![{experiment.title}]({name})" for name in charts),
        table,
        "\n".join(f"- {bar}" for bar in bars),
    ]
    (RESULTS / f"{experiment.name}.md").write_text("\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    sys.exit(main())
