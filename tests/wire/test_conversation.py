"""Tests for trimming the oldest turns in a conversation."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.conversation import measure as measure_messages
from headgate.wire.conversation import trim
from headgate.wire.media import IMAGE_TOKENS, MEDIA_KINDS, has_media

SYSTEM = {"role": "system", "content": "Be brief."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}

Message = dict[str, object]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, *call_ids: str) -> Message:
    return {"role": "assistant", "content": text} | (
        {"tool_calls": [{"id": each} for each in call_ids]} if call_ids else {}
    )


def result(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": "42"}


def raw(messages: list[Message]) -> bytes:
    return json.dumps(messages, separators=(",", ":")).encode()


def measure(messages: bytes) -> tuple[int, int]:
    length, kept, media = measure_messages(messages)
    assert media == has_media(messages)
    return length, kept


def trimmed(messages: list[Message], length_max: int) -> tuple[list[Message], int]:
    left, length, dropped = trim(raw(messages), length_max)
    assert length == measure(left)[0]
    return json.loads(left), dropped


def test_oldest_turns_are_dropped_until_the_rest_fits() -> None:
    messages = [SYSTEM, user("1"), answer("a"), user("2"), answer("b"), user("3")]
    two_turns = [SYSTEM, user("2"), answer("b"), user("3")]

    assert trimmed(messages, len(raw(messages)) - 1) == (two_turns, 1)
    assert trimmed(messages, len(raw(two_turns))) == (two_turns, 1)
    assert trimmed(messages, len(raw(two_turns)) - 1) == ([SYSTEM, user("3")], 2)
    assert trimmed(messages, 1) == ([SYSTEM, user("3")], 2)


def test_instructions_keep_their_position() -> None:
    developer = {"role": "developer", "content": "And kind."}
    messages = [user("1"), SYSTEM, answer("a"), developer, user("2")]

    assert trimmed(messages, 1) == ([SYSTEM, developer, user("2")], 1)


def test_greeting_is_dropped_with_the_first_turn() -> None:
    assert trimmed([answer("Hello!"), user("1"), answer("a"), user("2")], 1) == ([user("2")], 1)


def test_last_turn_starts_at_the_last_user_message() -> None:
    last = [user("2"), answer("", "c"), result("c"), answer("so")]

    assert trimmed([user("1"), answer("a"), *last], 1) == (last, 1)
    assert trimmed(last, 1) == (last, 0)


def test_tool_result_is_kept_with_its_call() -> None:
    bound = [user("2"), answer("", "c"), user("meanwhile"), result("c"), answer("so")]

    assert trimmed([user("1"), answer("a"), *bound], 1) == (bound, 1)
    assert trimmed([user("1"), answer("a"), *bound, user("4")], 1) == ([user("4")], 3)


def test_result_without_an_id_belongs_to_the_preceding_assistant_message() -> None:
    bound = [user("2"), answer("calling"), user("meanwhile"), {"role": "function", "name": "f", "content": "42"}]

    assert trimmed([user("1"), *bound], 1) == (bound, 1)


def test_media_is_counted_by_kind_and_dropped_with_its_turn() -> None:
    looked = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}
    messages = [SYSTEM, looked, answer("a cat"), user("sure?")]

    length, kept = measure(raw(messages))

    assert kept == len(raw([SYSTEM, user("sure?")]))
    assert kept < length - 4 * IMAGE_TOKENS < 250
    assert trimmed(messages, kept) == ([SYSTEM, user("sure?")], 1)


def test_remaining_messages_keep_their_exact_bytes() -> None:
    messages = b'[ {"role":"user","content":"1"} , {"content" : "\\u00e9", "role":"user", "x":1.50} ]'

    assert trim(messages, 1) == (b'[{"content" : "\\u00e9", "role":"user", "x":1.50}]', 49, 1)


def test_measuring_time_is_linear_in_conversation_length() -> None:
    def took_at_least(turns: int) -> float:
        """Returns the minimum of three runs, because one run may include garbage collection for other tests."""
        return min(took(turns) for _ in range(3))

    def took(turns: int) -> float:
        one = [user("1"), answer("", "c"), *[message for _ in range(turns) for message in (user("2"), result("c"))]]
        text = raw(one)
        start = time.process_time()
        measure(text)
        return time.process_time() - start

    took(100)
    assert took_at_least(20_000) < 40 * max(took_at_least(2_000), 0.001)


_MESSAGES = st.lists(
    st.one_of(
        st.builds(user, st.text(max_size=8)),
        st.builds(answer, st.text(max_size=8)),
        st.builds(answer, st.just(""), st.sampled_from(["a", "b"])),
        st.builds(result, st.sampled_from(["a", "b", "z"])),
        st.builds(
            lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "developer"]), st.text()
        ),
        st.just({"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]}),
    ),
    min_size=1,
    max_size=12,
)


@given(messages=_MESSAGES, length_max=st.integers(1, 600))
def test_trimmed_conversation_is_in_order_and_keeps_required_messages(messages: list[Message], length_max: int) -> None:
    left, dropped = trimmed(messages, length_max)
    length, kept = measure(raw(messages))
    left_length = measure(raw(left))[0]

    remaining = iter(messages)
    assert all(message in remaining for message in left)
    fixed = [each for each in messages if each["role"] in ("system", "developer")]
    assert [each for each in left if each["role"] in ("system", "developer")] == fixed
    starts = [index for index, each in enumerate(messages) if each["role"] == "user"]
    last_turn = messages[starts[-1] :] if starts else messages
    assert left[len(left) - len(last_turn) :] == last_turn
    assert sum(each["role"] == "user" for each in messages) - sum(each["role"] == "user" for each in left) == dropped
    assert kept <= left_length <= length
    assert left_length <= length_max or left_length == kept


@given(messages=_MESSAGES, length_max=st.integers(1, 600))
def test_trimming_does_not_separate_results_from_their_calls(messages: list[Message], length_max: int) -> None:
    left, _ = trimmed(messages, length_max)

    orphans_left, orphans_before = orphans(left), orphans(messages)
    assert len(orphans_left) <= len(orphans_before)
    assert orphans_left == orphans_before[len(orphans_before) - len(orphans_left) :]


def orphans(messages: list[Message]) -> list[object]:
    """Returns the IDs of results that are not preceded by a call, in order."""
    called: set[object] = set()
    found: list[object] = []
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            found.append(message["tool_call_id"])
        called.update(call["id"] for call in message.get("tool_calls", []))  # type: ignore[attr-defined]
    return found


@given(messages=_MESSAGES, length_max=st.integers(1, 600))
def test_trimming_is_idempotent(messages: list[Message], length_max: int) -> None:
    once, _ = trimmed(messages, length_max)
    if measure(raw(once))[0] > length_max:
        assert trimmed(once, length_max) == (once, 0)


@pytest.mark.parametrize("kind", MEDIA_KINDS)
def test_media_kind_is_matched_only_as_a_complete_name(kind: str) -> None:
    assert has_media(b'[{"%b":1}]' % kind.encode())
    assert not has_media(b'[{"%b_":1},{"x%b":1}]' % (kind.encode(), kind.encode()))


@pytest.mark.parametrize("kind", MEDIA_KINDS)
def test_media_kind_is_matched_with_escaped_letters(kind: str) -> None:
    for index, letter in enumerate(kind):
        for code in (f"{ord(letter):04x}", f"{ord(letter):04X}"):
            escaped = kind[:index] + f"\\u{code}" + kind[index + 1 :]
            assert json.loads(f'"{escaped}"') == kind
            assert has_media(f'[{{"{escaped}":1}}]'.encode())
            assert not has_media(f'[{{"{escaped}_":1}},{{"x{escaped}":1}}]'.encode())
    everything = "".join(f"\\u{ord(letter):04x}" for letter in kind)
    assert has_media(f'[{{"{everything}":1}}]'.encode())


@pytest.mark.parametrize("text", [r"im\\u0061ge_url", r"caf\u00e9", r"\u00e9 image_url", r"\"im\u0061ge_url\""])
def test_escapes_in_texts_are_not_media(text: str) -> None:
    assert not has_media(f'[{{"role":"user","content":["{text}"]}}]'.encode())


@pytest.mark.parametrize("name", ["image_url", "content", "type"])
def test_escaped_names_do_not_hide_an_image(name: str) -> None:
    messages = raw([user("one"), {"role": "user", "content": [IMAGE, {"type": "text", "text": "?"}]}])
    hidden = messages.replace(f'"{name}"'.encode(), f'"\\u{ord(name[0]):04x}{name[1:]}"'.encode())

    assert hidden != messages
    # The names of fields count only in messages without an image.
    assert 0 <= measure(hidden)[0] - measure(messages)[0] <= 5
    assert measure(hidden)[0] < IMAGE_TOKENS * BYTES_PER_TOKEN + 200
    left, length, dropped = trim(hidden, 1)
    assert (length, dropped) == (trim(messages, 1)[1], 1)
    assert hidden.endswith(left[1:])
