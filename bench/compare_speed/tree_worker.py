"""Run one tree's own code for the comparison, as a separate process.

    python -P tree_worker.py gateway|core|cell OPTIONS

This file is the comparing tree's, but every import finds the tree on PYTHONPATH. The worker must therefore not import
anything from its own package. OPTIONS is a JSON object. The first line of output is a JSON object that describes what
was started. After that, each line of input runs one slice of work, and one JSON object with its result is printed. The
worker stops everything it started and exits when its input closes, because the comparison died, or on SIGTERM.

Things were renamed between commits. The tuples below list the names of each thing, newest first. Add a name here to
support another commit.
"""

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

Names = tuple[str, ...]
"""Alternatives for one thing, as `module:attribute`, newest first."""

GATEWAY: Names = ("bench.targets:gateway",)
WORKLOAD_SIZE: Names = ("bench.scheduler_speed:Size", "bench.core:Size")
LOADED_SCHEDULER: Names = ("bench.scheduler_speed:LoadedScheduler", "bench.core:Bench")
RUN_REQUESTS: Names = ("run_requests", "live")
"""Methods of the loaded scheduler that return the CPU seconds for a number of request lifecycles."""
TUNE_GARBAGE_COLLECTOR: Names = (
    "headgate.hosts.garbage_collection:tune_garbage_collector",
    "headgate.cli.serve:tune_garbage_collector",
    "headgate.cli.serve:calm_the_collector",
)
LOADED_CELL: Names = ("bench.cell_speed:LoadedCell", "bench.cell_speed:Rig")

Slice = Callable[[], dict[str, Any]]
"""Runs one slice of work and returns its result: `cost`, the CPU time per request in seconds."""
Started = tuple[dict[str, Any], Slice | None]
"""Description of what was started, and its slice if it works in slices."""


class NameNotFound(Exception):
    """The tree has none of the names listed for a thing."""


def found(names: Names) -> Any:
    """Return the first of these that the tree has."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            # The module is absent if it or one of its packages cannot be found. Another missing module is an error.
            if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
                raise
        except AttributeError:
            continue
    raise NameNotFound(f"this tree has none of {', '.join(names)}; add its name to {Path(__file__).name}")


def method(thing: object, names: Names) -> Callable[..., Any]:
    for name in names:
        if hasattr(thing, name):
            return getattr(thing, name)
    raise NameNotFound(f"{type(thing).__name__} has none of {', '.join(names)}; add its name to {Path(__file__).name}")


def exit_once(*_: object) -> NoReturn:
    """Exit through the context managers. A second signal must not interrupt them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


@contextmanager
def started_gateway(options: dict[str, Any]) -> Generator[Started]:
    """Start the tree's gateway in front of an upstream, with the tree's own configuration for benchmarks."""
    # The other modes start no processes, so the signal may end them at once.
    signal.signal(signal.SIGTERM, exit_once)
    command = {"command": options["command"]} if options["command"] else {}
    with tempfile.TemporaryDirectory(prefix="headgate-compare-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "gateway"
        with found(GATEWAY)(options["core"], options["upstream_url"], folder, **command) as target:
            process = {"pid": target.process.pid, "log": str(target.process.log_path)}
            yield {"port": target.port, "key": target.key, "model": target.model, **process}, None


@contextmanager
def started_core(options: dict[str, Any]) -> Generator[Started]:
    """Start the tree's scheduler with a full fleet and a long queue. A slice is a number of request lifecycles."""
    os.sched_setaffinity(0, {options["core"]})
    requests = options["requests"]
    size = found(WORKLOAD_SIZE)(**options["size"])
    # One more slice is the warm-up.
    run = method(found(LOADED_SCHEDULER)(size, (1 + options["slices"]) * requests), RUN_REQUESTS)
    found(TUNE_GARBAGE_COLLECTOR)()
    run(requests)
    yield {}, lambda: {"cost": run(requests) / requests}
    gc.unfreeze()


@contextmanager
def started_cell(options: dict[str, Any]) -> Generator[Started]:
    """Start a cell's scheduler and its members without a store. A slice costs the scheduler's CPU time per request."""
    os.sched_setaffinity(0, {options["core"]})
    cell = found(LOADED_CELL)(options["in_flight"])
    found(TUNE_GARBAGE_COLLECTOR)()

    def run() -> dict[str, Any]:
        spent_ns, ended = cell.spent, cell.ended
        while cell.ended < ended + options["requests"]:
            cell.step(options["batch"])
        return {"cost": (cell.spent - spent_ns) / 1e9 / (cell.ended - ended)}

    run()
    yield {}, run
    gc.unfreeze()


MODES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "gateway": started_gateway,
    "core": started_core,
    "cell": started_cell,
}


def main(mode: str, options: str) -> None:
    # Only results go to standard output. Code of another tree may print there.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with MODES[mode](json.loads(options)) as (description, run):
        headgate = importlib.import_module("headgate").__file__
        results.write(json.dumps(description | {"headgate": headgate}) + "\n")
        for _ in sys.stdin:
            if run is not None:
                results.write(json.dumps(run()) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
