"""How is a gateway started from the command line?"""

import argparse
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from headgate.compose.gateway import Gateway
    from headgate.config.settings import Settings

log = logging.getLogger("headgate")

Adapt = Callable[["Settings"], "Settings"]
"""What a process makes of the configuration that it shares with others."""
Started = Callable[[tuple[str, int] | None, tuple[str, int]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process_arguments(parser)
    parser.add_argument(
        "--workers", type=_positive, metavar="N", help="so many gateways on one port; the file must name their cell"
    )
    # How a worker is told which one it is, and the port where the file leaves it open.
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"), help="for people, or for machines")


def run(args: argparse.Namespace) -> int:
    """SIGTERM and SIGINT drain and leave; SIGHUP reads the configuration again."""
    if args.workers is None:
        return run_gateway(args)
    from headgate.config.workers import as_worker

    if args.worker is None:
        log_to_stderr(args.log_level, args.log_format)
        return _run_workers(args)

    def adapt(settings: "Settings") -> "Settings":
        return as_worker(settings, worker=args.worker, workers=args.workers, port=args.port)

    return run_gateway(args, adapt=adapt, worker=args.worker)


def _run_workers(args: argparse.Namespace) -> int:
    """The exit code is the worst of theirs."""
    from headgate.compose.workers import run_workers
    from headgate.config.workers import unfit

    def read() -> "Settings":
        return read_settings(args.file)

    settings = first_settings(args.file, read)
    if settings is None:
        return 1
    if wrong := unfit(settings, args.file, args.workers):
        print(f"headgate: {wrong}", file=sys.stderr)
        return 1
    arguments = [str(args.file), f"--log-level={args.log_level}", f"--log-format={args.log_format}"]
    try:
        return run_workers(settings, read, file=args.file, workers=args.workers, arguments=arguments)
    except OSError as error:
        say_what_is_taken(error, args.file)
        return 1


def run_gateway(
    args: argparse.Namespace,
    *,
    adapt: Adapt = lambda settings: settings,
    refuse: Callable[["Settings"], str | None] = lambda _: None,
    serves: bool = True,
    worker: int | None = None,
) -> int:
    """Until it has left. `refuse` says what is wrong with a configuration for this verb, if anything is."""
    import uvloop

    from headgate.edge.allocator import map_large_blocks

    def read() -> "Settings":
        return adapt(read_settings(args.file))

    log_to_stderr(args.log_level, args.log_format, worker)
    _allow_open_files()
    map_large_blocks()
    settings = first_settings(args.file, read)
    if settings is None:
        return 1
    if wrong := refuse(settings):
        print(f"headgate: {wrong}", file=sys.stderr)
        return 1
    for warning in settings.warnings if not worker else ():
        log.warning("%s", warning)
    try:
        return uvloop.run(_serve(settings, read, serves, worker))
    except OSError as error:
        say_what_is_taken(error, args.file)
        return 1


def read_settings(file: Path) -> "Settings":
    """Raises `ConfigErrors`."""
    from headgate.config.load import load
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    return load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)


def first_settings(file: Path, read: "Callable[[], Settings]") -> "Settings | None":
    """None where they are wrong, which is said."""
    from headgate.config.problems import ConfigErrors

    try:
        return read()
    except ConfigErrors as errors:
        for problem in errors.problems:
            print(problem, file=sys.stderr)
        print(f"headgate: not started; mend {file} and try again", file=sys.stderr)
        return None


def say_what_is_taken(error: OSError, file: Path) -> None:
    # Without a number it is no address that is wrong, and the text says the next step itself.
    hint = f"; choose another address in {file} or stop what uses it" if error.errno else ""
    print(f"headgate: {error.strerror}{hint}", file=sys.stderr)


async def _serve(settings: "Settings", read: "Callable[[], Settings]", serves: bool, worker: int | None) -> int:  # noqa: FBT001
    import asyncio

    from headgate.compose.gateway import Gateway

    gateway = Gateway(settings, read, serves=serves, worker=worker)
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        reloads.add(task := asyncio.create_task(gateway.reload()))
        task.add_done_callback(reloads.discard)

    calm_the_collector()
    loop.add_signal_handler(signal.SIGTERM, gateway.leave)
    loop.add_signal_handler(signal.SIGINT, gateway.leave)
    loop.add_signal_handler(signal.SIGHUP, reload)
    if worker is None:
        return await gateway.run(_announce)
    _leave_with_the_parent(loop, gateway)
    return await gateway.run(_announce_to_the_parent)


def calm_the_collector() -> None:
    """What is there at the start stays; searching all of it for garbage again and again stops every stream meanwhile.

    Requests leave no cycles behind, so there is little to find, and seldom is often enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _announce(door: tuple[str, int] | None, admin: tuple[str, int]) -> None:
    if door is not None:
        log.info("serving on http://%s:%d/v1", *door)
    log.info("admin on http://%s:%d/status", *admin)


def _announce_to_the_parent(door: tuple[str, int] | None, admin: tuple[str, int]) -> None:
    """Signals are heard from here on, and the admin listener answers at this address."""
    from headgate.config.quantities import address_text

    _announce(door, admin)
    print(address_text(*admin), flush=True)


def _leave_with_the_parent(loop: "AbstractEventLoop", gateway: "Gateway") -> None:
    """The parent never says anything here. Its end of the pipe closes when it dies, however it dies."""

    def over() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            log.warning("the process that started this worker is gone; leaving")
            gateway.leave()

    loop.add_reader(0, over)


def _allow_open_files() -> None:
    """A request needs two sockets, and the limit that a shell starts with is often a thousand: take what we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def log_to_stderr(level: str, form: str, worker: int | None = None) -> None:
    """Each line of a worker says which one it is."""
    from headgate.telemetry.log import JsonFormatter, TextFormatter

    def name(record: logging.LogRecord) -> bool:
        record.fields = {"worker": worker, **getattr(record, "fields", {})}
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    if worker is not None:
        handler.addFilter(name)
    logging.basicConfig(handlers=[handler], level=level.upper())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("there must be at least 1")
    return number
