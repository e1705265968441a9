"""Why did this request wait, go where it went, or end as it did; and which requests did?"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.cli.output.explanation import Explanation, FoundRequests

WIDTH = 80
"""Where nobody says how wide the terminal is."""
_WIDTH_MIN, _WIDTH_MAX = 60, 120
_WHAT_MAX = 30
_GAP = "  "
_TIMEOUT_S = 8.0
_TIME_CHARS = 8
"""Of a moment, hours to seconds."""
_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)")
_LENGTHS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_MEASURE = re.compile(r"(\d) (?=m?s\b)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "request_id", metavar="REQUEST_ID", nargs="?", help="the x-request-id of the answer, such as req_0123abcd"
    )
    which_requests = parser.add_argument_group("instead of one request, a list of those")
    which_requests.add_argument("--tenant", metavar="NAME", help="of this tenant")
    which_requests.add_argument("--class", dest="service_class", metavar="NAME", help="of this class")
    which_requests.add_argument("--outcome", metavar="NAME", help="that ended so, such as completed or shed")
    which_requests.add_argument("--since", metavar="WHEN", help="that came since 10m ago, or a moment (1h)")
    which_requests.add_argument("--until", metavar="WHEN", help="that came before that")
    which_requests.add_argument("--slower", metavar="LENGTH", type=_milliseconds, help="that took longer, such as 2s")
    which_requests.add_argument("--limit", metavar="NUMBER", help="so many at most, the newest first (20)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--config",
        default=Path("headgate.yaml"),
        type=Path,
        metavar="FILE",
        help="the gateway's configuration (headgate.yaml)",
    )
    which.add_argument(
        "--admin",
        "--url",
        dest="url",
        metavar="URL",
        help="its admin listener, such as http://127.0.0.1:9090, instead of the file's",
    )
    parser.add_argument("--json", action="store_true", help="print what the gateway said as it is")


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.output.explanation import NotAsked, NotKnown
    from headgate.cli.output.status import NotAGateway
    from headgate.cli.status import admin_url

    query = _query(args)
    if (args.request_id is None) is not bool(query):
        print("headgate: name one request by its id, or ask for many, such as --since 10m", file=sys.stderr)
        return 2
    if args.request_id is not None and not _REQUEST_ID.fullmatch(args.request_id):
        hint = "it is in the header x-request-id of every answer, such as req_0123abcd"
        print(f"headgate: {args.request_id!r} is no request id; {hint}", file=sys.stderr)
        return 2
    url = admin_url(args.url, args.config)
    if url is None:
        return 1
    try:
        shown, page = asyncio.run(_searched(url, query) if args.request_id is None else _asked(url, args.request_id))
    except (NotAsked, NotKnown) as error:
        print(f"headgate: {_plain(str(error))}", file=sys.stderr)
        return 1
    except NotAGateway as error:
        hint = f"start one with `headgate serve {args.config}`, or name its admin listener with --admin"
        print(f"headgate: {error}; {hint}", file=sys.stderr)
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
        "slower_ms": args.slower,
        "limit": args.limit,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


def _milliseconds(text: str) -> int:
    found = _LENGTH.fullmatch(text)
    length = 0 if found is None else round(float(found[1]) * _LENGTHS_MS[found[2]])
    if length < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no length of time; write one such as 500ms, 2s or 1.5m')
    return length


async def _asked(url: str, request_id: str) -> "tuple[Iterator[str], bytes]":
    from headgate.cli.output.explanation import ask
    from headgate.engines.page import open_session

    async with open_session() as session:
        explanation, page = await ask(session, url, request_id, timeout_s=_TIMEOUT_S)
        return lines(explanation, _width()), page


async def _searched(url: str, query: dict[str, str]) -> "tuple[Iterator[str], bytes]":
    from headgate.cli.output.explanation import search
    from headgate.engines.page import open_session

    async with open_session() as session:
        found, page = await search(session, url, query)
        return listed(found, _width()), page


# What people see


def lines(explanation: "Explanation", width: int = WIDTH) -> Iterator[str]:
    yield from _wrapped(explanation.summary, width)
    yield ""
    if explanation.stages:
        yield from _stages(explanation, width)
        yield ""
    yield from _table(explanation, width)
    yield ""
    told = f" This is told by {explanation.told_by} of its cell." if explanation.told_by else ""
    yield from _wrapped(f"It arrived at {explanation.arrived_at}; times count from there.{told}", width)


def _stages(explanation: "Explanation", width: int) -> Iterator[str]:
    from headgate.cli.output.stage_bars import BEYOND, bars, lateness

    drawn = list(bars(explanation.stages, explanation.budget, width))
    yield from drawn
    if any(BEYOND in line for line in drawn):
        yield f"{BEYOND} is time beyond the budget of the stage."
    for sentence in lateness(explanation.late, explanation.budget):
        yield from _wrapped(sentence, width)
    if explanation.caller_stages:
        told = ", ".join(f"{each.stage} {each.took_ms / 1000:.3f} s" for each in explanation.caller_stages)
        yield from _wrapped(f"Its caller says of itself, before it asked: {told}.", width)


def listed(found: "FoundRequests", width: int = WIDTH) -> Iterator[str]:
    """The day, then two lines for each: what it was, and where its time went."""
    from headgate.cli.output.stage_bars import legend, line_bar

    if not found.requests:
        yield "No such request is known."
    slowest_ms, today = max((each.total_ms for each in found.requests), default=0.0), ""
    for each in found.requests:
        day, _, moment = _plain(each.arrived_at).partition("T")
        if day != today:
            today = day
            yield f"{day} (UTC)"
        facts = (each.outcome, each.service_class, each.tenant)
        told = _GAP.join(_plain(fact or "-") for fact in facts)
        head = f"{moment[:_TIME_CHARS]}{_GAP}{_plain(each.request_id)}{_GAP}{each.total_ms / 1000:.3f} s{_GAP}{told}"
        yield head[:width]
        yield f"{_GAP}{line_bar(each, slowest_ms=slowest_ms, room=width - len(_GAP))}".rstrip()
    if found.requests:
        yield ""
        yield from _wrapped(legend(), width)
    if not found.whole:
        incomplete = "the search ran out of time, or older records are no longer kept (records.folder keeps them)"
        yield from _wrapped(f"There may be more: {incomplete}.", width)
    if found.not_heard:
        yield from _wrapped(f"Not heard: {', '.join(found.not_heard)}.", width)


def _table(explanation: "Explanation", width: int) -> Iterator[str]:
    rows = [("SECONDS", "WHAT", "WHY")]
    rows.extend((f"{step.at_ms / 1000:.3f}", step.what, step.why) for step in explanation.steps)
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

    # A number stays with its unit.
    bound = _MEASURE.sub("\\1\u00a0", _plain(text))
    return [line.replace("\u00a0", " ") for line in wrap(bound, width, break_on_hyphens=False)]


def _plain(text: str) -> str:
    """Callers name models and classes; what they name must not command the operator's terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _width() -> int:
    if not sys.stdout.isatty():
        return WIDTH
    return max(_WIDTH_MIN, min(shutil.get_terminal_size((WIDTH, 24)).columns, _WIDTH_MAX))
