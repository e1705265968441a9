"""Measure what is lost when part of a cell is killed, and how soon the cell admits requests again.

    just kill-cell [--quick] [--store redis|valkey|both] [--kinds KIND ...] [--kills N] [--seed N] [--assert]

A real store, four `headgate serve` processes and live simulated engines run under a load in which every request is
recorded, while one part after another is killed:

- `scheduler`: kill -9 of the gateway that leads; `dedicated`: kill -9 of a scheduler-only process that leads
- `gateway`: kill -9 of a gateway that does not lead; `freeze`: SIGSTOP of the leading gateway for 3 s
- `store`: kill -9 and an empty restart after 0.1 to 3 s; `pause`: SIGSTOP for 10 s
- `failover`: kill -9 of the master that three sentinels watch
- `restart`: SIGTERM and restart of every gateway in turn; `reload`: SIGHUP with a new configuration for all gateways

Progress goes to stderr, a table to stdout. The last line is the results as JSON. With `--assert` the exit status is 1
if a request was lost or severed, was rejected for a reason other than the policy, or was readmitted too late.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.cli import print_progress, report_problem, stop_cleanly_on_sigterm
from bench.kill_cell.figures import Kill, KillImpact, Summary, impacts_of, mixed_config_records, summary_of
from bench.kill_cell.kills import KINDS, KillTarget
from bench.kill_cell.processes import Cell, NotSettled
from bench.kill_cell.record import Record
from testing.processes import MissingProgram, ProcessFailedError
from testing.stores import Sentinels, Server, redis, sentinels, valkey

READMIT_S_MAX = 2.0
KILLS, QUICK_KILLS = 10, 1
WARM_UP_S = 12.0
"""Time until the number of open long streams is stable."""
QUICK_KINDS = ("scheduler", "gateway", "store", "pause", "reload")
SLOW_KINDS = {"restart": 2}
"""Maximum number of rounds for slow kinds. A rolling restart waits for all streams on four gateways in turn."""
DEDICATED = 2
STORES = {"redis": redis, "valkey": valkey}


@dataclass(slots=True)
class Run:
    """Results for one setting."""

    costs: list[KillImpact] = field(default_factory=list[KillImpact])
    records: list[Record] = field(default_factory=list[Record])


@dataclass(frozen=True, slots=True)
class Setting:
    """Kinds of kill that can share the same processes."""

    name: str
    store: str
    kinds: tuple[str, ...]
    dedicated: int = 0


def settings_of(stores: Sequence[str], kinds: Sequence[str]) -> list[Setting]:
    """Group the kinds by store. Sentinels run only with Redis and include their own store."""
    alone = ("dedicated", "failover")
    made: list[Setting] = []
    for store in stores:
        if plain := tuple(each for each in kinds if each not in alone):
            made.append(Setting(f"{store}, gateways schedule", store, plain))
        if "dedicated" in kinds:
            made.append(Setting(f"{store}, dedicated schedulers", store, ("dedicated",), dedicated=DEDICATED))
    if "failover" in kinds and "redis" in stores:
        made.append(Setting("sentinels", "sentinels", ("failover",)))
    return made


def run(setting: Setting, *, kills: int, seed: int, folder: Path) -> Run:
    with ExitStack() as stack:
        starts = {**STORES, "sentinels": sentinels}
        store: Server | Sentinels = stack.enter_context(starts[setting.store]())
        print_progress(f"{setting.name}: starting four gateways")
        cell = stack.enter_context(Cell(folder, store.url, seed, setting.dedicated).running())
        cell.start_load()
        time.sleep(WARM_UP_S)
        stage = KillTarget(cell, store, random.Random(f"{seed} {setting.name}"))
        done: list[Kill] = []
        for kind in setting.kinds:
            for number in range(min(kills, SLOW_KINDS.get(kind, kills))):
                done.append(KINDS[kind](stage))
                cost = impacts_of(done, cell.records())[-1]
                print_progress(f"  {kind} {number + 1}: {_format_impact(cost)}")
        records = cell.stop_load()
        return Run(impacts_of(done, records), records)


def _format_impact(cost: KillImpact) -> str:
    kill = cost.kill
    said = [f"admitted again after {cost.readmit_s:.2f} s", f"settled after {kill.settled_s - kill.at_s:.1f} s"]
    if kill.islands:
        said.append(f"{kill.islands} islands")
    if kill.note:
        said.append(kill.note)
    for what, records in (("LOST", cost.lost), ("SEVERED", cost.severed), ("REJECTED", cost.rejected)):
        if records:
            first = records[0]
            said.append(f"{what} {len(records)}; first at gateway {first.gateway}: {_problem_of(first)}")
    return "; ".join(said)


def _problem_of(record: Record) -> str:
    return f"{record.ending} {record.status} {record.request_id} {record.message[-300:]}"


# Results


def table_of(by_kind: dict[str, Summary]) -> str:
    head = ("", "n", "p50 s", "worst s", "lost", "severed", "rejected", "islands", "calls", "own", "wait s", "gap s")
    rows = [head]
    for kind, each in by_kind.items():
        refused = sum(each.rejected.values())
        counts = (each.lost, each.severed, refused, each.islands, each.calls, each.of_victim)
        spans = (f"{each.readmit_s_p50:.2f}", f"{each.readmit_s_worst:.2f}")
        last = (f"{each.wait_s_worst:.2f}", f"{each.silence_s_worst:.2f}")
        rows.append((kind, str(each.kills), *spans, *map(str, counts), *last))
    return "\n".join(f"{row[0]:22}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows)


def figures_of(runs: dict[str, Run]) -> tuple[dict[str, Summary], dict[str, object]]:
    by_kind: dict[str, list[KillImpact]] = {}
    for name, each in runs.items():
        store = name.partition(",")[0]
        for cost in each.costs:
            by_kind.setdefault(f"{cost.kill.kind} ({store})", []).append(cost)
    summaries = {kind: summary_of(costs) for kind, costs in by_kind.items()}
    costs = [cost for each in runs.values() for cost in each.costs]
    readmits = [cost.readmit_s for cost in costs]
    return summaries, {
        "kills": len(costs),
        "lost": sum(each.lost for each in summaries.values()),
        "severed": sum(each.severed for each in summaries.values()),
        "readmit_s_p50": round(median(readmits), 3),
        "readmit_s_worst": round(max(readmits), 3),
        "rejected_unexpectedly": sum(each.rejected_unexpectedly for each in summaries.values()),
        "rejected": sum(sum(each.rejected.values()) for each in summaries.values()),
        "mixed": sum(len(mixed_config_records(each.records)) for each in runs.values()),
        "calls": sum(len(each.records) for each in runs.values()),
        "kinds": {kind: asdict(each) for kind, each in summaries.items()},
    }


def missed_thresholds(figures: dict[str, object]) -> list[str]:
    said = [
        f"missed: {name} is {figures[name]}; it must be 0"
        for name in ("lost", "severed", "rejected_unexpectedly", "mixed")
        if figures[name]
    ]
    worst = figures["readmit_s_worst"]
    assert isinstance(worst, float)
    if worst > READMIT_S_MAX:
        said.append(f"missed: readmit_s_worst is {worst:g} s; the limit is {READMIT_S_MAX:g} s")
    return said


# Command


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    stores = tuple(STORES) if args.store == "both" else (args.store,)
    kinds = args.kinds or (QUICK_KINDS if args.quick else tuple(KINDS))
    kills = args.kills or (QUICK_KILLS if args.quick else KILLS)
    runs: dict[str, Run] = {}
    try:
        for setting in settings_of(stores, kinds):
            with tempfile.TemporaryDirectory(prefix="headgate-kill-cell-") as name:
                folder = Path(name) if args.keep is None else args.keep / "-".join(re.findall(r"\w+", setting.name))
                folder.mkdir(parents=True, exist_ok=True)
                runs[setting.name] = run(setting, kills=kills, seed=args.seed, folder=folder)
    except (MissingProgram, NotSettled, ProcessFailedError) as problem:
        return report_problem("kill-cell", str(problem))
    except KeyboardInterrupt:
        return report_problem("kill-cell", "interrupted; all processes were stopped", status=130)
    by_kind, figures = figures_of(runs)
    print(table_of(by_kind))
    sentences = missed_thresholds(figures) if args.check else []
    for sentence in sentences:
        print_progress(sentence)
    print(json.dumps(figures), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kill-cell", description="Measure what is lost when part of a cell is killed.")
    made.add_argument("--quick", action="store_true", help=f"run each of {', '.join(QUICK_KINDS)} once")
    made.add_argument("--store", choices=(*STORES, "both"), default="redis", help="store to use (default redis)")
    made.add_argument(
        "--kinds", nargs="+", choices=tuple(KINDS), metavar="KIND", help=f"kinds: {', '.join(KINDS)} (default all)"
    )
    made.add_argument(
        "--kills", type=int, metavar="N", help=f"kills of each kind (default {KILLS}; rolling restarts at most 2)"
    )
    made.add_argument("--seed", type=int, default=1, help="random seed (default 1)")
    made.add_argument("--keep", type=Path, metavar="FOLDER", help="directory in which to keep logs and records")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a limit is missed")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
