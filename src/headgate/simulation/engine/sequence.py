"""What does the simulated engine know of one sequence, and what does it tell of it?

A request with several answers is several sequences. A sequence waits, then its prompt is computed chunk by chunk, then
it decodes one token per step. Preempted, it waits again and computes its prompt and what it had generated anew.
"""

from dataclasses import dataclass
from enum import Enum, auto

from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.blocks import Run


@dataclass(frozen=True, slots=True)
class EngineRequest:
    request_id: RequestId
    prompt_tokens: int
    output_tokens: int
    """How many it will generate, for the engine draws nothing. None at all is an embedding."""
    prefix: tuple[int, ...] = ()
    """Names of the prompt's full blocks from its start, as far as they may be shared: chained hashes, none negative."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """What an engine has done for a sequence, whatever came of it."""

    prefilled_tokens: int
    """What was computed of its prompt, and after a preemption anew of all that it had."""
    worked_ps: int
    """Its part of the steps it was in, at nominal speed: its own tokens and an even share of what any step costs."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    request_id: RequestId
    at: Instant


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: RequestId
    at: Instant
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """How much of the prompt was found in the prefix cache."""
    arrived_at: Instant
    begun_at: Instant
    """When it left the queue for the first time."""
    first_token_at: Instant
    """The end of its prompt, if it generates nothing."""
    preemptions: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class Preempted:
    request_id: RequestId
    at: Instant


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step has ended. Told only by an engine that goes step by step."""

    at: Instant
    step_ps: int
    """How much work it was."""
    request_ids: list[RequestId]
    """Who got one token each, in the order of the batch."""


Happening = FirstToken | Finished | Preempted | Stepped


class Place(Enum):
    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    GONE = auto()


class Sequence:
    """Mutable and slotted, since there are many and the loop is hot.

    What a decoding sequence has generated is not written down at each step: it has `ahead` tokens more than the engine
    has made steps.
    """

    __slots__ = (
        "ahead",
        "arrived_at",
        "begun_at",
        "cached_tokens",
        "cancelled",
        "chunk",
        "chunk_ps",
        "computed",
        "first_token_at",
        "fixed_from",
        "generated",
        "goal",
        "joined_step",
        "last_step",
        "named",
        "names",
        "place",
        "preemptions",
        "prefilled",
        "rank",
        "request",
        "run",
        "run_from",
        "worked_ps",
    )

    def __init__(self, request: EngineRequest, rank: tuple[int, int], arrived_at: Instant) -> None:
        self.request = request
        self.rank = rank
        """The least goes first, the greatest is preempted first. No two are equal."""
        self.arrived_at = arrived_at
        self.begun_at: Instant | None = None
        self.first_token_at: Instant | None = None
        self.place = Place.WAITING
        self.cancelled = False
        self.preemptions = 0
        self.cached_tokens = 0
        self.generated = 0
        """Kept while it does not decode."""
        self.goal = request.prompt_tokens
        """How many tokens must be computed before the next one comes."""
        self.computed = 0
        """How many of them are; kept while it does not decode."""
        self.prefilled = 0
        """How many have been computed in all, those computed anew included."""
        self.worked_ps = 0
        """Its part of the steps it was in, up to where it last left them."""
        self.chunk = 0
        """The last chunk of its prompt, and what that takes."""
        self.chunk_ps = 0
        self.fixed_from = 0
        """The engine's count of even shares when it joined the running ones."""
        self.ahead = 0
        self.joined_step = 0
        """The first step in which it decodes."""
        self.last_step = 0
        """The number of the step that ends it."""
        self.names: list[int] = []
        """The named blocks it holds."""
        self.named = 0
        """How many blocks have been offered their names."""
        self.run: Run | None = None
        """What it left behind when it was preempted."""
        self.run_from = 0
        """The place of that run's first block."""
