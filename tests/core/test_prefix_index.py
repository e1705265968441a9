"""Prefix index: which prefixes each endpoint probably has cached, and how they are evicted."""

import tracemalloc
from random import Random

import pytest

from headgate.core.routing.prefix_index import (
    ENDPOINT_BYTES,
    HASH_BYTES,
    HOLDING_BYTES,
    KV_TOKENS_GUESS,
    PER_ENDPOINT_MAX,
    PROMPT_BYTES,
    RUN_BYTES,
    PrefixIndex,
    iter_slots,
)
from headgate.model.prefix import HASHES_MAX, PREFIX_LENGTHS, prefix_tokens

PLENTY = 10_000_000


def prompt(name: int, length: int, *, begins: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns `length` hashes that start with `begins` and are otherwise unique to the prompt `name`."""
    return (*begins, *(name * 1_000 + number for number in range(len(begins), length)))


def test_endpoint_holds_sent_prompt_and_common_prefixes_of_others() -> None:
    index = PrefixIndex()
    sent = prompt(1, 10)
    index.record(0, sent, PLENTY)

    assert index.depth(0, sent) == 10
    assert index.depth(0, sent[:4]) == 4
    assert index.depth(0, prompt(2, 20, begins=sent[:7])) == 7
    assert index.depth(0, prompt(3, 5)) == 0
    assert index.depth(0, ()) == 0
    assert index.depth(1, sent) == 0
    assert index.depth_anywhere(sent) == 10


def test_holders_are_listed_once_with_longest_prefix_first() -> None:
    index = PrefixIndex()
    sent = prompt(1, 12)
    index.record(5, sent[:12], PLENTY)
    index.record(2, sent[:9], PLENTY)
    index.record(0, sent[:9], PLENTY)
    index.record(7, sent[:3], PLENTY)

    assert list(index.holders(sent, beyond=0)) == [(12, 1 << 5), (9, 1 << 2 | 1), (3, 1 << 7)]
    assert list(index.holders(sent, beyond=3)) == [(12, 1 << 5), (9, 1 << 2 | 1)]
    assert list(index.holders(prompt(2, 12), beyond=0)) == []


def test_slots_are_listed_from_given_starting_point() -> None:
    bits = 1 << 1 | 1 << 4 | 1 << 70

    assert [list(iter_slots(bits, start)) for start in (0, 2, 5, 99)] == [
        [1, 4, 70],
        [4, 70, 1],
        [70, 1, 4],
        [1, 4, 70],
    ]


def test_least_recently_sent_prompt_is_evicted_when_kv_cache_is_full() -> None:
    index = PrefixIndex()
    kv_tokens = 3 * prefix_tokens(10)
    sent = [prompt(name, 10) for name in range(4)]
    for each in sent[:3]:
        index.record(0, each, kv_tokens)
    index.record(0, sent[0], kv_tokens)
    index.record(0, sent[3], kv_tokens)

    # The first prompt was sent again, so the second is now the oldest.
    assert [index.depth(0, each) for each in sent] == [10, 0, 10, 10]
    assert index.size == 30


def test_evicting_an_old_prompt_keeps_a_prefix_that_was_sent_again() -> None:
    index = PrefixIndex()
    kv_tokens = prefix_tokens(20)
    old = prompt(1, 20)
    index.record(0, old, kv_tokens)
    index.record(0, prompt(2, 12, begins=old[:8]), kv_tokens)

    assert index.depth(0, old) == 8
    assert index.depth(0, prompt(2, 12, begins=old[:8])) == 12


def test_prompt_larger_than_kv_cache_is_not_indexed() -> None:
    index = PrefixIndex()
    index.record(0, prompt(1, 20), prefix_tokens(20) - 1)

    assert index.depth(0, prompt(1, 20)) == 0
    assert index.size == 0


def test_unknown_kv_cache_size_is_guessed() -> None:
    index = PrefixIndex()
    sent = [prompt(name, HASHES_MAX) for name in range(KV_TOKENS_GUESS // PREFIX_LENGTHS[-1] + 1)]
    for each in sent:
        index.record(0, each, None)

    assert index.depth(0, sent[0]) == 0
    assert all(index.depth(0, each) == HASHES_MAX for each in sent[1:])


def test_index_size_is_bounded_per_endpoint() -> None:
    index = PrefixIndex()
    for name in range(PER_ENDPOINT_MAX + 10):
        index.record(0, (name,), PLENTY)
    assert index.size == PER_ENDPOINT_MAX


def test_memory_is_bounded_and_divided_equally_between_a_thousand_endpoints() -> None:
    """The first ten endpoints fill the index. The others join late and get their share of it."""
    most = 4_000_000
    index = PrefixIndex(bytes_max=most)
    for name in range(4_000):
        index.record(name % 10, prompt(name, 10), PLENTY)
        assert index.memory_bytes <= most
    assert index.memory_bytes > 0.99 * most

    for number in range(20_000):
        index.record(number % 1_000, prompt(10_000 + number, 10), PLENTY)
        assert index.memory_bytes <= most
    assert index.memory_bytes > 0.95 * most
    per_prompt = 10 * HASH_BYTES + RUN_BYTES + 1_000 // 7 + HOLDING_BYTES + PROMPT_BYTES
    share = (most // 1_000 - ENDPOINT_BYTES) // per_prompt
    held = [
        sum(index.depth(slot, prompt(10_000 + number, 10)) == 10 for number in range(slot, 20_000, 1_000))
        for slot in range(1_000)
    ]
    assert share >= 2
    assert set(held) <= {share, share + 1}


def test_prefix_that_many_endpoints_hold_is_stored_once() -> None:
    alone, shared = PrefixIndex(), PrefixIndex()
    alone.record(0, prompt(1, 60), PLENTY)
    for slot in range(100):
        shared.record(slot, prompt(1, 60), PLENTY)

    assert shared.size == 100 * alone.size
    assert shared.memory_bytes < 20 * alone.memory_bytes


OTHER_BYTES_MAX = 64 * 1024
"""Memory that the interpreter and the test runner may allocate while the index is measured."""


@pytest.mark.parametrize(
    ("endpoints", "prompts", "length"), [(1, 4_000, 1), (1, 400, 20), (4, 100, 60), (1_000, 5, 10), (1_000, 40, 3)]
)
def test_estimated_memory_is_at_least_the_measured_memory(endpoints: int, prompts: int, length: int) -> None:
    chance = Random(endpoints)
    sent = [tuple(chance.getrandbits(63) for _ in range(length)) for _ in range(prompts)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        index = PrefixIndex()
        for each in sent:
            # As in a gateway, the numbers of each prompt are new objects.
            copy = tuple(number + 0 for number in each)
            for slot in range(endpoints):
                index.record(slot, copy, 10**12)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert used - OTHER_BYTES_MAX <= index.memory_bytes <= 2 * used


def test_prompt_without_hashes_is_not_indexed() -> None:
    index = PrefixIndex()
    index.record(0, (), 1_000)

    assert (index.size, index.depth(0, ())) == (0, 0)


def test_repeated_prompts_do_not_accumulate() -> None:
    index = PrefixIndex()
    trunk = prompt(0, 30)
    for turn in range(5_000):
        index.record(0, prompt(1 + turn % 7, 31, begins=trunk), PLENTY)

    assert index.size == 30 + 7
    assert len(index._sent[0].prompts) < 300
    assert index.depth(0, prompt(3, 31, begins=trunk)) == 31


def test_forget_removes_only_one_endpoints_prefixes() -> None:
    index = PrefixIndex()
    sent = prompt(1, 10)
    index.record(0, sent, PLENTY)
    index.record(1, sent[:5], PLENTY)

    index.forget(0)
    index.forget(3)

    assert (index.depth(0, sent), index.depth(1, sent)) == (0, 5)
    assert index.size == 5


def test_colliding_hashes_leave_no_entries_behind() -> None:
    # The same hash occurs at several positions in one prompt and in others. Only a malicious client can cause this.
    index = PrefixIndex()
    for turn in range(2_000):
        index.record(0, (turn % 13, 99, turn % 5, 99, 1_000 + turn % 40), prefix_tokens(20))
        index.record(0, (99, 1_000 + turn % 40, turn % 13), prefix_tokens(20))

    assert index.size <= 60
    index.forget(0)
    assert index.size == 0
    assert not index._runs


def test_colliding_hash_does_not_disable_prefix_permanently() -> None:
    index = PrefixIndex()
    trunk = prompt(1, 10)
    for turn in range(200):
        if turn == 50:
            index.record(0, (777, trunk[0], 778), prefix_tokens(20))
        index.record(0, prompt(100 + turn, 11, begins=trunk), prefix_tokens(20))

    assert index.depth(0, trunk) == 10
    index.forget(0)
    assert not index._runs
