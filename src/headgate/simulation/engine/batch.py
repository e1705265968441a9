"""Who decodes, when does the next of them end, and when do they need another block?

In every step each decoding sequence gets one token. So nothing is written per sequence and step: a count of steps is
kept, and for each sequence by how much it is ahead of it. What a step must know of all of them together are sums that
change only when a sequence joins or leaves.
"""

from heapq import heappop, heappush

from headgate.simulation.engine.sequence import Place, Sequence


class DecodeBatch:
    __slots__ = ("_ahead", "_block_tokens", "_ends", "_needs", "size", "step")

    def __init__(self, block_tokens: int) -> None:
        self.size = 0
        self.step = 0
        """How many steps the engine has made; the number of the one that comes or goes on."""
        self._block_tokens = block_tokens
        self._ahead = 0
        self._needs = [0] * block_tokens
        """How many sequences need a block in a step, by the step's number modulo the block size."""
        self._ends: list[tuple[int, tuple[int, int], Sequence]] = []
        """By last step. Holds some that have left: they are dropped when they come up."""

    @property
    def tokens(self) -> int:
        """How many tokens the sequences have together at the present step."""
        return self._ahead + self.size * self.step

    def join(self, sequence: Sequence) -> None:
        """Takes in a sequence that has just got a token, from the present step on."""
        request = sequence.request
        sequence.place = Place.DECODING
        sequence.joined_step = self.step
        sequence.ahead = request.prompt_tokens + sequence.generated - self.step
        sequence.last_step = self.step + request.output_tokens - sequence.generated - 1
        self.size += 1
        self._ahead += sequence.ahead
        self._needs[(1 - sequence.ahead) % self._block_tokens] += 1
        heappush(self._ends, (sequence.last_step, sequence.rank, sequence))

    def leave(self, sequence: Sequence) -> None:
        sequence.generated = self.step + sequence.ahead - sequence.request.prompt_tokens
        # The newest token exists, but nothing has been computed from it.
        sequence.computed = self.step + sequence.ahead - 1
        sequence.place = Place.GONE
        self.size -= 1
        self._ahead -= sequence.ahead
        self._needs[(1 - sequence.ahead) % self._block_tokens] -= 1

    def steps_to_end(self) -> int:
        """How many steps until the first of them ends, that one included."""
        return self._first()[0] - self.step + 1

    def ended(self) -> list[Sequence]:
        """Those whose last step has been made."""
        found: list[Sequence] = []
        while self.size > len(found) and self._first()[0] < self.step:
            sequence = heappop(self._ends)[2]
            # One that was preempted and started again without a step between stands here twice.
            if sequence not in found:
                found.append(sequence)
        return found

    def blocks_needed(self, steps: int, *, after: int = 0) -> int:
        """How many blocks so many steps need, `after` steps from the present one."""
        cycles, rest = divmod(steps, self._block_tokens)
        needed = cycles * self.size
        for step in range(self.step + after, self.step + after + rest):
            needed += self._needs[step % self._block_tokens]
        return needed

    def steps_with(self, blocks: int, steps_max: int, *, after: int) -> int:
        """How many steps can be made with so many free blocks, `after` steps from the present one."""
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

    def _first(self) -> tuple[int, tuple[int, int], Sequence]:
        while True:
            first = self._ends[0]
            if first[2].place is Place.DECODING and first[2].last_step == first[0]:
                return first
            heappop(self._ends)
