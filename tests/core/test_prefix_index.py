"""Does the index know who was sent what, and forget as much as a KV cache does?"""

from headgate.core.routing.prefix_index import KV_TOKENS_GUESS, PER_ENDPOINT_MAX, PrefixIndex, slots
from headgate.model.prefix import DISTANCES, HASHES_MAX, reach

PLENTY = 10_000_000


def prompt(name: int, length: int, *, begins: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Hashes of a prompt of its own, or of one that begins as another does."""
    return (*begins, *(name * 1_000 + number for number in range(len(begins), length)))


def test_an_endpoint_holds_what_it_was_sent_and_as_much_of_others_as_began_in_the_same_way() -> None:
    index = PrefixIndex()
    sent = prompt(1, 10)
    index.note(0, sent, PLENTY)

    assert index.depth(0, sent) == 10
    assert index.depth(0, sent[:4]) == 4
    assert index.depth(0, prompt(2, 20, begins=sent[:7])) == 7
    assert index.depth(0, prompt(3, 5)) == 0
    assert index.depth(0, ()) == 0
    assert index.depth(1, sent) == 0
    assert index.depth_anywhere(sent) == 10


def test_who_holds_the_most_is_told_first_and_nobody_twice() -> None:
    index = PrefixIndex()
    sent = prompt(1, 12)
    index.note(5, sent[:12], PLENTY)
    index.note(2, sent[:9], PLENTY)
    index.note(0, sent[:9], PLENTY)
    index.note(7, sent[:3], PLENTY)

    assert list(index.holders(sent, beyond=0)) == [(12, 1 << 5), (9, 1 << 2 | 1), (3, 1 << 7)]
    assert list(index.holders(sent, beyond=3)) == [(12, 1 << 5), (9, 1 << 2 | 1)]
    assert list(index.holders(prompt(2, 12), beyond=0)) == []


def test_slots_are_told_from_any_of_them_on() -> None:
    bits = 1 << 1 | 1 << 4 | 1 << 70

    assert [list(slots(bits, start)) for start in (0, 2, 5, 99)] == [[1, 4, 70], [4, 70, 1], [70, 1, 4], [1, 4, 70]]


def test_what_was_sent_longest_ago_is_forgotten_when_the_kv_cache_is_full() -> None:
    index = PrefixIndex()
    kv_tokens = 3 * reach(10)
    sent = [prompt(name, 10) for name in range(4)]
    for each in sent[:3]:
        index.note(0, each, kv_tokens)
    index.note(0, sent[0], kv_tokens)
    index.note(0, sent[3], kv_tokens)

    # The first came again, so the second is the oldest.
    assert [index.depth(0, each) for each in sent] == [10, 0, 10, 10]
    assert index.size == 30


def test_the_end_of_an_old_prompt_is_forgotten_and_its_beginning_stays_where_it_came_again() -> None:
    index = PrefixIndex()
    kv_tokens = reach(20)
    old = prompt(1, 20)
    index.note(0, old, kv_tokens)
    index.note(0, prompt(2, 12, begins=old[:8]), kv_tokens)

    assert index.depth(0, old) == 8
    assert index.depth(0, prompt(2, 12, begins=old[:8])) == 12


def test_a_prompt_larger_than_the_kv_cache_leaves_nothing() -> None:
    index = PrefixIndex()
    index.note(0, prompt(1, 20), reach(20) - 1)

    assert index.depth(0, prompt(1, 20)) == 0
    assert index.size == 0


def test_where_nobody_said_how_large_the_kv_cache_is_it_is_guessed() -> None:
    index = PrefixIndex()
    sent = [prompt(name, HASHES_MAX) for name in range(KV_TOKENS_GUESS // DISTANCES[-1] + 1)]
    for each in sent:
        index.note(0, each, None)

    assert index.depth(0, sent[0]) == 0
    assert all(index.depth(0, each) == HASHES_MAX for each in sent[1:])


def test_no_endpoint_and_no_pool_has_more_than_its_share_of_memory() -> None:
    index = PrefixIndex()
    for name in range(PER_ENDPOINT_MAX + 10):
        index.note(0, (name,), PLENTY)
    assert index.size == PER_ENDPOINT_MAX

    small = PrefixIndex(in_all_max=100)
    for name in range(40):
        small.note(name % 4, prompt(name, 10), PLENTY)
    assert small.size <= 100
    assert small.depth(3, prompt(39, 10)) == 10


def test_a_prompt_without_a_beginning_is_nobodys() -> None:
    index = PrefixIndex()
    index.note(0, (), 1_000)

    assert (index.size, index.depth(0, ())) == (0, 0)


def test_prompts_that_come_again_and_again_do_not_pile_up() -> None:
    index = PrefixIndex()
    trunk = prompt(0, 30)
    for turn in range(5_000):
        index.note(0, prompt(1 + turn % 7, 31, begins=trunk), PLENTY)

    assert index.size == 30 + 7
    assert len(index._sent[0].prompts) < 300
    assert index.depth(0, prompt(3, 31, begins=trunk)) == 31


def test_an_endpoint_that_starts_anew_holds_nothing_and_others_what_they_held() -> None:
    index = PrefixIndex()
    sent = prompt(1, 10)
    index.note(0, sent, PLENTY)
    index.note(1, sent[:5], PLENTY)

    index.forget(0)
    index.forget(3)

    assert (index.depth(0, sent), index.depth(1, sent)) == (0, 5)
    assert index.size == 5


def test_different_beginnings_of_one_hash_leave_nothing_behind() -> None:
    # Nobody makes such hashes but on purpose: one that stands at several places, in one prompt and in others.
    index = PrefixIndex()
    for turn in range(2_000):
        index.note(0, (turn % 13, 99, turn % 5, 99, 1_000 + turn % 40), reach(20))
        index.note(0, (99, 1_000 + turn % 40, turn % 13), reach(20))

    assert index.size <= 60
    index.forget(0)
    assert index.size == 0
    assert not index._runs


def test_one_beginning_whose_hash_stands_elsewhere_does_not_spoil_the_other_for_good() -> None:
    index = PrefixIndex()
    trunk = prompt(1, 10)
    for turn in range(200):
        if turn == 50:
            index.note(0, (777, trunk[0], 778), reach(20))
        index.note(0, prompt(100 + turn, 11, begins=trunk), reach(20))

    assert index.depth(0, trunk) == 10
    index.forget(0)
    assert not index._runs
