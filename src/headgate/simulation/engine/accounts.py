"""What has an engine done, and for whom?

A sequence is charged its own part of each step it is in, chunks of its prompt, tokens, the KV cache it reads, and an
even share of what any step costs. Nothing is written per sequence and step: the shares are summed up as if for one
that ran from the first step on, and a sequence is charged the difference between its coming and its going; what
decoding takes is a sum over steps in which one more token is read each time.
"""

from headgate.model.engine_profile import EngineProfile
from headgate.simulation.engine.plan import Plan
from headgate.simulation.engine.sequence import Place, Sequence, Spent


class Accounts:
    """The counters only grow."""

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
        """What a sequence that ran from the first step on would have to bear of the fixed cost of steps."""
        self.worked_ps = 0
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0

    def make_steps(self, plan: Plan, steps: int, *, decoding: int) -> None:
        """So many steps of the plan have ended, and in each so many sequences decoded."""
        self.generated_tokens += steps * decoding
        self.worked_ps += plan.length(steps)
        if sharers := decoding + len(plan.pieces):
            self._fixed_ps += steps * (self._profile.step_ps // sharers)

    def enter(self, sequence: Sequence) -> None:
        """A sequence joins the running ones."""
        sequence.fixed_from = self._fixed_ps

    def give_chunk(self, sequence: Sequence, chunk: int) -> int:
        """What the chunk that a sequence has just been given adds to the step."""
        own_ps = self._profile.prefill_ps(chunk, done=sequence.computed - chunk)
        sequence.chunk, sequence.chunk_ps = chunk, own_ps
        sequence.prefilled += chunk
        sequence.worked_ps += own_ps
        return own_ps

    def stop_decoding(self, sequence: Sequence, step: int) -> None:
        """A sequence leaves the batch before this step."""
        sequence.worked_ps += self._decoded_ps(sequence, step)

    def leave(self, sequence: Sequence) -> None:
        """A sequence leaves the running ones."""
        sequence.worked_ps += self._fixed_ps - sequence.fixed_from

    def spent(self, sequence: Sequence, step: int, *, without_chunk: bool) -> Spent:
        """What has been done for a sequence up to this step, with or without the chunk it was given last."""
        worked_ps = sequence.worked_ps
        if sequence.place is not Place.WAITING:
            worked_ps += self._fixed_ps - sequence.fixed_from
        if sequence.place is Place.DECODING:
            worked_ps += self._decoded_ps(sequence, step)
        if without_chunk:
            return Spent(sequence.prefilled - sequence.chunk, worked_ps - sequence.chunk_ps)
        return Spent(sequence.prefilled, worked_ps)

    def _decoded_ps(self, sequence: Sequence, step: int) -> int:
        """What decoding has taken since it joined the batch: in each step it reads one more token."""
        steps = step - sequence.joined_step
        read = steps * (sequence.ahead + sequence.joined_step) + steps * (steps - 1) // 2
        return self._profile.decode_sequence_ps * steps + self._profile.kv_token_ps * read
