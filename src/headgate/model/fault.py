"""Why did an attempt fail, and who is to blame for it?

A `Fault` is what the adapter that spoke with the engine saw. A `FaultOrigin` is what the scheduler makes of it, which
also knows what the endpoint did for others meanwhile (`core/routing/blame`).
"""

from enum import StrEnum


class Fault(StrEnum):
    CONNECTION = "connection"
    """The connection was refused, timed out, or was reset before the engine answered."""
    UNAVAILABLE = "unavailable"
    """The engine answered that it cannot serve: overloaded, starting, or set up differently."""
    ANSWER = "answer"
    """The engine accepted the request and failed at it: an error answer, or one that broke off."""
    LIMIT = "limit"
    """The answer was not complete when its time was over, though nothing was wrong with how it came."""
    GATEWAY = "gateway"
    """This process could not ask: no file descriptors, memory, ports or name resolution."""


class FaultOrigin(StrEnum):
    """Who is to blame for a failed attempt."""

    ENDPOINT = "endpoint"
    REQUEST = "request"
    """It fails wherever it is sent, on endpoints that serve other requests."""
    TENANT = "tenant"
    """Only requests of this tenant fail at an endpoint that serves others."""
    MODEL = "model"
    """Only requests for this model fail at an endpoint that serves others."""
    MEMBER = "member"
    """Most other members of the cell that use the endpoint are served there."""
    GATEWAY = "gateway"
