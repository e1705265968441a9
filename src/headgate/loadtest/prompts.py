"""Load test prompts.

Prompts consist of common words in a seeded random order, with four bytes per token, which is typical of tokenizers.
Each prompt starts with unique text, so that it never hits a prefix cache by accident. An optional shared prefix, the
same for all prompts, comes before the unique text, and so do the blocks that a trace names: equal names, equal text.
"""

from random import Random
from typing import Final

from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS

BYTES_PER_TOKEN: Final = 4

# Short, common words, without any characters that JSON would escape.
_VOCABULARY: Final = (
    "the and for with from this that have will when then more than into over under about after before first last long "
    "short small large open close work time year part case hand place week fact water light river stone house door "
    "field road town north south east west red blue green white black old new good great high low early late right "
    "left near far hard soft warm cold quick slow clear deep full empty simple common public human local major"
)
_SOURCE_BYTES: Final = 256 * 1024
_BLOCK_BYTES: Final = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN


class Prompts:
    """Cuts prompts out of one long seeded text, which is much faster than drawing individual words."""

    def __init__(self, seed: int, *, shared_prefix_tokens: int = 0) -> None:
        words = Random(f"{seed} words")
        self._seed = seed
        self._prefix = _text(words, shared_prefix_tokens * BYTES_PER_TOKEN)
        self._source = _text(words, _SOURCE_BYTES)

    def text(self, number: int, tokens: int, *, prefix: bytes | None = None, blocks: tuple[int, ...] = ()) -> bytes:
        """Returns the prompt for request `number`, in ASCII without quotes, backslashes or line breaks.

        It starts with `prefix`, by default that of all prompts, and the text of these blocks.
        """
        prefix = self._prefix if prefix is None else prefix
        if blocks:
            prefix = b"".join([prefix, *map(self._block, blocks)])
        wanted = tokens * BYTES_PER_TOKEN
        if wanted <= len(prefix):
            return prefix[:wanted]
        own = wanted - len(prefix)
        # The multiplier is coprime to the length, so every position is used before any repeats.
        place = (number * 40_503 + self._seed) % _SOURCE_BYTES
        opening = b"%x " % ((number * 2_654_435_761 + self._seed) & 0xFFFFFFFF)
        pieces = [prefix, opening, self._source[place : place + own]]
        held = len(opening) + len(pieces[-1])
        while held < own:
            pieces.append(self._source)
            held += _SOURCE_BYTES
        return b"".join(pieces)[:wanted]

    def _block(self, name: int) -> bytes:
        """Returns the text of a block. The names of a trace are chained, so one name identifies all text before it."""
        place = (name * 40_503 + self._seed) % (_SOURCE_BYTES - _BLOCK_BYTES)
        return (b"%x " % abs(name) + self._source[place : place + _BLOCK_BYTES])[:_BLOCK_BYTES]


class SharedPrefixes:
    """Prefixes that some prompts share, such as the system prompts of several applications."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._texts: dict[tuple[int, int], bytes] = {}

    def prefix(self, number: int, *, source: int, tokens: int, prompts: int) -> bytes:
        """Returns the prefix of request `number`, which is one of `prompts` prefixes of its source."""
        # The product spreads consecutive numbers evenly over the range.
        place = (((number * 2_654_435_761 + self._seed) & 0xFFFFFFFF) * prompts) >> 32
        text = self._texts.get((source, place))
        if text is None:
            words = Random(f"{self._seed} prefix {source} {place}")
            text = self._texts[source, place] = _text(words, tokens * BYTES_PER_TOKEN)
        return text


def _text(words: Random, size: int) -> bytes:
    # Every word has at least three letters and a space.
    return " ".join([*words.choices(_VOCABULARY.split(), k=size // 4 + 1), ""]).encode()[:size]
