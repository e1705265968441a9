"""Durations of an engine's next steps.

A plan is one step or a leap over several steps with the same batch. In a leap, every sequence is decoding. Each step
then reads one more token per sequence than the previous one, so the step durations form an arithmetic series.
"""

from math import isqrt

from headgate.simulation.engine.sequence import Sequence


class StepPlan:
    __slots__ = ("first_ps", "growth_ps", "prefilling", "start", "steps")

    def __init__(self, start: int, *, first_ps: int, growth_ps: int, steps: int, pieces: list[Sequence]) -> None:
        self.start = start
        """Work done before the plan, in picoseconds."""
        self.first_ps = first_ps
        """Work done in the first step, in picoseconds."""
        self.growth_ps = growth_ps
        """Work that each step adds compared with the previous one, in picoseconds."""
        self.steps = steps
        self.prefilling = pieces
        """Sequences that get a prompt chunk. If there are any, the plan consists of a single step."""

    @property
    def end(self) -> int:
        return self.start + self.duration_ps(self.steps)

    def duration_ps(self, steps: int) -> int:
        return steps * self.first_ps + self.growth_ps * (steps * (steps - 1) // 2)

    def steps_done_by(self, work: int) -> int:
        """Returns how many of the plan's steps have ended once `work` is done."""
        room = work - self.start
        if room < self.first_ps:
            return 0
        if self.growth_ps == 0:
            return min(self.steps, room // self.first_ps)
        # The largest m with m·first + growth·m·(m-1)/2 ≤ room: the root of a quadratic, rounded down.
        linear = 2 * self.first_ps - self.growth_ps
        root = isqrt(linear * linear + 8 * self.growth_ps * room)
        return min(self.steps, (root - linear) // (2 * self.growth_ps))

    def skip(self, steps: int) -> None:
        """Drops finished steps from the plan."""
        self.start += self.duration_ps(steps)
        self.first_ps += steps * self.growth_ps
        self.steps -= steps
