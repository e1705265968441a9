"""Tests for measuring and hashing the prompts of Anthropic's Messages API."""

import json
import re

import pytest

from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.media import FILE_TOKENS, IMAGE_TOKENS
from headgate.wire.messages_length import BLOCK_DEPTH_MAX, measure_blocks
from headgate.wire.request_body import BadRequest, RequestBody
from testing.executed_lines import count_executed_lines

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x" * 50_000}}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x" * 50_000}}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1;"}


def a_body(api: Api = Api.MESSAGES, **fields: object) -> RequestBody:
    return RequestBody.parse(json.dumps({"model": "m", "max_tokens": 9, "messages": [USER]} | fields).encode(), api)


def test_system_messages_and_tools_count() -> None:
    alone = a_body()
    tools = [{"name": "f", "input_schema": {}}]

    assert alone.prompt_bytes == len(json.dumps([USER]))
    assert a_body(system="Be brief.").prompt_bytes == alone.prompt_bytes + len('"Be brief."')
    assert a_body(system=None).prompt_bytes == alone.prompt_bytes
    with_tools = a_body(tools=tools)
    assert with_tools.length.preamble == len(json.dumps(tools))
    assert with_tools.prompt_bytes == alone.prompt_bytes + len(json.dumps(tools))
    assert not alone.length.media


@pytest.mark.parametrize(("block", "tokens"), [(IMAGE, IMAGE_TOKENS), (DOCUMENT, FILE_TOKENS)])
def test_media_counts_by_type(block: dict[str, object], tokens: int) -> None:
    for content in ([block], [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]):
        body = a_body(messages=[{"role": "user", "content": content}])

        assert body.length.media
        assert tokens * BYTES_PER_TOKEN <= body.prompt_bytes <= tokens * BYTES_PER_TOKEN + 200


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "x" * 50_000},
        {"type": "content", "content": [{"type": "text", "text": "x" * 50_000}]},
    ],
)
def test_text_in_a_document_counts_in_full(source: object) -> None:
    body = a_body(messages=[{"role": "user", "content": [{"type": "document", "source": source}]}])

    assert body.prompt_bytes > 50_000


def escaped(body: bytes, *names: str) -> bytes:
    """The same JSON with the first letter of these names or values escaped."""
    for name in names:
        body = body.replace(f'"{name}"'.encode(), f'"\\u{ord(name[0]):04x}{name[1:]}"'.encode())
    return body


@pytest.mark.parametrize(
    "blocks",
    [
        [IMAGE],
        [DOCUMENT],
        [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}],
        [{"type": "document", "source": {"type": "text", "data": "x" * 50_000}}],
        [{"type": "document", "source": {"type": "content", "content": [IMAGE]}}],
    ],
)
@pytest.mark.parametrize(
    "names", [("source",), ("content",), ("type",), ("text", "image"), ("source", "content", "type")]
)
def test_escaped_names_do_not_change_the_estimate(blocks: object, names: tuple[str, ...]) -> None:
    plain = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}).encode()
    hidden = escaped(plain, *names)
    expected = RequestBody.parse(plain, Api.MESSAGES)
    found = RequestBody.parse(hidden, Api.MESSAGES)

    assert (b"\\u00" in hidden) == (re.search(rb'"(%s)"' % "|".join(names).encode(), plain) is not None)
    assert json.loads(hidden) == json.loads(plain)
    assert found.length.media == expected.length.media
    # Names of a block's fields are not counted, but the values of `type` are.
    assert 0 <= found.prompt_bytes - expected.prompt_bytes <= 6 * 5


@pytest.mark.parametrize("size", [10, 500_000])
def test_source_that_is_a_string_counts_in_full(size: int) -> None:
    text = {"type": "text", "text": "found"}
    block = {"type": "search_result", "source": "x" * size, "title": "t", "content": [text]}
    for content in ([block], [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]):
        body = a_body(messages=[{"role": "user", "content": content}])

        assert size <= body.prompt_bytes <= size + 200


def test_image_in_a_document_in_a_tool_result_counts_by_type() -> None:
    document = {"type": "document", "source": {"type": "content", "content": [IMAGE, IMAGE]}}
    content = [{"type": "tool_result", "tool_use_id": "t", "content": [document]}]
    body = a_body(messages=[{"role": "user", "content": content}])

    assert 2 * IMAGE_TOKENS * BYTES_PER_TOKEN <= body.prompt_bytes <= 2 * IMAGE_TOKENS * BYTES_PER_TOKEN + 200


def nested(depth: int) -> bytes:
    """Messages with an image inside this number of tool results."""
    block: object = {"type": "image", "source": {"type": "url", "url": "x"}}
    for _ in range(depth):
        block = {"type": "tool_result", "content": [block]}
    return json.dumps([{"role": "user", "content": [block]}]).encode()


