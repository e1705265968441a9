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
    from headgate.config.settings import Settings

log = logging.getLogger("headgate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"), help="for people, or for machines")


def run(args: argparse.Namespace) -> int:
    """SIGTERM and SIGINT drain and leave; SIGHUP reads the configuration again."""
    import uvloop

    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.engines.dialects import DIALECTS
    from headgate.simulation.engine.profile import PROFILES

    def read() -> "Settings":
        return load(args.file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)

    _log_to_stderr(args.log_level, args.log_format)
    _allow_open_files()
    try:
        settings = read()
    except ConfigErrors as errors:
        for problem in errors.problems:
            print(problem, file=sys.stderr)
        print(f"headgate: not started; mend {args.file} and try again", file=sys.stderr)
        return 1
    for warning in settings.warnings:
        log.warning("%s", warning)
    try:
        return uvloop.run(_serve(settings, read))
    except OSError as error:
        # Without a number it is no address that is wrong, and the text says the next step itself.
        hint = f"; choose another address in {args.file} or stop what uses it" if error.errno else ""
        print(f"headgate: {error.strerror}{hint}", file=sys.stderr)
        return 1


async def _serve(settings: "Settings", read: "Callable[[], Settings]") -> int:
    import asyncio

    from headgate.compose.gateway import Gateway

    gateway = Gateway(settings, read)
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        reloads.add(task := asyncio.create_task(gateway.reload()))
        task.add_done_callback(reloads.discard)

    calm_the_collector()
    loop.add_signal_handler(signal.SIGTERM, gateway.leave)
    loop.add_signal_handler(signal.SIGINT, gateway.leave)
    loop.add_signal_handler(signal.SIGHUP, reload)
    return await gateway.run(_announce)


def calm_the_collector() -> None:
    """What is there at the start stays; searching all of it for garbage again and again stops every stream meanwhile.

    Requests leave no cycles behind, so there is little to find, and seldom is often enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _announce(door: tuple[str, int], admin: tuple[str, int]) -> None:
    log.info("serving on http://%s:%d/v1", *door)
    log.info("admin on http://%s:%d/status", *admin)


def _allow_open_files() -> None:
    """A request needs two sockets, and the limit that a shell starts with is often a thousand: take what we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_to_stderr(level: str, form: str) -> None:
    from headgate.telemetry.log import JsonFormatter, TextFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper())
