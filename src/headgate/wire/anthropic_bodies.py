"""Error bodies and model lists in the format of Anthropic's Messages API."""

from collections.abc import Iterable
from typing import Final

from headgate.wire.openai_bodies import json_body

MESSAGES_PATH: Final = b"/v1/messages"
_BELOW_MESSAGES: Final = MESSAGES_PATH + b"/"
REQUEST_ID_HEADER: Final = b"request-id"
"""Header with the request ID, which responses on these paths have as well."""

INVALID: Final = "invalid_request_error"
OVERLOADED: Final = "overloaded_error"
API: Final = "api_error"


def is_messages(path: bytes) -> bool:
    """Returns whether clients expect Anthropic's format on this path, whether or not it exists."""
    return path.startswith(MESSAGES_PATH) and (path == MESSAGES_PATH or path.startswith(_BELOW_MESSAGES))


def messages_error(kind: str, message: str, request_id: str) -> bytes:
    error = {"type": kind, "message": message}
    return json_body({"type": "error", "error": error, "request_id": request_id})


def model_list(names: Iterable[str]) -> bytes:
    """Returns the list of models. The time of release is unknown."""
    about = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    listed = [{"id": name, "display_name": name, **about} for name in names]
    first, last = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
    return json_body({"data": listed, "has_more": False, "first_id": first, "last_id": last})
