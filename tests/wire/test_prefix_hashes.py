"""Tests for the rolling hashes of a prompt prefix."""

import json
from typing import Any

import pytest

from headgate.model.prefix import HASH_BYTES, HASHES_MAX, PREFIX_LENGTHS
from headgate.model.ticket import Api
from headgate.wire.prefix_hashes import HASHED_BYTES_MIN, salt_hashes
from headgate.wire.request_body import RequestBody

Message = dict[str, Any]


def hashes(api: Api = Api.CHAT, **fields: Any) -> list[bytes]:
    packed = RequestBody.parse(json.dumps({"model": "m"} | fields).encode(), api).prefix
    assert len(packed) % HASH_BYTES == 0
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]


def said(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def picture(data: str) -> Message:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def alike(one: list[bytes], other: list[bytes]) -> int:
    """Returns the number of leading hashes that are equal."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def test_short_prompt_has_no_hash() -> None:
    assert hashes(messages=[said("user", "hello")]) == []
    # The field value is the text including its two quotes.
    assert hashes(Api.COMPLETIONS, prompt="x" * (HASHED_BYTES_MIN - 3)) == []
    assert len(hashes(Api.COMPLETIONS, prompt="x" * (HASHED_BYTES_MIN - 2))) == 1


def test_prompt_has_one_hash_per_distance_it_reaches() -> None:
    found = hashes(messages=[said("user", "x" * 40_000)])

    assert len(found) == sum(4 * distance <= 40_000 for distance in PREFIX_LENGTHS)
    assert len(set(found)) == len(found)


def test_number_of_hashes_for_a_long_prompt_is_limited() -> None:
    assert len(hashes(messages=[said("user", "x" * (4 * PREFIX_LENGTHS[-1] + 100_000))])) == HASHES_MAX


def test_next_request_in_a_conversation_extends_the_previous_requests_hashes() -> None:
    first = [said("system", "be kind " * 500), said("user", "why? " * 800)]
    then = [*first, said("assistant", "because " * 300), said("user", "and how? " * 100)]

    assert alike(hashes(messages=first), hashes(messages=then)) == len(hashes(messages=first)) == 4


@pytest.mark.parametrize("changed_at", [100, 5_000, 11_900])
def test_hashes_differ_from_the_first_distance_after_a_difference(changed_at: int) -> None:
    words = "abcdefgh" * 2_000
    other = words[:changed_at] + "#" + words[changed_at + 1 :]

    same = alike(hashes(Api.COMPLETIONS, prompt=words), hashes(Api.COMPLETIONS, prompt=other))

    # A quote precedes the text.
    assert same == sum(4 * distance <= changed_at + 1 for distance in PREFIX_LENGTHS)


def test_message_role_changes_the_hashes() -> None:
    words = "x" * 5_000

    assert alike(hashes(messages=[said("user", words)]), hashes(messages=[said("system", words)])) == 0


def test_tools_and_salt_change_the_hashes_but_not_their_number() -> None:
    messages = [said("user", "x" * 10_000)]
    plain = hashes(messages=messages)
    tool = {"type": "function", "function": {"name": "f", "description": "y" * 10_000}}

    for fields in ({"tools": [tool]}, {"cache_salt": "mine"}):
        changed = hashes(messages=messages, **fields)
        assert len(changed) == len(plain)
        assert alike(changed, plain) == 0


def test_responses_api_instructions_precede_its_input() -> None:
    instructions = "be kind " * 300
    one = hashes(Api.RESPONSES, input="a" * 4_000, instructions=instructions)
    other = hashes(Api.RESPONSES, input="b" * 4_000, instructions=instructions)

    assert alike(one, other) == sum(4 * distance <= len(instructions) + 2 for distance in PREFIX_LENGTHS) == 2
    assert len(one) > 2


def test_embeddings_have_no_hashes() -> None:
    assert hashes(Api.EMBEDDINGS, input="x" * 10_000) == []


def test_image_changes_the_hashes_but_adds_no_length() -> None:
    def asked(data: str) -> list[bytes]:
        before = said("system", "x" * 3_000)
        return hashes(messages=[before, said("user", [picture(data), text("what is this? " * 400)])])

    one, other = asked("A" * 50_000), asked("B" * 50_000)

    assert alike(one, one) == len(one)
    assert len(one) == len(other) < sum(4 * distance <= 20_000 for distance in PREFIX_LENGTHS)
    # Hashes before the image are equal, and those after it are not.
    assert 1 <= alike(one, other) < len(one)


def test_text_resembling_an_image_is_hashed_as_text() -> None:
    words = ["image_url", "x" * 5_000]

    assert len(hashes(Api.COMPLETIONS, prompt=words)) > 2
    assert len(hashes(Api.COMPLETIONS, prompt=list(range(1_000, 3_000)))) > 2


def test_content_given_as_a_single_part_is_hashed() -> None:
    messages = [said("user", "x" * 4_000), {"role": "user", "content": picture("A" * 9_000), "name": "n"}]

    assert len(hashes(messages=messages)) == 2


def test_large_body_has_the_same_hashes_in_every_process() -> None:
    raw = json.dumps({"model": "m", "messages": [said("user", "x" * 300_000)]}).encode()
    body = RequestBody.parse(raw, Api.CHAT)

    assert RequestBody.from_outline(raw, Api.CHAT, body.outline(raw)).prefix == body.prefix != b""


def test_two_tenants_hashes_never_match() -> None:
    body = RequestBody.parse(json.dumps({"model": "m", "prompt": "x" * 9_000}).encode(), Api.COMPLETIONS)
    acme, bolt = salt_hashes(body.prefix, "acme"), salt_hashes(body.prefix, "bolt")

    assert len(acme) == len(bolt) == len(body.prefix)
    assert salt_hashes(body.prefix, "acme") == acme
    for at in range(0, len(acme), HASH_BYTES):
        assert len({each[at : at + HASH_BYTES] for each in (acme, bolt, body.prefix)}) == 3
    assert salt_hashes(b"", "acme") == b""
