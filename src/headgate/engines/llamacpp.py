"""What is particular to llama.cpp's server?

- While it loads, every path answers 503.
- It reports some mistakes of the caller as its own: 500 for an image sent to a model without eyes, for messages that
  the chat template refuses or for a text longer than it embeds in one step, 501 for embeddings from a server of
  completions. Taken for failures, they would let one caller have every endpoint ejected.
- It closes the connection after a streamed answer, although the answer's head announces that it is kept.
- It looks for clients that left only when no result has come for a second, and tokens of other requests and answers to
  /metrics count as results. Beside a busy neighbour the client of a request that is not streamed could leave unnoticed
  until the answer is whole. That a stream cannot be written to it notices with the next token, so it is always asked
  for streams (`joined.py`), except for log probabilities beside tools, which it refuses to stream. Before the first
  token it says nothing either, unless it is asked to report its progress through the prompt, batch by batch.
- Usage of a request with several choices is that of one of them, streamed or not.
"""

from types import MappingProxyType
from typing import Final

import msgspec

from headgate.engines.dialect import Dialect, PlacesSource, Signal, VersionSource, blames_request
from headgate.engines.limits import llamacpp_limits

_CALLERS_MISTAKES: Final = (
    " input is not supported",  # Images, audio.
    "Jinja Exception",  # The template itself objects, for instance to the order of roles (ggml-org/llama.cpp#19851).
    "requires --jinja",  # Tools, where the server was started without templates.
    "is too large to process",  # A text to embed, which is computed in one step or not at all.
)


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error


_ERROR_BODY: Final = msgspec.json.Decoder(_ErrorBody)


def _blames_request(status: int, body: bytes) -> bool:
    if status not in (500, 501):
        return blames_request(status, body)
    try:
        error = _ERROR_BODY.decode(body).error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return error.type == "not_supported_error" or any(mistake in error.message for mistake in _CALLERS_MISTAKES)


LLAMACPP: Final = Dialect(
    name="llamacpp",
    hears_leaving_only_in_streams=True,
    progress_switch="return_progress",
    never_streamed_together=frozenset({"tools", "logprobs"}),
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
    places=PlacesSource("/props", "total_slots"),
    blames_request=_blames_request,
)
