"""Measure both trees in alternating order: gateways under load, schedulers alone, and cells.

Each function adds to `Costs` the CPU time per request or chunk in microseconds, by side: `here`, `there`, `nginx`,
`envoy` and, with a separate command for it, `pure`, this tree's uncompiled build.
"""

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.baseline_proxies import BaselineProxy, running_proxy
from bench.cli import print_progress
from bench.compare_speed.ratios import Costs
from bench.compare_speed.trees import Tree, Worker
from bench.cpu_cores import Cores, family_of
from bench.load_generator import LoadPlan
from bench.relay_overhead import MEASURES, OTHERS_SHARE_MAX, cpu_us_per_chunk, cpu_us_per_request
from bench.run_load import check_served, run_generator
from bench.targets import upstream

LOADS = {"request": (MEASURES[0], cpu_us_per_request), "chunk": (MEASURES[1], cpu_us_per_chunk)}
"""The loads of `just bench-relay`, and the cost that counts."""
SLICES_PER_PAIR = 4
"""Slices of each scheduler per pair under load. They are short, so more of them take little time."""
QUICK_WARM_UP_S = 0.2
CELL_BATCH = 8
"""Requests of a cell, over all members, that advance by one step between two sends (see bench/cell_speed.py)."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    pairs: int
    seconds: float
    """Length of each window under load."""
    slice_requests: int
    """Request lifecycles in one slice of a scheduler without a gateway."""
    core_size: Mapping[str, int]
    """Size of the scheduler's workload, if it differs from the default of `bench.scheduler_speed`."""
    cell_in_flight: int
    short_warm_up: bool = False


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A process under load."""

    side: str
    port: int
    key: str
    model: str
    pid: int
    log: Path


@contextmanager
def gateways(sides: Sequence[tuple[str, Tree, Sequence[str]]], core: int, port: int) -> Generator[list[LoadTarget]]:
    """Start the gateways at the same time, each by its tree's own code. Each side has a name, a tree and a command.

    The command is empty for the tree's default.
    """
    with ExitStack() as stack:
        workers: list[tuple[str, Worker]] = []
        for side, tree, command in sides:
            options = {"core": core, "upstream_url": f"http://127.0.0.1:{port}", "command": list(command)}
            workers.append((side, stack.enter_context(Worker(tree, "gateway", options))))
        targets: list[LoadTarget] = []
        for side, worker in workers:
            ready = worker.wait_until_ready()
            print_progress(f"gateway {side}: {Path(ready['headgate']).parent}")
            targets.append(
                LoadTarget(side, ready["port"], ready["key"], ready["model"], ready["pid"], Path(ready["log"]))
            )
        yield targets


def measure_loads(
    costs: Costs,
    sides: Sequence[tuple[str, Tree, Sequence[str]]],
    cores: Cores,
    effort: Effort,
    *,
    loads: Sequence[str],
    proxies: Sequence[BaselineProxy],
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-compare-")))
        print_progress(f"starting upstream (core {cores.instruments}) and gateways (core {cores.target})")
        behind = stack.enter_context(upstream(cores.instruments))
        targets = stack.enter_context(gateways(sides, cores.target, behind.port))
        for proxy in proxies:
            server = stack.enter_context(running_proxy(proxy, cores.target, behind.port, folder / proxy.name))
            process = server.process
            targets.append(LoadTarget(proxy.name, server.port, server.key, server.model, process.pid, process.log_path))
        for load in loads:
            for number in range(effort.pairs):
                # A reversed order in every other pair cancels a steady drift of the machine's speed.
                for target in targets if number % 2 == 0 else reversed(targets):
                    cost, others = _cost_under_load(load, target, cores, effort)
                    costs.add(load, target.side, cost)
                    busy = f" (others {others:.0%})" if others > OTHERS_SHARE_MAX else ""
                    print_progress(f"{load} {number + 1}/{effort.pairs} {target.side:6} {cost:8.1f} µs{busy}")


def _cost_under_load(load: str, target: LoadTarget, cores: Cores, effort: Effort) -> tuple[float, float]:
    """Return the CPU time per unit in microseconds, and the share of the core that other processes used."""
    measure, cost_of = LOADS[load]
    shape = {**measure.plan, **({"warm_up_s": QUICK_WARM_UP_S} if effort.short_warm_up else {})}
    plan = LoadPlan(
        port=target.port,
        key=target.key,
        model=target.model,
        pids=tuple(family_of(target.pid)),
        core=cores.target,
        seconds=effort.seconds,
        **shape,  # pyright: ignore[reportArgumentType]
    )
    done = run_generator(plan, cores)
    check_served(done, target.side, target.log, load=load)
    # The cost must not be zero, even if the machine stalled for the entire window.
    return max(0.001, cost_of(done)), done.others_share


def measure_core(costs: Costs, trees: Sequence[Tree], cores: Cores, effort: Effort) -> None:
    """Run each tree's scheduler on the workload of `just bench-core`."""
    slices = effort.pairs * SLICES_PER_PAIR
    # The requests of all slices are prepared before the first.
    options = {"requests": effort.slice_requests, "slices": slices, "size": dict(effort.core_size)}
    _run_slices(costs, "core", trees, {"core": cores.target, **options}, slices)


def measure_cell(costs: Costs, trees: Sequence[Tree], cores: Cores, effort: Effort) -> None:
    """Run each tree's cell scheduler with eight members, as `bench.cell_speed` does: real messages without a store.

    Over a real store, the CPU time per request depends on how late a busy machine wakes each process.
    """
    options = {"requests": effort.slice_requests, "in_flight": effort.cell_in_flight, "batch": CELL_BATCH}
    _run_slices(costs, "cell", trees, {"core": cores.target, **options}, effort.pairs * SLICES_PER_PAIR)


def _run_slices(costs: Costs, mode: str, trees: Sequence[Tree], options: Mapping[str, object], slices: int) -> None:
    print_progress(f"{mode}: starting the schedulers of both trees")
    with ExitStack() as stack:
        workers = [(tree.name, stack.enter_context(Worker(tree, mode, options))) for tree in trees]
        for _, worker in workers:
            worker.wait_until_ready()
        for number in range(slices):
            found: dict[str, float] = {}
            for side, worker in workers if number % 2 == 0 else reversed(workers):
                found[side] = max(0.001, worker.run_slice()["cost"] * 1e6)
                costs.add(mode, side, found[side])
            shown = ", ".join(f"{side} {cost:.1f} µs" for side, cost in sorted(found.items()))
            print_progress(f"{mode} {number + 1}/{slices} {shown}")
