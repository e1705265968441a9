"""Run simulated engines."""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.simulation.server.options import EngineOptions

PROFILES = ("tiny", "rtxpro6000-llama-8b", "h200-llama-8b", "h100x8-llama-70b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        default="tiny",
        metavar="NAME",
        help=f"Engine profile to simulate: {', '.join(PROFILES)} or a profile file (default tiny).",
    )
    parser.add_argument("--model", metavar="NAME", help="Served model name (default: the profile's name).")
    parser.add_argument("--host", default="127.0.0.1", help="Listen address (default 127.0.0.1).")
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="Port, or 0 for any free port (default 8000)."
    )
    parser.add_argument(
        "--count", type=int, default=1, metavar="N", help="Number of engines, on consecutive ports (default 1)."
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Random seed (default 0).")
    parser.add_argument("--speed-up", type=float, default=1.0, metavar="X", help="Speed factor (default 1).")
    parser.add_argument(
        "--context-tokens", type=int, metavar="N", help="Maximum prompt plus output tokens (default: from the profile)."
    )
    parser.add_argument(
        "--kv-tokens", type=int, metavar="N", help="KV cache size in tokens (default: from the profile)."
    )
    parser.add_argument(
        "--output-tokens-median",
        type=int,
        metavar="N",
        help="Median output length if max_tokens is not set (default 129).",
    )
    parser.add_argument(
        "--image-tokens", type=int, default=0, metavar="N", help="Tokens per image (default 0: images are rejected)."
    )
    parser.add_argument(
        "--priority-scheduling", action="store_true", help="Schedule by request priority instead of arrival order."
    )
    parser.add_argument("--no-embeddings", action="store_true", help="Do not serve /v1/embeddings.")
    parser.add_argument("--api-key", metavar="KEY", help="API key required under /v1 (default: none).")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="File to write one JSON line per request to (default: none)."
    )
    _add_faults(parser.add_argument_group("faults"))


def _add_faults(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--cold-start", type=float, default=0.0, metavar="SECONDS", help="Delay before the port opens (default 0)."
    )
    group.add_argument(
        "--hang-every",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="Interval between hangs; /health keeps responding during a hang (default 0: none).",
    )
    group.add_argument(
        "--hang-for", type=float, default=5.0, metavar="SECONDS", help="Duration of each hang (default 5)."
    )
    group.add_argument(
        "--error-rate",
        type=float,
        default=0.0,
        metavar="R",
        help="Fraction of requests that fail with HTTP 500 (default 0).",
    )
    group.add_argument(
        "--reset-rate",
        type=float,
        default=0.0,
        metavar="R",
        help="Fraction of connections reset mid-response (default 0).",
    )
    group.add_argument(
        "--truncate-rate",
        type=float,
        default=0.0,
        metavar="R",
        help="Fraction of streams that are truncated (default 0).",
    )
    group.add_argument("--no-usage", action="store_true", help="Omit token usage from responses.")


def run(args: argparse.Namespace) -> int:
    import uvloop

    from headgate.config.problems import ConfigErrors

    try:
        engines = [_options(args, number) for number in range(args.count)]
        return uvloop.run(_serve(engines))
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headgate: {error.strerror}; choose another port with --port", file=sys.stderr)
        return 1


async def _serve(engines: "list[EngineOptions]") -> int:
    """Runs until SIGTERM or SIGINT."""
    import asyncio

    from headgate.hosts.local.clock import SystemClock
    from headgate.simulation.server.run import run_engines

    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    async with run_engines(engines, SystemClock()) as servers:
        for server in servers:
            what = f"{server.options.profile.name} as {server.options.model}"
            print(f"engine {server.options.number}: {server.url}/v1 ({what})", flush=True)
        await leave.wait()
    return 0


def _options(args: argparse.Namespace, number: int) -> "EngineOptions":
    from dataclasses import replace

    from headgate.config.engine_profiles import named_profile
    from headgate.model.engine_profile import PROFILES as PROFILES_BY_NAME
    from headgate.simulation.server.options import EngineOptions, FaultOptions

    profile = replace(named_profile(args.profile, PROFILES_BY_NAME), priority_scheduling=args.priority_scheduling)
    if args.context_tokens is not None:
        profile = replace(profile, context_tokens=args.context_tokens)
    if args.kv_tokens is not None:
        profile = profile.with_kv_tokens(args.kv_tokens)
    options = EngineOptions(
        profile=profile,
        model=args.model or profile.name,
        host=args.host,
        port=args.port + number if args.port else 0,
        number=number,
        seed=args.seed,
        speed_up=args.speed_up,
        cold_start_s=args.cold_start,
        faults=FaultOptions(
            error_rate=args.error_rate,
            reset_rate=args.reset_rate,
            truncate_rate=args.truncate_rate,
            stall_every_s=args.hang_every,
            stall_for_s=args.hang_for,
        ),
        reports_usage=not args.no_usage,
        serves_embeddings=not args.no_embeddings,
        image_tokens=args.image_tokens,
        api_key=args.api_key,
        record_path=args.record,
    )
    median = args.output_tokens_median
    return options if median is None else replace(options, output_tokens_median=median)
