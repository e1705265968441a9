"""What did it cost, who pays, and what will it cost?

By a running gateway's admin listener. Amounts come as whole billionths of a dollar and are shown with as many digits as
make sense beside the largest of them; `--csv` and `--json` have all of them.
"""

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.cli.input.admin_request import NotDone, add_place, ask, failed, show_json
from headgate.cli.input.arguments import listed, tenant_path

_BY = ("tenant", "model", "class", "pool", "unit", "day")
_OF_REPORT = {"class": "service_class"} | {
    each: each for each in ("by", "since", "until", "tenant", "model", "key", "depth", "limit")
}
_TAKES = {
    "report": tuple(_OF_REPORT.values()),
    "request": ("request", "day"),
    "statement": ("month", "tenant"),
    "forecast": ("tenant",),
    "drift": ("day", "tenant"),
}
"""Which options each of them has."""
_ANSWER_S_MAX = 60.0
"""Longer than a gateway takes before it gives up by itself."""
_FIELDS = (*_OF_REPORT.values(), "request", "day", "month")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Times are UTC. A day is written 2026-11-15, a minute 2026-11-15T09:30; 7d is a week ago."
    parser.add_argument(
        "report",
        nargs="?",
        choices=("statement", "forecast", "drift"),
        metavar="REPORT",
        help="statement: what tenants are charged for a month; forecast: what this month will have cost when it ends;"
        " drift: why a day costs more, or less, than the seven before it; without any: what was spent, by --by",
    )
    parser.add_argument("--tenant", type=tenant_path, metavar="PATH", help="only this tenant, with all below it")
    parser.add_argument("--csv", action="store_true", help="print it as CSV, with every digit")
    add_place(parser)
    spent = parser.add_argument_group("what was spent")
    spent.add_argument("--by", choices=_BY, help="what a line stands for (tenant)")
    spent.add_argument("--key", metavar="NAME", help="with --by unit: which key of the metadata names it (ledger.unit)")
    beginning = "from here on (the beginning of the month; with --by unit, of the day)"
    spent.add_argument("--since", type=_moment, metavar="TIME", help=beginning)
    spent.add_argument("--until", type=_moment, metavar="TIME", help="up to here, and not in it (the end of today)")
    spent.add_argument("--class", dest="service_class", metavar="NAME", help="only this class")
    spent.add_argument("--model", metavar="NAME", help="only this model")
    spent.add_argument(
        "--depth", type=int, choices=(1, 2, 3), help="so many steps of a path make a line (one below --tenant)"
    )
    spent.add_argument("--limit", type=listed, metavar="N", help="so many lines at most (50)")
    spent.add_argument("--request", type=_request, metavar="ID", help="of one request instead, attempt by attempt")
    others = parser.add_argument_group("of other reports")
    others.add_argument("--month", type=_month, metavar="MONTH", help="of a statement, such as 2026-11 (this one)")
    others.add_argument(
        "--day", type=_day, metavar="DAY", help="of drift, such as 2026-11-15 (today); of an older --request"
    )


def run(args: argparse.Namespace) -> int:
    from headgate.cli.output import cost_csv, cost_tables

    if args.json and args.csv:
        print("headgate: --json and --csv are two ways to print the same; take one", file=sys.stderr)
        return 2
    try:
        name, answer = _ask(args)
    except NotDone as problem:
        return failed(problem)
    if args.json:
        show_json(answer)
    else:
        shown = cost_csv.lines(name, answer) if args.csv else cost_tables.lines(name, answer)
        print("\n".join(shown))
    return 0


def _ask(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    kind = args.report or ("request" if args.request is not None else "report")
    _check(args, kind)
    match kind:
        case "statement":
            month = args.month or datetime.now(UTC).strftime("%Y-%m")
            body = {"month": month, "tenant": args.tenant}
        case "forecast":
            body = {"tenant": args.tenant}
        case "drift":
            body = {"day": args.day, "tenant": args.tenant}
        case "request":
            body = {"request": args.request, "day": args.day}
        case _:
            body = {name: getattr(args, field) for name, field in _OF_REPORT.items()}
    return kind, ask(args, f"cost/{kind}", body, answer_s_max=_ANSWER_S_MAX)


def _check(args: argparse.Namespace, kind: str) -> None:
    """Nothing that is said is passed over."""
    for field in _FIELDS:
        if getattr(args, field) is not None and field not in _TAKES[kind]:
            option = "--class" if field == "service_class" else f"--{field}"
            able = ", ".join(
                f"{'headgate cost' if each == 'report' else each}" for each in _TAKES if field in _TAKES[each]
            )
            raise NotDone(f"{option} says nothing here; leave it out, or ask for what it is about: {able}")


def _moment(text: str) -> str:
    if ago := re.fullmatch(r"([0-9]{1,5})([dh])", text):
        number, unit = int(ago[1]), ago[2]
        # Days ago begin at midnight, so that their sums can be used.
        when = datetime.now(UTC) - (timedelta(days=number) if unit == "d" else timedelta(hours=number))
        return _of_our_time(when.strftime("%Y-%m-%d" if unit == "d" else "%Y-%m-%dT%H:%M"), text)
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M"):
        if (read := _read(text, form)) is not None:
            return _of_our_time(read, text)
    raise argparse.ArgumentTypeError(f'"{text}" is no time; write 2026-11-15, 2026-11-15T09:30, 7d or 24h')


def _day(text: str) -> str:
    if (read := _read(text, "%Y-%m-%d")) is not None:
        return _of_our_time(read, text)
    raise argparse.ArgumentTypeError(f'"{text}" is no day; write it as 2026-11-15')


def _month(text: str) -> str:
    if (read := _read(text, "%Y-%m")) is not None:
        return _of_our_time(read, text)
    raise argparse.ArgumentTypeError(f'"{text}" is no month; write it as 2026-11')


def _read(text: str, form: str) -> str | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).strftime(form)
    except ValueError:
        return None


def _of_our_time(read: str, text: str) -> str:
    if not read.startswith("20"):
        raise argparse.ArgumentTypeError(f'"{text}" is in no ledger; write a time from 2000 to 2099')
    return read


def _request(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9_-]{1,128}", text):
        raise argparse.ArgumentTypeError(f'"{text}" is no id of a request; write what x-request-id of its answer says')
    return text
