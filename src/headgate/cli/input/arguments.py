"""Is what stands on the command line something that a gateway takes?

What is plainly wrong is told here, in words, before anybody is asked. What only the gateway knows it tells itself.
"""

import argparse
import re
from typing import Final

LISTED_MAX: Final = 1_000
_STEP: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAMES: Final = "each of letters, digits, `.`, `_` and `-`"


def tenant_path(text: str) -> str:
    if not re.fullmatch(rf"{_STEP}(/{_STEP}){{0,2}}", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is no path of a tenant; write one to three names with / between them, {_NAMES}'
        )
    return text


def key_path(text: str) -> str:
    if not re.fullmatch(rf"{_STEP}/{_STEP}/{_STEP}", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is no path of a key; write ORGANISATION/PROJECT/KEY, {_NAMES}, such as acme/search/web'
        )
    return text


def listed(text: str) -> int:
    """How many of something are shown."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= LISTED_MAX):
        raise argparse.ArgumentTypeError(f'"{text}" cannot be shown at once; write a number from 1 to {LISTED_MAX}')
    return int(text)


def dollars(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text):
        raise argparse.ArgumentTypeError(f'"{text}" is no amount; write a plain number of dollars, such as 100 or 2.5')
    return text
