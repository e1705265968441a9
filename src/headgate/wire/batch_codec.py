"""Batch codecs: functions that combine several requests to one API into a single engine request.

A batch codec splits requests into inputs, joins inputs into one engine request, splits the engine's response by input,
and assembles the parts into one response per request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headgate.wire.request_body import RequestBody

BUFFERED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes buffered for one request's response before it starts, or while the client is not reading it."""


class BatchSplitError(Exception):
    """The response to a batch cannot be split. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """Inputs of one request."""

    key: bytes = field(repr=False)
    """Batching key. Requests with equal keys can share a batch."""
    items: tuple[msgspec.Raw, ...] = field(repr=False)
    tokens: tuple[int, ...]
    """Length of each input in tokens. Exact if `are_token_ids`, otherwise estimated."""
    weights: tuple[int, ...]
    """Weight of each input for dividing the batch's tokens: its tokens if known, otherwise its bytes."""
    are_token_ids: bool
    """Whether the inputs are token ids."""


@dataclass(frozen=True, slots=True)
class ResponsePart:
    """Part of a response that belongs to one input. Each batch codec has its own subclass."""

    estimated: bool
    """Whether usage was split in proportion to bytes."""


class ResponseAssembly(Protocol):
    """A request's response while its parts are arriving."""

    @property
    def complete(self) -> bool:
        """Whether all parts have arrived."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes that cannot be forwarded until other parts have arrived."""
        ...

    def add(self, place: int, part: ResponsePart) -> bytes:
        """Adds a part and returns the bytes that can be forwarded now.

        Raises `BatchSplitError` if the buffer limit is exceeded.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchCodec:
    split_request: Callable[[RequestBody], BatchInputs | None]
    """Splits a request into inputs. Returns None if the request must be sent unchanged."""
    join_inputs: Callable[[RequestBody, Sequence[msgspec.Raw], int], RequestBody]
    """Builds one request from the given inputs and number of requests. All other fields come from the first request."""
    split_response: Callable[[bytes | bytearray, Sequence[int], bool], Sequence[ResponsePart]]
    """Splits the response to inputs with these weights into one part per input. Raises `BatchSplitError`."""
    assembly: Callable[[int], ResponseAssembly]
    """Creates the response for a request with the given number of inputs."""
    response_bytes_max: int
    """Maximum size of a response that can be split. Splitting a larger one would delay all streams."""
