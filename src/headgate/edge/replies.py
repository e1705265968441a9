"""What is a caller told?

Outcome to status, headers and body: the only place where endings become HTTP.
"""

import re

from headgate.core.commands import End
from headgate.edge.client import Headers
from headgate.model.outcome import FACES, STREAM_INTERRUPTED, Outcome, RetryAfter
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, ModelName
from headgate.wire.replies import error_body
from headgate.wire.sse import error_event

JSON = (b"content-type", b"application/json")
# A caller may ask for a model of any name, but not every name may stand in a header.
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_MODEL_SHOWN_MAX = 256
_INTERRUPTED = (Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT)


def tale(service_class: ClassName | None, model: ModelName, waited_ns: Duration, attempts: int) -> Headers:
    """What every answer tells of how the request was treated."""
    headers: Headers = [
        (b"x-headgate-model", _UNPRINTABLE.sub("?", model)[:_MODEL_SHOWN_MAX].encode()),
        (b"x-headgate-queue-ms", b"%d" % (waited_ns // MILLISECOND)),
        (b"x-headgate-attempts", b"%d" % attempts),
    ]
    if service_class is not None:
        headers.append((b"x-headgate-class", service_class.encode()))
    return headers


def error(
    outcome: Outcome, message: str, *, retry_after_ns: Duration | None = None, param: str | None = None
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
    body = error_body(message=message, type=face.type, code=face.code, param=param)
    return face.status, headers, body


def interruption(end: End) -> bytes:
    """The event for an ending that comes after the first byte."""
    face = STREAM_INTERRUPTED if end.outcome in _INTERRUPTED else FACES[end.outcome]
    return error_event(error_body(message=end.reason, type=face.type, code=face.code))
