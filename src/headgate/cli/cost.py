"""Show costs, statements, forecasts and cost drift, through a running gateway's admin listener.

Amounts are integer billionths of a dollar. Tables round amounts to a precision that is meaningful next to the largest
one. `--csv` and `--json` show all digits.
"""

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.cli.input.admin_request import AdminRequestFailed, call_admin_api, print_failure, print_json
from headgate.cli.input.argument_types import add_gateway, page_size, tenant_path

_BY = ("tenant", "model", "class", "pool", "unit", "day")
_REPORT_PARAMETERS = {"class": "service_class", "key": "unit_key"} | {
    each: each for each in ("by", "since", "until", "tenant", "model", "depth", "limit")
}
_OPTIONS_BY_REPORT = {
    "report": tuple(_REPORT_PARAMETERS.values()),
    "request": ("request", "day"),
    "statement": ("month", "tenant"),
    "forecast": ("tenant",),
    "drift": ("day", "tenant"),
}
"""Options that each report supports."""
_RESPONSE_TIMEOUT_S = 60.0
"""Response timeout. Longer than the gateway's own timeout."""
_STATUS_TIMEOUT_S = 2.0
_FIELDS = (*_REPORT_PARAMETERS.values(), "request", "day", "month")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Times are UTC: 2026-11-15, 2026-11-15T09:30, or 7d for a week ago. A month is 2026-11."
    parser.add_argument(
        "report",
        nargs="?",
        choices=("statement", "forecast", "drift"),
        metavar="REPORT",
        help="statement: charges for a month; forecast: expected cost for this month; drift: causes of a cost change "
        "compared with the previous seven days (default: cost by --by).",
    )
    parser.add_argument(
        "--tenant", type=tenant_path, metavar="PATH", help="Tenant, including its descendants (default: all)."
    )
    parser.add_argument("--csv", action="store_true", help="Print CSV with full precision.")
    add_gateway(parser)
    spent = parser.add_argument_group("cost")
    spent.add_argument("--by", choices=_BY, help="Grouping (default tenant).")
    spent.add_argument("--unit-key", metavar="NAME", help="Metadata key for --by unit (default: ledger.unit_key).")
    spent.add_argument(
        "--since",
        type=_timestamp,
        metavar="TIME",
        help="Start of the range (default: start of the month; with --by unit, of the day).",
    )
    spent.add_argument(
        "--until", type=_timestamp, metavar="TIME", help="End of the range, exclusive (default: end of today)."
    )
    spent.add_argument("--class", dest="service_class", metavar="NAME", help="Class (default: all).")
    spent.add_argument("--model", metavar="NAME", help="Model (default: all).")
    spent.add_argument(
        "--depth", type=int, choices=(1, 2, 3), help="Path levels per row (default: one below --tenant)."
    )
    spent.add_argument("--limit", type=page_size, metavar="N", help="Maximum number of rows (default 50).")
    spent.add_argument(
        "--request", type=_request, metavar="ID", help="Request to break down by attempt (default: none)."
    )
    others = parser.add_argument_group("other reports")
    others.add_argument("--month", type=_month, metavar="MONTH", help="Month for a statement (default: this month).")
    others.add_argument(
        "--day", type=_day, metavar="DAY", help="Day for drift (default: today), or for an older --request."
    )


def run(args: argparse.Namespace) -> int:
    from headgate.cli.output import cost_csv, cost_tables

    if args.json and args.csv:
        print("headgate: --json and --csv are mutually exclusive; choose one", file=sys.stderr)
        return 2
    try:
        name, answer = _ask(args)
    except AdminRequestFailed as problem:
        return print_failure(problem)
    if args.json:
        print_json(answer)
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
            body = {name: getattr(args, field) for name, field in _REPORT_PARAMETERS.items()}
    try:
        return kind, call_admin_api(args, f"cost/{kind}", body, response_timeout_s=_RESPONSE_TIMEOUT_S)
    except AdminRequestFailed as problem:
        # An operator key or another path would not help if the gateway has no database.
        if str(problem) and (url := _gateway_without_database(args)) is not None:
            missing = "cost reports need `database` and `ledger` in the gateway's configuration"
            raise AdminRequestFailed(f"{missing}; see {url}/docs/concepts/cost") from None
        raise


def _gateway_without_database(args: argparse.Namespace) -> str | None:
    """Admin URL of the gateway if it is running and has no database, and otherwise None."""
    import asyncio

    from headgate.cli.input.admin_tls import admin_tls
    from headgate.cli.output.status import GatewayNotFound, fetch_status
    from headgate.cli.status import admin_url
    from headgate.engines.page import open_session

    async def has_database(url: str) -> bool:
        async with open_session(tls=admin_tls(url, args.config)) as session:
            status, _ = await fetch_status(session, url, timeout_s=_STATUS_TIMEOUT_S)
            return status.database is not None

    url = admin_url(args.url, args.config)
    try:
        return None if url is None or asyncio.run(has_database(url)) else url
    except GatewayNotFound:
        return None


def _check(args: argparse.Namespace, kind: str) -> None:
    """Raises `AdminRequestFailed` if an option has no effect on this report."""
    for field in _FIELDS:
        if getattr(args, field) is not None and field not in _OPTIONS_BY_REPORT[kind]:
            option = "--class" if field == "service_class" else f"--{field.replace('_', '-')}"
            able = ", ".join(
                f"{'headgate cost' if each == 'report' else each}"
                for each in _OPTIONS_BY_REPORT
                if field in _OPTIONS_BY_REPORT[each]
            )
            raise AdminRequestFailed(f"{option} has no effect here; remove it, or use it with: {able}")


def _timestamp(text: str) -> str:
    if ago := re.fullmatch(r"([0-9]{1,5})([dh])", text):
        number, unit = int(ago[1]), ago[2]
        # Days start at midnight, so that daily totals can be used.
        when = datetime.now(UTC) - (timedelta(days=number) if unit == "d" else timedelta(hours=number))
        return _checked_year(when.strftime("%Y-%m-%d" if unit == "d" else "%Y-%m-%dT%H:%M"), text)
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M"):
        if (read := _read(text, form)) is not None:
            return _checked_year(read, text)
    raise argparse.ArgumentTypeError(f'"{text}" is not a time; use 2026-11-15, 2026-11-15T09:30, 7d or 24h')


def _day(text: str) -> str:
    if (read := _read(text, "%Y-%m-%d")) is not None:
        return _checked_year(read, text)
    raise argparse.ArgumentTypeError(f'"{text}" is not a day; use the form 2026-11-15')


def _month(text: str) -> str:
    if (read := _read(text, "%Y-%m")) is not None:
        return _checked_year(read, text)
    raise argparse.ArgumentTypeError(f'"{text}" is not a month; use the form 2026-11')


def _read(text: str, form: str) -> str | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).strftime(form)
    except ValueError:
        return None


def _checked_year(read: str, text: str) -> str:
    if not read.startswith("20"):
        raise argparse.ArgumentTypeError(f'"{text}" is out of range; use a time from 2000 to 2099')
    return read


def _request(text: str) -> str:
    if not re.fullmatch("[A-Za-z0-9_-]{1,128}", text):
        raise argparse.ArgumentTypeError(f'"{text}" is not a request id; use the x-request-id of the response')
    return text
