"""Tests for finding usage in a response."""

import json
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.model.usage import TOKENS_MAX, Usage, UsageSource
from headgate.wire.usage import OBJECT_BYTES_MAX, TAIL_BYTES_MAX, UsageFinder, read_usage
from testing.executed_lines import count_executed_lines, split_into

CHAT = (
    b'{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"Hello"}}],'
    b'"created":1794708372,"model":"smollm2","usage":{"completion_tokens":8,"prompt_tokens":36,"total_tokens":44,'
    b'"prompt_tokens_details":{"cached_tokens":35}},"id":"chatcmpl-U4ue","timings":{"cache_n":35}}'
)
EMBEDDINGS = (
    b'{"model":"m","object":"list","usage":{"prompt_tokens":3,"total_tokens":3},"data":[{"embedding":[0.1,0.2]}]}'
)

RESPONSE = (
    b'{"id":"resp_b05f","model":"smollm2","object":"response","output":[{"content":[{"text":"ugu","type":"output_text"}],'
    b'"type":"message"}],"status":"completed","usage":{"input_tokens":32,"input_tokens_details":{"cached_tokens":16,'
    b'"input_tokens_per_turn":[]},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":36},'
    b'"user":null}'
)


def found(*pieces: bytes) -> Usage | None:
    finder = UsageFinder()
    for piece in pieces:
        finder.feed(piece)
    return finder.usage


def engine_said(prompt: int, output: int, cached: int = 0) -> Usage:
    return Usage(prompt, output, cached, UsageSource.ENGINE)


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (b'{"prompt_tokens":3,"total_tokens":3}', engine_said(3, 0)),
        (b'{"prompt_tokens":3,"completion_tokens":null,"prompt_tokens_details":null}', engine_said(3, 0)),
        (b'{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{}}', engine_said(3, 4)),
        (
            b'{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2,"audio_tokens":0}}',
            engine_said(3, 4, 2),
        ),
        (b'{"input_tokens":3,"output_tokens":4,"total_tokens":7}', engine_said(3, 4)),
        (
            (
                b'{"input_tokens":3,"input_tokens_details":{"cached_tokens":2,"input_tokens_per_turn":[]},"output_tokens":4,'
                b'"output_tokens_details":{"reasoning_tokens":1}}'
            ),
            Usage(3, 4, 2, UsageSource.ENGINE, 1),
        ),
        (b'{"input_tokens":-3,"output_tokens":4}', None),
        (b'{"output_tokens":4}', None),
        (b'{"prompt_tokens":-3,"completion_tokens":4}', None),
        (
            b'{"prompt_tokens":3,"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":5}}',
            Usage(3, 9, 0, UsageSource.ENGINE, 5),
        ),
        (
            b'{"input_tokens":3,"output_tokens":9,"output_tokens_details":{"reasoning_tokens":5}}',
            Usage(3, 9, 0, UsageSource.ENGINE, 5),
        ),
        (b'{"prompt_tokens":3,"completion_tokens_details":null}', Usage(3, 0, 0, UsageSource.ENGINE)),
        (b'{"prompt_tokens":3,"completion_tokens_details":{"reasoning_tokens":-5}}', None),
        (b'{"prompt_tokens":3,"completion_tokens":%d}' % TOKENS_MAX, engine_said(3, TOKENS_MAX)),
        (b'{"prompt_tokens":3,"completion_tokens":%d}' % (TOKENS_MAX + 1), None),
        (b'{"prompt_tokens":1%s}' % (b"0" * 30), None),
        (b'{"input_tokens":3,"output_tokens":1%s}' % (b"0" * 400), None),
        (b'{"prompt_tokens":3,"completion_tokens":1%s}' % (b"0" * 6_000), None),
        (b'{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":1%s}}' % (b"0" * 30), None),
        (b'{"prompt_tokens":3,"completion_tokens_details":{"reasoning_tokens":1%s}}' % (b"0" * 30), None),
        (b'{"prompt_tokens":"3"}', None),
        (b'{"completion_tokens":4}', None),
        (b"{}", None),
        (b"null", None),
        (b"[" * 100_000, None),
    ],
)
def test_usage_object_is_read_or_rejected(raw: bytes, usage: Usage | None) -> None:
    assert read_usage(raw) == usage


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (CHAT, engine_said(36, 8, 35)),
        (EMBEDDINGS, engine_said(3, 0)),
        (RESPONSE, engine_said(32, 4, 16)),
        (json.dumps(json.loads(CHAT), indent=4).encode(), engine_said(36, 8, 35)),
        (b'{"choices":[],"usage":null}', None),
        (b'{"choices":[]}', None),
        (b'{"usage":{"prompt_tokens":', None),
    ],
)
def test_usage_is_found_in_one_piece_and_byte_by_byte(body: bytes, usage: Usage | None) -> None:
    assert found(body) == usage
    assert found(*(bytes([byte]) for byte in body)) == usage


