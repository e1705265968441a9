"""Why did an attempt fail, and what caused the failure?

A `Fault` is the engine adapter's observation. A `FaultOrigin` is the scheduler's conclusion, which also takes into
account how the endpoint served other requests in the meantime (`core/routing/blame`).
"""

from enum import StrEnum


class Fault(StrEnum):
    CONNECTION = "connection"
    """The connection was refused, timed out, or was reset before the engine answered."""
    UNAVAILABLE = "unavailable"
    """The engine answered that it cannot serve: overloaded, starting, or configured differently."""
    ANSWER = "answer"
    """The engine accepted the request and then failed: it answered with an error, or its answer broke off."""
    LIMIT = "limit"
    """The answer was not complete within its time limit, and no fault of the engine was seen."""
    GATEWAY = "gateway"
    """This process could not send the request: no file descriptors, memory, ports or name resolution."""


class FaultOrigin(StrEnum):
    """The cause of a failed attempt."""

    ENDPOINT = "endpoint"
    REQUEST = "request"
    """The request fails on several endpoints that serve other requests."""
    TENANT = "tenant"
    """Only requests of this tenant fail at an endpoint that serves others."""
    MODEL = "model"
    """Only requests for this model fail at an endpoint that serves others."""
    MEMBER = "member"
    """The endpoint serves most other members of the cell that use it."""
    GATEWAY = "gateway"
