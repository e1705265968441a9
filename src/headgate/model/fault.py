"""Kinds of attempt failures, and their origins.

A `Fault` is what the engine adapter observed. A `FaultOrigin` is the scheduler's conclusion, which also takes into
account how the endpoint served other requests at the time (`core/routing/fault_attribution`).
"""

from enum import StrEnum


class Fault(StrEnum):
    CONNECTION = "connection"
    """The connection was refused, timed out or was reset before the engine responded."""
    UNAVAILABLE = "unavailable"
    """The engine responded that it cannot serve the request: it is overloaded, starting or configured differently."""
    RESPONSE = "response"
    """The engine accepted the request but then failed: it responded with an error or truncated the response."""
    TIME_LIMIT = "time_limit"
    """The response was not complete before its timeout, and no engine fault was observed."""
    GATEWAY = "gateway"
    """This process could not send the request because it lacks file descriptors, memory, ports or name resolution."""


class FaultOrigin(StrEnum):
    """Cause of a failed attempt."""

    ENDPOINT = "endpoint"
    REQUEST = "request"
    """The request fails on several endpoints that serve other requests."""
    TENANT = "tenant"
    """Only requests from this tenant fail on an endpoint that serves others."""
    MODEL = "model"
    """Only requests for this model fail on an endpoint that serves others."""
    MEMBER = "member"
    """The endpoint serves most other members of the cell that use it. Only this member's requests fail there."""
    GATEWAY = "gateway"
    RATE_LIMIT = "rate_limit"
    """A hosted provider rejected the request because a rate limit was reached."""
