"""Send open-loop traffic to a server and measure its latency."""

import argparse
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.loadtest.generator import RunCounts
    from headgate.loadtest.load_test import LoadTestPlan
    from headgate.loadtest.report import LoadTestResult
    from headgate.loadtest.schedule import Schedule
    from headgate.loadtest.senders import SenderTable

EPILOG = """\
Requests start at their scheduled times regardless of how the server responds, and latency is measured from those
times. The exit code is 1 if no request completed or the results are unreliable (the generator fell behind or the run
was stopped).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--url", required=True, metavar="URL", help="Target server, such as http://127.0.0.1:8080 (required)."
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="Requested model (required).")
    _add_traffic(parser.add_argument_group("traffic"))
    _add_behaviour(parser.add_argument_group("client behaviour"))
    _add_result(parser.add_argument_group("results"))


def _add_traffic(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    arrivals = group.add_mutually_exclusive_group(required=True)
    arrivals.add_argument("--rate", type=_positive, metavar="R", help="Poisson arrivals per second (or use --trace).")
    arrivals.add_argument(
        "--trace", type=Path, metavar="FILE", help="Trace of arrivals and sizes (docs/guides/load-testing.md)."
    )
    group.add_argument(
        "--duration", type=_positive, metavar="SECONDS", help="Duration of the traffic (default 30, or the full trace)."
    )
    group.add_argument("--limit", type=_count, metavar="N", help="Maximum number of requests (default: none).")
    group.add_argument("--speed-up", type=_positive, default=1.0, metavar="X", help="Trace speed factor (default 1).")
    group.add_argument(
        "--jitter",
        type=_positive,
        default=0.0,
        metavar="SECONDS",
        help="Random delay per arrival, for traces with coarse timestamps (default 0).",
    )
    group.add_argument("--prompt-tokens", default="200:800", metavar="N[:M]", help="Prompt size (default 200:800).")
    group.add_argument("--output-tokens", default="20:200", metavar="N[:M]", help="Output size (default 20:200).")
    group.add_argument(
        "--api-key", metavar="KEY", help="API key, or env:NAME for an environment variable (default: none)."
    )
    group.add_argument(
        "--mix",
        action="append",
        default=[],
        metavar="FIELDS",
        help="Kind of client, repeatable: class=C,tenant=T,share=0.7,key=env:K,prompt=N:M,output=N:M,tier=flex "
        "(default: one kind).",
    )
    group.add_argument(
        "--shared-prefix-tokens",
        type=_tokens,
        default=0,
        metavar="N",
        help="Length of a common prompt prefix (default 0).",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="Set ignore_eos in requests to get full-length outputs."
    )
    group.add_argument("--no-stream", action="store_true", help="Send non-streaming requests.")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="Random seed (default 0).")


def _add_behaviour(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--client-timeout", type=_positive, metavar="SECONDS", help="Timeout for the first token (default: none)."
    )
    group.add_argument("--retries", type=_tokens, default=2, metavar="N", help="Maximum number of retries (default 2).")
    group.add_argument(
        "--hedge-after",
        type=_positive,
        metavar="SECONDS",
        help="Time without a response after which a duplicate request is sent (default: never).",
    )
    group.add_argument(
        "--connections-max", type=_count, default=10_000, metavar="N", help="Maximum open connections (default 10000)."
    )
    group.add_argument(
        "--drain-timeout",
        type=_positive,
        default=120.0,
        metavar="SECONDS",
        help="Time to wait for the last responses (default 120).",
    )


def _add_result(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    for name, what in (
        ("ttft", "time to first token"),
        ("tpot", "time per output token after the first"),
        ("e2e", "total time"),
    ):
        group.add_argument(
            f"--slo-{name}", type=_positive, metavar="SECONDS", help=f"Goodput threshold for {what} (default: none)."
        )
    group.add_argument(
        "--record", type=Path, metavar="FILE", help="File to write one JSON line per request to (default: none)."
    )
    group.add_argument("--json", action="store_true", help="JSON output.")


def run(args: argparse.Namespace) -> int:
    import uvloop

    from headgate.loadtest.load_test import relax_gc
    from headgate.loadtest.problem import WorkloadError

    try:
        plan = _plan(args)
        with args.record.open("wb") if args.record else nullcontext() as record:
            relax_gc()
            result = uvloop.run(_run(plan, record))
    except WorkloadError as problem:
        print(f"headgate loadtest: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headgate loadtest: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return _print_result(result, json=args.json)


def _plan(args: argparse.Namespace) -> "LoadTestPlan":
    from headgate.loadtest.load_test import LoadTestPlan, raise_file_limit
    from headgate.loadtest.tally import LoadTestTargets
    from headgate.loadtest.target import TargetUrl

    target = TargetUrl.parse(args.url)
    roster = _roster(args)
    schedule = _schedule(args, roster)
    connections = raise_file_limit(args.connections_max)
    if connections < args.connections_max:
        hint = "raise the limit on open files (ulimit -n) for more"
        print(f"headgate loadtest: at most {connections} connections; {hint}", file=sys.stderr)
    return LoadTestPlan(
        target=target,
        model=args.model,
        schedule=schedule,
        senders=tuple(roster.senders),
        targets=LoadTestTargets(_ns(args.slo_ttft), _ns(args.slo_tpot), _ns(args.slo_e2e)),
        seed=args.seed,
        stream=not args.no_stream,
        exact_output=args.ignore_eos,
        shared_prefix_tokens=args.shared_prefix_tokens,
        patience_s=args.client_timeout,
        retries_max=args.retries,
        duplicate_after_s=args.hedge_after,
        connections_max=connections,
        drain_s=args.drain_timeout,
    )


def _roster(args: argparse.Namespace) -> "SenderTable":
    from headgate.loadtest.senders import Sender, SenderTable, TokenRange, parse_sender, read_key

    prompt, output = TokenRange.parse(args.prompt_tokens), TokenRange.parse(args.output_tokens)
    key = read_key(args.api_key, os.environ) if args.api_key else None
    senders = [parse_sender(text, os.environ, prompt=prompt, output=output, key=key) for text in args.mix]
    return SenderTable(senders or [Sender(prompt=prompt, output=output, key=key)])


def _schedule(args: argparse.Namespace, roster: "SenderTable") -> "Schedule":
    from headgate.loadtest.problem import WorkloadError
    from headgate.loadtest.schedule import from_trace, poisson
    from headgate.simulation.workload.trace_files import read_trace

    if args.trace is None:
        duration_s = args.duration or 30.0
        schedule = poisson(roster, rate=args.rate, duration_s=duration_s, seed=args.seed, limit=args.limit)
    else:
        rows = read_trace(args.trace)
        schedule = from_trace(
            rows,
            roster,
            seed=args.seed,
            speed_up=args.speed_up,
            jitter_s=args.jitter,
            duration_s=args.duration,
            limit=args.limit,
        )
    if not schedule:
        raise WorkloadError("the schedule has no requests; raise --rate or --duration")
    return schedule


async def _run(plan: "LoadTestPlan", record: IO[bytes] | None) -> "LoadTestResult":
    import asyncio
    import shutil

    from headgate.loadtest.load_test import LoadTest
    from headgate.loadtest.progress import LoadTestProgress

    test = LoadTest(plan, record=record)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, test.stop)
    showing: list[asyncio.Task[None]] = []

    def on_start(course: "RunCounts") -> None:
        width = shutil.get_terminal_size().columns
        progress = LoadTestProgress(course, _to_stderr, terminal=sys.stderr.isatty(), width=width)
        showing.append(asyncio.create_task(progress.show()))

    try:
        return await test.run(on_start)
    finally:
        for task in showing:
            task.cancel()
        await asyncio.gather(*showing, return_exceptions=True)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _print_result(result: "LoadTestResult", *, json: bool) -> int:
    import json as encoding
    import shutil

    from headgate.loadtest.report import report_json
    from headgate.loadtest.request import LoadTestOutcome
    from headgate.loadtest.table import render, warnings

    course = result.counts
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    _print(encoding.dumps(report_json(result), indent=2) if json else render(result, width=width))
    if json or not sys.stdout.isatty():
        for warning in warnings(course):
            print(warning, file=sys.stderr)
    trusted = not course.is_behind and not course.stopped_early
    return 0 if trusted and course.outcomes[LoadTestOutcome.COMPLETED] > 0 else 1


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # The reader closed the pipe. Without this, Python would report the error again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def _tokens(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1000000, not {text}")
    return value
