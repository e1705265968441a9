"""Stages of a request.

Each stage starts when the previous one ends, so their durations add up to the total. If there are several attempts,
`queue` and all later stages repeat.
"""

from enum import StrEnum


class Stage(StrEnum):
    INGRESS = "ingress"
    """From the first byte of the request head to the last byte of its body."""
    AUTH = "auth"
    """Authentication of the key."""
    CLASSIFY = "classify"
    """From when the body is complete until the ticket for the scheduler is ready: parsing, measuring and hashing."""
    QUEUE = "queue"
    """Time in the queue before each attempt, including holds for a cold start."""
    ROUTE = "route"
    """Time for the scheduler's decision and communication, excluding time in the queue."""
    CONNECT = "connect"
    """From the dispatch to the last byte of the engine request: preparing the body, connecting and writing."""
    PREFILL = "prefill"
    """From the engine request to the first byte of the response."""
    DECODE = "decode"
    """From the first to the last byte of the engine's response."""
    POST_PROCESSING = "post_processing"
    """From the last byte of the engine's response until the caller has received the end of its response."""
    SETTLE = "settle"
    """From the end of the response until this process has settled the request."""


GATEWAY_STAGES = tuple(Stage)
STAGES_SINCE_ARRIVAL = GATEWAY_STAGES[GATEWAY_STAGES.index(Stage.QUEUE) :]
"""Stages after the request's arrival at the scheduler.

Objectives are measured from there, because the gateway cannot influence how long a caller takes to send its body.
"""
STAGES_TO_FIRST_TOKEN = STAGES_SINCE_ARRIVAL[: STAGES_SINCE_ARRIVAL.index(Stage.PREFILL) + 1]
"""Stages from arrival to the first token of the response."""
CALLER_STAGE_CHARS_MAX = 40
CALLER_STAGES_MAX = 8
"""Maximum number of stages that a caller may report for work it did before sending the request."""
