"""Was the promise of each class kept, and what did that cost in the other two?

With a Prometheus, over a time and of all gateways; else of one gateway, since its start.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.slo.measured import Sample
    from headgate.slo.report import ClassReport

_KEPT = {True: "kept", False: "NOT KEPT", None: "not known"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from headgate.cli.input.admin_request import length_s

    parser.epilog = "The exit code is 1 where a promise was not kept."
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="what promises (headgate.yaml)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--gateway", metavar="URL", help="the admin listener of a gateway, instead of the file's")
    source.add_argument("--prometheus", metavar="URL", help="ask this Prometheus instead, about all gateways")
    parser.add_argument(
        "--since", type=length_s, metavar="LENGTH", help="with --prometheus: how far back, such as 90m or 7d (24h)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.output.measurements import NotMeasured
    from headgate.cli.output.promises import promises_in
    from headgate.slo.measured import measured
    from headgate.slo.report import report

    if args.since is not None and args.prometheus is None:
        print("headgate: a gateway tells only since its start; name a Prometheus for --since", file=sys.stderr)
        return 2
    promises = promises_in(args.file)
    if promises is None:
        return 1
    try:
        over, samples = asyncio.run(_samples(args))
    except NotMeasured as problem:
        print(f"headgate: {problem}", file=sys.stderr)
        return 1
    made = report(promises, measured(samples))
    if args.json:
        _print_json(over, made)
    else:
        print("\n".join(lines(over, made)))
    return 1 if any(each.kept is False for each in made) else 0


async def _samples(args: argparse.Namespace) -> "tuple[str, list[Sample]]":
    from headgate.cli.output.measurements import NotMeasured, of_gateway, of_prometheus, shown
    from headgate.cli.status import admin_url

    if args.prometheus is not None:
        since_s: int = args.since or 86_400
        url = (args.prometheus if "://" in args.prometheus else f"http://{args.prometheus}").rstrip("/")
        return f"over the last {_length(since_s)}, by {shown(url)}", await of_prometheus(url, f"{since_s}s")
    url = admin_url(args.gateway, args.file)
    if url is None:
        raise NotMeasured("the file does not say where the gateway is; name its admin listener by --gateway")
    samples, uptime_s = await of_gateway(url)
    return f"over the last {_length(round(uptime_s))}, since the gateway at {shown(url)} started", samples


def lines(over: str, made: "Sequence[ClassReport]") -> Iterator[str]:
    yield f"What was promised, and what became of it, {over}"
    if not made:
        yield "no class promises anything in figures, and nobody asked; write classes.NAME.objectives"
    for each in made:
        yield ""
        yield f"{each.name}: promises {each.promise}, {_KEPT[each.kept]}; {each.requests:,} requests"
        if not each.findings:
            yield "  nothing is promised in figures; write classes.NAME.objectives"
        for finding in each.findings:
            of = f"of {finding.requests:,}"
            yield f"  {_KEPT[finding.kept]:9}  {finding.promised}: measured {finding.measured} {of}"
        for name, words in each.consequences:
            yield f"  {name:9}  {words}"


def _print_json(over: str, made: "Sequence[ClassReport]") -> None:
    import json

    classes = [asdict(each) | {"consequences": dict(each.consequences)} for each in made]
    print(json.dumps({"over": over, "classes": classes}, indent=2))


def _length(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit and not seconds % unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
