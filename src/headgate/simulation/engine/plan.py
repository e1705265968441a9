"""How long do the next steps take?

A plan is one step, or a leap over several that all have the same batch: every sequence in it decodes, so each step
reads one more token per sequence than the one before, and the times of the steps are an arithmetic series.
"""

from math import isqrt

from headgate.simulation.engine.sequence import Sequence


class Plan:
    __slots__ = ("first_ps", "growth_ps", "pieces", "start", "steps")

    def __init__(self, start: int, *, first_ps: int, growth_ps: int, steps: int, pieces: list[Sequence]) -> None:
        self.start = start
        """The work done before it."""
        self.first_ps = first_ps
        """What the first step takes."""
        self.growth_ps = growth_ps
        """What each further step takes more than the one before."""
        self.steps = steps
        self.pieces = pieces
        """Sequences of whose prompt a chunk is computed. With any of them the plan is one step."""

    @property
    def end(self) -> int:
        return self.start + self.length(self.steps)

    def length(self, steps: int) -> int:
        return steps * self.first_ps + self.growth_ps * (steps * (steps - 1) // 2)

    def steps_by(self, work: int) -> int:
        """How many of its steps have ended when so much work is done."""
        room = work - self.start
        if room < self.first_ps:
            return 0
        if self.growth_ps == 0:
            return min(self.steps, room // self.first_ps)
        # The greatest m with m·first + growth·m·(m-1)/2 ≤ room: the root of a quadratic, rounded down.
        linear = 2 * self.first_ps - self.growth_ps
        root = isqrt(linear * linear + 8 * self.growth_ps * room)
        return min(self.steps, (root - linear) // (2 * self.growth_ps))

    def skip(self, steps: int) -> None:
        """Drops steps that have ended."""
        self.start += self.length(steps)
        self.first_ps += steps * self.growth_ps
        self.steps -= steps