@pytest.mark.parametrize(
    "text",
    ['"usage":{"prompt_tokens":999}', '"usage', 'usage":{"prompt_tokens":999}', '\\"usage":{"prompt_tokens":9}', "\\"],
)
def test_response_text_is_not_interpreted_as_usage(text: str) -> None:
    message = {"role": "assistant", "content": text, "tool_calls": [{"function": {"arguments": text}}]}

    assert found(json.dumps({"choices": [{"message": message}]}).encode()) is None
    assert found(json.dumps({"usage": {"prompt_tokens": 1}, "choices": [message]}).encode()) == engine_said(1, 0)


def test_oversized_usage_object_is_skipped_and_not_buffered() -> None:
    endless = b'{"usage":{"prompt_tokens":1,"x":[' + b"1," * OBJECT_BYTES_MAX
    finder = UsageFinder()
    for start in range(0, len(endless), 100):
        finder.feed(endless[start : start + 100])
        assert finder.held_bytes <= OBJECT_BYTES_MAX + TAIL_BYTES_MAX + 1
    finder.feed(b'1]}},"usage":{"prompt_tokens":2}')

    assert finder.usage == engine_said(2, 0)


@given(
    texts=st.lists(
        st.text(max_size=12) | st.sampled_from(['"usage":{', '"usage"', "\\", '{"prompt_tokens":9}']), max_size=5
    ),
    usage=st.none() | st.integers(0, 10**6),
    spaces=st.sampled_from([None, 2]),
    front=st.booleans(),
    size=st.integers(1, 40),
)
@example(texts=['"usage":{'], usage=7, spaces=2, front=True, size=1)
def test_result_does_not_depend_on_how_the_response_is_split(
    texts: list[str], usage: int | None, spaces: int | None, front: bool, size: int
) -> None:
    told: dict[str, object] = {"usage": None if usage is None else {"prompt_tokens": usage, "completion_tokens": 1}}
    rest: dict[str, object] = {"choices": [{"text": text} for text in texts]}
    body = json.dumps(told | rest if front else rest | told, indent=spaces).encode()

    expected = None if usage is None else engine_said(usage, 1)
    assert found(*(body[start : start + size] for start in range(0, len(body), size))) == expected


HOSTILE = [
    *(b'"usage":{', b'"usage":{}', b'"usage":{"', b'\\"usage":{', b'"usage"usage":{'),
    *(b'"usage"', b'"usage" ', b'"usag', b'"', b"{", b"}"),
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
def test_usage_search_is_linear_no_matter_how_the_response_is_split(unit: bytes, size: int) -> None:
    def work(length: int) -> int:
        data = (unit * (length // len(unit) + 1))[:length]
        pieces = split_into(data, size)
        return count_executed_lines(lambda: found(*pieces), "headgate.wire.usage")

    # Two and four times OBJECT_BYTES_MAX, so that rescanning held bytes would show.
    once, twice = work(2 * OBJECT_BYTES_MAX), work(4 * OBJECT_BYTES_MAX)
    assert twice <= 2.2 * once + 100
    assert twice <= 30 * 4 * OBJECT_BYTES_MAX


@given(
    units=st.lists(
        st.sampled_from([*HOSTILE, b'"usage":{"prompt_tokens":1}', b'"prompt_tokens":2', b":{"]), max_size=12
    ),
    rest=st.lists(st.sampled_from(HOSTILE), max_size=3),
)
@example(units=[b'"usage":{"prompt_tokens":1}', b'"usage":{'], rest=[])
@example(units=[b'"usage":{"prompt_tokens":1}', b'\\"usage":{'], rest=[])
@example(units=[b'"usage"', b":{", b'"prompt_tokens":2'], rest=[b'"usage":{}'])
def test_one_piece_gives_the_same_usage_as_single_bytes(units: list[bytes], rest: list[bytes]) -> None:
    whole, more = b"".join(units) + b"}", b"".join(rest)

    assert found(whole, more) == found(*split_into(whole + more, 1))


def usages_in(value: object) -> list[object]:
    """Returns the innermost usage objects in a JSON value, in order."""
    match value:
        case list():
            return [usage for element in cast("list[object]", value) for usage in usages_in(element)]
        case dict():
            members = cast("dict[str, object]", value).items()
            return [usage for name, element in members for usage in usages_in(element) or own_usage(name, element)]
        case _:
            return []


def own_usage(name: str, value: object) -> list[object]:
    return [cast("object", value)] if name == "usage" and isinstance(value, dict) else []


COUNTS = st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "x"]), st.integers(0, 99), max_size=3)
NAMES = st.sampled_from(["usage", "a", "\\", '"usage":'])
VALUES = st.recursive(
    st.text(st.sampled_from('usage":\\ \n'), max_size=12) | st.integers(0, 9) | COUNTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(value=VALUES, spaces=st.sampled_from([None, 2]), size=st.integers(1, 60))
def test_last_readable_usage_in_any_json_value_is_found(value: object, spaces: int | None, size: int) -> None:
    body = json.dumps(value, indent=spaces).encode()
    readable = [usage for each in usages_in(value) if (usage := read_usage(json.dumps(each).encode()))]

    assert found(*split_into(body, size)) == (readable[-1] if readable else None)
