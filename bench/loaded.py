"""What does a target do under a load that another core brings?"""

import json
import subprocess
import sys
from dataclasses import asdict

import msgspec

from bench.command import WrongAnswers
from bench.cores import Cores, started_on
from bench.generator import Measured, Plan
from bench.targets import ROOT, Target


def loaded(target: Target, plan: Plan, cores: Cores, *, load: str) -> Measured:
    """What the generator counted, in a process of its own. `load` names it where something failed."""
    command = [sys.executable, "-m", "bench.generator", json.dumps(asdict(plan))]
    with started_on(cores.instruments):
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    done = msgspec.json.decode(printed, type=Measured)
    if done.failed:
        raise WrongAnswers(
            f"{done.failed} requests to {target.name} failed under {load}, the first by: {done.problem}; "
            f"the end of its log:\n{target.process.log()[-2000:]}"
        )
    return done