def test_deeper_blocks_are_never_underestimated() -> None:
    for depth in range(26):
        assert measure_blocks(nested(depth), "messages")[0] >= IMAGE_TOKENS * BYTES_PER_TOKEN
    hidden = escaped(nested(25), "source")
    assert measure_blocks(hidden, "messages")[0] >= FILE_TOKENS * BYTES_PER_TOKEN


def test_deeper_blocks_are_not_parsed() -> None:
    def work(depth: int) -> int:
        return count_executed_lines(lambda: measure_blocks(nested(depth), "messages"), "headgate.wire.messages_length")

    assert work(BLOCK_DEPTH_MAX) > work(1)
    assert work(BLOCK_DEPTH_MAX + 1) == work(25)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages"),
        ({"messages": [{"role": 5, "content": [IMAGE]}]}, "messages"),
        ({"system": 5}, "system"),
        ({"system": {"type": "text"}}, "system"),
    ],
)
def test_malformed_prompts_are_rejected(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        a_body(**fields)

    assert caught.value.param == param


def test_token_counts_are_estimated_like_messages() -> None:
    fields: dict[str, object] = {
        "messages": [{"role": "user", "content": ["word " * 10_000, IMAGE]}],
        "system": "Be brief.",
        "tools": [{"name": "f", "input_schema": {}}],
    }
    body = a_body(Api.COUNT_TOKENS, **fields)

    assert body.prompt_bytes == a_body(**fields).prompt_bytes > 50_000
    assert body.length.media
    assert body.prefix == b""
    assert body.output_tokens_max is None


def test_fields_reach_the_engine_as_they_are() -> None:
    body = a_body(stream=True, system="s", metadata={"user_id": "u"}, stop_sequences=["x"], tools=[{"name": "f"}])
    sent = json.loads(body.encode(served_model="served"))

    assert (body.stream, body.output_tokens_max, body.metadata(("user_id",))) == (True, 9, (("user_id", "u"),))
    assert sent == {
        "model": "served",
        "max_tokens": 9,
        "messages": [USER],
        "stream": True,
        "system": "s",
        "metadata": {"user_id": "u"},
        "stop_sequences": ["x"],
        "tools": [{"name": "f"}],
    }


@pytest.mark.parametrize(("tier", "kept"), [("standard_only", None), ("auto", "auto"), ("flex", "flex")])
def test_standard_tier_chooses_no_class(tier: str, kept: str | None) -> None:
    assert a_body(service_tier=tier).service_tier == kept


def test_cache_salt_is_derived_for_messages_only() -> None:
    salted = json.loads(a_body(cache_salt="mine").encode(served_model="m", cache_salt="secret"))["cache_salt"]

    assert len(salted) == 64
    counted = a_body(Api.COUNT_TOKENS, cache_salt="mine").encode(served_model="m", cache_salt="secret")
    assert "cache_salt" not in json.loads(counted)


# Prefixes


def turns(*texts: str) -> list[object]:
    return [{"role": "user", "content": text} for text in texts]


def common(one: RequestBody, other: RequestBody) -> int:
    """Returns the number of equal hashes at the beginning."""
    pairs = zip(*(memoryview(each.prefix).cast("Q") for each in (one, other)), strict=False)
    return next(
        (n for n, (left, right) in enumerate(pairs) if left != right), min(len(one.prefix), len(other.prefix)) // 8
    )


def test_conversation_shares_its_prefix_with_its_next_turn() -> None:
    first = a_body(system="s" * 4_000, messages=turns("a" * 4_000))
    second = a_body(system="s" * 4_000, messages=turns("a" * 4_000, "b" * 4_000))

    assert first.prefix
    assert common(first, second) == len(first.prefix) // 8


@pytest.mark.parametrize("changed", [{"system": "t" * 4_000}, {"tools": [{"name": "g"}]}])
def test_other_instructions_share_nothing(changed: dict[str, object]) -> None:
    fields: dict[str, object] = {"system": "s" * 4_000, "messages": turns("a" * 4_000), "tools": [{"name": "f"}]}

    assert common(a_body(**fields), a_body(**fields | changed)) == 0


def test_billing_data_of_an_agent_is_not_part_of_the_prefix() -> None:
    block = {"type": "text", "text": "s" * 8_000}
    other = BILLING | {"text": BILLING["text"].replace("cch=1", "cch=2")}
    one = a_body(system=[BILLING, block], messages=turns("a"))

    assert one.prefix
    assert common(one, a_body(system=[other, block], messages=turns("a"))) == len(one.prefix) // 8


def test_media_does_not_count_toward_the_length_of_a_prefix() -> None:
    message = {"role": "user", "content": [IMAGE]}
    other = {"role": "user", "content": [IMAGE | {"source": IMAGE["source"] | {"data": "y" * 50_000}}]}
    one = a_body(messages=[message, *turns("a" * 8_000)])

    assert 0 < len(one.prefix) < len(a_body(messages=turns("x" * 50_000, "a" * 8_000)).prefix)
    assert common(one, a_body(messages=[other, *turns("a" * 8_000)])) == 0
