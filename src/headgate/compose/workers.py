"""Runs several gateways on one port with one configuration file."""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.config.listener_tls import certificate_problems
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.config.workers import workers_problem
from headgate.control.workers.supervisor import reserve_exclusive, supervise
from headgate.model.units import Duration
from headgate.telemetry.log import log_event


def run_workers(
    settings: Settings, read: Callable[[], Settings], *, file: Path, workers: int, arguments: Sequence[str]
) -> int:
    """Runs until all workers have exited. Each worker runs `headgate serve`. Raises `OSError` if the port is in use."""
    import uvloop

    with reserve_exclusive(*settings.listen) as reserved:
        port = reserved.getsockname()[1]
        serve = (sys.executable, "-m", "headgate.cli.main", "serve", *arguments)
        commands = [
            (*serve, f"--workers={workers}", f"--worker-index={number}", f"--port={port}") for number in range(workers)
        ]
        return uvloop.run(supervise(commands, settings.drain_grace_ns, lambda: _reload_settings(read, file, workers)))


def _reload_settings(read: Callable[[], Settings], file: Path, workers: int) -> Duration | None:
    """Returns the drain grace period from the current file. If workers cannot run with the file, logs the problem and
    returns None.
    """
    try:
        settings = read()
    except ConfigErrors as errors:
        for problem in errors.problems:
            log_event(logging.WARNING, "the new configuration is invalid", problem=problem)
        log_event(logging.WARNING, "no worker was restarted; correct the file and send SIGUSR2 again", file=file)
        return None
    for found in (unusable := list(certificate_problems(settings, time.time()))):
        log_event(logging.WARNING, "no worker was restarted", setting=found.setting, problem=found.message)
    if unusable:
        return None
    if wrong := workers_problem(settings, file, workers):
        log_event(logging.WARNING, "no worker was restarted", problem=wrong)
        return None
    return settings.drain_grace_ns
