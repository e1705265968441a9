"""Send open-loop traffic to a server and measure its latency."""

import argparse
import signal
import sys
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from headgate.cli.input.argument_types import count, number, whole_number

if TYPE_CHECKING:
    from headgate.cli.output.load_test_results import LoadTestRun
    from headgate.loadtest.comparison import RequestSample
    from headgate.loadtest.generator import RunCounts
    from headgate.loadtest.load_test import LoadTest, LoadTestPlan

EPILOG = """\
Requests start at their scheduled times regardless of how the server responds, and latency is measured from those
times. The exit code is 1 if no request completed or the results are unreliable (the generator fell behind or the run
was stopped).
"""
_NUMBER_MAX: Final = 1e9
"""Maximum rate, time in seconds, factor and price."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--url", metavar="URL", help="Target server, such as http://127.0.0.1:8080 (required).")
    parser.add_argument(
        "--model", metavar="NAME", help="Requested model (required, unless the trace names the model of each request)."
    )
    _add_traffic(parser.add_argument_group("traffic"))
    _add_behaviour(parser.add_argument_group("client behaviour"))
    _add_result(parser.add_argument_group("results"))


def _add_traffic(group: "argparse._ArgumentGroup") -> None:  # pyright: ignore[reportPrivateUsage]
    arrivals = group.add_mutually_exclusive_group(required=True)
    arrivals.add_argument("--rate", type=_positive, metavar="R", help="Poisson arrivals per second.")
    arrivals.add_argument(
        "--trace", type=Path, metavar="FILE", help="Trace of arrivals and sizes (docs/guides/load-testing.md)."
    )
    arrivals.add_argument(
        "--workload", type=Path, metavar="FILE", help="Sources of requests as YAML (docs/guides/load-testing.md)."
    )
    arrivals.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BASE", "OTHER"),
        help="Records of two runs to compare instead of sending requests.",
    )
    group.add_argument(
        "--duration",
        type=_positive,
        metavar="SECONDS",
        help="Duration of the traffic (default: all of a trace or workload, otherwise 30).",
    )
    group.add_argument("--limit", type=count, metavar="N", help="Maximum number of requests (default: none).")
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
        "--connections-max", type=count, default=10_000, metavar="N", help="Maximum open connections (default 10000)."
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
    group.add_argument(
        "--against", metavar="URL", help="Second target that gets the same requests at the same times (default: none)."
    )
    group.add_argument(
        "--sweep",
        type=_levels,
        metavar="X,Y,...",
        help="Factors applied to the load, with one run each (default: one run).",
    )
    group.add_argument(
        "--slo-percent",
        type=_percent,
        default=95.0,
        metavar="P",
        help="Percentage of good requests that a level of a sweep needs to hold (default 95).",
    )
    prices = group.add_mutually_exclusive_group()
    prices.add_argument(
        "--price-per-hour", type=_positive, metavar="USD", help="Price of the tested servers per hour (default: none)."
    )
    prices.add_argument(
        "--price-per-million", metavar="USD:USD", help="Prices per million prompt and output tokens (default: none)."
    )
    group.add_argument("--html", type=Path, metavar="FILE", help="File to write an HTML report to (default: none).")
    group.add_argument("--json", action="store_true", help="JSON output.")


def run(args: argparse.Namespace) -> int:
    from headgate.config.problems import ConfigErrors
    from headgate.loadtest.problem import WorkloadError

    try:
        return _compare_records(args) if args.compare else _measure(args)
    except ConfigErrors as problems:
        print(problems, file=sys.stderr)
        return 2
    except WorkloadError as problem:
        print(f"headgate loadtest: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headgate loadtest: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _compare_records(args: argparse.Namespace) -> int:
    from headgate.cli.output.load_test_results import print_comparison
    from headgate.loadtest.comparison import compare, read_samples

    base, other = args.compare
    print_comparison(compare(read_samples(base), read_samples(other)), (str(base), str(other)), json=args.json)
    return 0


def _measure(args: argparse.Namespace) -> int:
    import uvloop

    from headgate.cli.input.load_test_plan import load_test_plan, trace_rows
    from headgate.cli.output.html_file import check_html_file
    from headgate.cli.output.load_test_results import print_runs, print_sweep
    from headgate.loadtest.comparison import check_sizes
    from headgate.loadtest.load_test import relax_gc

    _check(args)
    if args.html is not None:
        check_html_file(args.html)
    levels = args.sweep or (1.0,)
    urls = [args.url, *([args.against] if args.against else [])]
    rows = trace_rows(args)
    plans = [[load_test_plan(args, rows, url=url, load=level) for url in urls] for level in levels]
    if args.against:
        check_sizes(*(len(plan.schedule) for plan in plans[0]))
    keep_samples = bool(args.against or (args.html and not args.sweep))
    runs: list[list[LoadTestRun]] = []
    with args.record.open("wb") if args.record else nullcontext() as record:
        relax_gc()
        for together in plans:
            runs.append(uvloop.run(_run(together, record, keep_samples=keep_samples)))
            if any(each.result.counts.stopped_early for each in runs[-1]):
                break
    if args.sweep:
        return print_sweep([(level, each[0]) for level, each in zip(levels, runs, strict=False)], args)
    return print_runs(runs[0], args)


def _check(args: argparse.Namespace) -> None:
    from headgate.loadtest.problem import WorkloadError

    for name in ("url", "model") if args.trace is None else ("url",):
        if getattr(args, name) is None:
            raise WorkloadError(f"--{name} is missing; set it to the {name} to test")
    _check_outputs(args)
    for one, other in (("sweep", "against"), ("sweep", "record"), ("against", "record")):
        if getattr(args, one) and getattr(args, other):
            raise WorkloadError(f"--{one} cannot be combined with --{other}; remove one of them")


def _check_outputs(args: argparse.Namespace) -> None:
    """Rejects outputs that would replace an input or another output."""
    from headgate.loadtest.problem import WorkloadError

    files = [(name, each) for name in ("trace", "workload", "record", "html") if (each := getattr(args, name))]
    for (name, file), (other, output) in combinations(files, 2):
        if other in {"record", "html"} and Path(file).resolve() == output.resolve():
            raise WorkloadError(f"--{name} and --{other} are the same file; specify another one for --{other}")


async def _run(plans: "list[LoadTestPlan]", record: IO[bytes] | None, *, keep_samples: bool) -> "list[LoadTestRun]":
    """Runs these plans at the same time. Charts and comparisons need the samples, about 200 bytes per request."""
    import asyncio
    import shutil

    from headgate.cli.output.load_test_results import LoadTestRun
    from headgate.loadtest.load_test import LoadTest
    from headgate.loadtest.progress import LoadTestProgress

    samples: list[list[RequestSample]] = [[] for _ in plans]
    tests = [
        LoadTest(plan, record=record, on_sample=each.append if keep_samples else None)
        for plan, each in zip(plans, samples, strict=True)
    ]
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, _stop, tests)
    showing: list[asyncio.Task[None]] = []

    def on_start(course: "RunCounts") -> None:
        if showing:  # The progress of the first target stands for both.
            return
        width = shutil.get_terminal_size().columns
        progress = LoadTestProgress(course, _to_stderr, terminal=sys.stderr.isatty(), width=width)
        showing.append(asyncio.create_task(progress.show()))

    try:
        results = await asyncio.gather(*(test.run(on_start) for test in tests))
    finally:
        for task in showing:
            task.cancel()
        await asyncio.gather(*showing, return_exceptions=True)
    return [LoadTestRun(result, each) for result, each in zip(results, samples, strict=True)]


def _stop(tests: "list[LoadTest]") -> None:
    for test in tests:
        test.stop()


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _positive(text: str) -> float:
    value = number(text)
    if not 0 < value <= _NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {_NUMBER_MAX:g}, not {text}")
    return value


def _tokens(text: str) -> int:
    value = whole_number(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1000000, not {text}")
    return value


def _percent(text: str) -> float:
    value = number(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 100, not {text}")
    return value


def _levels(text: str) -> tuple[float, ...]:
    return tuple(sorted({_positive(each) for each in text.split(",")}))
