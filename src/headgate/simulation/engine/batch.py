"""An engine's decoding sequences. Computes when the next sequence ends and when sequences need more KV blocks.

Every decoding sequence gets one token per step. Instead of a token count per sequence, the batch keeps a step counter
and each sequence's offset from it. The totals that a step needs change only when a sequence joins or leaves.
"""

from heapq import heappop, heappush

from headgate.simulation.engine.sequence import Sequence, SequenceState


class DecodeBatch:
    __slots__ = ("_ahead", "_block_tokens", "_ends", "_needs", "size", "step")

    def __init__(self, block_tokens: int) -> None:
        self.size = 0
        self.step = 0
        """Number of finished steps, which is also the index of the current or next step."""
        self._block_tokens = block_tokens
        self._ahead = 0
        self._needs = [0] * block_tokens
        """Number of sequences that need a new block in a step, indexed by the step modulo the block size."""
        self._ends: list[tuple[int, tuple[int, int], Sequence]] = []
        """Heap ordered by last step. Entries for sequences that have left are dropped when they reach the top."""

    @property
    def tokens(self) -> int:
        """Total tokens of all decoding sequences at the current step."""
        return self._ahead + self.size * self.step

    def join(self, sequence: Sequence) -> None:
        """Adds a sequence that has just received a token. It decodes from the current step on."""
        request = sequence.request
        sequence.state = SequenceState.DECODING
        sequence.joined_step = self.step
        sequence.token_offset = request.prompt_tokens + sequence.generated_tokens - self.step
        sequence.last_step = self.step + request.output_tokens - sequence.generated_tokens - 1
        self.size += 1
        self._ahead += sequence.token_offset
        self._needs[(1 - sequence.token_offset) % self._block_tokens] += 1
        heappush(self._ends, (sequence.last_step, sequence.rank, sequence))

    def leave(self, sequence: Sequence) -> None:
        sequence.generated_tokens = self.step + sequence.token_offset - sequence.request.prompt_tokens
        # The newest token exists, but its KV entries have not been computed.
        sequence.computed_tokens = self.step + sequence.token_offset - 1
        sequence.state = SequenceState.REMOVED
        self.size -= 1
        self._ahead -= sequence.token_offset
        self._needs[(1 - sequence.token_offset) % self._block_tokens] -= 1

    def steps_to_end(self) -> int:
        """Returns the number of steps until the next sequence ends, including its last step."""
        return self._peek()[0] - self.step + 1

    def pop_finished(self) -> list[Sequence]:
        """Returns the sequences whose last step has finished."""
        found: list[Sequence] = []
        while self.size > len(found) and self._peek()[0] < self.step:
            sequence = heappop(self._ends)[2]
            # A sequence that was preempted and resumed within one step has two entries.
            if sequence not in found:
                found.append(sequence)
        return found

    def blocks_needed(self, steps: int, *, after: int = 0) -> int:
        """Returns how many blocks are needed for `steps` steps, starting `after` steps from the current one."""
        cycles, rest = divmod(steps, self._block_tokens)
        needed = cycles * self.size
        for step in range(self.step + after, self.step + after + rest):
            needed += self._needs[step % self._block_tokens]
        return needed

    def steps_possible(self, blocks: int, steps_max: int, *, after: int) -> int:
        """Returns how many steps are possible with `blocks` free blocks, starting `after` steps from the current
        one.
        """
        if (steps_max // self._block_tokens + 1) * self.size <= blocks:
            return steps_max
        cycles = min(steps_max // self._block_tokens, blocks // self.size)
        blocks -= cycles * self.size
        steps = cycles * self._block_tokens
        while steps < steps_max:
            blocks -= self._needs[(self.step + after + steps) % self._block_tokens]
            if blocks < 0:
                break
            steps += 1
        return steps

    def _peek(self) -> tuple[int, tuple[int, int], Sequence]:
        while True:
            first = self._ends[0]
            if first[2].state is SequenceState.DECODING and first[2].last_step == first[0]:
                return first
            heappop(self._ends)
