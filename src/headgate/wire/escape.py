"""Escapes text from clients and engines for logs and terminals."""

import re
from typing import Final

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters, line separators, invisible and bidirectional formatting, and lone surrogates."""
_CUT: Final = "…"


def printable(text: str, chars_max: int) -> str:
    """Returns the text on one line, truncated to `chars_max` and with control characters escaped."""
    if len(text) > chars_max:
        text = text[: chars_max - 1] + _CUT
    return _UNPRINTABLE.sub(_escaped, text)


def escaped(text: str) -> str:
    """Returns the complete text on one line, with control characters escaped."""
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
