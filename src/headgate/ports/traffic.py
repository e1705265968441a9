"""A request as recordings of traffic describe it: when it arrived, how large it was and how it ended.

A gateway reports such rows to `headgate record`, which makes them anonymous. They contain no text, but names of tenants
and hashes of prompts, so they must not be stored as they are.
"""

from msgspec import Struct


class TrafficRow(Struct, frozen=True, omit_defaults=True, rename={"service_class": "class"}):
    at_us: int
    """Arrival time in microseconds. What it is relative to depends on the source."""
    api: str = "chat"
    model: str = ""
    """Model name in the request. Empty if unknown, or if no such model exists."""
    service_class: str = ""
    tenant: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    """Prompt tokens as reported by the engine. 0 if unknown."""
    cached_tokens: int = 0
    output_tokens: int = 0
    prompt_bytes: int = 0
    """Length of the prompt in bytes. 0 if unknown."""
    outcome: str = "completed"
    retries: int = 0
    """Number of earlier attempts at the request, as reported by the client."""
    stages: tuple[tuple[str, int], ...] = ()
    """Name and duration in microseconds of each stage reported by the client."""
    prefix: bytes = b""
    """Packed hashes of the prompt prefix, as in a ticket."""
    bytes_before_prefix: int = 0
    """Size of the prompt parts before the hashed prefix, in bytes."""


class TrafficPage(Struct, frozen=True):
    """Part of a recording, as the admin API returns it. Times are relative to the start of the recording."""

    recording: str
    """Id of the recording."""
    age_us: int
    """Time since the start of the recording."""
    first: int = 0
    """Number of the first row."""
    rows: list[TrafficRow] = []
    open: int = 0
    """Number of requests that arrived during the recording and have not ended."""
    ended: bool = False
    """Whether no more requests are added, apart from those that are open."""
    dropped: int = 0
    """Number of requests that were dropped because the buffer was full."""
