"""Dialect for llama.cpp's server.

- While the server is loading the model, every path returns 503.
- Some request errors have a 5xx status: 500 for an image sent to a model without vision support, for messages that the
  chat template rejects, and for text that is too long to embed in one step; 501 for embeddings requested from a
  completion server. If these counted as engine failures, one client could eject every endpoint.
- The server closes the connection after a streamed response, although the response head announces keep-alive.
- The server checks for disconnected clients only if no result has arrived for a second, and other requests' tokens and
  /metrics responses count as results. On a busy server, the disconnect of a non-streaming client could therefore go
  unnoticed until the response is complete. A failed write to a stream is noticed at the next token. The gateway
  therefore always requests streams (`joined_response.py`), except for log probabilities with tools, which the server
  cannot stream. Before the first token the server writes only prompt progress, if the request enables it.
- For a request with several choices, the reported usage covers only one choice, streamed or not.
"""

from types import MappingProxyType
from typing import Final

import msgspec

from headgate.engines.dialect import ConcurrencySource, Dialect, Signal, VersionSource, is_request_error
from headgate.engines.reported_limits import llamacpp_limits

_REQUEST_ERROR_TEXTS: Final = (
    " input is not supported",  # Images and audio.
    "Jinja Exception",  # The template rejects the messages, for instance the order of roles (ggml-org/llama.cpp#19851).
    "requires --jinja",  # Tools, if the server was started without templates.
    "is too large to process",  # Text to embed that does not fit into one step.
)


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error


_ERROR_BODY: Final = msgspec.json.Decoder(_ErrorBody)


def _is_request_error(status: int, body: bytes) -> bool:
    if status not in (500, 501):
        return is_request_error(status, body)
    try:
        error = _ERROR_BODY.decode(body).error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return error.type == "not_supported_error" or any(mistake in error.message for mistake in _REQUEST_ERROR_TEXTS)


LLAMACPP: Final = Dialect(
    name="llamacpp",
    notices_disconnect_only_in_streams=True,
    progress_field="return_progress",
    unstreamable_fields=frozenset({"tools", "logprobs"}),
    health_path="/health",
    metrics_path="/metrics",
    metrics_hint="start llama-server with --metrics",
    metrics=MappingProxyType(
        {
            Signal.RUNNING: ("llamacpp:requests_processing",),
            Signal.WAITING: ("llamacpp:requests_deferred",),
        }
    ),
    scrape_s_min=5.0,
    version=VersionSource("/props", "build_info"),
    limits_paths=("/props",),
    read_limits=llamacpp_limits,
    reports_kv=True,
    concurrency=ConcurrencySource("/props", "total_slots"),
    is_request_error=_is_request_error,
)
