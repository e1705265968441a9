"""What is lost when a part of a cell is killed, and how soon does it admit again?

    just kill-cell [--quick] [--store redis|valkey|both] [--kinds KIND ...] [--kills N] [--seed N] [--assert]

A real store, four `headgate serve` processes, live simulated engines, and callers who are followed exactly while one
part after another is killed:

- `scheduler`: kill -9 of the gateway that leads; `dedicated`: of a process that only schedules, and leads
- `gateway`: kill -9 of one that does not lead; `freeze`: SIGSTOP of the one that leads, for 3 s
- `store`: kill -9, back empty after 0.1 to 3 s; `pause`: SIGSTOP for 10 s
- `failover`: kill -9 of the master that three sentinels watch
- `restart`: every gateway in turn, by SIGTERM; `reload`: another configuration for all, by SIGHUP

Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON. Exit status 1 with
`--assert` where anything was lost or severed, refused for another reason than the policy's, or readmitted too late.
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

from bench.command import stop_cleanly_on_sigterm, tell
from bench.kill_cell.figures import Cost, Kill, Summary, costs_of, mixed, summary_of
from bench.kill_cell.kills import KINDS, Stage
from bench.kill_cell.processes import Cell, NotSettled
from bench.kill_cell.record import Record
from testing.processes import MissingPart, ProcessFailedError
from testing.stores import Sentinels, Server, redis, sentinels, valkey

READMIT_S_MAX = 2.0
KILLS, QUICK_KILLS = 10, 1
WARM_UP_S = 12.0
"""Until as many long streams are open as will be at any time."""
QUICK_KINDS = ("scheduler", "gateway", "store", "pause", "reload")
SLOW_KINDS = {"restart": 2}
"""A rolling restart waits for all streams of four gateways in turn, and counts four processes."""
DEDICATED = 2
STORES = {"redis": redis, "valkey": valkey}


@dataclass(slots=True)
class Run:
    """All that one store, or one kind of cell, was put through."""

    costs: list[Cost] = field(default_factory=list[Cost])
    records: list[Record] = field(default_factory=list[Record])


@dataclass(frozen=True, slots=True)
class Setting:
    """Kinds that can be had of the same processes."""

    name: str
    store: str
    kinds: tuple[str, ...]
    dedicated: int = 0


def settings_of(stores: Sequence[str], kinds: Sequence[str]) -> list[Setting]:
    """Sentinels are Redis's own; they need no second store beside them."""
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
        tell(f"{setting.name}: starting four gateways")
        cell = stack.enter_context(Cell(folder, store.url, seed, setting.dedicated).running())
        cell.start_load()
        time.sleep(WARM_UP_S)
        stage = Stage(cell, store, random.Random(f"{seed} {setting.name}"))
        done: list[Kill] = []
        for kind in setting.kinds:
            for number in range(min(kills, SLOW_KINDS.get(kind, kills))):
                done.append(KINDS[kind](stage))
                cost = costs_of(done, cell.records())[-1]
                tell(f"  {kind} {number + 1}: {_told(cost)}")
        records = cell.stop_load()
        return Run(costs_of(done, records), records)


def _told(cost: Cost) -> str:
    kill = cost.kill
    said = [f"admitted again after {cost.readmit_s:.2f} s", f"settled after {kill.settled_s - kill.at_s:.1f} s"]
    if kill.islands:
        said.append(f"{kill.islands} islands")
    if kill.note:
        said.append(kill.note)
    for what, records in (("LOST", cost.lost), ("SEVERED", cost.severed), ("REFUSED", cost.refused)):
        if records:
            first = records[0]
            said.append(f"{what} {len(records)}, the first at gateway {first.gateway}: {_problem_of(first)}")
    return "; ".join(said)


def _problem_of(record: Record) -> str:
    return f"{record.ending} {record.status} {record.request_id} {record.message[-300:]}"


# What is told of it


def table_of(by_kind: dict[str, Summary]) -> str:
    head = ("", "n", "p50 s", "worst s", "lost", "severed", "refused", "islands", "calls", "own", "wait s", "silence s")
    rows = [head]
    for kind, each in by_kind.items():
        refused = sum(each.refused.values())
        counts = (each.lost, each.severed, refused, each.islands, each.calls, each.own)
        spans = (f"{each.readmit_s_p50:.2f}", f"{each.readmit_s_worst:.2f}")
        last = (f"{each.wait_s_worst:.2f}", f"{each.silence_s_worst:.2f}")
        rows.append((kind, str(each.kills), *spans, *map(str, counts), *last))
    return "\n".join(f"{row[0]:22}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows)


def figures_of(runs: dict[str, Run]) -> tuple[dict[str, Summary], dict[str, object]]:
    by_kind: dict[str, list[Cost]] = {}
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
        "refused_not_by_policy": sum(each.foreign for each in summaries.values()),
        "refused": sum(sum(each.refused.values()) for each in summaries.values()),
        "mixed": sum(len(mixed(each.records)) for each in runs.values()),
        "calls": sum(len(each.records) for each in runs.values()),
        "kinds": {kind: asdict(each) for kind, each in summaries.items()},
    }


def missed(figures: dict[str, object]) -> list[str]:
    said = [
        f"missed: {name} is {figures[name]}, and must be 0"
        for name in ("lost", "severed", "refused_not_by_policy", "mixed")
        if figures[name]
    ]
    worst = figures["readmit_s_worst"]
    assert isinstance(worst, float)
    if worst > READMIT_S_MAX:
        said.append(f"missed: requests were admitted again after {worst:g} s, and at most {READMIT_S_MAX:g} s may pass")
    return said


# The command


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
    except (MissingPart, NotSettled, ProcessFailedError) as problem:
        return _problem(str(problem))
    except KeyboardInterrupt:
        return _problem("interrupted; nothing is left running", status=130)
    by_kind, figures = figures_of(runs)
    print(table_of(by_kind))
    sentences = missed(figures) if args.check else []
    for sentence in sentences:
        tell(sentence)
    print(json.dumps(figures), flush=True)
    return 1 if sentences else 0


def _problem(text: str, *, status: int = 2) -> int:
    tell(f"kill-cell: {text}")
    return status


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kill-cell", description="What is lost when a part of a cell is killed.")
    made.add_argument("--quick", action="store_true", help=f"each of {', '.join(QUICK_KINDS)} once")
    made.add_argument("--store", choices=(*STORES, "both"), default="redis", help="which store (redis)")
    made.add_argument("--kinds", nargs="+", choices=tuple(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)} (all)")
    made.add_argument("--kills", type=int, metavar="N", help=f"of each kind ({KILLS}; rolling restarts at most 2)")
    made.add_argument("--seed", type=int, default=1, help="what is drawn is drawn from it (1)")
    made.add_argument("--keep", type=Path, metavar="FOLDER", help="keep logs and records there")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 where a bar is missed")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
