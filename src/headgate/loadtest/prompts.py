"""What do the callers say?

Plain seeded words, four bytes to the token as tokenizers have it on average. Each prompt begins with words of its own,
so that no prefix cache finds it by chance; a shared prefix, if one is wanted, stands before them, the same in all.
"""

from random import Random
from typing import Final

BYTES_PER_TOKEN: Final = 4

# Short, common and without anything that JSON would escape.
_VOCABULARY: Final = (
    "the and for with from this that have will when then more than into over under about after before first last long "
    "short small large open close work time year part case hand place week fact water light river stone house door "
    "field road town north south east west red blue green white black old new good great high low early late right "
    "left near far hard soft warm cold quick slow clear deep full empty simple common public human local major"
)
_BANK_BYTES: Final = 256 * 1024


class Prompts:
    """Cuts prompts out of one long seeded text, which is much quicker than drawing word by word."""

    def __init__(self, seed: int, *, shared_prefix_tokens: int = 0) -> None:
        words = Random(f"{seed} words")
        self._seed = seed
        self._prefix = _text(words, shared_prefix_tokens * BYTES_PER_TOKEN)
        self._bank = _text(words, _BANK_BYTES)

    def text(self, number: int, tokens: int) -> bytes:
        """The prompt of request `number`; ASCII without quotes, backslashes or line breaks."""
        wanted = tokens * BYTES_PER_TOKEN
        if wanted <= len(self._prefix):
            return self._prefix[:wanted]
        own = wanted - len(self._prefix)
        # A multiplier without a factor in common with the length visits every place before it comes to one again.
        place = (number * 40_503 + self._seed) % _BANK_BYTES
        opening = b"%x " % ((number * 2_654_435_761 + self._seed) & 0xFFFFFFFF)
        pieces = [self._prefix, opening, self._bank[place : place + own]]
        held = len(opening) + len(pieces[-1])
        while held < own:
            pieces.append(self._bank)
            held += _BANK_BYTES
        return b"".join(pieces)[:wanted]


def _text(words: Random, size: int) -> bytes:
    # No word is shorter than three letters and its space.
    return " ".join([*words.choices(_VOCABULARY.split(), k=size // 4 + 1), ""]).encode()[:size]
