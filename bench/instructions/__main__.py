"""Count the gateway's instructions per short request and per streamed chunk, by package, file or function.

The gateway runs under callgrind with its default features, one engine and a slowed clock, and handles a fixed script of
requests. The counts are repeatable to well below 1 %, even on a busy machine. The garbage collector is off. Its cost,
periodic work and the kernel are not counted. The total is measured without the counting hook, which makes Python calls
more expensive, so the parts add up to more than the total.

The last line is JSON. `--assert` compares the counts with `budget.json`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Final

from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.cpu_cores import TooFewCores, two_cores
from bench.instructions.counter import NOTHING, OUTSIDE, TOTAL, Counter
from bench.instructions.ledger import Settings, database
from bench.instructions.script import Script, running_script
from bench.instructions.units import units
from bench.targets import gateway
from testing.processes import MissingProgram, ProcessFailedError

BUDGET: Final = Path(__file__).with_name("budget.json")
TOLERANCE: Final = 0.03
BUDGETED_MIN: Final = 1_000
"""Smallest budget that is checked. Smaller counts differ by more than the tolerance."""
UNBUDGETED: Final = frozenset({"event loop", "other"})
"""Code outside Headgate. Its counts also depend on how many events the kernel reports at once."""
TOTAL_REPEATS: Final = 3
"""Number of times the total is counted. It includes the event loop, so single counts differ by up to 4 %."""
CLOCK_DIVISOR: Final = 1_000
REQUESTS: Final = 25
WARM_UP_REQUESTS: Final = 300
CHUNKS_FEW, CHUNKS_MANY = 10, 310
SETTLE_S: Final = 0.15
"""Time for the work after a response, such as its record."""
LAUNCH: Final = (sys.executable, "-m", "bench.instructions.launch")

Counts = dict[str, dict[str, int]]
"""Instructions by what was done ("request", "chunk") and by unit."""


@dataclass(frozen=True, slots=True)
class Step:
    """One phase: a unit, or everything, during one kind of work."""

    work: str
    phase: int


def measure(
    names: Mapping[str, str],
    folder: Path,
    *,
    script: Script,
    requests: int,
    chunks: bool,
    all_threads: bool = False,
    settings: Settings | None = None,
) -> Counts:
    """Return the counts of the units. `names` maps the beginning of each unit to its name.

    With `all_threads`, only the total is correct.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()), OUTSIDE + 1)}
    folder.mkdir()
    counter = Counter(folder, {beginning: numbers[name] for beginning, name in names.items()}, all_threads=all_threads)
    os.environ.update(counter.environment)
    print_progress("starting the gateway under callgrind")
    url = f"http://127.0.0.1:{script.port}"
    with gateway(two_cores().target, url, folder / "gateway", command=LAUNCH, settings=settings) as target:
        script.connect(target)
        script.ask(WARM_UP_REQUESTS)
        counter.slow_clock(CLOCK_DIVISOR)
        # The autoscaler counts only a sample of the requests in a period after the first ones. On a busy machine, a new
        # period may have begun.
        script.ask(WARM_UP_REQUESTS)
        steps = _run(counter, script, list(numbers.values()), requests=requests, chunks=chunks)
    found = [instructions for phase, instructions in counter.counts() if phase != NOTHING]
    assert len(found) == len(steps), f"{len(found)} counts for {len(steps)} phases"
    titles = {number: name for name, number in numbers.items()} | {OUTSIDE: "event loop", TOTAL: "total"}
    costs = defaultdict[Step, list[int]](list)
    for step, count in zip(steps, found, strict=True):
        costs[step].append(count)
    return per_piece({step: median_low(counts) for step, counts in costs.items()}, titles, requests)


def _run(counter: Counter, script: Script, phases: list[int], *, requests: int, chunks: bool) -> list[Step]:
    steps: list[Step] = []
    works = {"request": lambda: script.ask(requests)}
    if chunks:
        works |= {"few": lambda: script.stream(CHUNKS_FEW), "many": lambda: script.stream(CHUNKS_MANY)}
    # Run every unit's code with the hook once. Unused units are left out.
    counter.begin(OUTSIDE)
    for work in works.values():
        work()
    counter.check_begun()
    used = [phase for phase in phases if counter.has_run(phase)]
    steps.append(Step("warm-up", OUTSIDE))
    for name, work in works.items():
        for phase in (OUTSIDE, *used, *[TOTAL] * TOTAL_REPEATS):
            counter.begin(NOTHING)
            script.ask(1)
            time.sleep(SETTLE_S)
            counter.check_begun()
            counter.begin(phase)
            work()
            time.sleep(SETTLE_S)
            counter.check_begun()
            steps.append(Step(name, phase))
        print_progress(f"counted {len(used) + 1 + TOTAL_REPEATS} phases of {name}")
    counter.begin(NOTHING)
    script.ask(1)
    counter.check_begun()
    return steps


