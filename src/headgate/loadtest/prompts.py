"""Load test prompts.

Prompts consist of common words in a seeded random order, with four bytes per token, which is typical of tokenizers.
Each prompt starts with unique text, so that it never hits a prefix cache by accident. An optional shared prefix, the
same for all prompts, comes before the unique text.
"""

from random import Random
from typing import Final

BYTES_PER_TOKEN: Final = 4

# Short, common words, without any characters that JSON would escape.
_VOCABULARY: Final = (
    "the and for with from this that have will when then more than into over under about after before first last long "
    "short small large open close work time year part case hand place week fact water light river stone house door "
    "field road town north south east west red blue green white black old new good great high low early late right "
    "left near far hard soft warm cold quick slow clear deep full empty simple common public human local major"
)
_SOURCE_BYTES: Final = 256 * 1024


class Prompts:
    """Cuts prompts out of one long seeded text, which is much faster than drawing individual words."""

    def __init__(self, seed: int, *, shared_prefix_tokens: int = 0) -> None:
        words = Random(f"{seed} words")
        self._seed = seed
        self._prefix = _text(words, shared_prefix_tokens * BYTES_PER_TOKEN)
        self._source = _text(words, _SOURCE_BYTES)

    def text(self, number: int, tokens: int) -> bytes:
        """Returns the prompt for request `number`, in ASCII without quotes, backslashes or line breaks."""
        wanted = tokens * BYTES_PER_TOKEN
        if wanted <= len(self._prefix):
            return self._prefix[:wanted]
        own = wanted - len(self._prefix)
        # The multiplier is coprime to the length, so every position is used before any repeats.
        place = (number * 40_503 + self._seed) % _SOURCE_BYTES
        opening = b"%x " % ((number * 2_654_435_761 + self._seed) & 0xFFFFFFFF)
        pieces = [self._prefix, opening, self._source[place : place + own]]
        held = len(opening) + len(pieces[-1])
        while held < own:
            pieces.append(self._source)
            held += _SOURCE_BYTES
        return b"".join(pieces)[:wanted]


def _text(words: Random, size: int) -> bytes:
    # Every word has at least three letters and a space.
    return " ".join([*words.choices(_VOCABULARY.split(), k=size // 4 + 1), ""]).encode()[:size]
