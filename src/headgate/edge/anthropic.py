"""Routes and errors of Anthropic's Messages API.

    POST /v1/messages                  a message, by an engine
    POST /v1/messages/count_tokens     the number of prompt tokens, by an engine

An error has Anthropic's format, and the HTTP status that the outcome has on every other path. Anthropic reports
overload with status 529, which proxies and load balancers do not know. Here such an error has the type
`overloaded_error` and the status 429 or 503. All paths below `/v1/messages` have this format, even if they do not
exist. Clients that send `anthropic-version` get the model list in Anthropic's format as well.
"""

from collections.abc import Mapping
from typing import Final

from headgate.edge.client import Headers
from headgate.edge.error_replies import UNKNOWN_URL, ErrorReplies
from headgate.model.outcome import HTTP_REPLIES, Outcome
from headgate.model.ticket import Api
from headgate.wire.anthropic_bodies import API, INVALID, MESSAGES_PATH, OVERLOADED, messages_error
from headgate.wire.openai_bodies import read_error

MESSAGES_ROUTES: Final[Mapping[bytes, Api]] = {
    MESSAGES_PATH: Api.MESSAGES,
    MESSAGES_PATH + b"/count_tokens": Api.COUNT_TOKENS,
}
VERSION_HEADER: Final = b"anthropic-version"

_RATE_LIMIT: Final = "rate_limit_error"
_TIMEOUT: Final = "timeout_error"
_NOT_FOUND: Final = "not_found_error"
_TOO_LARGE: Final = "request_too_large"
_TYPES: Final = {
    Outcome.MODEL_NOT_FOUND: _NOT_FOUND,
    Outcome.REQUEST_TOO_LARGE: _TOO_LARGE,
    Outcome.UNAUTHORIZED: "authentication_error",
    Outcome.FORBIDDEN: "permission_error",
    Outcome.RATE_LIMITED: _RATE_LIMIT,
    Outcome.BUDGET_EXCEEDED: "billing_error",
    Outcome.NO_ENDPOINTS: OVERLOADED,
    Outcome.DRAINING: OVERLOADED,
    # All outcomes with the code `slow_down`.
    Outcome.SHED: OVERLOADED,
    Outcome.DEADLINE_EXCEEDED: _TIMEOUT,
    Outcome.ENGINE_TIMEOUT: _TIMEOUT,
    Outcome.ENGINE_ERROR: API,
    Outcome.INTERNAL_ERROR: API,
    Outcome.KEY_UNVERIFIED: API,
}
_TYPE_BY_CODE: Final = {
    **{HTTP_REPLIES[outcome].code: kind for outcome, kind in _TYPES.items()},
    "stream_interrupted": API,
    UNKNOWN_URL: _NOT_FOUND,
}
"""Anthropic's type of an error, by the gateway's code. All other errors are invalid requests."""
_TYPE_BY_STATUS: Final = {404: _NOT_FOUND, 413: _TOO_LARGE}
"""Anthropic's type of an error with which an engine rejects a request. All others are invalid requests."""


class AnthropicReplies(ErrorReplies):
    """Error responses in Anthropic's format."""

    __slots__ = ()

    def engine_error(self, status: int, content_type: str, body: bytes) -> tuple[str, bytes]:
        message = read_error(body) or f"the engine rejected the request with status {status}"
        return "application/json", self._error(_TYPE_BY_STATUS.get(status, INVALID), message)

    def unknown_route(self, message: str, *, allowed: str | None) -> tuple[int, Headers, bytes]:
        status, headers, body = super().unknown_route(message, allowed=allowed)
        if allowed is not None:
            body = self._error(INVALID, self._with_docs_link(message, Outcome.INVALID_REQUEST))
        return status, headers, body

    def _body(self, message: str, *, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 (name in the API)
        return self._error(_TYPE_BY_CODE.get(code, INVALID), message)

    def _error(self, kind: str, message: str) -> bytes:
        return messages_error(kind, message, self.request_id)
