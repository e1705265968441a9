"""Put load on a target from another core."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec

from bench.cli import FailedRequests
from bench.cpu_cores import Cores, started_on
from bench.load_generator import LoadPlan, LoadResult
from bench.targets import ROOT, Target


def run_load(target: Target, plan: LoadPlan, cores: Cores, *, load: str) -> LoadResult:
    """Run the generator in its own process and return its counts. `load` identifies the load in error messages."""
    done = run_generator(plan, cores)
    check_served(done, target.name, target.process.log_path, load=load)
    return done


def run_generator(plan: LoadPlan, cores: Cores) -> LoadResult:
    command = [sys.executable, "-m", "bench.load_generator", json.dumps(asdict(plan))]
    with started_on(cores.instruments):
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    return msgspec.json.decode(printed, type=LoadResult)


def check_served(done: LoadResult, name: str, log: Path, *, load: str) -> None:
    """Raise `FailedRequests` if the process under load, whose log is given, did not serve all requests."""
    if done.failed:
        raise FailedRequests(
            f"{done.failed} requests to {name} failed under {load}; first error: {done.problem}; "
            f"end of its log:\n{log.read_text(errors='replace')[-2000:]}"
        )
