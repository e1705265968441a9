"""Routes and error bodies for KServe's protocol (Open Inference Protocol).

    POST /v2/models/MODEL/infer     inference on tensors, by an engine
    GET  /v2/models/MODEL           inputs and outputs of the model, from an engine
    GET  /v2/models/MODEL/ready     readiness of the model, from an engine
    GET  /v2, /v2/health/live, /v2/health/ready     metadata and health of the gateway itself

No other paths are served, and matching uses the path as received. Every path requires an API key. Requests for a model
go through the same classes, limits and queues as all others, because an engine answers them. Paths that load models,
share memory or read server settings are not supported. Neither are model versions, because the operator chooses the
version.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self
from urllib.parse import unquote_to_bytes

from headgate import __version__
from headgate.edge.error_replies import ErrorReplies
from headgate.edge.parsed_request import ModelTarget
from headgate.wire.kserve.infer import ModelOperation, error_body, server_body

ROOT: Final = b"/v2"
_BELOW_ROOT: Final = ROOT + b"/"
MODEL_CHARS_MAX: Final = 1024

_MODEL: Final = re.compile(rb"/v2/models/([^/]{1,%d})(/infer|/ready)?" % MODEL_CHARS_MAX)


class ServerOperation(Enum):
    """Operation on the gateway itself. The enum value is the response body."""

    METADATA = server_body(name="headgate", version=__version__)
    LIVENESS = b'{"live":true}'
    READINESS = b'{"ready":true}'

    @property
    def body(self) -> bytes:
        return self.value


@dataclass(frozen=True, slots=True)
class KserveRoute:
    method: str
    target: ModelTarget | ServerOperation


SERVER_ROUTES: Final = {
    ROOT: KserveRoute("GET", ServerOperation.METADATA),
    b"/v2/health/live": KserveRoute("GET", ServerOperation.LIVENESS),
    b"/v2/health/ready": KserveRoute("GET", ServerOperation.READINESS),
}


def is_kserve(path: bytes) -> bool:
    return path.startswith(ROOT) and (path == ROOT or path.startswith(_BELOW_ROOT))


def find_route(path: bytes) -> KserveRoute | None:
    """Returns the route for a path, or None if the path is unknown."""
    if (route := SERVER_ROUTES.get(path)) is not None or (found := _MODEL.fullmatch(path)) is None:
        return route
    model = _name(found[1])
    if model is None:
        return None
    asked = ModelOperation((found[2] or b"").decode())
    return KserveRoute("POST" if asked is ModelOperation.INFERENCE else "GET", ModelTarget(model, asked))


def _name(encoded: bytes) -> str | None:
    """Returns the decoded model name from a path, or None if the name is empty or not valid UTF-8."""
    try:
        name = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        return None
    return name if name.strip() else None


class KserveReplies(ErrorReplies):
    """Error responses in KServe's format, with a single message."""

    __slots__ = ()

    @classmethod
    def of(cls, replies: ErrorReplies) -> Self:
        return cls(replies.error_docs, replies.quotes_engines)

    def _body(self, message: str, *, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 (name in the API)
        return error_body(message)
