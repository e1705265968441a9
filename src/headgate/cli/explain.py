"""Why did this request wait, go where it went, or end as it did?"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.cli.gateway_explanation import Explanation

WIDTH = 80
"""Where nobody says how wide the terminal is."""
_WIDTH_MIN, _WIDTH_MAX = 60, 120
_WHAT_MAX = 30
_GAP = "  "
_TIMEOUT_S = 5.0
_MEASURE = re.compile(r"(\d) (?=m?s\b)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request_id", metavar="REQUEST_ID", help="the x-request-id of the answer, such as req_0123abcd")
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

    from headgate.cli.gateway_explanation import NotKnown
    from headgate.cli.gateway_status import NotAGateway
    from headgate.cli.status import admin_url

    if not _REQUEST_ID.fullmatch(args.request_id):
        hint = "it is in the header x-request-id of every answer, such as req_0123abcd"
        print(f"headgate: {args.request_id!r} is no request id; {hint}", file=sys.stderr)
        return 2
    url = admin_url(args.url, args.config)
    if url is None:
        return 1
    try:
        explanation, page = asyncio.run(_asked(url, args.request_id))
    except NotKnown as error:
        print(f"headgate: {_plain(str(error))}", file=sys.stderr)
        return 1
    except NotAGateway as error:
        hint = f"start one with `headgate serve {args.config}`, or name its admin listener with --admin"
        print(f"headgate: {error}; {hint}", file=sys.stderr)
        return 1
    print(page.decode().rstrip() if args.json else "\n".join(lines(explanation, _width())))
    return 0


async def _asked(url: str, request_id: str) -> "tuple[Explanation, bytes]":
    from headgate.cli.gateway_explanation import ask
    from headgate.engines.page import open_session

    async with open_session() as session:
        return await ask(session, url, request_id, timeout_s=_TIMEOUT_S)


# What people see


def lines(explanation: "Explanation", width: int = WIDTH) -> Iterator[str]:
    yield from _wrapped(explanation.summary, width)
    yield ""
    yield from _table(explanation, width)
    yield ""
    yield from _wrapped(f"It arrived at {explanation.arrived_at}; times count from there.", width)


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
