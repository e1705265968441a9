"""Write a first configuration file for a given kind of traffic and engine.

Comments in the file explain the choice of each number. With `--from`, the command queries a running engine for its
type, models and concurrency. Otherwise the file contains an example engine for the user to replace.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import CONFIG_FILE, add_config

if TYPE_CHECKING:
    from headgate.config.starter_config import StarterPool
    from headgate.engines.engine_detection import DetectedEngine
    from headgate.ports.tls import ClientTlsOptions

_TIMEOUT_S = 5.0
_SHAPES = ("chat", "bursty", "batch", "mixed")
_IN_FLIGHT_BATCHING = 64
_IN_FLIGHT_UNKNOWN = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "Configuration file to write")
    parser.add_argument("--traffic", choices=_SHAPES, default="mixed", help="Kind of traffic (default mixed).")
    parser.add_argument("--from", dest="url", metavar="URL", help="Running engine to query (default: none).")
    parser.add_argument("--api-key-env", metavar="NAME", help="Environment variable that holds the engine's API key.")
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="Authority that issued the engine's certificate (default: the system's)."
    )
    parser.add_argument("--tls-certificate", metavar="FILE", help="Client certificate for the engine (default: none).")
    parser.add_argument("--tls-key", metavar="FILE", help="Private key of the client certificate.")
    parser.add_argument(
        "--tls-server-name", metavar="NAME", help="Name in the engine's certificate (default: the host in the URL)."
    )
    parser.add_argument("--force", action="store_true", help="Overwrite an existing file.")


def run(args: argparse.Namespace) -> int:
    from headgate.config.starter_config import EXAMPLE_POOL, starter_config

    file: Path = args.config
    if file.exists() and not args.force:
        return _problem(f"{file} exists; choose another file with --config, or overwrite it with --force")
    try:
        pool = EXAMPLE_POOL if args.url is None else _detect_pool(args)
        text = starter_config(args.traffic, pool, directory=file.parent)
        _check(text, str(file))
        file.write_text(text, encoding="utf-8")
    except _EngineNotDetected as error:
        return _problem(str(error))
    except OSError as error:
        return _problem(f"cannot write {file}: {error.strerror}")
    _print_stderr(f"wrote {file} for {args.traffic} traffic")
    _print_stderr(_next_steps(file, asked=args.url is not None))
    return 0


class _EngineNotDetected(Exception):
    """The engine could not be queried. The message gives the reason and the next step."""


def _detect_pool(args: argparse.Namespace) -> "StarterPool":
    import asyncio
    from dataclasses import replace

    from headgate.config.pools import InvalidEngineUrl, engine_url
    from headgate.engines.engine_detection import DetectionError
    from headgate.engines.engine_tls import EngineTls

    url: str = args.url
    variable: str | None = args.api_key_env
    if variable is not None and not os.environ.get(variable):
        raise _EngineNotDetected(f"environment variable {variable} is not set; set it to the engine's API key")
    try:
        address = engine_url(url)
        tls = _tls(args) if address.startswith("https:") else None
        if tls is not None and (wrong := EngineTls(tls).problem) is not None:
            raise _EngineNotDetected(wrong)
        found = asyncio.run(_recognised_engine(address, None if variable is None else os.environ[variable], tls))
    except InvalidEngineUrl as error:
        raise _EngineNotDetected(f"--from {error}") from error
    except DetectionError as error:
        hint = " (--api-key-env)" if "API key" in str(error) else ""
        raise _EngineNotDetected(f"{url}: {_with_options(str(error))}{hint}") from error
    _print_stderr(_description(found, address))
    return replace(_pool(found, address, variable), tls=tls)


def _with_options(message: str) -> str:
    """The message with the names of this command's options instead of those of a pool's TLS settings."""
    return re.sub(r"(?:the pool's )?\btls\.(\w+)", lambda found: "--tls-" + found[1].replace("_", "-"), message)


def _tls(args: argparse.Namespace) -> "ClientTlsOptions":
    """The TLS options, with paths relative to the working directory."""
    from headgate.ports.tls import ClientTlsOptions

    return ClientTlsOptions(args.tls_ca, args.tls_certificate, args.tls_key, args.tls_server_name)


async def _recognised_engine(url: str, api_key: str | None, tls: "ClientTlsOptions | None") -> "DetectedEngine":
    from headgate.engines.engine_detection import detect_engine
    from headgate.engines.engine_tls import EngineTls
    from headgate.engines.page import open_session

    async with open_session() as session:
        secured = None if tls is None else EngineTls(tls)
        return await detect_engine(session, url, api_key=api_key, timeout_s=_TIMEOUT_S, tls=secured)


def _pool(found: "DetectedEngine", url: str, variable: str | None) -> "StarterPool":
    from headgate.config.starter_config import StarterPool
    from headgate.engines.dialect import Signal

    dialect = found.dialect
    if found.concurrency is not None:
        places, reason = found.concurrency, f"The engine reports a limit of {found.concurrency} concurrent requests."
    else:
        # Engines that report KV cache usage run as many requests as fit in the cache, not a fixed number.
        places = _IN_FLIGHT_BATCHING if Signal.KV_USED_FRACTION in dialect.metrics else _IN_FLIGHT_UNKNOWN
        why = dialect.concurrency_hint or "the engine does not report how many requests it runs concurrently"
        reason = f"{why[0].upper()}{why[1:]}; {places} is a first guess."
    return StarterPool(
        dialect.name,
        url,
        found.models[0],
        places,
        reason,
        variable,
        adapters=found.adapters,
        max_lora=found.max_lora,
    )


def _description(found: "DetectedEngine", url: str) -> str:
    version = "" if found.version is None else f" {found.version}"
    others = f"; other models: {', '.join(found.models[1:])}" if found.models[1:] else ""
    adapters = f"; adapters: {', '.join(found.adapters)}" if found.adapters else ""
    return f"{url}: {found.dialect.name}{version} with model {found.models[0]}{others}{adapters}"


def _check(text: str, name: str) -> None:
    """Asserts that the file loads without problems or warnings."""
    from headgate.config.load import parse
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    warnings = parse(text, name, os.environ, engines=DIALECTS.keys(), profiles=PROFILES).warnings
    assert not warnings, warnings


def _next_steps(file: Path, *, asked: bool) -> str:
    option = "" if file == CONFIG_FILE else f" --config {file}"
    steps = [
        "" if asked else "  edit pools and models: set your engine's address and its name for the model",
        f"  headgate check{option}     checks the file",
        f"  headgate doctor{option}    compares it with the engine",
        f"  headgate serve{option}     runs the gateway",
    ]
    return "\n".join(["next steps:", *(step for step in steps if step)])


def _print_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str) -> int:
    _print_stderr(f"headgate: {text}")
    return 1
