"""Do two prompts have the same hashes exactly as far as they begin in the same way?"""

import json
from typing import Any

import pytest

from headgate.model.prefix import DISTANCES, HASH_BYTES, HASHES_MAX
from headgate.model.ticket import Api
from headgate.wire.prefix import SHORTEST_BYTES, salted
from headgate.wire.request import RequestBody

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
    """How many of the first hashes are the same."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def test_a_short_prompt_has_no_hash() -> None:
    assert hashes(messages=[said("user", "hello")]) == []
    # The field's value is the text with its two quotes.
    assert hashes(Api.COMPLETIONS, prompt="x" * (SHORTEST_BYTES - 3)) == []
    assert len(hashes(Api.COMPLETIONS, prompt="x" * (SHORTEST_BYTES - 2))) == 1


def test_there_is_a_hash_for_each_distance_that_the_prompt_reaches() -> None:
    found = hashes(messages=[said("user", "x" * 40_000)])

    assert len(found) == sum(4 * distance <= 40_000 for distance in DISTANCES)
    assert len(set(found)) == len(found)


def test_a_prompt_longer_than_the_last_distance_has_no_more_hashes_than_there_are_distances() -> None:
    assert len(hashes(messages=[said("user", "x" * (4 * DISTANCES[-1] + 100_000))])) == HASHES_MAX


def test_the_next_request_of_a_conversation_begins_with_all_of_the_one_before_it() -> None:
    first = [said("system", "be kind " * 500), said("user", "why? " * 800)]
    then = [*first, said("assistant", "because " * 300), said("user", "and how? " * 100)]

    assert alike(hashes(messages=first), hashes(messages=then)) == len(hashes(messages=first)) == 4


@pytest.mark.parametrize("changed_at", [100, 5_000, 11_900])
def test_hashes_differ_from_the_first_distance_on_that_lies_behind_a_difference(changed_at: int) -> None:
    words = "abcdefgh" * 2_000
    other = words[:changed_at] + "#" + words[changed_at + 1 :]

    same = alike(hashes(Api.COMPLETIONS, prompt=words), hashes(Api.COMPLETIONS, prompt=other))

    # A quote stands before the text.
    assert same == sum(4 * distance <= changed_at + 1 for distance in DISTANCES)


def test_the_role_of_a_message_is_part_of_the_prompt() -> None:
    words = "x" * 5_000

    assert alike(hashes(messages=[said("user", words)]), hashes(messages=[said("system", words)])) == 0


def test_tools_and_the_callers_salt_stand_before_the_prompt_but_are_no_part_of_its_length() -> None:
    messages = [said("user", "x" * 10_000)]
    plain = hashes(messages=messages)
    tool = {"type": "function", "function": {"name": "f", "description": "y" * 10_000}}

    for fields in ({"tools": [tool]}, {"cache_salt": "mine"}):
        changed = hashes(messages=messages, **fields)
        assert len(changed) == len(plain)
        assert alike(changed, plain) == 0


def test_instructions_of_the_responses_api_come_before_its_input() -> None:
    instructions = "be kind " * 300
    one = hashes(Api.RESPONSES, input="a" * 4_000, instructions=instructions)
    other = hashes(Api.RESPONSES, input="b" * 4_000, instructions=instructions)

    assert alike(one, other) == sum(4 * distance <= len(instructions) + 2 for distance in DISTANCES) == 2
    assert len(one) > 2


def test_embeddings_leave_nothing_to_be_found_again() -> None:
    assert hashes(Api.EMBEDDINGS, input="x" * 10_000) == []


def test_an_image_is_told_from_others_but_adds_no_length() -> None:
    def asked(data: str) -> list[bytes]:
        before = said("system", "x" * 3_000)
        return hashes(messages=[before, said("user", [picture(data), text("what is this? " * 400)])])

    one, other = asked("A" * 50_000), asked("B" * 50_000)

    assert alike(one, one) == len(one)
    assert len(one) == len(other) < sum(4 * distance <= 20_000 for distance in DISTANCES)
    # What stands before the image is the same, what stands behind it is not.
    assert 1 <= alike(one, other) < len(one)


def test_what_only_looks_like_an_image_is_text() -> None:
    words = ["image_url", "x" * 5_000]

    assert len(hashes(Api.COMPLETIONS, prompt=words)) > 2
    assert len(hashes(Api.COMPLETIONS, prompt=list(range(1_000, 3_000)))) > 2


def test_content_that_is_one_part_counts_as_the_text_that_it_is() -> None:
    messages = [said("user", "x" * 4_000), {"role": "user", "content": picture("A" * 9_000), "name": "n"}]

    assert len(hashes(messages=messages)) == 2


def test_a_large_body_has_the_same_hashes_wherever_it_was_read() -> None:
    raw = json.dumps({"model": "m", "messages": [said("user", "x" * 300_000)]}).encode()
    body = RequestBody.parse(raw, Api.CHAT)

    assert RequestBody.outlined(raw, Api.CHAT, body.outline(raw)).prefix == body.prefix != b""


def test_the_hashes_of_two_tenants_are_never_alike() -> None:
    body = RequestBody.parse(json.dumps({"model": "m", "prompt": "x" * 9_000}).encode(), Api.COMPLETIONS)
    acme, bolt = salted(body.prefix, "acme"), salted(body.prefix, "bolt")

    assert len(acme) == len(bolt) == len(body.prefix)
    assert salted(body.prefix, "acme") == acme
    for at in range(0, len(acme), HASH_BYTES):
        assert len({each[at : at + HASH_BYTES] for each in (acme, bolt, body.prefix)}) == 3
    assert salted(b"", "acme") == b""
