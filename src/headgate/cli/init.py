"""How does somebody get a first configuration that fits their traffic and their engine?

The file is written for people: its comments say why each number is what it is. With `--from` a running engine is asked
which it is, what it serves and how much it runs at once; otherwise an example stands there to be changed.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.config.starter import EnginePool
    from headgate.engines.recognise import Recognised

_TIMEOUT_S = 5.0
_SHAPES = ("chat", "bursty", "batch", "mixed")
_BATCHING_PLACES = 64
_UNKNOWN_PLACES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="what to write (headgate.yaml)")
    parser.add_argument("--shape", choices=_SHAPES, default="mixed", help="the kind of traffic (mixed)")
    parser.add_argument("--from", dest="url", metavar="URL", help="ask the engine at this address what it is")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with that engine's key")
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")


def run(args: argparse.Namespace) -> int:
    from headgate.config.starter import EXAMPLE, starter

    file: Path = args.file
    if file.exists() and not args.force:
        return _problem(f"{file} exists; name another file, or overwrite it with --force")
    try:
        pool = EXAMPLE if args.url is None else _ask(args.url, args.api_key_env)
        text = starter(args.shape, pool)
        _check(text, str(file))
        file.write_text(text, encoding="utf-8")
    except _NoEngine as error:
        return _problem(str(error))
    except OSError as error:
        return _problem(f"{file} cannot be written: {error.strerror}")
    _tell(f"{file} is written, shape {args.shape}")
    _tell(_next_steps(file, asked=args.url is not None))
    return 0


class _NoEngine(Exception):
    """The engine could not be asked. The message says why, with the next step."""


def _ask(url: str, variable: str | None) -> "EnginePool":
    import asyncio

    from headgate.config.pools import NotAnAddress, engine_url
    from headgate.engines.recognise import Unrecognised

    if variable is not None and not os.environ.get(variable):
        raise _NoEngine(f"the environment variable {variable} is not set; export the engine's key in it")
    try:
        address = engine_url(url)
        found = asyncio.run(_recognised(address, None if variable is None else os.environ[variable]))
    except NotAnAddress as error:
        raise _NoEngine(f"--from {error}") from error
    except Unrecognised as error:
        hint = " (--api-key-env)" if "key" in str(error) else ""
        raise _NoEngine(f"{url}: {error}{hint}") from error
    _tell(_description(found, address))
    return _pool(found, address, variable)


async def _recognised(url: str, api_key: str | None) -> "Recognised":
    from headgate.engines.page import open_session
    from headgate.engines.recognise import recognise

    async with open_session() as session:
        return await recognise(session, url, api_key=api_key, timeout_s=_TIMEOUT_S)


def _pool(found: "Recognised", url: str, variable: str | None) -> "EnginePool":
    from headgate.config.starter import EnginePool
    from headgate.engines.dialect import Signal

    dialect = found.dialect
    if found.places is not None:
        places, reason = found.places, f"The engine says that it runs {found.places} at once."
    else:
        # Whoever tells of its KV memory runs as many as fit into it, not a number fixed at its start.
        places = _BATCHING_PLACES if Signal.KV_USED_FRACTION in dialect.metrics else _UNKNOWN_PLACES
        why = dialect.places_hint or "the engine does not say how many it runs at once"
        reason = f"{why[0].upper()}{why[1:]}; {places} is a start."
    return EnginePool(dialect.name, url, found.models[0], places, reason, variable)


def _description(found: "Recognised", url: str) -> str:
    version = "" if found.version is None else f" {found.version}"
    others = f", which also serves {', '.join(found.models[1:])}" if found.models[1:] else ""
    return f"{url}: {found.dialect.name}{version} with model {found.models[0]}{others}"


def _check(text: str, name: str) -> None:
    """What we write must be what we read: without a problem, without a warning."""
    from headgate.config.load import parse
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    warnings = parse(text, name, os.environ, engines=DIALECTS.keys(), profiles=PROFILES).warnings
    assert not warnings, warnings


def _next_steps(file: Path, *, asked: bool) -> str:
    steps = [
        "" if asked else "  change pools and models in it: the address of your engine and what it calls its model",
        f"  headgate check {file}     says what it means",
        f"  headgate doctor {file}    compares it with the engine",
        f"  headgate serve {file}     runs it",
    ]
    return "\n".join(["next:", *(step for step in steps if step)])


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str) -> int:
    _tell(f"headgate: {text}")
    return 1
