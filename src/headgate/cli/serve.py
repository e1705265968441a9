"""Run the gateway."""

import argparse
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_config

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from headgate.compose.gateway import Gateway
    from headgate.config.settings import Settings

log = logging.getLogger("headgate")

AdaptSettings = Callable[["Settings"], "Settings"]
"""Function that changes the settings that differ between processes using the same configuration file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process_arguments(parser)
    parser.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="Number of gateway processes on one port; requires cell in the configuration (default: one process).",
    )
    # The supervisor passes these to each worker: the worker's index, and the port if the file does not set one.
    parser.add_argument("--worker-index", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="Minimum log level (default info).",
    )
    parser.add_argument("--log-format", default="text", choices=("text", "json"), help="Log format (default text).")


def run(args: argparse.Namespace) -> int:
    """SIGTERM and SIGINT drain the gateway and stop it; SIGHUP reloads the configuration."""
    if args.workers is None:
        return run_gateway(args)
    from headgate.config.workers import worker_settings

    if args.worker_index is None:
        log_to_stderr(args.log_level, args.log_format)
        return _run_workers(args)

    def adapt(settings: "Settings") -> "Settings":
        return worker_settings(settings, worker=args.worker_index, workers=args.workers, port=args.port)

    return run_gateway(args, adapt=adapt, worker=args.worker_index)


def _run_workers(args: argparse.Namespace) -> int:
    """Returns the highest exit code among the workers."""
    from headgate.compose.workers import run_workers
    from headgate.config.workers import workers_problem

    def read() -> "Settings":
        return read_settings(args.config)

    settings = load_or_report(args.config, read)
    if settings is None:
        return 1
    if report_certificate_problems(settings, args.config):
        return 1
    if wrong := workers_problem(settings, args.config, args.workers):
        print(f"headgate: {wrong}", file=sys.stderr)
        return 1
    arguments = [f"--config={args.config}", f"--log-level={args.log_level}", f"--log-format={args.log_format}"]
    try:
        return run_workers(settings, read, file=args.config, workers=args.workers, arguments=arguments)
    except OSError as error:
        report_bind_error(error, args.config)
        return 1


def run_gateway(
    args: argparse.Namespace,
    *,
    adapt: AdaptSettings = lambda settings: settings,
    rejection: Callable[["Settings"], str | None] = lambda _: None,
    serves: bool = True,
    worker: int | None = None,
) -> int:
    """Runs until the gateway has stopped. `rejection` returns why this command cannot use a configuration, or None if
    it can.
    """
    import uvloop

    from headgate.edge.allocator import map_large_blocks

    def read() -> "Settings":
        return adapt(read_settings(args.config))

    log_to_stderr(args.log_level, args.log_format, worker)
    _raise_open_file_limit()
    map_large_blocks()
    settings = load_or_report(args.config, read)
    if settings is None:
        return 1
    if wrong := rejection(settings):
        print(f"headgate: {wrong}", file=sys.stderr)
        return 1
    if report_certificate_problems(settings, args.config, serves=serves):
        return 1
    for warning in settings.warnings if not worker else ():
        log.warning("%s", warning)
    try:
        return uvloop.run(_serve(settings, read, serves, worker))
    except OSError as error:
        report_bind_error(error, args.config)
        return 1


def read_settings(file: Path) -> "Settings":
    """Reads the configuration file and the certificate files that it names. Raises `ConfigErrors`."""
    from headgate.config.load import load
    from headgate.config.tls_files import check_tls_files
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    return check_tls_files(settings, str(file))


def load_or_report(file: Path, read: "Callable[[], Settings]") -> "Settings | None":
    """Loads the configuration. If it is invalid, prints its problems and returns None."""
    from headgate.config.problems import ConfigErrors

    try:
        return read()
    except ConfigErrors as errors:
        for problem in errors.problems:
            print(problem, file=sys.stderr)
        print(f"headgate: not started; fix {file} and try again", file=sys.stderr)
        return None


def report_certificate_problems(settings: "Settings", file: Path, *, serves: bool = True) -> bool:
    """Prints why the listeners' certificates cannot be used. Returns whether there is a problem."""
    from headgate.config.listener_tls import certificate_problems

    problems = list(certificate_problems(settings, time.time(), serves=serves))
    for each in problems:
        print(f"{file}: {each.setting}: {each.message}", file=sys.stderr)
    if problems:
        print("headgate: not started; correct the files and try again", file=sys.stderr)
    return bool(problems)


def report_bind_error(error: OSError, file: Path) -> None:
    # An error without an error number is not about an address, and its text already contains the next step.
    hint = f"; choose another address in {file} or stop the process that uses it" if error.errno else ""
    print(f"headgate: {error.strerror}{hint}", file=sys.stderr)


async def _serve(settings: "Settings", read: "Callable[[], Settings]", serves: bool, worker: int | None) -> int:  # noqa: FBT001
    import asyncio

    from headgate.compose.gateway import Gateway
    from headgate.hosts.garbage_collection import FullCollections, tune_garbage_collector
    from headgate.telemetry.process_metrics import resident_bytes

    gateway = Gateway(settings, read, serves=serves, worker=worker, watches_files=True)
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        reloads.add(task := asyncio.create_task(gateway.reload()))
        task.add_done_callback(reloads.discard)

    tune_garbage_collector()
    FullCollections(resident_bytes).start()
    loop.add_signal_handler(signal.SIGTERM, gateway.shut_down)
    loop.add_signal_handler(signal.SIGINT, gateway.shut_down)
    loop.add_signal_handler(signal.SIGHUP, reload)
    if worker is None:
        return await gateway.run(partial(_log_addresses, settings))
    _exit_with_parent(loop, gateway)
    return await gateway.run(partial(_report_to_parent, settings))


def _log_addresses(settings: "Settings", door: tuple[str, int] | None, admin: tuple[str, int]) -> None:
    if door is not None:
        log.info("serving on %s://%s:%d/v1", "http" if settings.listen_tls is None else "https", *door)
    log.info("admin on %s://%s:%d/status", "http" if settings.admin_listen_tls is None else "https", *admin)


def _report_to_parent(settings: "Settings", door: tuple[str, int] | None, admin: tuple[str, int]) -> None:
    """Reports the admin listener's address to the supervisor. From then on, the worker handles signals."""
    from headgate.config.quantities import address_text

    _log_addresses(settings, door, admin)
    print(address_text(*admin), flush=True)


def _exit_with_parent(loop: "AbstractEventLoop", gateway: "Gateway") -> None:
    """Drains the gateway when the parent exits, which closes the pipe. The parent never writes to the pipe."""

    def over() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            log.warning("the parent process of this worker has exited; draining")
            gateway.shut_down()

    loop.add_reader(0, over)


def _raise_open_file_limit() -> None:
    """Raises the limit on open files to the hard limit: each request needs two sockets, and shells often allow only
    1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def log_to_stderr(level: str, form: str, worker: int | None = None) -> None:
    """Configures logging to stderr. A worker's log lines include its index."""
    from headgate.telemetry.log import JsonFormatter, TextFormatter

    def name(record: logging.LogRecord) -> bool:
        record.fields = {"worker": worker, **getattr(record, "fields", {})}
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    if worker is not None:
        handler.addFilter(name)
    logging.basicConfig(handlers=[handler], level=level.upper())
    # It logs every change in a watched directory, so a log file in that directory would never stop growing.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number
