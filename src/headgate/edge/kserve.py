"""What may a caller ask who speaks KServe's protocol, and in what shape is it told what went wrong?

    POST /v2/models/MODEL/infer     tensors, answered by an engine
    GET  /v2/models/MODEL           what the model takes and gives, as an engine says it
    GET  /v2/models/MODEL/ready     whether an engine would serve it
    GET  /v2, /v2/health/live, /v2/health/ready     of the gateway itself

The list is closed, and matched on the path as it was sent; all of it needs a key. What is asked of a model goes through
the same classes, limits and queues as any other request, since it is an engine that answers. Paths by which a server of
this protocol loads models, shares memory or tells its settings are not on the list, nor are versions of a model: which
one serves is the operator's to say.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self
from urllib.parse import unquote_to_bytes

from headgate import __version__
from headgate.edge.intake import ModelAsked
from headgate.edge.replies import Replies
from headgate.wire.kserve.infer import Asked, error_body, server_body

ROOT: Final = b"/v2"
MODEL_CHARS_MAX: Final = 1024

_MODEL: Final = re.compile(rb"/v2/models/([^/]{1,%d})(/infer|/ready)?" % MODEL_CHARS_MAX)


class ServerAsked(Enum):
    """What of the gateway itself is wanted; its value is the answer's body."""

    METADATA = server_body(name="headgate", version=__version__)
    LIVENESS = b'{"live":true}'
    READINESS = b'{"ready":true}'

    @property
    def body(self) -> bytes:
        return self.value


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    asked: ModelAsked | ServerAsked


SERVER_ROUTES: Final = {
    ROOT: Route("GET", ServerAsked.METADATA),
    b"/v2/health/live": Route("GET", ServerAsked.LIVENESS),
    b"/v2/health/ready": Route("GET", ServerAsked.READINESS),
}


def is_kserve(path: bytes) -> bool:
    return path == ROOT or path.startswith(ROOT + b"/")


def find_route(path: bytes) -> Route | None:
    """None where nothing is at this path."""
    if (route := SERVER_ROUTES.get(path)) is not None or (found := _MODEL.fullmatch(path)) is None:
        return route
    model = _name(found[1])
    if model is None:
        return None
    asked = Asked((found[2] or b"").decode())
    return Route("POST" if asked is Asked.INFERENCE else "GET", ModelAsked(model, asked))


def _name(encoded: bytes) -> str | None:
    """A model's name as it stands in a path; None where it is no text."""
    try:
        name = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        return None
    return name if name.strip() else None


class KserveReplies(Replies):
    """The answers that are errors, in this protocol's shape: one text."""

    __slots__ = ()

    @classmethod
    def of(cls, replies: Replies) -> Self:
        return cls(replies.error_docs, replies.quotes_engines)

    def _body(self, message: str, *, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 The wire's word.
        return error_body(message)
