"""Plan ServeGen's mix for 1 million to 1 billion requests a day, and write the results page.

    just plan-scale [--volumes 1M,10M] [--resume FILE] [--write]

Runs `headgate plan --requests-per-day` on `scenarios/servegen-mix.yaml`, one volume after the other. With `--resume`,
finished volumes are kept in a file, and a later run with the same scenario, seeds and code continues. `--write`
replaces docs/project/scale-plans.md. The last line is JSON.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.policy.experiment import table
from headgate.planning.volume_plan import DayMix, VolumePlan
from headgate.planning.volume_report import (
    SECTIONS,
    cell_table,
    format_volume,
    measured_table,
    mix_sentences,
    read_volumes,
    volume_table,
    wrong_growth,
)
from testing.simulated_engines import HEADGATE

PROJECT: Final = Path(__file__).parent.parent
SCENARIO: Final = PROJECT / "scenarios" / "servegen-mix.yaml"
PAGE: Final = PROJECT / "docs" / "project" / "scale-plans.md"
VOLUMES: Final = "1M,10M,100M,1B"

_INTRODUCTION: Final = """\
# Plans for 1 million to 1 billion requests per day

This page plans cells, gateways, GPUs and dollars for four volumes of the same mix of traffic: the requests that
[ServeGen](../reference/scenarios.md#servegen) recorded for a small, a medium and a large model on one of its fourteen
days, in their recorded proportions. `scenarios/servegen-mix.yaml` lists the engines, prices and objectives. The prices
are examples: replace them with your own. The page is written by this command, which takes minutes of CPU time:

```bash
{command}
```

`headgate plan scenarios/servegen-mix.yaml --requests-per-day 1M,10M` prints such a plan
([guide](../guides/plan.md#requests-per-day)).

## Method

1. **The day.** A sample of each model's requests shows the busiest ten minutes of ServeGen's data: those with the
   most engine time for the model's pool, those with the most requests for the cells, and those with the most streamed
   tokens for the gateways.
2. **Cells.** The peak with headroom is divided among the fewest equal cells of at most 500 new streams per second. At
   this rate, `just cell-streams --curve` measured a p99 of 15 ms from arrival to grant. At the next measured rate,
   1,509 per second, it was 89 ms, which misses that benchmark's own target of 25 ms.
3. **Engines.** One cell is simulated request by request at its real size, with Headgate's scheduler. The simulated
   window is the one with the most engine time within each model's busiest ten minutes, for all models at the same
   time. Its requests are longer than those at the highest rate, so it may have fewer requests per second. The search
   finds the fewest engines of each pool that hold the objectives with {seeds}, or at most 5 % more for a pool of at
   least 40. All cells are like this one, so a volume of several cells has the economies of scale of one cell, not
   more. There is no reserve for engines that fail: a pool of one engine in a cell serves nothing without it.
4. **Headgate's own processes** follow from measured costs, which are listed [below](#measured-figures). Each gateway
   process is planned at half a core, and each cell has one more than it needs at the peak. From a quarter of a core
   on, a cell has two scheduler-only processes. Each cell has a store and a replica. Every process is charged as one
   core.
5. **Growth.** An exponent of 1 means that a figure grows like the traffic. Exponents are fitted over all volumes.

Cell, gateway and data figures are calculated from measurements of single processes. The division into cells has not
been measured at this size.
"""


def page(mix: DayMix, plans: Sequence[VolumePlan], *, command: str, seeds: int) -> str:
    sentences = [f"- {each[0].upper()}{each[1:]}." for each in mix_sentences(mix)]
    parts = [
        _INTRODUCTION.format(command=command, seeds="one seed" if seeds == 1 else f"{seeds} seeds"),
        "\n".join(["## The day\n", *sentences, ""]),
    ]
    for name, rows in SECTIONS:
        parts.append(f"## {name}\n\n{_markdown(volume_table(plans, rows))}\n")
    parts.append(f"## One cell\n\n{_markdown(cell_table(plans))}\n")
    growth = [f"- {each[0].upper()}{each[1:]}." for each in wrong_growth(plans)]
    parts.append("\n".join(["## What grows wrongly\n", *growth, ""]))
    parts.append(f"## Measured figures\n\n{_markdown(measured_table(code='`'))}\n")
    return "\n".join(parts)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return table(tuple(rows[0]), [tuple(each) for each in rows[1:]])


def figures(plans: Sequence[VolumePlan]) -> dict[str, Any]:
    return {
        format_volume(each): {
            "cells": each.load.cells,
            "gateways": each.gateways,
            "gpus": each.gpus,
            "usd_per_day": None
            if each.gpu_usd_per_day is None
            else round(each.gpu_usd_per_day + each.control_usd_per_day),
        }
        for each in plans
    }


def planned(
    scenario: Path,
    volumes: Sequence[str],
    *,
    seeds: int,
    resume: Path | None,
    run: Callable[[Path, str, int], dict[str, Any]] | None = None,
) -> tuple[DayMix, list[VolumePlan]]:
    """`run` makes a plan for one volume (default: `headgate plan`)."""
    inputs = _digest(scenario) if resume is not None else ""
    known: dict[str, Any] = {}
    if resume is not None and resume.exists():
        known = json.loads(resume.read_text())
    found: list[dict[str, Any]] = []
    for volume in volumes:
        key = f"{volume}, seeds: {seeds}, inputs: {inputs}"
        if key not in known:
            print_progress(f"planning {volume} requests per day")
            known[key] = (run or _plan)(scenario, volume, seeds)
            if resume is not None:
                resume.write_text(json.dumps(known))
        found.append(known[key])
    read = [read_volumes(each) for each in found]
    return read[0][0], [plan for _, plans in read for plan in plans]


def _digest(scenario: Path) -> str:
    """Returns a digest of the scenario and of Headgate's code."""
    found = hashlib.sha256(scenario.read_bytes())
    for path in sorted((PROJECT / "src" / "headgate").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _plan(scenario: Path, volume: str, seeds: int) -> dict[str, Any]:
    arguments = ("--requests-per-day", volume, "--seeds", str(seeds), "--json")
    done = subprocess.run(
        [*HEADGATE, "plan", str(scenario), *arguments], capture_output=True, text=True, check=False, env=os.environ
    )
    if done.returncode:
        raise FailedRequests(f"headgate plan failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = read_arguments(words)
    volumes = arguments.volumes.split(",")
    try:
        mix, plans = planned(arguments.scenario, volumes, seeds=arguments.seeds, resume=arguments.resume)
    except FailedRequests as problem:
        return report_problem("plan-scale", str(problem))
    text = page(mix, plans, command=command_of(arguments), seeds=arguments.seeds)
    if arguments.write:
        PAGE.write_text(text)
    print(text)
    print(json.dumps(figures(plans)), flush=True)
    return 0


def command_of(arguments: argparse.Namespace) -> str:
    scenario = "" if arguments.scenario == SCENARIO else f" --scenario {arguments.scenario}"
    return f"just plan-scale --volumes {arguments.volumes} --seeds {arguments.seeds}{scenario} --write"


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just plan-scale", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--volumes", default=VOLUMES, help=f"requests per day (default {VOLUMES})")
    parser.add_argument("--seeds", type=int, default=1, help="number of random seeds (default 1)")
    parser.add_argument("--scenario", type=Path, default=SCENARIO, help="scenario file (default: ServeGen's mix)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file with the finished volumes")
    parser.add_argument("--write", action="store_true", help="write docs/project/scale-plans.md")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
