"""How does a service hold up under traffic that does not wait for it?"""

import argparse
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.loadtest.generator import Course
    from headgate.loadtest.report import Result
    from headgate.loadtest.run import Plan
    from headgate.loadtest.schedule import Schedule
    from headgate.loadtest.senders import Roster

EPILOG = """\
Requests begin when they are due, whatever the server does, and every latency counts from that moment. The exit code
is 1 if the figures are not to be trusted (the generator fell behind, the run was stopped) or nothing was completed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8080")
    parser.add_argument("--model", required=True, help="the model to ask for")
    _add_traffic(parser.add_argument_group("traffic"))
    _add_behaviour(parser.add_argument_group("how clients behave"))
    _add_result(parser.add_argument_group("result"))


def _add_traffic(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    arrivals = group.add_mutually_exclusive_group(required=True)
    arrivals.add_argument("--rate", type=_positive, metavar="R", help="requests a second, at random moments")
    arrivals.add_argument(
        "--trace", type=Path, metavar="FILE", help="times and sizes from a file (docs/guides/load-testing.md)"
    )
    group.add_argument("--duration", type=_positive, metavar="S", help="seconds of arrivals (30, or the whole trace)")
    group.add_argument("--limit", type=_count, metavar="N", help="at most so many requests")
    group.add_argument("--speed-up", type=_positive, default=1.0, metavar="X", help="play the trace X times as fast")
    group.add_argument(
        "--jitter", type=_positive, default=0.0, metavar="S", help="spread each moment of a coarse trace"
    )
    group.add_argument("--prompt", default="200:800", metavar="TOKENS", help="size of prompts, N or N:M (200:800)")
    group.add_argument("--output", default="20:200", metavar="TOKENS", help="size of answers, N or N:M (20:200)")
    group.add_argument("--key", metavar="KEY", help="API key; env:NAME takes it from the environment")
    group.add_argument(
        "--mix",
        action="append",
        default=[],
        metavar="FIELDS",
        help="one kind of caller, repeatable: class=C,tenant=T,share=0.7,key=env:K,prompt=N:M,output=N:M,tier=flex",
    )
    group.add_argument("--shared-prefix", type=_tokens, default=0, metavar="TOKENS", help="same start of all prompts")
    group.add_argument("--exact-output", action="store_true", help="send ignore_eos, so that answers have full length")
    group.add_argument("--no-stream", action="store_true", help="ask for whole answers")
    group.add_argument("--seed", type=int, default=0, help="the same seed gives the same requests (0)")


def _add_behaviour(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--patience", type=_positive, metavar="S", help="leave if there is no first token by then")
    group.add_argument("--retries", type=_tokens, default=2, metavar="N", help="further tries at most (2)")
    group.add_argument("--ask-again", type=_positive, metavar="S", help="ask once more beside a try silent for so long")
    group.add_argument("--connections", type=_count, default=10_000, metavar="N", help="open at most (10000)")
    group.add_argument("--drain", type=_positive, default=120.0, metavar="S", help="wait for last answers (120)")


def _add_result(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--slo-ttft", type=_positive, metavar="S", help="time to first token of a good request")
    group.add_argument("--slo-tpot", type=_positive, metavar="S", help="time per further token of a good request")
    group.add_argument("--slo-e2e", type=_positive, metavar="S", help="whole time of a good request")
    group.add_argument("--record", type=Path, metavar="FILE", help="write one JSON line per request")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    import uvloop

    from headgate.loadtest.problem import Problem
    from headgate.loadtest.run import collect_garbage_seldom

    try:
        plan = _plan(args)
        with args.record.open("wb") if args.record else nullcontext() as record:
            collect_garbage_seldom()
            result = uvloop.run(_run(plan, record))
    except Problem as problem:
        print(f"headgate loadtest: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headgate loadtest: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return _tell(result, json=args.json)


def _plan(args: argparse.Namespace) -> "Plan":
    from headgate.loadtest.run import Plan, files_allow_connections
    from headgate.loadtest.tally import Targets
    from headgate.loadtest.target import Target

    target = Target.parse(args.url)
    roster = _roster(args)
    schedule = _schedule(args, roster)
    connections = files_allow_connections(args.connections)
    if connections < args.connections:
        hint = "raise the limit on open files (ulimit -n) for more"
        print(f"headgate loadtest: at most {connections} connections; {hint}", file=sys.stderr)
    return Plan(
        target=target,
        model=args.model,
        schedule=schedule,
        senders=tuple(roster.senders),
        targets=Targets(_ns(args.slo_ttft), _ns(args.slo_tpot), _ns(args.slo_e2e)),
        seed=args.seed,
        stream=not args.no_stream,
        exact_output=args.exact_output,
        shared_prefix_tokens=args.shared_prefix,
        patience_s=args.patience,
        retries_most=args.retries,
        ask_again_s=args.ask_again,
        connections_most=connections,
        drain_s=args.drain,
    )


def _roster(args: argparse.Namespace) -> "Roster":
    from headgate.loadtest.senders import Roster, Sender, Sizes, parse_sender, read_key

    prompt, output = Sizes.parse(args.prompt), Sizes.parse(args.output)
    key = read_key(args.key, os.environ) if args.key else None
    senders = [parse_sender(text, os.environ, prompt=prompt, output=output, key=key) for text in args.mix]
    return Roster(senders or [Sender(prompt=prompt, output=output, key=key)])


def _schedule(args: argparse.Namespace, roster: "Roster") -> "Schedule":
    from headgate.loadtest.problem import Problem
    from headgate.loadtest.schedule import from_trace, poisson
    from headgate.simulation.workload.traces import read_trace

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
        raise Problem("no request is due in this time; raise --rate or --duration")
    return schedule


async def _run(plan: "Plan", record: IO[bytes] | None) -> "Result":
    import asyncio
    import shutil

    from headgate.loadtest.progress import Progress
    from headgate.loadtest.run import LoadTest

    test = LoadTest(plan, record=record)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, test.stop)
    showing: list[asyncio.Task[None]] = []

    def on_start(course: "Course") -> None:
        width = shutil.get_terminal_size().columns
        progress = Progress(course, _to_stderr, terminal=sys.stderr.isatty(), width=width)
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


def _tell(result: "Result", *, json: bool) -> int:
    import json as encoding
    import shutil

    from headgate.loadtest.endings import Ending
    from headgate.loadtest.report import as_data
    from headgate.loadtest.table import render, warnings

    course = result.course
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    _print(encoding.dumps(as_data(result), indent=2) if json else render(result, width=width))
    if json or not sys.stdout.isatty():
        for warning in warnings(course):
            print(warning, file=sys.stderr)
    trusted = not course.is_behind and not course.stopped_early
    return 0 if trusted and course.endings[Ending.COMPLETED] > 0 else 1


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Whoever reads has enough. Python would complain once more when it leaves.
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
