"""A sequence in the simulated engine, and the events that report its progress.

A request with several completions consists of several sequences. A sequence waits, then its prompt is computed in
chunks, then it decodes one token per step. After a preemption, it waits again and recomputes its prompt and the tokens
generated so far.
"""

from dataclasses import dataclass
from enum import Enum, auto

from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.blocks import BlockRun


@dataclass(frozen=True, slots=True)
class EngineRequest:
    request_id: RequestId
    prompt_tokens: int
    output_tokens: int
    """Number of tokens to generate.

    Given in advance, because the engine itself has no randomness. Zero for an embedding.
    """
    prefix: tuple[int, ...] = ()
    """Names of the prompt's shareable full blocks, from the start. Chained hashes, never negative."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SequenceCost:
    """Work that an engine has done for a sequence, whether or not the sequence finished."""

    prefilled_tokens: int
    """Prompt tokens computed, including tokens recomputed after a preemption."""
    worked_ps: int
    """Work for the sequence's own tokens and its share of the fixed step cost, in picoseconds at nominal speed."""


@dataclass(frozen=True, slots=True)
class FirstTokenGenerated:
    request_id: RequestId
    at: Instant


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    request_id: RequestId
    at: Instant
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    arrived_at: Instant
    started_at: Instant
    """Instant at which the sequence left the queue for the first time."""
    first_token_at: Instant
    """Instant of the first token. For a sequence without output, the end of its prompt."""
    preemptions: int
    cost: SequenceCost


@dataclass(frozen=True, slots=True)
class SequencePreempted:
    request_id: RequestId
    at: Instant


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step has ended. Reported only with `by_step`."""

    at: Instant
    step_ps: int
    """Work done in the step, in picoseconds at nominal speed."""
    request_ids: list[RequestId]
    """Requests that got one token each, in batch order."""


EngineEvent = FirstTokenGenerated | SequenceFinished | SequencePreempted | StepFinished


class SequenceState(Enum):
    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    REMOVED = auto()


class Sequence:
    """State of one sequence. Mutable and slotted, because there are many sequences and the loop is hot.

    A decoding sequence's token count is not stored at each step: it is `token_offset` plus the engine's step count.
    """

    __slots__ = (
        "arrived_at",
        "block_hashes",
        "cached_tokens",
        "cancelled",
        "chunk",
        "chunk_ps",
        "computed_tokens",
        "first_token_at",
        "fixed_ps_at_start",
        "generated_tokens",
        "hashed_blocks",
        "joined_step",
        "last_step",
        "preemptions",
        "prefill_tokens",
        "prefilled_tokens",
        "rank",
        "request",
        "run",
        "run_start",
        "started_at",
        "state",
        "token_offset",
        "worked_ps",
    )

    def __init__(self, request: EngineRequest, rank: tuple[int, int], arrived_at: Instant) -> None:
        self.request = request
        self.rank = rank
        """Unique sort key.

        The sequence with the lowest rank starts first, and the one with the highest is preempted first.
        """
        self.arrived_at = arrived_at
        self.started_at: Instant | None = None
        self.first_token_at: Instant | None = None
        self.state = SequenceState.WAITING
        self.cancelled = False
        self.preemptions = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        """Generated tokens. Not updated while the sequence is decoding."""
        self.prefill_tokens = request.prompt_tokens
        """Number of tokens to compute before the next token is generated."""
        self.computed_tokens = 0
        """Number of tokens computed so far. Not updated while the sequence is decoding."""
        self.prefilled_tokens = 0
        """Total prompt tokens computed, including recomputed tokens."""
        self.worked_ps = 0
        """Work charged to the sequence, in picoseconds. The current run is added when it ends."""
        self.chunk = 0
        """Size of the last prompt chunk, in tokens. `chunk_ps` is the work for that chunk."""
        self.chunk_ps = 0
        self.fixed_ps_at_start = 0
        """The engine's running total of the fixed step cost when the sequence started running."""
        self.token_offset = 0
        self.joined_step = 0
        """First step in which the sequence decodes."""
        self.last_step = 0
        """Index of the step that ends the sequence."""
        self.block_hashes: list[int] = []
        """Named blocks that the sequence holds."""
        self.hashed_blocks = 0
        """Number of leading blocks for which naming has been attempted."""
        self.run: BlockRun | None = None
        """Unnamed blocks that the sequence released when it was preempted."""
        self.run_start = 0
        """Index of the first block of that run."""
