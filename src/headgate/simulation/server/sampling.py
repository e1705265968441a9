"""Random outputs and faults for the simulated engine.

All values are drawn from a seed. An output's length and text depend only on the seed and the prompt, so that every
engine gives the same response to the same prompt in every run. Faults depend on the seed, the engine's number and the
arrival order of requests.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from headgate.simulation.server.options import EngineOptions, FaultOptions
from headgate.simulation.server.request import Prompt, SimulatedRequest

_SYLLABLES: Final = tuple(
    first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "el")
)
WORDS: Final = tuple(" " + syllable + _SYLLABLES[(7 * place + 3) % 98] for place, syllable in enumerate(_SYLLABLES))
"""Vocabulary. Each word is one token, pronounceable, and free of characters that JSON would escape."""


@dataclass(frozen=True, slots=True)
class SampledOutput:
    """Length and text of one output."""

    output_tokens: int
    ends_with_eos: bool
    """Whether the output ends with a stop token, which has no text."""
    first_word: int
    stride: int

    def word(self, place: int) -> str:
        word = WORDS[(self.first_word + place * self.stride) % len(WORDS)]
        return word if place else word.lstrip()

    def text(self) -> str:
        said = self.output_tokens - self.ends_with_eos
        return "".join(self.word(place) for place in range(said))


def sample_output(question: SimulatedRequest, prompt: Prompt, choice: int, options: EngineOptions) -> SampledOutput:
    chance = Random(f"{options.seed}:{prompt.digest.hex()}:{choice}")
    drawn = round(options.output_tokens_median * chance.lognormvariate(0.0, options.output_tokens_sigma))
    wanted = max(1, question.output_tokens_min, drawn)
    ends = not question.ignores_eos and wanted < question.output_tokens_max
    return SampledOutput(
        output_tokens=wanted if ends else question.output_tokens_max,
        ends_with_eos=ends,
        first_word=chance.randrange(len(WORDS)),
        # Coprime to the number of words, so that an output cycles through all of them.
        stride=chance.choice((1, 3, 5, 9, 11, 13)),
    )


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Faults that affect one request."""

    error: bool = False
    reset_after: int | None = None
    """Number of tokens after which the connection is reset."""
    truncate_after: int | None = None
    """Number of tokens after which the stream ends."""


class FaultSampler:
    def __init__(self, faults: FaultOptions, *, seed: int, number: int) -> None:
        self._faults = faults
        self._chance = Random(f"faults:{seed}:{number}")

    def next_fault(self, *, output_tokens: int) -> InjectedFault:
        """Draws the faults for the next request. Every request uses the same number of draws."""
        error, reset, truncate, place = (self._chance.random() for _ in range(4))
        after = 1 + int(place * max(0, output_tokens - 1))
        faults = self._faults
        return InjectedFault(
            error=error < faults.error_rate,
            reset_after=after if reset < faults.reset_rate else None,
            truncate_after=after if truncate < faults.truncate_rate else None,
        )
