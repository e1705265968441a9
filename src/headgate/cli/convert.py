"""Convert the configuration of another gateway or proxy to a Headgate configuration.

Each setting that is not carried over, or whose meaning changes, is printed on stderr with its place in the source, and
is a comment in the result. Secrets are replaced by references to environment variables.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_json
from headgate.cli.keys import KEY_SECRET_VARIABLE

if TYPE_CHECKING:
    from headgate.config.convert.conversion import Conversion, ConversionOptions

_FORMATS = ("litellm", "nginx", "envoy", "inferencepool")
_EXIT_INVALID = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="FILE", help="Configuration to convert.")
    parser.add_argument(
        "--from", dest="source_format", choices=_FORMATS, help="Format of FILE (default: detected from its content)."
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="Output file (default: stdout).")
    parser.add_argument("--force", action="store_true", help="Overwrite an existing output file.")
    parser.add_argument(
        "--engine", metavar="NAME", help="Engine, if FILE does not name it (default openai_compatible)."
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[POOL=]NAME",
        help="Model name that clients send, if FILE does not contain it (repeatable, default: the pool's name).",
    )
    parser.add_argument(
        "--accounts",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="LiteLLM: exported teams or keys (repeatable, default: none).",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from headgate.config.convert.conversion import convert
    from headgate.config.convert.source import ConversionError

    out: Path | None = args.out
    if out is not None and out.exists() and not args.force:
        return _problem(f"{out} exists; choose another file with --out, or overwrite it with --force")
    try:
        result = convert(args.source, _options(args), args.source_format)
    except ConversionError as error:
        return _problem(str(error))
    if args.json:
        _print_json(result)
    elif out is None:
        print(result.text, end="")
    if out is not None:
        try:
            out.write_text(result.text, encoding="utf-8")
        except OSError as error:
            return _problem(f"cannot write {out}: {error.strerror}")
    _report(result, out)
    return 0


def _options(args: argparse.Namespace) -> "ConversionOptions":
    from headgate.config.convert.conversion import ConversionOptions
    from headgate.config.convert.source import ConversionError
    from headgate.config.references import is_model_name
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    engine: str | None = args.engine
    if engine is not None and engine not in DIALECTS:
        raise ConversionError(f"--engine: {engine} does not exist; the engines are {', '.join(sorted(DIALECTS))}")
    models: dict[str, str] = {}
    for each in args.model:
        pool, sign, model = each.partition("=")
        models[pool if sign else ""] = model if sign else each
    for model in models.values():
        if not is_model_name(model):
            raise ConversionError(f'--model: "{model}" is not a model name; use letters, digits, and . _ : / @ + -')
    secret = os.environ.get(KEY_SECRET_VARIABLE)
    return ConversionOptions(
        environ=os.environ,
        engines=DIALECTS.keys(),
        profiles=PROFILES,
        engine=engine,
        models=models,
        key_secret=secret.encode() if secret else None,
        accounts=args.accounts,
    )


def _report(result: "Conversion", out: Path | None) -> None:
    for note in result.notes:
        print(note, file=sys.stderr)
    for name, meaning in result.variables.items():
        if not os.environ.get(name):
            print(f"set the environment variable {name}: {meaning}", file=sys.stderr)
    if out is not None:
        print(f"wrote {out}; `headgate check --config {out}` shows what it configures", file=sys.stderr)


def _print_json(result: "Conversion") -> None:
    import json

    notes = [each._asdict() for each in result.notes]
    data = {"format": result.source_format, "config": result.text, "notes": notes, "variables": result.variables}
    print(json.dumps({**data, "variables": dict(result.variables)}, indent=2))


def _problem(text: str) -> int:
    print(f"headgate: {text}", file=sys.stderr)
    return _EXIT_INVALID
