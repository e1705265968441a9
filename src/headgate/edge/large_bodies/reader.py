"""What does a process do that only reads large bodies?

    python -m headgate.edge.large_bodies.reader

Questions come over its standard input, answers go over its standard output, one at a time, until the input ends: so it
ends with its gateway, however that ends. It keeps nothing from one question to the next.
"""

import os
import signal
import sys
from typing import BinaryIO

from headgate.edge.large_bodies.messages import (
    LENGTH,
    QUESTIONS,
    Answer,
    Found,
    Left,
    Question,
    Read,
    Trim,
    Unread,
    Wrong,
    framed,
)
from headgate.wire.conversation import trim
from headgate.wire.request import BadRequest, RequestBody


def main() -> None:
    # They are meant for the gateway, which still reads the requests that are open while it leaves.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        while answer := _next(sys.stdin.buffer):
            sys.stdout.buffer.write(framed(answer))
            sys.stdout.buffer.flush()
    except ConnectionError:
        pass  # Nobody is there any more to be told.
    # There is nothing to tidy up, and nobody who would hear of it.
    os._exit(0)


def _next(questions: BinaryIO) -> Answer | None:
    """The answer to the next question; None when there will be none."""
    head = questions.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    question = QUESTIONS.decode(questions.read(*LENGTH.unpack(head)))
    raw = questions.read(question.size)
    return answer_to(question, raw) if len(raw) == question.size else None


def answer_to(question: Question, raw: bytes) -> Answer:
    try:
        match question:
            case Read(api):
                body = RequestBody.parse(raw, api)
                outline = body.outline(raw)
                if RequestBody.outlined(raw, api, outline) != body:
                    return Unread("the outline does not fit the body")
                return Found(outline)
            case Trim(length_max):
                return Left(*trim(raw, length_max))
    except BadRequest as bad:
        return Wrong(bad.message, bad.param, bad.kept)
    except Exception as mistake:  # noqa: BLE001 (the gateway meets it too, and says so in its log)
        return Unread(type(mistake).__name__)


if __name__ == "__main__":
    main()
