"""How is a caller's key recognised without being stored?

The configuration holds HMAC-SHA256(secret, key). Whoever reads the file cannot call with what
stands there, and without the secret cannot even try guesses against it.
"""

import hashlib
import hmac
import re

PREFIX = "hmac-sha256:"

_DIGEST = re.compile(re.escape(PREFIX) + "([0-9a-f]{64})")


def digest(secret: bytes, key: str) -> bytes:
    """What is known of a key. Any text has a digest, so a malformed key is merely unknown."""
    return hmac.digest(secret, key.encode("utf-8", "surrogatepass"), hashlib.sha256)


def format_digest(known: bytes) -> str:
    """The digest as the configuration writes it."""
    return PREFIX + known.hex()


def parse_digest(text: str) -> bytes | None:
    """The digest that a configuration names, or None if the text is not one."""
    found = _DIGEST.fullmatch(text)
    return bytes.fromhex(found[1]) if found else None
