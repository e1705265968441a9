"""Run several gateways on one port by one configuration file."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.config.workers import unfit
from headgate.control.workers.supervisor import reserve_alone, supervise
from headgate.model.units import Duration
from headgate.telemetry.log import tell


def run_workers(
    settings: Settings, read: Callable[[], Settings], *, file: Path, workers: int, arguments: Sequence[str]
) -> int:
    """Until all have left. Each runs `headgate serve` with the arguments. Raises `OSError` if the port is taken."""
    import uvloop

    with reserve_alone(*settings.listen) as reserved:
        port = reserved.getsockname()[1]
        serve = (sys.executable, "-m", "headgate.cli.main", "serve", *arguments)
        commands = [
            (*serve, f"--workers={workers}", f"--worker={number}", f"--port={port}") for number in range(workers)
        ]
        return uvloop.run(supervise(commands, settings.drain_grace_ns, lambda: _reread(read, file, workers)))


def _reread(read: Callable[[], Settings], file: Path, workers: int) -> Duration | None:
    """The drain grace by the file as it is now; None if the workers cannot run by it, which is logged."""
    try:
        settings = read()
    except ConfigErrors as errors:
        for problem in errors.problems:
            tell(logging.WARNING, "the new configuration is wrong", problem=problem)
        tell(logging.WARNING, "no worker is restarted; mend the file and send SIGUSR2 again", file=file)
        return None
    if wrong := unfit(settings, file, workers):
        tell(logging.WARNING, "no worker is restarted", problem=wrong)
        return None
    return settings.drain_grace_ns
