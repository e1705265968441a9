"""Process that parses large request bodies.

    python -m headgate.edge.large_bodies.reader

It reads requests from standard input and writes responses to standard output, one at a time. It exits at end of input,
so it also exits if its gateway crashes. It keeps no state between requests.
"""

import os
import signal
import sys
from typing import BinaryIO

from headgate.edge.large_bodies.messages import (
    LENGTH_PREFIX,
    REQUEST_DECODER,
    InvalidBody,
    ParseBody,
    ParsedBody,
    ParseFailed,
    ReaderRequest,
    ReaderResponse,
    TrimmedMessages,
    TrimMessages,
    frame,
)
from headgate.wire.conversation import trim
from headgate.wire.request_body import BadRequest, RequestBody


def main() -> None:
    # These signals are meant for the gateway, which keeps parsing bodies while it drains.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        while answer := _handle_next(sys.stdin.buffer):
            sys.stdout.buffer.write(frame(answer))
            sys.stdout.buffer.flush()
    except ConnectionError:
        pass  # The gateway has exited.
    # There is nothing to clean up.
    os._exit(0)


def _handle_next(questions: BinaryIO) -> ReaderResponse | None:
    """Returns the response to the next request, or None at end of input."""
    head = questions.read(LENGTH_PREFIX.size)
    if len(head) < LENGTH_PREFIX.size:
        return None
    question = REQUEST_DECODER.decode(questions.read(*LENGTH_PREFIX.unpack(head)))
    raw = questions.read(question.size)
    return handle(question, raw) if len(raw) == question.size else None


def handle(question: ReaderRequest, raw: bytes) -> ReaderResponse:
    try:
        match question:
            case ParseBody(api):
                body = RequestBody.parse(raw, api)
                outline = body.outline(raw)
                if RequestBody.from_outline(raw, api, outline) != body:
                    return ParseFailed("the outline does not match the body")
                return ParsedBody(outline)
            case TrimMessages(length_max):
                return TrimmedMessages(*trim(raw, length_max))
    except BadRequest as bad:
        return InvalidBody(bad.message, bad.param, bad.log_message)
    except Exception as mistake:  # noqa: BLE001 (the gateway then parses the body itself and logs the error)
        return ParseFailed(type(mistake).__name__)


if __name__ == "__main__":
    main()
