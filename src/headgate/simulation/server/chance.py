"""What is left to chance: how long an answer is, what it says, and what goes wrong?

Everything is drawn from a seed. The length and the words of an answer depend on the seed and the prompt alone, so the
same question has the same answer from every engine and in every run. Faults depend on the seed, the engine's number and
the request's place in the order of arrival.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from headgate.simulation.server.options import EngineOptions, Faults
from headgate.simulation.server.question import Prompt, Question

_SYLLABLES: Final = tuple(
    first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "el")
)
WORDS: Final = tuple(" " + syllable + _SYLLABLES[(7 * place + 3) % 98] for place, syllable in enumerate(_SYLLABLES))
"""Short, pronounceable, without anything that JSON escapes. One is one token."""


@dataclass(frozen=True, slots=True)
class Script:
    """One answer, before a word of it is said."""

    output_tokens: int
    ends_by_itself: bool
    """Its last token then is the sign that it is over, which has no text."""
    first_word: int
    stride: int

    def word(self, place: int) -> str:
        word = WORDS[(self.first_word + place * self.stride) % len(WORDS)]
        return word if place else word.lstrip()

    def text(self) -> str:
        said = self.output_tokens - self.ends_by_itself
        return "".join(self.word(place) for place in range(said))


def script(question: Question, prompt: Prompt, choice: int, options: EngineOptions) -> Script:
    chance = Random(f"{options.seed}:{prompt.digest.hex()}:{choice}")
    drawn = round(options.output_tokens_median * chance.lognormvariate(0.0, options.output_tokens_sigma))
    wanted = max(1, question.output_min, drawn)
    ends = not question.goes_on and wanted < question.output_max
    return Script(
        output_tokens=wanted if ends else question.output_max,
        ends_by_itself=ends,
        first_word=chance.randrange(len(WORDS)),
        # Prime to the number of words, so that an answer goes through all of them.
        stride=chance.choice((1, 3, 5, 9, 11, 13)),
    )


@dataclass(frozen=True, slots=True)
class Fate:
    """What befalls one request."""

    error: bool = False
    reset_after: int | None = None
    """After how many tokens the connection is reset."""
    truncate_after: int | None = None
    """After how many tokens the stream ends."""


class FaultDice:
    def __init__(self, faults: Faults, *, seed: int, number: int) -> None:
        self._faults = faults
        self._chance = Random(f"faults:{seed}:{number}")

    def roll(self, *, output_tokens: int) -> Fate:
        """For the next request. Each takes the same number of draws, whatever befalls it."""
        error, reset, truncate, place = (self._chance.random() for _ in range(4))
        after = 1 + int(place * max(0, output_tokens - 1))
        faults = self._faults
        return Fate(
            error=error < faults.error_rate,
            reset_after=after if reset < faults.reset_rate else None,
            truncate_after=after if truncate < faults.truncate_rate else None,
        )
