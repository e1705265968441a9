"""Show why a request waited, where it went or why it was rejected, or list requests by their properties."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_gateway

if TYPE_CHECKING:
    import ssl

    from headgate.cli.output.explanation import Explanation, RequestList

WIDTH = 80
"""Line width if the output does not go to a terminal."""
_WIDTH_MIN, _WIDTH_MAX = 60, 120
_WHAT_MAX = 30
_GAP = "  "
_TIMEOUT_S = 8.0
_TIME_CHARS = 8
"""Length of HH:MM:SS."""
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_MEASURE = re.compile(r"(\d) (?=m?s\b)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "request_id", metavar="REQUEST_ID", nargs="?", help="x-request-id of the response, such as req_0123abcd."
    )
    filters = parser.add_argument_group("filters for listing requests (without REQUEST_ID)")
    filters.add_argument("--tenant", metavar="NAME", help="Tenant (default: all).")
    filters.add_argument("--class", dest="service_class", metavar="NAME", help="Class (default: all).")
    filters.add_argument("--outcome", metavar="NAME", help="Outcome, such as completed or shed (default: all).")
    filters.add_argument(
        "--since", metavar="TIME", help="Earliest arrival: an age such as 10m, or a timestamp (default 1h)."
    )
    filters.add_argument("--until", metavar="TIME", help="Latest arrival (default: now).")
    filters.add_argument(
        "--slower-than",
        dest="slower",
        metavar="DURATION",
        type=_milliseconds,
        help="Minimum duration, such as 2s (default: none).",
    )
    filters.add_argument("--limit", metavar="N", help="Maximum number of requests, newest first (default 20).")
    add_gateway(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.input.admin_tls import admin_tls
    from headgate.cli.output.explanation import InvalidQuery, RequestNotFound
    from headgate.cli.output.status import GatewayNotFound
    from headgate.cli.status import admin_url, start_hint

    query = _query(args)
    if (args.request_id is None) is not bool(query):
        print("headgate: give either a request id or filters such as --since 10m", file=sys.stderr)
        return 2
    if args.request_id is not None and not _REQUEST_ID.fullmatch(args.request_id):
        hint = "use the x-request-id header of the response, such as req_0123abcd"
        print(f"headgate: {args.request_id!r} is not a request id; {hint}", file=sys.stderr)
        return 2
    url = admin_url(args.url, args.config)
    if url is None:
        return 1
    tls = admin_tls(url, args.config)
    try:
        shown, page = asyncio.run(
            _search_requests(url, tls, query)
            if args.request_id is None
            else _explain_request(url, tls, args.request_id)
        )
    except (InvalidQuery, RequestNotFound) as error:
        print(f"headgate: {_printable(str(error))}", file=sys.stderr)
        return 1
    except GatewayNotFound as error:
        print(f"headgate: {error}; {start_hint(args.config, str(error))}", file=sys.stderr)
        return 1
    print(page.decode().rstrip() if args.json else "\n".join(shown))
    return 0


def _query(args: argparse.Namespace) -> dict[str, str]:
    asked = {
        "tenant": args.tenant,
        "class": args.service_class,
        "outcome": args.outcome,
        "since": args.since,
        "until": args.until,
        "min_duration_ms": args.slower,
        "limit": args.limit,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


def _milliseconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    length = 0 if found is None else round(float(found[1]) * _UNIT_MS[found[2]])
    if length < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a duration; use a number with a unit, such as 500ms or 1.5m')
    return length


async def _explain_request(url: str, tls: "ssl.SSLContext | None", request_id: str) -> "tuple[Iterator[str], bytes]":
    from headgate.cli.output.explanation import fetch_explanation
    from headgate.engines.page import open_session

    async with open_session(tls=tls) as session:
        explanation, page = await fetch_explanation(session, url, request_id, timeout_s=_TIMEOUT_S)
        return lines(explanation, _width()), page


async def _search_requests(
    url: str, tls: "ssl.SSLContext | None", query: dict[str, str]
) -> "tuple[Iterator[str], bytes]":
    from headgate.cli.output.explanation import search
    from headgate.engines.page import open_session

    async with open_session(tls=tls) as session:
        found, page = await search(session, url, query)
        return request_list_lines(found, _width(), truncate=sys.stdout.isatty()), page


# Text output


def lines(explanation: "Explanation", width: int = WIDTH) -> Iterator[str]:
    yield from _wrapped(explanation.summary, width)
    yield ""
    if explanation.stages:
        yield from _stages(explanation, width)
        yield ""
    yield from _table(explanation, width)
    yield ""
    told = f" Recorded by cell member {explanation.reported_by}." if explanation.reported_by else ""
    yield from _wrapped(f"Times are relative to the arrival at {explanation.arrived_at}.{told}", width)


def _stages(explanation: "Explanation", width: int) -> Iterator[str]:
    from headgate.cli.output.stage_bars import OVER_BUDGET, bars, lateness

    drawn = list(bars(explanation.stages, explanation.budget, width))
    yield from drawn
    if any(OVER_BUDGET in line for line in drawn):
        yield f"{OVER_BUDGET} marks time beyond the stage budget."
    for sentence in lateness(explanation.missed_targets, explanation.budget):
        yield from _wrapped(sentence, width)
    if explanation.caller_stages:
        told = ", ".join(f"{each.stage} {each.duration_ms / 1000:.3f} s" for each in explanation.caller_stages)
        yield from _wrapped(f"Stages before the request, reported by the client: {told}.", width)


def request_list_lines(found: "RequestList", width: int = WIDTH, *, truncate: bool = False) -> Iterator[str]:
    """The day, followed by two lines per request: its properties and the time it spent in each stage.

    With `truncate`, properties that do not fit on the line are cut off. Programs that read the output need all of them.
    """
    from headgate.cli.output.stage_bars import legend, line_bar

    if not found.requests:
        yield "No request matches."
    slowest_ms, today = max((each.total_ms for each in found.requests), default=0.0), ""
    for each in found.requests:
        day, _, moment = _printable(each.arrived_at).partition("T")
        if day != today:
            today = day
            yield f"{day} (UTC)"
        facts = (each.outcome, each.service_class, each.tenant)
        told = _GAP.join(_printable(fact or "-") for fact in facts)
        head = (
            f"{moment[:_TIME_CHARS]}{_GAP}{_printable(each.request_id)}{_GAP}{each.total_ms / 1000:.3f} s{_GAP}{told}"
        )
        yield head[:width] if truncate else head
        yield f"{_GAP}{line_bar(each, slowest_ms=slowest_ms, room=width - len(_GAP))}".rstrip()
    if found.requests:
        yield ""
        yield from _wrapped(legend(), width)
    if not found.complete:
        incomplete = "the search timed out, or older records are no longer kept; records.directory keeps them longer"
        yield from _wrapped(f"The list may be incomplete: {incomplete}.", width)
    if found.unreachable_members:
        yield from _wrapped(f"No response from: {', '.join(found.unreachable_members)}.", width)


def _table(explanation: "Explanation", width: int) -> Iterator[str]:
    rows = [("SECONDS", "EVENT", "REASON")]
    rows.extend((f"{step.at_ms / 1000:.3f}", step.event, step.reason) for step in explanation.steps)
    when_width = max(len(when) for when, _, _ in rows)
    what_width = min(max(len(what) for _, what, _ in rows), _WHAT_MAX)
    why_width = width - when_width - what_width - 2 * len(_GAP)
    for when, what, why in rows:
        left, right = _wrapped(what, what_width), _wrapped(why, why_width)
        for line in range(max(len(left), len(right))):
            cells = (
                (when if line == 0 else "").rjust(when_width),
                (left[line] if line < len(left) else "").ljust(what_width),
                right[line] if line < len(right) else "",
            )
            yield _GAP.join(cells).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    from textwrap import wrap

    # Keep each number on the same line as its unit.
    bound = _MEASURE.sub("\\1\u00a0", _printable(text))
    return [line.replace("\u00a0", " ") for line in wrap(bound, width, break_on_hyphens=False)]


def _printable(text: str) -> str:
    """Model and class names come from clients, so control characters are removed from them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _width() -> int:
    if not sys.stdout.isatty():
        return WIDTH
    return max(_WIDTH_MIN, min(shutil.get_terminal_size((WIDTH, 24)).columns, _WIDTH_MAX))
