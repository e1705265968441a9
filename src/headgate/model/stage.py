"""Into which stages does the life of a request fall?

Each begins where the one before ended, so their lengths add up to the whole. What is tried more than once goes through
its last stages more than once.
"""

from enum import StrEnum


class Stage(StrEnum):
    INGRESS = "ingress"
    """From the first of the request's head to the last byte of its body."""
    AUTH = "auth"
    """Whose key is it?"""
    CLASSIFY = "classify"
    """From the body to the ticket that the scheduler is told: parsing, measuring, hashing."""
    QUEUE = "queue"
    """Time in our queue, held for an endpoint to start included, before each attempt."""
    ROUTE = "route"
    """What the scheduler and the way to it took, less the queue."""
    CONNECT = "connect"
    """From the order to send to the last byte of the question: shaping the body, a connection, writing."""
    PREFILL = "prefill"
    """From the question to the first byte of the answer."""
    DECODE = "decode"
    """From there to the last that the engine sent."""
    POST_PROCESSING = "post_processing"
    """From there until the caller has been handed the end of its answer."""
    SETTLE = "settle"
    """From there until the request is closed in the accounts of this process."""


OUR_STAGES = tuple(Stage)
SINCE_ARRIVAL = OUR_STAGES[OUR_STAGES.index(Stage.QUEUE) :]
"""Those that pass once the scheduler has been told of a request. Goals are measured from there: how long a caller
takes to send its body is its own affair."""
TO_FIRST_TOKEN = SINCE_ARRIVAL[: SINCE_ARRIVAL.index(Stage.PREFILL) + 1]
"""Of these, those that pass before the first of the answer has come."""
CALLER_STAGE_CHARS_MAX = 40
CALLER_STAGES_MAX = 8
"""What callers tell of their own stages, before they asked us."""
