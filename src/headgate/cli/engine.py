"""How is a simulated engine started from the command line?"""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.simulation.server.options import EngineOptions

PROFILES = ("tiny", "rtxpro6000-llama-8b", "h200-llama-8b", "h100x8-llama-70b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", choices=PROFILES, default="tiny", help="which engine to be (tiny)")
    parser.add_argument("--model", help="the name it serves (the profile's)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="where to listen, 0 for any free port (8000)")
    parser.add_argument("--count", type=int, default=1, help="how many engines, on ports that follow each other (1)")
    parser.add_argument("--seed", type=int, default=0, help="what all that is drawn is drawn from (0)")
    parser.add_argument("--speed-up", type=float, default=1.0, metavar="X", help="so many times as fast (1)")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="longest prompt and answer (the profile's)")
    parser.add_argument("--kv-tokens", type=int, metavar="TOKENS", help="size of the KV cache (the profile's)")
    parser.add_argument("--output-median", type=int, metavar="TOKENS", help="of answers that end by themselves (129)")
    parser.add_argument("--image-tokens", type=int, default=0, metavar="N", help="take images, each as N tokens")
    parser.add_argument("--by-priority", action="store_true", help="schedule by the requests' priority")
    parser.add_argument("--no-embeddings", action="store_true", help="have no /v1/embeddings, as a chat model")
    parser.add_argument("--api-key", metavar="KEY", help="require this key below /v1, as vLLM does")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append a line of JSON for each request")
    _add_faults(parser.add_argument_group("what goes wrong"))


def _add_faults(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--cold-start", type=float, default=0.0, metavar="S", help="nothing listens for so long")
    group.add_argument("--stall-every", type=float, default=0.0, metavar="S", help="hang this often (/health answers)")
    group.add_argument("--stall-for", type=float, default=5.0, metavar="S", help="hang for so long (5)")
    group.add_argument("--error-rate", type=float, default=0.0, metavar="R", help="share of requests that get HTTP 500")
    group.add_argument("--reset-rate", type=float, default=0.0, metavar="R", help="share of connections reset midway")
    group.add_argument("--truncate-rate", type=float, default=0.0, metavar="R", help="share of streams cut short")
    group.add_argument("--no-usage", action="store_true", help="never tell how many tokens were used")


def run(args: argparse.Namespace) -> int:
    import uvloop

    try:
        engines = [_options(args, number) for number in range(args.count)]
        return uvloop.run(_serve(engines))
    except OSError as error:
        print(f"headgate: {error.strerror}; choose another with --port", file=sys.stderr)
        return 1


async def _serve(engines: "list[EngineOptions]") -> int:
    """Until SIGTERM or SIGINT."""
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

    from headgate.model.engine_profile import PROFILES as PROFILES_BY_NAME
    from headgate.simulation.server.options import EngineOptions, Faults

    profile = replace(PROFILES_BY_NAME[args.profile], by_priority=args.by_priority)
    if args.context is not None:
        profile = replace(profile, context_tokens=args.context)
    if args.kv_tokens is not None:
        profile = profile.with_kv_tokens(args.kv_tokens)
    options = EngineOptions(
        profile=profile,
        model=args.model or args.profile,
        host=args.host,
        port=args.port + number if args.port else 0,
        number=number,
        seed=args.seed,
        speed_up=args.speed_up,
        cold_start_s=args.cold_start,
        faults=Faults(
            error_rate=args.error_rate,
            reset_rate=args.reset_rate,
            truncate_rate=args.truncate_rate,
            stall_every_s=args.stall_every,
            stall_for_s=args.stall_for,
        ),
        tells_usage=not args.no_usage,
        embeds=not args.no_embeddings,
        image_tokens=args.image_tokens,
        api_key=args.api_key,
        record=args.record,
    )
    return options if args.output_median is None else replace(options, output_tokens_median=args.output_median)
