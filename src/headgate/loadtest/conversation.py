"""Conversation that a turn of a session repeats."""

from dataclasses import dataclass

from headgate.model.units import BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of each side."""

    prompt: bytes
    """Text of the user, without characters that JSON would escape."""
    answer: bytes
    """Text of the model, escaped for JSON and without quotes."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns before the current one."""

    session: int
    """Number of the session's first request."""
    turns: tuple[Turn, ...]

    @property
    def tokens(self) -> int:
        """Approximate length."""
        return sum(len(turn.prompt) + len(turn.answer) for turn in self.turns) // BYTES_PER_TOKEN
