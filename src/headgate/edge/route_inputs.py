"""Adds the parts of a request that routes need to its ticket.

Sticky keys can name people, so only their hashes leave this module.
"""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from headgate.model.routes import SESSION_HEADER, STICKY_CHARS_MAX, RouteInputs, Sticky
from headgate.model.ticket import Ticket
from headgate.wire.request_body import RequestBody

_SESSION_HEADER = SESSION_HEADER.encode()
_HASH_BYTES = 16


def with_route_inputs(ticket: Ticket, body: RequestBody, headers: Mapping[bytes, bytes], inputs: RouteInputs) -> Ticket:
    """Returns the ticket with the configured headers and the hashed sticky keys. Longer values are left out."""
    found: list[tuple[str, str]] = []
    for name in inputs.headers:
        value = headers.get(name.encode("latin-1"))
        if value is not None and len(value) <= STICKY_CHARS_MAX:
            found.append((name, value.decode("latin-1")))
    keys: list[tuple[str, str]] = []
    if Sticky.USER in inputs.sticky and (user := body.short_text("user", STICKY_CHARS_MAX)):
        keys.append((Sticky.USER.value, _hashed(user)))
    if Sticky.SESSION in inputs.sticky:
        sent = headers.get(_SESSION_HEADER, b"")
        session = sent.decode("latin-1") if 0 < len(sent) <= STICKY_CHARS_MAX else ""
        if session := session or body.short_text("prompt_cache_key", STICKY_CHARS_MAX):
            keys.append((Sticky.SESSION.value, _hashed(session)))
    return replace(ticket, route_headers=tuple(found), sticky_keys=tuple(keys)) if found or keys else ticket


def _hashed(key: str) -> str:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).hexdigest()
