"""Measure an engine's speed and write its profile, or compare two profiles."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_json, count, number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headgate.cli.output.calibration_report import CalibrationReport
    from headgate.planning.bursts import Burst, MeasuredBurst, SweepResult
    from headgate.planning.sweep import Steps

EPILOG = """\
The sweep sends requests with distinct prompts in bursts: prompt lengths, concurrency, long contexts and a mixed load.
It also sends another mixed load twice, predicts it without having seen its times, and prints the errors and how much
the two repetitions differ. The exit code is 1 if the engine cannot be measured or the profile is doubtful: the sender
fell behind, the engine served other requests, or a prediction is wrong by more than 15 %. docs/guides/calibrate.md
describes the method.
"""
SECONDS_DEFAULT = 120.0
SECONDS_MIN = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--url", metavar="URL", help="Engine to measure, such as http://127.0.0.1:8000.")
    parser.add_argument("--model", metavar="NAME", help="Requested model.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Profile file to write (default: none).")
    parser.add_argument(
        "--name", metavar="NAME", help="Name of the profile (default: the name of --out, or the model)."
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=SECONDS_DEFAULT,
        metavar="N",
        help=f"Duration of the sweep, without the time for fitting (default {SECONDS_DEFAULT:.0f}).",
    )
    parser.add_argument(
        "--concurrency-max", type=count, default=32, metavar="N", help="Maximum number of open requests (default 32)."
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="API key, or env:NAME for an environment variable (default: none)."
    )
    parser.add_argument("--seed", type=int, metavar="N", help="Random seed (default: a new one for each run).")
    add_json(parser)
    _add_limits(parser.add_argument_group("limits of the engine (default: as reported by the engine)"))
    _add_comparison(parser.add_argument_group("comparison of two profiles"))


def _add_limits(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--context-tokens", type=count, metavar="N", help="Maximum prompt plus output tokens.")
    group.add_argument("--kv-tokens", type=count, metavar="N", help="KV cache size in tokens.")
    group.add_argument("--sequences-max", type=count, metavar="N", help="Maximum number of running sequences.")
    group.add_argument(
        "--chunk-tokens", type=count, metavar="N", help="Maximum number of tokens per step (default: fitted)."
    )
    group.add_argument("--block-tokens", type=count, metavar="N", help="Tokens per KV cache block (default 16).")
    group.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="Whether the engine prepares a step during the previous one (default: fitted).",
    )


def _add_comparison(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="Profiles to compare by goodput per dollar: names or files."
    )
    group.add_argument("--scenario", type=Path, metavar="FILE", help="Scenario to simulate with each profile.")
    group.add_argument(
        "--per-hour",
        nargs="+",
        default=[],
        metavar="X=USD",
        help="Dollars per engine and hour, such as A=2.0 B=3.5 (default 1 each).",
    )
    group.add_argument(
        "--count",
        nargs="+",
        default=[],
        metavar="X=N",
        help="Engines per pool, such as A=2 B=1 (default: from the scenario).",
    )
    group.add_argument("--pool", metavar="NAME", help="Pool whose engines are replaced (default: all pools).")
    group.add_argument("--seeds", type=count, default=6, metavar="N", help="Number of random seeds (default 6).")


def run(args: argparse.Namespace) -> int:
    if args.compare is not None:
        from headgate.cli.calibration.profile_comparison import run_comparison

        return run_comparison(args)
    for option, value in (("--url", args.url), ("--model", args.model)):
        if value is None:
            return _problem(
                f"{option} is missing; set the engine to measure, or compare two profiles with --compare", 2
            )
    return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    import json as encoding
    import shutil

    import uvloop

    from headgate.cli.output.calibration_report import file_text, render, report_json
    from headgate.config.pools import InvalidEngineUrl
    from headgate.loadtest.load_test import relax_gc
    from headgate.loadtest.problem import WorkloadError
    from headgate.planning.calibration import CalibrationError

    try:
        _check_file(args.out)
        relax_gc()
        report = uvloop.run(_calibrate(args))
        if args.out is not None:
            args.out.write_text(file_text(report, _today()), encoding="utf-8")
    except (WorkloadError, InvalidEngineUrl) as problem:
        return _problem(str(problem), 2)
    except CalibrationError as problem:
        return _problem(str(problem), 1)
    except OSError as error:
        return _problem(f"cannot write {args.out}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _problem("stopped; there is no profile", 1)
    file = None if args.out is None else str(args.out)
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    print(encoding.dumps(report_json(report, file), indent=2) if args.json else render(report, file, width))
    if file is not None:
        print(f"wrote {file}", file=sys.stderr)
    warnings = report.warnings()
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 1 if warnings else 0


async def _calibrate(args: argparse.Namespace) -> "CalibrationReport":
    from secrets import randbelow

    from headgate.cli.calibration.burst_sender import BurstSender
    from headgate.cli.calibration.live_engine import LiveEngine
    from headgate.cli.output.calibration_report import CalibrationReport
    from headgate.config.pools import engine_url
    from headgate.engines.page import open_session
    from headgate.loadtest.senders import read_key
    from headgate.loadtest.target import TargetUrl
    from headgate.planning.sweep import SweepOptions, sweep

    url = engine_url(args.url)
    target = TargetUrl.parse(url)
    key = read_key(args.api_key, os.environ) if args.api_key else None
    # Prompts that an earlier calibration has sent would hit the engine's prefix cache.
    seed: int = randbelow(1 << 30) if args.seed is None else args.seed
    async with open_session() as session:
        engine = await LiveEngine.detect(session, url, args.model, key)
        size = await engine.size(args, args.name or (args.out.stem if args.out else args.model))
        sender = BurstSender(
            engine,
            target,
            args.model,
            key,
            context_tokens=size.profile.context_tokens,
            timeout_s=max(60.0, args.seconds),
            seed=seed,
        )
        _progress(f"{engine.description} at {url}: warm-up")
        await sender.probe()
        steps = sweep(
            SweepOptions(
                limits=size.profile,
                seconds=args.seconds,
                concurrency_max=args.concurrency_max,
                seed=seed,
                chunk_known=args.chunk_tokens is not None,
                async_known=args.async_scheduling is not None,
            )
        )
        result = await _driven(steps, sender.send)
    sources = dict(size.sources) | ({} if args.chunk_tokens is not None else {"chunk_tokens": "fitted"})
    return CalibrationReport(
        url=url,
        engine=engine.description,
        model=args.model,
        result=result,
        sources=sources,
        requests=sender.requests,
        problems=tuple(sender.warnings.texts()),
        notes=_notes(exact_output=sender.exact_output, cut_outputs=sender.warnings.cut_outputs),
    )


async def _driven(steps: "Steps", send: "Callable[[Burst], Awaitable[MeasuredBurst]]") -> "SweepResult":
    """Sends the sweep's bursts until it has its result."""
    burst, number = next(steps), 1
    while True:
        _progress(f"{burst.phase}: burst {number} of {len(burst.requests)} requests")
        measured = await send(burst)
        try:
            burst = steps.send(measured)
        except StopIteration as end:
            return end.value
        number += 1


def _notes(*, exact_output: bool, cut_outputs: int) -> tuple[str, ...]:
    notes: list[str] = []
    if not exact_output:
        notes.append("the engine rejects ignore_eos, so responses have the lengths that the model chooses")
    if cut_outputs:
        notes.append(f"{cut_outputs} responses were shorter than requested; the fit uses their actual lengths")
    return tuple(notes)


def _check_file(file: Path | None) -> None:
    """Checks before the sweep that the file can be written after it."""
    from headgate.loadtest.problem import WorkloadError

    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise WorkloadError(f"--out {file}: cannot write there; use a file in an existing directory")


def _today() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


def _progress(text: str) -> None:
    print(f"headgate calibrate: {text}", file=sys.stderr, flush=True)


def _problem(text: str, code: int) -> int:
    print(f"headgate calibrate: {text}", file=sys.stderr)
    return code


def _seconds(text: str) -> float:
    value = number(text)
    if not SECONDS_MIN <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least {SECONDS_MIN:g}, not {text}")
    return value
