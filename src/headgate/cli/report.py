"""Show whether each class met its objectives, and the effect on latency, quality and cost.

With a Prometheus server, the report covers all gateways over a time range. Otherwise it covers one gateway since it
started.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_config, add_json, add_url

if TYPE_CHECKING:
    from headgate.slo.measurements import MetricSample
    from headgate.slo.report import ClassReport

_OBJECTIVE_STATES = {True: "met", False: "MISSED", None: "unknown"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from headgate.cli.input.admin_request import duration_s

    parser.epilog = "The exit code is 1 if a class missed an objective."
    add_config(parser, "Configuration file with the objectives")
    source = parser.add_mutually_exclusive_group()
    add_url(source)
    source.add_argument(
        "--prometheus-url", metavar="URL", help="Prometheus server that scrapes all gateways (default: none)."
    )
    parser.add_argument(
        "--since",
        type=duration_s,
        metavar="DURATION",
        help="Time range with --prometheus-url, such as 90m or 7d (default 24h).",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.output.metric_sources import MeasurementFailed
    from headgate.cli.output.objectives import load_objectives
    from headgate.slo.measurements import aggregate
    from headgate.slo.report import report

    if args.since is not None and args.prometheus_url is None:
        print(
            "headgate: --since requires --prometheus-url; a gateway only has counts since it started", file=sys.stderr
        )
        return 2
    promises = load_objectives(args.config)
    if promises is None:
        return 1
    try:
        over, samples = asyncio.run(_samples(args))
    except MeasurementFailed as problem:
        print(f"headgate: {problem}", file=sys.stderr)
        return 1
    made = report(promises, aggregate(samples))
    if args.json:
        _print_json(over, made)
    else:
        print("\n".join(lines(over, made)))
    return 1 if any(each.met is False for each in made) else 0


async def _samples(args: argparse.Namespace) -> "tuple[str, list[MetricSample]]":
    from headgate.cli.input.admin_tls import admin_tls
    from headgate.cli.output.metric_sources import MeasurementFailed, from_gateway, from_prometheus, redacted_url
    from headgate.cli.status import admin_url

    server: str | None = args.prometheus_url
    if server is not None:
        since_s: int = args.since or 86_400
        url = (server if "://" in server else f"http://{server}").rstrip("/")
        return f"last {_duration_text(since_s)}, from {redacted_url(url)}", await from_prometheus(url, f"{since_s}s")
    url = admin_url(args.url, args.config)
    if url is None:
        raise MeasurementFailed("the gateway's address is unknown; specify its admin listener with --url")
    samples, uptime_s = await from_gateway(url, admin_tls(url, args.config))
    return f"last {_duration_text(round(uptime_s))}, since the start of the gateway at {redacted_url(url)}", samples


def lines(over: str, made: "Sequence[ClassReport]") -> Iterator[str]:
    yield f"Objectives, {over}"
    if not made:
        yield "No class has objectives and there were no requests; set classes.NAME.objectives."
    for each in made:
        yield ""
        state = _OBJECTIVE_STATES[each.met]
        yield f"{each.name}: optimizes for {each.optimize_for}; objectives {state}; {each.requests:,} requests"
        if not each.results:
            yield "  no objectives; set classes.NAME.objectives"
        for finding in each.results:
            of = f"of {finding.requests:,}"
            yield f"  {_OBJECTIVE_STATES[finding.met]:9}  {finding.target}: measured {finding.measured} {of}"
        for name, words in each.tradeoffs:
            yield f"  {name:9}  {words}"


def _print_json(over: str, made: "Sequence[ClassReport]") -> None:
    import json

    classes = [asdict(each) | {"tradeoffs": dict(each.tradeoffs)} for each in made]
    print(json.dumps({"over": over, "classes": classes}, indent=2))


def _duration_text(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit and not seconds % unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
