"""Tests for joining a stream's chunks into a complete response."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.wire.openai_bodies import read_error, reported_error
from headgate.wire.response_shape import ResponseShape
from headgate.wire.stream_joiner import BrokenStream, JoinedBody, StreamDiffers, StreamJoiner
from tests.wire.recorded import (
    DONE,
    LLAMACPP_CHAT,
    LLAMACPP_CHAT_USAGE,
    LLAMACPP_COMPLETION,
    LLAMACPP_TOOL_CALL,
    LLAMACPP_TOOL_CALL_WHOLE,
)

Chunk = dict[str, Any]


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def joined(stream: bytes, api: Api = Api.CHAT, **bounds: int) -> JoinedBody:
    joiner = StreamJoiner(api, **bounds)
    joiner.feed(stream)
    return joiner.finish()


def whole(*chunks: Chunk, api: Api = Api.CHAT) -> Any:
    """Returns the response joined from these chunks."""
    answer = joined(b"".join(map(event, chunks)) + DONE, api)
    assert answer.status == 200
    return json.loads(answer.body)


def said(*deltas: Chunk, **fields: object) -> Any:
    """Returns the message joined from these deltas for one choice."""
    [choice] = whole(*({"choices": [{"index": 0, "delta": delta} | fields]} for delta in deltas))["choices"]
    return choice["message"]


def test_recorded_chat_is_joined() -> None:
    assert json.loads(joined(LLAMACPP_CHAT + LLAMACPP_CHAT_USAGE + DONE).body) == {
        "id": "chatcmpl-b5iW",
        "object": "chat.completion",
        "created": 1794708373,
        "model": "smollm2",
        "system_fingerprint": "b0-unknown",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "length"}],
        "usage": {
            "completion_tokens": 8,
            "prompt_tokens": 36,
            "total_tokens": 44,
            "prompt_tokens_details": {"cached_tokens": 35},
        },
        "timings": {"cache_n": 35, "prompt_n": 1, "prompt_ms": 16.209},
    }


def test_recorded_completion_is_joined() -> None:
    assert json.loads(joined(LLAMACPP_COMPLETION + DONE, Api.COMPLETIONS).body) == {
        "id": "chatcmpl-uGM1",
        "object": "text_completion",
        "created": 1794708373,
        "model": "smollm2",
        "choices": [{"index": 0, "text": " the", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "completion_tokens": 8,
            "prompt_tokens": 2,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_joined_tool_call_equals_the_non_streaming_response() -> None:
    assert json.loads(joined(LLAMACPP_TOOL_CALL + DONE).body) == json.loads(LLAMACPP_TOOL_CALL_WHOLE)


def test_tool_calls_are_merged_by_index() -> None:
    message = said(
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "two", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "one", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "id": "", "function": {"name": "", "arguments": "}"}}]},
        {"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": '{"x":"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'ü"}'}}]},
    )

    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "one", "arguments": '{"x":"ü"}'}},
            {"id": "b", "type": "function", "function": {"name": "two", "arguments": "{}"}},
        ],
    }


def test_legacy_function_call_is_joined() -> None:
    message = said({"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}})

    assert message["function_call"] == {"name": "f", "arguments": "{}"}


def test_text_fields_besides_content_are_joined() -> None:
    message = said(
        {"role": "assistant", "content": None},
        {"reasoning_content": "Let me "},
        {"reasoning_content": "see.", "content": None},
        {"content": "Yes", "annotations": [1]},
        {"content": ".", "refusal": None, "annotations": []},
        {"content": "", "refusal": "no", "annotations": [2, 3]},
    )

    assert message == {
        "role": "assistant",
        "reasoning_content": "Let me see.",
        "content": "Yes.",
        "refusal": "no",
        "annotations": [1, 2, 3],
    }


def test_empty_deltas_are_joined_into_empty_text() -> None:
    assert said({"role": "assistant", "content": None}, {}) == {"role": "assistant", "content": ""}
    [choice] = whole({"choices": [{"index": 0, "finish_reason": "stop"}]}, api=Api.COMPLETIONS)["choices"]
    assert choice == {"index": 0, "text": "", "finish_reason": "stop"}


def test_choices_are_ordered_by_index() -> None:
    answer = whole(
        {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}]},
    )

    assert answer["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "aA"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "length"},
    ]


def test_log_probabilities_are_concatenated() -> None:
    def chunk(logprobs: object) -> Chunk:
        return {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": logprobs}]}

    first, second = {"token": "a", "top_logprobs": [{"token": "]"}]}, {"token": "b"}
    answer = whole(chunk({"content": [first]}), chunk({"content": []}), chunk({"content": [second]}), chunk(None))

    assert answer["choices"][0]["logprobs"] == {"content": [first, second]}
    assert whole(chunk(None))["choices"][0]["logprobs"] is None


SHAPE = ResponseShape(
    top=("metrics", "usage"),
    choice=("stop_reason", "logprobs"),
    message=("refusal",),
    usage=("prompt_tokens_details",),
    prompt_details=("cached_tokens", "created"),
    differing_fields=frozenset({"reasoning"}),
)


def shaped(*chunks: Chunk, api: Api = Api.CHAT) -> Any:
    joiner = StreamJoiner(api, SHAPE)
    joiner.feed(b"".join(map(event, chunks)) + DONE)
    return json.loads(joiner.finish().body)


def test_fields_found_only_in_non_streaming_responses_are_null() -> None:
    assert shaped({"choices": [{"index": 0, "delta": {"content": "x"}, "stop_reason": 7}]}) == {
        "object": "chat.completion",
        "metrics": None,
        "usage": None,
        "choices": [
            {
                "index": 0,
                "finish_reason": None,
                "stop_reason": 7,
                "logprobs": None,
                "message": {"role": "assistant", "content": "x", "refusal": None},
            }
        ],
    }
    [choice] = shaped({"choices": [{"index": 0, "text": "x"}]}, api=Api.COMPLETIONS)["choices"]
    assert choice == {"index": 0, "text": "x", "finish_reason": None, "stop_reason": None, "logprobs": None}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"a": 1}, {"a": 1, "prompt_tokens_details": None}),
        (
            {"prompt_tokens_details": {"cached_tokens": 3}},
            {"prompt_tokens_details": {"cached_tokens": 3, "created": None}},
        ),
    ],
)
def test_usage_fields_missing_from_the_stream_are_null(usage: Chunk, expected: Chunk) -> None:
    assert shaped({"choices": [{"index": 0, "delta": {}}]}, {"choices": [], "usage": usage})["usage"] == expected


def test_joiner_stops_at_a_field_that_may_differ_in_a_non_streaming_response() -> None:
    joiner = StreamJoiner(Api.CHAT, SHAPE)

    assert not joiner.feed(event({"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning": None}}]}))
    assert joiner.feed(event({"choices": [{"index": 0, "delta": {"reasoning": "Hm"}}]}))
    assert joiner.events == 0
    with pytest.raises(StreamDiffers):
        joiner.finish()


def test_only_events_adding_to_the_response_are_counted() -> None:
    def events(chunk: Chunk) -> int:
        joiner = StreamJoiner(Api.CHAT)
        joiner.feed(event(chunk))
        return joiner.events

    def of(**choice: object) -> int:
        return events({"choices": [{"index": 0} | choice]})

    assert (of(delta={"content": "x"}), of(text="x"), of(delta={"tool_calls": [{"index": 0}]})) == (1, 1, 1)
    assert of(delta={}, logprobs={"content": [{"token": "a"}]}) == 1
    assert (of(delta={"role": "assistant", "content": ""}), of(delta={}, finish_reason="stop"), of(text="")) == (
        0,
        0,
        0,
    )
    assert events({"choices": [], "usage": {"a": 1}}) == 0
    assert events({"choices": [{"index": 0, "delta": {"role": None}}], "prompt_progress": {"total": 9}}) == 0


def test_unknown_fields_are_kept() -> None:
    choice = {"index": 0, "delta": {"content": "x"}, "stop_reason": 7}
    answer = whole(
        {"choices": [choice], "usage": None, "__verbose": {"n": 1}, "prompt_progress": {"total": 9}, "id": "a"},
        {"choices": [], "usage": {"prompt_tokens": 1}, "novelty": [1]},
    )

    assert answer["choices"][0]["stop_reason"] == 7
    assert {name: value for name, value in answer.items() if name != "choices"} == {
        "object": "chat.completion",
        "id": "a",
        "usage": {"prompt_tokens": 1},
        "__verbose": {"n": 1},
        "novelty": [1],
    }


def test_comments_and_empty_llamacpp_events_are_ignored() -> None:
    chunk = event({"choices": [{"index": 0, "text": "x"}]})
    answer = joined(b"data: null\n\n: alive\n\n" + chunk + b": alive\r\n\r\n" + DONE + b"data: {}", Api.COMPLETIONS)

    assert json.loads(answer.body)["choices"][0]["text"] == "x"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}, 400),
        ({"error": {"code": "server_error", "message": "too long"}}, 500),
        ({"error": {"code": 7, "message": "too long"}}, 500),
        ({"error": "too long"}, 500),
        ({"object": "error", "message": "too long", "code": 503}, 503),
    ],
)
def test_error_event_becomes_the_response(error: Chunk, status: int) -> None:
    stream = event({"choices": [{"index": 0, "delta": {"content": "x"}}]}) + event(error)

    for end in (b"", DONE):
        answer = joined(stream + end)
        assert (answer.status, json.loads(answer.body)) == (status, error)
        assert read_error(answer.body) == "too long"
        assert reported_error(answer.body) is not None or "object" in error


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"", "the stream ended before its last event"),
        (LLAMACPP_CHAT + LLAMACPP_CHAT_USAGE, "the stream ended before its last event"),
        (LLAMACPP_CHAT + DONE[:-1], "the stream ended before its last event"),
        (DONE, "the stream ended without a response"),
        (LLAMACPP_CHAT_USAGE + DONE, "the stream ended without a response"),
        (LLAMACPP_CHAT + b"data: {\n\n" + DONE, "the engine sent an invalid event"),
        (LLAMACPP_CHAT + b"data: [1]\n\n" + DONE, "the engine sent an invalid event"),
        (LLAMACPP_CHAT + event({"choices": {}}) + DONE, "the engine sent an invalid event"),
        (event({"choices": [{"index": "0"}]}) + DONE, "the engine sent an invalid event"),
        (event({"choices": [{"delta": "x"}]}) + DONE, "the engine sent an invalid event"),
        (event({"choices": [[[]]]}) + DONE, "the engine sent an invalid event"),
        (
            b'data: {"choices":' + b"[" * 100_000 + b"\n\n" + DONE,
            "the engine sent an invalid event",
        ),
    ],
)
def test_incomplete_or_invalid_stream_causes_an_error(stream: bytes, reason: str) -> None:
    with pytest.raises(BrokenStream, match=reason):
        joined(stream)


def test_joiner_buffers_at_most_a_limited_number_of_bytes() -> None:
    stream = LLAMACPP_CHAT + DONE

    assert joined(stream, bytes_max=len(stream)).status == 200
    joiner = StreamJoiner(Api.CHAT, bytes_max=1_000)
    assert [joiner.feed(b"x" * 400) for _ in range(4)] == [False, False, True, True]
    with pytest.raises(BrokenStream, match="stream is too long to assemble"):
        joiner.finish()


# Events that differ only in their text


def compact(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def text_event(api: Api, text: str, index: int = 0, **fields: object) -> bytes:
    said = {"text": text} if api is Api.COMPLETIONS else {"delta": {"content": text}}
    return compact(
        {"id": "a", "choices": [{"index": index} | said | {"logprobs": None, "finish_reason": None}]} | fields
    )


def answer_of(api: Api, reads: list[bytes]) -> Any:
    joiner = StreamJoiner(api)
    assert not any(joiner.feed(read) for read in reads)
    assert joiner.feed(DONE)
    return json.loads(joiner.finish().body), joiner.events


TEXTS = ["One", " two", "", "\n", 'said "', "\\", "ü", "😀", "\u2028", '","text":"', '"content":"', "\x07", "/", "end"]


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(0, 1), st.sampled_from([1, 2])), max_size=12))
def test_similar_events_are_joined_into_the_same_response_no_matter_how_the_stream_is_split(
    api: Api, said: list[tuple[str, int, int]]
) -> None:
    events = [text_event(api, text, index, created=created) for text, index, created in [("a", 0, 1), *said]]
    stream = b"".join(events)
    pieces = [stream[at : at + 5] for at in range(0, len(stream), 5)]

    by_piece = answer_of(api, pieces)

    assert answer_of(api, events) == answer_of(api, [stream]) == by_piece
    texts = "".join(text for text, index, _ in [("a", 0, 1), *said] if index == 0)
    choice = by_piece[0]["choices"][0]
    assert (choice["text"] if api is Api.COMPLETIONS else choice["message"]["content"]) == texts


@pytest.mark.parametrize("text", [b"\t", b"\\x", b"\\u12", b'a"b'])
def test_invalid_json_is_not_matched_as_a_similar_event(text: bytes) -> None:
    joiner = StreamJoiner(Api.CHAT)
    first = text_event(Api.CHAT, "TEXT")
    joiner.feed(first)
    joiner.feed(first)
    joiner.feed(first.replace(b"TEXT", text))
    joiner.feed(DONE)

    with pytest.raises(BrokenStream, match="an invalid event"):
        joiner.finish()


def test_joined_text_from_similar_events_is_bounded() -> None:
    joiner = StreamJoiner(Api.CHAT, assembled_bytes_max=1_000)

    taken = [joiner.feed(text_event(Api.CHAT, "x" * 300)) for _ in range(4)]

    assert taken == [False, False, False, True]
    with pytest.raises(BrokenStream, match="response is too long to assemble"):
        joiner.finish()


# Any response, split anywhere

TEXT = st.text(max_size=8)
ENTRIES = st.lists(st.fixed_dictionaries({"token": TEXT, "logprob": st.integers(-9, 0)}), max_size=2)
CALL = st.fixed_dictionaries(
    {"name": st.text(min_size=1, max_size=5), "arguments": st.lists(TEXT, min_size=1, max_size=3)}
)
CHOICE = st.fixed_dictionaries(
    {
        "texts": st.lists(TEXT, max_size=4),
        "thoughts": st.lists(TEXT, max_size=2),
        "logprobs": st.lists(ENTRIES, max_size=3),
    }
    | {"calls": st.lists(CALL, max_size=2), "finish_reason": st.sampled_from(["stop", "length"])}
)


def chunks_of(index: int, choice: Chunk) -> list[Chunk]:
    """Returns the chunks in which an engine would stream this choice."""
    parts: list[Chunk] = [{"delta": {"role": "assistant", "content": None}}]
    parts += [{"delta": {"reasoning_content": text}} for text in choice["thoughts"]]
    parts += [{"delta": {"content": text}} for text in choice["texts"]]
    parts += [{"delta": {}, "logprobs": {"content": entries}} for entries in choice["logprobs"]]
    for number, call in enumerate(choice["calls"]):
        first, *others = call["arguments"]
        function = {"name": call["name"], "arguments": first}
        parts.append({"delta": {"tool_calls": [{"index": number, "id": f"c{number}", "function": function}]}})
        further = ({"index": number, "function": {"arguments": piece}} for piece in others)
        parts += [{"delta": {"tool_calls": [each]}} for each in further]
    parts.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    return [{"id": "a", "choices": [{"index": index, "finish_reason": None} | part]} for part in parts]


def expected(index: int, choice: Chunk) -> Chunk:
    message: Chunk = {"role": "assistant", "content": "".join(choice["texts"])}
    if choice["thoughts"]:
        message["reasoning_content"] = "".join(choice["thoughts"])
    if choice["calls"]:
        message["tool_calls"] = [
            {"id": f"c{number}", "function": {"name": call["name"], "arguments": "".join(call["arguments"])}}
            for number, call in enumerate(choice["calls"])
        ]
    found: Chunk = {"index": index, "message": message, "finish_reason": choice["finish_reason"]}
    if choice["logprobs"]:
        found["logprobs"] = {"content": [each for entries in choice["logprobs"] for each in entries]}
    return found


@given(choices=st.lists(CHOICE, min_size=1, max_size=3), order=st.randoms(use_true_random=False), cuts=st.data())
def test_any_response_is_joined_no_matter_where_the_stream_is_split(
    choices: list[Chunk], order: Any, cuts: st.DataObject
) -> None:
    queues = [chunks_of(index, choice) for index, choice in enumerate(choices)]
    stream = b""
    while waiting := [queue for queue in queues if queue]:
        stream += event(order.choice(waiting).pop(0))
    stream += DONE
    places = sorted(cuts.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    joiner = StreamJoiner(Api.CHAT)
    told = [joiner.feed(stream[start:end]) for start, end in zip([0, *places], [*places, len(stream)], strict=True)]

    assert told[-1]
    answer = json.loads(joiner.finish().body)
    assert answer["choices"] == [expected(index, choice) for index, choice in enumerate(choices)]


@given(places=st.lists(st.integers(0, len(LLAMACPP_CHAT)), max_size=8))
def test_stream_without_its_end_causes_an_error_no_matter_where_it_is_split(places: list[int]) -> None:
    joiner = StreamJoiner(Api.CHAT)
    edges = [0, *sorted(places), len(LLAMACPP_CHAT)]
    assert not any(joiner.feed(LLAMACPP_CHAT[start:end]) for start, end in pairwise(edges))
    with pytest.raises(BrokenStream):
        joiner.finish()
