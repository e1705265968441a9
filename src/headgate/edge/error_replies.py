"""Error responses and response headers. Outcomes are converted to HTTP only in this module.

Every error message ends with the outcome and the address of its documentation page.
"""

import re
from dataclasses import dataclass

from headgate.core.commands import End
from headgate.edge.client import Headers
from headgate.edge.pages.served import ERROR_PAGES
from headgate.model.limits import LimitsLeft
from headgate.model.outcome import HTTP_REPLIES, STREAM_INTERRUPTED, Outcome, RetryAfter
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, ModelName
from headgate.wire.openai_bodies import error_body
from headgate.wire.sse import error_event

JSON_HEADER = (b"content-type", b"application/json")
# Clients may request models by any name, but some characters are not valid in a header.
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_MODEL_CHARS_MAX = 256
UNKNOWN_URL = "unknown_url"
"""Error code for an unknown path. The outcome is `invalid`."""
INTERRUPTED_OUTCOMES = (Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.INTERNAL_ERROR)
"""Outcomes that are reported as an interrupted stream after the first byte has been sent."""


def routing_headers(  # noqa: PLR0917 (keyword arguments make the call slower)
    service_class: ClassName | None,
    model: ModelName,
    waited_ns: Duration,
    attempts: int,
    degraded: tuple[str, ...] = (),
    limits: LimitsLeft | None = None,
    held_ns: Duration = Duration(0),
) -> Headers:
    """Returns response headers for routing, queue time, degradation, and the tenant's remaining rate limits."""
    headers: Headers = [
        (b"x-headgate-model", _header_text(model)[:_MODEL_CHARS_MAX]),
        (b"x-headgate-queue-ms", b"%d" % (waited_ns // MILLISECOND)),
        (b"x-headgate-attempts", b"%d" % attempts),
        (b"x-headgate-degraded", _header_text(", ".join(degraded)) if degraded else b"none"),
    ]
    if service_class is not None:
        headers.append((b"x-headgate-class", service_class.encode()))
    if held_ns:
        headers.append((b"x-headgate-cold-start-ms", b"%d" % (held_ns // MILLISECOND)))
    if limits is not None:
        headers += rate_limit_headers(limits)
    return headers


def _header_text(text: str) -> bytes:
    """Returns the text with a question mark for each character that is not valid in a header."""
    # The check is much faster than the substitution.
    return text.encode() if text.isascii() and text.isprintable() else _UNPRINTABLE.sub("?", text).encode()


def rate_limit_headers(limits: LimitsLeft) -> Headers:
    """Returns the `x-ratelimit-*` headers, which clients written for other providers already use to slow down."""
    headers: Headers = []
    for rate, unit in ((limits.requests, b"requests"), (limits.tokens, b"tokens")):
        if rate is not None:
            headers.append((b"x-ratelimit-limit-" + unit, b"%d" % rate.limit))
            headers.append((b"x-ratelimit-remaining-" + unit, b"%d" % rate.remaining))
            headers.append((b"x-ratelimit-reset-" + unit, format_duration(rate.reset_ns).encode()))
    return headers


def format_duration(length: Duration) -> str:
    """Formats a duration for clients, rounded up to milliseconds: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    whole = -(-length // MILLISECOND)
    if 0 < whole < 1_000:
        return f"{whole}ms"
    minutes, rest = divmod(whole, 60_000)
    text = f"{rest // 1_000}.{rest % 1_000:03}".rstrip("0").rstrip(".") + "s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


@dataclass(frozen=True, slots=True)
class ErrorReplies:
    """Builds error responses."""

    error_docs: str = ""
    """Base URL of the error pages. If empty, responses link to this gateway's own pages."""
    quotes_engines: bool = False
    """Whether to quote engine error messages. They may contain the prompt, and the gateway logs its messages."""
    request_id: str = ""
    """Id of the request, in formats whose errors contain it."""

    def error(
        self, outcome: Outcome, message: str, *, retry_after_ns: Duration | None = None, param: str | None = None
    ) -> tuple[int, Headers, bytes]:
        """Returns the response for a request that ends before its first byte."""
        face = HTTP_REPLIES[outcome]
        headers: Headers = [JSON_HEADER]
        if face.retry_after is not RetryAfter.ABSENT:
            wait_ns = retry_after_ns if retry_after_ns is not None else SECOND
            headers.append((b"retry-after", b"%d" % -(-wait_ns // SECOND)))
            headers.append((b"retry-after-ms", b"%d" % (wait_ns // MILLISECOND)))
        if face.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if face.should_retry else b"false"))
        text = self._with_docs_link(message, outcome)
        return face.status, headers, self._body(text, type=face.type, code=face.code, param=param)

    def unknown_route(self, message: str, *, allowed: str | None) -> tuple[int, Headers, bytes]:
        """Returns the response for an unknown path, or for a known path with the wrong method."""
        status, headers = (404, []) if allowed is None else (405, [(b"allow", allowed.encode())])
        text = self._with_docs_link(message, Outcome.INVALID_REQUEST)
        body = self._body(text, type=HTTP_REPLIES[Outcome.INVALID_REQUEST].type, code=UNKNOWN_URL)
        return status, [JSON_HEADER, *headers, (b"x-should-retry", b"false")], body

    def stream_error(self, end: End, api: Api, events: int) -> bytes:
        """Returns the error event for a stream that fails after `events` events have been sent."""
        face = STREAM_INTERRUPTED if end.outcome in INTERRUPTED_OUTCOMES else HTTP_REPLIES[end.outcome]
        text = self._with_docs_link(end.reason, end.outcome)
        return error_event(self._body(text, type=face.type, code=face.code), api, sequence_number=events)

    def engine_error(self, status: int, content_type: str, body: bytes) -> tuple[str, bytes]:
        """Returns the content type and the body for an engine's response that rejects the request."""
        return content_type, body

    def _body(self, message: str, *, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 (name in the API)
        return error_body(message=message, type=type, code=code, param=param)

    def _with_docs_link(self, message: str, outcome: Outcome) -> str:
        # A link to this gateway has no host: the Host header comes from the client, and responses may be cached.
        page = f"{self.error_docs or ERROR_PAGES}/{outcome}"
        # The address comes last, because programs that turn URLs into links would include a following character.
        return f"{message} ({outcome}); see {page}"
