"""A simulated engine's counters, and the work charged to each sequence.

A sequence is charged for its own part of each step: prompt chunks, generated tokens and the KV cache that is read. It
also bears an equal share of each step's fixed cost. Nothing is stored per sequence and step. The equal shares are kept
as a running total, and a sequence is charged the difference between the totals at its start and end. The cost of
decoding is an arithmetic series, because a sequence reads one more token in each step.
"""

from headgate.model.engine_profile import EngineProfile
from headgate.simulation.engine.sequence import Sequence, SequenceCost, SequenceState
from headgate.simulation.engine.step_plan import StepPlan


class WorkAccounting:
    """Monotonic counters of one engine."""

    __slots__ = (
        "_fixed_ps",
        "_profile",
        "generated_tokens",
        "preemptions",
        "prefix_hit_tokens",
        "prefix_queried_tokens",
        "prompt_tokens",
        "worked_ps",
    )

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._fixed_ps = 0
        """Running total of the fixed step cost per sequence, in picoseconds since the first step."""
        self.worked_ps = 0
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0

    def record_steps(self, plan: StepPlan, steps: int, *, decoding: int) -> None:
        """Counts `steps` finished steps of the plan, in each of which `decoding` sequences generated one token."""
        self.generated_tokens += steps * decoding
        self.worked_ps += plan.duration_ps(steps)
        if sharers := decoding + len(plan.prefilling):
            self._fixed_ps += steps * (self._profile.step_ps // sharers)

    def enter(self, sequence: Sequence) -> None:
        """Starts charging a sequence when it begins to run."""
        sequence.fixed_ps_at_start = self._fixed_ps

    def charge_chunk(self, sequence: Sequence, chunk: int) -> int:
        """Charges a sequence for a prompt chunk and returns the work that the chunk adds to the step."""
        own_ps = self._profile.prefill_ps(chunk, computed=sequence.computed_tokens - chunk)
        sequence.chunk, sequence.chunk_ps = chunk, own_ps
        sequence.prefilled_tokens += chunk
        sequence.worked_ps += own_ps
        return own_ps

    def stop_decoding(self, sequence: Sequence, step: int) -> None:
        """Charges a sequence for its decoding up to `step` when it leaves the batch."""
        sequence.worked_ps += self._decoded_ps(sequence, step)

    def leave(self, sequence: Sequence) -> None:
        """Charges a sequence for its share of the fixed cost when it stops running."""
        sequence.worked_ps += self._fixed_ps - sequence.fixed_ps_at_start

    def cost_of(self, sequence: Sequence, step: int, *, without_chunk: bool) -> SequenceCost:
        """Returns the work done for a sequence up to this step, with or without its last chunk."""
        worked_ps = sequence.worked_ps
        if sequence.state is not SequenceState.WAITING:
            worked_ps += self._fixed_ps - sequence.fixed_ps_at_start
        if sequence.state is SequenceState.DECODING:
            worked_ps += self._decoded_ps(sequence, step)
        if without_chunk:
            return SequenceCost(sequence.prefilled_tokens - sequence.chunk, worked_ps - sequence.chunk_ps)
        return SequenceCost(sequence.prefilled_tokens, worked_ps)

    def _decoded_ps(self, sequence: Sequence, step: int) -> int:
        """Returns the work spent on decoding since the sequence joined the batch. Each step reads one more token."""
        steps = step - sequence.joined_step
        read = steps * (sequence.token_offset + sequence.joined_step) + steps * (steps - 1) // 2
        return self._profile.decode_sequence_ps * steps + self._profile.kv_token_ps * read
