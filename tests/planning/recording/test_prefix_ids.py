"""Numbers that replace prefix hashes."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.model.prefix import PREFIX_LENGTHS, pack_hashes
from headgate.planning.recording.prefix_ids import BLOCKS_MAX, PrefixIds
from headgate.ports.traffic import TrafficRow


def a_row(hashes: Sequence[int], *, prompt_tokens: int = 0, prompt_bytes: int = 0, before: int = 0) -> TrafficRow:
    return TrafficRow(
        0,
        prompt_tokens=prompt_tokens,
        prompt_bytes=prompt_bytes,
        prefix=pack_hashes(list(hashes)),
        bytes_before_prefix=before,
    )


def chain(name: int, count: int) -> list[int]:
    """Hashes of a prompt's first lengths."""
    return [name * 1_000 + number for number in range(count)]


def test_blocks_are_numbered_in_order_of_appearance() -> None:
    ids = PrefixIds()
    # The lengths are 256, 512, 1024, 1536, ...: the first two hashes are in the first block.
    assert ids.ids(a_row(chain(1, 4))) == (1, 2, 3)
    assert ids.ids(a_row([*chain(1, 3), 77, 78])) == (1, 2, 4, 5)
    assert ids.ids(a_row(chain(2, 2))) == (6,)
    assert ids.ids(a_row([])) == ()
    assert ids.count == 6


def test_long_steps_have_several_ids() -> None:
    assert len(PrefixIds().ids(a_row(chain(1, len(PREFIX_LENGTHS))))) == PREFIX_LENGTHS[-1] // 512


def test_lengths_are_in_tokens_of_the_engine() -> None:
    # 5 bytes per token: 2,048 estimated tokens are 1,638 tokens of the engine, which is nearest to 3 blocks.
    assert len(PrefixIds().ids(a_row(chain(1, 5), prompt_tokens=2_000, prompt_bytes=10_000))) == 3
    # The tokens of images are not in the bytes that are hashed.
    assert len(PrefixIds().ids(a_row(chain(1, 3), prompt_tokens=90_000, prompt_bytes=4_096))) == 4


def test_prompts_agree_on_common_blocks_although_their_ratios_differ() -> None:
    ids = PrefixIds()
    first = ids.ids(a_row(chain(1, 9), prompt_tokens=4_000, prompt_bytes=16_300))
    second = ids.ids(a_row([*chain(1, 8), 5], prompt_tokens=3_300, prompt_bytes=16_300))

    assert first[:7] == second[:7]


def test_parts_before_the_prefix_count() -> None:
    assert PrefixIds().ids(a_row(chain(1, 2), before=4 * 1_024)) == (1, 2, 3)


def test_number_of_blocks_is_bounded() -> None:
    assert len(PrefixIds().ids(a_row(chain(1, 64), before=2**31))) == BLOCKS_MAX


def test_models_do_not_share_ids() -> None:
    ids, row = PrefixIds(), a_row(chain(1, 2))
    assert [ids.ids(replace(row, model=model)) for model in ("m", "n", "m")] == [(1,), (2,), (1,)]


def test_forgotten_hashes_get_new_ids_and_memory_is_bounded() -> None:
    ids = PrefixIds(hashes_kept_max=4)
    assert ids.ids(a_row(chain(1, 3))) == (1, 2)
    assert ids.ids(a_row(chain(2, 3))) == (3, 4)
    assert ids.ids(a_row(chain(1, 3)))[1] == 5
    assert len(ids._known) <= 4


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1_000, 9_000)), max_size=30))
def test_equal_ids_mean_equal_hashes_up_to_there(prompts: list[tuple[int, int, int]]) -> None:
    ids = PrefixIds()
    parents: dict[int, int] = {}
    for name, count, prompt_bytes in prompts:
        # Prompts with even names share their first hashes with name 0.
        hashes = [*chain(0, 5), *chain(name, 12)[5:]] if name % 2 == 0 else chain(name, 12)
        before = 0
        for each in ids.ids(a_row(hashes[:count], prompt_tokens=1_000, prompt_bytes=prompt_bytes)):
            assert parents.setdefault(each, before) == before, "no id follows two different ids"
            before = each
