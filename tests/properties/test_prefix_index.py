"""Property tests for the prefix index against a reference model.

For each endpoint, the model keeps every hash with the number of the last prompt that contained it. When the model
exceeds its limit, it drops all hashes from the oldest prompt.
"""

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.routing.prefix_index import PrefixIndex, iter_slots
from headgate.model.prefix import STEP_TOKENS

SLOTS = range(3)
LENGTH_MAX = 12

# A prompt is a path in a binary tree. A hash identifies the path up to its position.
PATHS = st.lists(st.booleans(), min_size=1, max_size=LENGTH_MAX)
EVENTS = st.lists(st.tuples(st.sampled_from(SLOTS), PATHS | st.none()), max_size=60)


def hashes(path: list[bool]) -> tuple[int, ...]:
    found: list[int] = []
    name = 1
    for step in path:
        name = 2 * name + step
        found.append(name)
    return tuple(found)


class Books:
    def __init__(self, kv_tokens: int) -> None:
        self.kv_tokens = kv_tokens
        self.last: dict[int, dict[int, tuple[int, int]]] = {slot: {} for slot in SLOTS}
        """Number of the last prompt and token count, keyed by slot and hash."""
        self.number = 0

    def note(self, slot: int, prompt: tuple[int, ...]) -> None:
        self.number += 1
        held = self.last[slot]
        held.update({each: (self.number, STEP_TOKENS[place]) for place, each in enumerate(prompt)})
        while sum(tokens for _, tokens in held.values()) > self.kv_tokens:
            oldest = min(number for number, _ in held.values())
            held = self.last[slot] = {each: of for each, of in held.items() if of[0] != oldest}

    def depth(self, slot: int, prompt: tuple[int, ...]) -> int:
        return next((count for count, each in enumerate(prompt) if each not in self.last[slot]), len(prompt))


@given(events=EVENTS, asked=st.lists(PATHS, min_size=1, max_size=8), kv_tokens=st.integers(0, 20_000))
def test_index_matches_the_reference_model(
    events: list[tuple[int, list[bool] | None]], asked: list[list[bool]], kv_tokens: int
) -> None:
    index, books = PrefixIndex(), Books(kv_tokens)
    for slot, path in events:
        if path is None:
            index.forget(slot)
            books.last[slot] = {}
        else:
            index.record(slot, hashes(path), kv_tokens)
            books.note(slot, hashes(path))
    assert index.size == sum(map(len, books.last.values()))
    for path in asked:
        prompt = hashes(path)
        depths = [books.depth(slot, prompt) for slot in SLOTS]
        assert [index.depth(slot, prompt) for slot in SLOTS] == depths
        assert index.depth_anywhere(prompt) == max(depths)
        for beyond in (0, 3):
            holders = index.holders(prompt, beyond=beyond)
            told = {slot: count for count, found in holders for slot in iter_slots(found, 1)}
            assert told == {slot: depth for slot, depth in enumerate(depths) if depth > beyond}


@given(events=st.lists(st.tuples(st.sampled_from(SLOTS), st.lists(st.integers(0, 20), max_size=8)), max_size=60))
def test_index_is_empty_after_forgetting_arbitrary_hashes(events: list[tuple[int, list[int]]]) -> None:
    index = PrefixIndex(bytes_max=8_000)
    for slot, made_up in events:
        index.record(slot, made_up, 3_000)
        assert 0 <= index.memory_bytes <= 8_000
    for slot in SLOTS:
        index.forget(slot)
    assert index.size == index.memory_bytes == 0
    assert not index._runs
