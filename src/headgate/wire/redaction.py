"""Removes the gateway's own key from the texts of an engine, which may repeat it in error messages.

The key is also recognized if line breaks or other whitespace split it, or if its characters are escaped as in JSON. A
text may end inside the key, because the engine or the gateway has cut it. The beginning of the key is then removed too.
"""

import re
from typing import Final

_MASK: Final = "***"
_SHOWN_CHARS_MAX: Final = 3
"""Maximum length of the beginning of the key that may remain at the end of a text. It may be there by chance."""
_PLAIN: Final = re.compile(r"\\u([0-9a-fA-F]{4})|\\([nrt/])|(\s)|(.)", re.DOTALL)
"""One character of a text, possibly escaped as in JSON."""
_ESCAPED_CHARS_MAX: Final = 8
"""Length of the tail that is searched for the beginning of the key, per character of the key. An escaped character
takes 6, and some whitespace may split the key.
"""
_GAP: Final = r"(?:\s|\\[nrt])*"
"""Whitespace that may split the key, also as an escape in JSON."""


def redacted(text: str, key: str) -> str:
    """Returns the text without the key."""
    letters = "".join(key.split())
    if not letters:
        return text
    # The pattern is compiled once, because `re` caches patterns.
    return _without_cut_key(re.sub(_GAP.join(map(_pattern, letters)), _MASK, text), letters)


def redacted_body(body: bytes, key: str) -> bytes:
    """Like `redacted`, for a body in any format."""
    # Latin-1 has a character for each byte.
    return redacted(body.decode("latin-1"), key.encode().decode("latin-1")).encode("latin-1") if key else body


def _pattern(character: str) -> str:
    """Returns a pattern for a character of the key."""
    escapes = rf"|\\u(?i:{ord(character):04x})" + (r"|\\/" if character == "/" else "")
    return f"(?:{re.escape(character)}{escapes})"


def _without_cut_key(text: str, letters: str) -> str:
    """Removes the beginning of the key at the end of a text."""
    offset = max(0, len(text) - _ESCAPED_CHARS_MAX * len(letters))
    plain, starts = "", list[int]()
    for each in _PLAIN.finditer(text, offset):
        code, escape, gap, character = each.groups()
        if gap is None and escape in {None, "/"}:
            plain += chr(int(code, 16)) if code else escape or character
            starts.append(each.start())
    for length in range(min(len(letters) - 1, len(plain)), _SHOWN_CHARS_MAX, -1):
        if plain.endswith(letters[:length]):
            return text[: starts[-length]] + _MASK
    return text
