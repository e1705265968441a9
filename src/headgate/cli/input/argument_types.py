"""Arguments shared by several commands, and argparse types for values that a gateway accepts.

Values that are obviously invalid are rejected here, before any request is sent. The gateway checks the rest.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

CONFIG_FILE: Final = Path("headgate.yaml")
PAGE_SIZE_MAX: Final = 1_000
_STEP: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAMES: Final = "each of letters, digits, `.`, `_` and `-`"


def add_config(parser: argparse.ArgumentParser, what: str = "Configuration file") -> None:
    parser.add_argument(
        "--config", type=Path, default=CONFIG_FILE, metavar="FILE", help=f"{what} (default {CONFIG_FILE})."
    )


def add_url(parser: "argparse.ArgumentParser | argparse._MutuallyExclusiveGroup", note: str = "") -> None:  # pyright: ignore[reportPrivateUsage]
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"The gateway's admin listener{note} (default: HEADGATE_ADMIN_URL, then admin_listen in --config).",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON output.")


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """Adds the options shared by all commands that print a running gateway's response."""
    add_config(parser)
    add_url(parser)
    add_json(parser)


def add_actions(parser: argparse.ArgumentParser) -> Callable[[str, str], argparse.ArgumentParser]:
    """Returns a function that adds one action, given its name and purpose."""
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def add(name: str, purpose: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=purpose, description=purpose)

    return add


def add_page(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the pagination options."""
    parser.add_argument(
        "--under", type=tenant_path, metavar="PATH", help="List only this tenant and its descendants (default: all)."
    )
    parser.add_argument("--after", default="", metavar="PATH", help="Last path on the previous page (default: none).")
    parser.add_argument(
        "--limit", type=page_size, default=100, metavar="N", help=f"Maximum number of {what} (default 100)."
    )


def tenant_path(text: str) -> str:
    if not re.fullmatch(rf"{_STEP}(/{_STEP}){{0,2}}", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a tenant path; use one to three names separated by /, {_NAMES}'
        )
    return text


def key_path(text: str) -> str:
    if not re.fullmatch(rf"{_STEP}/{_STEP}/{_STEP}", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a key path; use ORGANISATION/PROJECT/KEY, {_NAMES}, such as acme/search/web'
        )
    return text


def page_size(text: str) -> int:
    """Rows per page."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= PAGE_SIZE_MAX):
        raise argparse.ArgumentTypeError(f'"{text}" is not a valid limit; use a number from 1 to {PAGE_SIZE_MAX}')
    return int(text)


def dollars(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not an amount; use a plain number of dollars, such as 100 or 2.5'
        )
    return text


def duration(text: str) -> int:
    """Parses a duration in configuration file notation into nanoseconds."""
    from headgate.config import quantities

    try:
        length = quantities.duration(text)
    except quantities.InvalidQuantity as expected:
        raise argparse.ArgumentTypeError(f'expected {expected}, not "{text}"') from None
    if length <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0s, not {text}")
    return length


def whole_number(text: str) -> int:
    from headgate.config import quantities

    try:
        return quantities.whole_number(text)
    except quantities.InvalidQuantity as expected:
        raise argparse.ArgumentTypeError(f'expected {expected}, such as 7, not "{text}"') from None


def count(text: str) -> int:
    """Parses a whole number of at least 1."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def number(text: str) -> float:
    """Parses a number. NaN and infinity are rejected by the limits of the caller."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected a number, such as 1.5, not "{text}"') from None
