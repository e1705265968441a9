"""What is a caller told?

Outcome to status, headers and body: the only place where endings become HTTP. Every message of ours
ends with the outcome and with where its page is, so that whoever reads it knows where to read on.
"""

import re
from dataclasses import dataclass

from headgate.core.commands import End
from headgate.edge.client import Headers
from headgate.model.limits import LimitsLeft
from headgate.model.outcome import FACES, STREAM_INTERRUPTED, Outcome, RetryAfter
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, ModelName
from headgate.wire.replies import error_body
from headgate.wire.sse import error_event

JSON = (b"content-type", b"application/json")
# A caller may ask for a model of any name, but not every name may stand in a header.
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_MODEL_SHOWN_MAX = 256
UNKNOWN_URL = "unknown_url"
"""The code of a path that is not on the list; its outcome is `invalid`."""
INTERRUPTED = (Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT, Outcome.GATEWAY_FAILED)
"""What is told as an interrupted stream once the first byte has been sent."""


def tale(
    service_class: ClassName | None,
    model: ModelName,
    waited_ns: Duration,
    attempts: int,
    degraded: tuple[str, ...] = (),
    *,
    limits: LimitsLeft | None = None,
    held_ns: Duration = Duration(0),
) -> Headers:
    """What every answer tells of how the request was treated, what of it was given up, and what its tenant has left."""
    headers: Headers = [
        (b"x-headgate-model", _UNPRINTABLE.sub("?", model)[:_MODEL_SHOWN_MAX].encode()),
        (b"x-headgate-queue-ms", b"%d" % (waited_ns // MILLISECOND)),
        (b"x-headgate-attempts", b"%d" % attempts),
        (b"x-headgate-degraded", _UNPRINTABLE.sub("?", ", ".join(degraded)).encode() if degraded else b"none"),
    ]
    if service_class is not None:
        headers.append((b"x-headgate-class", service_class.encode()))
    if held_ns:
        headers.append((b"x-headgate-held-ms", b"%d" % (held_ns // MILLISECOND)))
    if limits is not None:
        headers += rates_left(limits)
    return headers


def rates_left(limits: LimitsLeft) -> Headers:
    """As other providers tell it, so that clients that slow down by themselves do."""
    headers: Headers = []
    for rate, unit in ((limits.requests, b"requests"), (limits.tokens, b"tokens")):
        if rate is not None:
            headers.append((b"x-ratelimit-limit-" + unit, b"%d" % rate.limit))
            headers.append((b"x-ratelimit-remaining-" + unit, b"%d" % rate.remaining))
            headers.append((b"x-ratelimit-reset-" + unit, lasting(rate.reset_ns).encode()))
    return headers


def lasting(length: Duration) -> str:
    """A duration as clients read it: `12ms`, `1.5s`, `6m0s`, `1h0m0s`. Never less than it is."""
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
class Replies:
    """The answers that are errors."""

    error_docs: str = ""
    """The address below which the pages about outcomes stand; empty names them as they stand in our own docs."""
    quotes_engines: bool = False
    """Whether what an engine says of an error is repeated. It may hold the prompt, and endings are logged."""

    def error(
        self, outcome: Outcome, message: str, *, retry_after_ns: Duration | None = None, param: str | None = None
    ) -> tuple[int, Headers, bytes]:
        """The answer for an ending that comes before the first byte."""
        face = FACES[outcome]
        headers: Headers = [JSON]
        if face.retry_after is not RetryAfter.ABSENT:
            wait_ns = retry_after_ns if retry_after_ns is not None else SECOND
            headers.append((b"retry-after", b"%d" % -(-wait_ns // SECOND)))
            headers.append((b"retry-after-ms", b"%d" % (wait_ns // MILLISECOND)))
        if face.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if face.should_retry else b"false"))
        text = self._with_page(message, outcome)
        return face.status, headers, self._body(text, type=face.type, code=face.code, param=param)

    def no_route(self, message: str, *, allowed: str | None) -> tuple[int, Headers, bytes]:
        """The answer for a path that is not on the list, or is asked with another method than it allows."""
        status, headers = (404, []) if allowed is None else (405, [(b"allow", allowed.encode())])
        text = self._with_page(message, Outcome.INVALID)
        body = self._body(text, type=FACES[Outcome.INVALID].type, code=UNKNOWN_URL)
        return status, [JSON, *headers, (b"x-should-retry", b"false")], body

    def interruption(self, end: End, api: Api, events: int) -> bytes:
        """The event for an ending that comes after the first byte, behind so many others."""
        face = STREAM_INTERRUPTED if end.outcome in INTERRUPTED else FACES[end.outcome]
        text = self._with_page(end.reason, end.outcome)
        return error_event(error_body(message=text, type=face.type, code=face.code), api, sequence_number=events)

    def _body(self, message: str, *, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 The wire's word.
        return error_body(message=message, type=type, code=code, param=param)

    def _with_page(self, message: str, outcome: Outcome) -> str:
        page = f"{self.error_docs}/{outcome}" if self.error_docs else f"docs/reference/errors/{outcome}.md"
        # Nothing after the address, or readers that make links of addresses would take it along.
        return f"{message} ({outcome}); see {page}"