def per_piece(costs: Mapping[Step, int], titles: Mapping[int, str], requests: int) -> Counts:
    """Divide the counts of the phases by the number of requests or chunks.

    The difference between a long and a short stream leaves out what a stream costs as a request.
    """
    counts: Counts = {"request": {}, "chunk": {}}
    for step, cost in costs.items():
        name = titles[step.phase]
        if step.work == "request":
            counts["request"][name] = cost // requests
        elif step.work == "many":
            more = cost - costs[Step("few", step.phase)]
            counts["chunk"][name] = more // (CHUNKS_MANY - CHUNKS_FEW)
    return {work: found for work, found in counts.items() if found}


def table(counts: Counts, budget: Counts | None = None) -> str:
    lines: list[str] = []
    for work, found in counts.items():
        lines.append(f"{'instructions per ' + work:<60} {'count':>12} {'share':>8}" + ("   budget" if budget else ""))
        parts = sum(count for name, count in found.items() if name != "total")
        for name, count in sorted(found.items(), key=lambda each: (each[0] == "total", -each[1])):
            share = "" if name == "total" else f"{count / parts:8.1%}"
            told = budget[work].get(name) if budget else None
            lines.append(f"{name:<60} {count:>12,} {share:>8}" + (f"   {count / told:.3f}" if told else ""))
        lines.append("")
    return "\n".join(lines)


def beyond_budget(counts: Counts, budget: Counts) -> list[str]:
    """Return a sentence for each count that differs from the budget by more than the tolerance.

    Cheaper is reported too, so that the budget follows and keeps what was gained.
    """
    return [
        f"{name}: {count:,} instructions per {work}; the budget is {planned:,}"
        for work, plans in budget.items()
        for name, planned in plans.items()
        for count in [counts[work].get(name, 0)]
        if name not in UNBUDGETED and planned >= BUDGETED_MIN and abs(count - planned) > TOLERANCE * planned
    ]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="profile-request", description=str(__doc__).partition("\n")[0])
    made.add_argument("--by", choices=("package", "file", "function"), default="package", help="unit (default package)")
    made.add_argument("--under", default="", metavar="PATH", help="only files whose path in headgate starts with PATH")
    made.add_argument("--requests", type=int, default=REQUESTS, help=f"requests per unit (default {REQUESTS})")
    made.add_argument("--no-chunks", action="store_true", help="count requests only")
    made.add_argument("--ledger", action="store_true", help="configure a ledger, and compare with a run without it")
    made.add_argument("--threads", action="store_true", help="count all threads, not only the main one; no parts")
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a count is outside the budget")
    made.add_argument("--write-budget", action="store_true", help="make these counts the budget")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    if (args.check or args.write_budget) and (args.by != "package" or args.no_chunks or args.ledger or args.threads):
        parser().error("the budget is by package, for requests and chunks, in the main thread and without a ledger")
    try:
        counts, ratios = _measure(args)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError, TimeoutError) as problem:
        return report_problem("profile-request", str(problem))
    budget: Counts | None = json.loads(BUDGET.read_text()) if args.by == "package" else None
    print(table(counts, budget))
    for name, ratio in ratios.items():
        print(f"{name} {ratio:,}")
    if args.write_budget:
        BUDGET.write_text(json.dumps(counts, indent=4) + "\n")
    missed = beyond_budget(counts, budget) if args.check and budget else []
    for sentence in missed:
        print_progress(f"outside the budget: {sentence}. See docs/project/performance.md.")
    figures = {f"{name}_per_{work}": count for work, found in counts.items() for name, count in found.items()}
    print(json.dumps(figures | ratios))
    return 1 if missed else 0


def _measure(args: argparse.Namespace) -> tuple[Counts, dict[str, float]]:
    """Return the counts and, with `--ledger`, their ratio to the counts without a ledger."""
    names = {} if args.threads else units(args.by, args.under)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-instructions-")))
        script = stack.enter_context(running_script())
        run = partial(
            measure, script=script, requests=args.requests, chunks=not args.no_chunks, all_threads=args.threads
        )
        if not args.ledger:
            return run(names, folder / "off"), {}
        url = f"http://127.0.0.1:{script.port}"
        without, with_ledger = stack.enter_context(database(url, folder))
        # The total depends by a few percent on the units that were counted before it, so both runs count the same ones.
        off = run(names, folder / "off", settings=without)
        on = run(names, folder / "on", settings=with_ledger)
        totals = {f"total_per_{work}_without_ledger": off[work]["total"] for work in off}
        return on, totals | {f"ledger_ratio_{work}": round(on[work]["total"] / off[work]["total"], 4) for work in on}


if __name__ == "__main__":
    sys.exit(main())
