"""Do the chunks of a stream add up to the answer that would have come whole?"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.wire.joining import BrokenStream, Joined, Joiner, UnequalStream
from headgate.wire.replies import read_error, reported_error
from headgate.wire.whole_shape import WholeShape
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


def joined(stream: bytes, api: Api = Api.CHAT, **bounds: int) -> Joined:
    joiner = Joiner(api, **bounds)
    joiner.take(stream)
    return joiner.conclude()


def whole(*chunks: Chunk, api: Api = Api.CHAT) -> Any:
    """What these chunks join to."""
    answer = joined(b"".join(map(event, chunks)) + DONE, api)
    assert answer.status == 200
    return json.loads(answer.body)


def said(*deltas: Chunk, **fields: object) -> Any:
    """The message that these deltas of one choice join to."""
    [choice] = whole(*({"choices": [{"index": 0, "delta": delta} | fields]} for delta in deltas))["choices"]
    return choice["message"]


def test_a_recorded_chat() -> None:
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


def test_a_recorded_completion() -> None:
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


def test_a_recorded_tool_call_is_what_the_same_engine_gave_whole() -> None:
    assert json.loads(joined(LLAMACPP_TOOL_CALL + DONE).body) == json.loads(LLAMACPP_TOOL_CALL_WHOLE)


def test_tool_calls_are_merged_by_their_index() -> None:
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


def test_a_function_call_of_the_older_kind() -> None:
    message = said({"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}})

    assert message["function_call"] == {"name": "f", "arguments": "{}"}


def test_texts_beside_the_content() -> None:
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


def test_nothing_said_is_an_empty_text() -> None:
    assert said({"role": "assistant", "content": None}, {}) == {"role": "assistant", "content": ""}
    [choice] = whole({"choices": [{"index": 0, "finish_reason": "stop"}]}, api=Api.COMPLETIONS)["choices"]
    assert choice == {"index": 0, "text": "", "finish_reason": "stop"}


def test_several_choices_stand_in_their_order() -> None:
    answer = whole(
        {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}]},
    )

    assert answer["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "aA"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "length"},
    ]


def test_log_probabilities_follow_each_other() -> None:
    def chunk(logprobs: object) -> Chunk:
        return {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": logprobs}]}

    first, second = {"token": "a", "top_logprobs": [{"token": "]"}]}, {"token": "b"}
    answer = whole(chunk({"content": [first]}), chunk({"content": []}), chunk({"content": [second]}), chunk(None))

    assert answer["choices"][0]["logprobs"] == {"content": [first, second]}
    assert whole(chunk(None))["choices"][0]["logprobs"] is None


SHAPE = WholeShape(
    top=("metrics", "usage"),
    choice=("stop_reason", "logprobs"),
    message=("refusal",),
    usage=("prompt_tokens_details",),
    prompt_details=("cached_tokens", "created"),
    unequal=frozenset({"reasoning"}),
)


def shaped(*chunks: Chunk, api: Api = Api.CHAT) -> Any:
    joiner = Joiner(api, SHAPE)
    joiner.take(b"".join(map(event, chunks)) + DONE)
    return json.loads(joiner.conclude().body)


def test_fields_that_only_unstreamed_responses_have_are_null() -> None:
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
def test_missing_usage_fields_of_an_unstreamed_response_are_null(usage: Chunk, expected: Chunk) -> None:
    assert shaped({"choices": [{"index": 0, "delta": {}}]}, {"choices": [], "usage": usage})["usage"] == expected


def test_joiner_gives_up_at_a_field_that_may_differ_in_an_unstreamed_response() -> None:
    joiner = Joiner(Api.CHAT, SHAPE)

    assert not joiner.take(event({"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning": None}}]}))
    assert joiner.take(event({"choices": [{"index": 0, "delta": {"reasoning": "Hm"}}]}))
    assert joiner.events == 0
    with pytest.raises(UnequalStream):
        joiner.conclude()


def test_only_events_that_add_to_the_response_are_counted() -> None:
    def events(chunk: Chunk) -> int:
        joiner = Joiner(Api.CHAT)
        joiner.take(event(chunk))
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


def test_fields_that_nobody_has_heard_of_are_kept() -> None:
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


def test_comments_and_the_empty_events_of_llamacpp_say_nothing() -> None:
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
def test_an_error_event_is_the_answer(error: Chunk, status: int) -> None:
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
        (DONE, "the stream ended without an answer"),
        (LLAMACPP_CHAT_USAGE + DONE, "the stream ended without an answer"),
        (LLAMACPP_CHAT + b"data: {\n\n" + DONE, "the engine sent an event that is no part of an answer"),
        (LLAMACPP_CHAT + b"data: [1]\n\n" + DONE, "the engine sent an event that is no part of an answer"),
        (LLAMACPP_CHAT + event({"choices": {}}) + DONE, "the engine sent an event that is no part of an answer"),
        (event({"choices": [{"index": "0"}]}) + DONE, "the engine sent an event that is no part of an answer"),
        (event({"choices": [{"delta": "x"}]}) + DONE, "the engine sent an event that is no part of an answer"),
        (event({"choices": [[[]]]}) + DONE, "the engine sent an event that is no part of an answer"),
        (
            b'data: {"choices":' + b"[" * 100_000 + b"\n\n" + DONE,
            "the engine sent an event that is no part of an answer",
        ),
    ],
)
def test_half_an_answer_is_none(stream: bytes, reason: str) -> None:
    with pytest.raises(BrokenStream, match=reason):
        joined(stream)


def test_no_more_is_held_than_the_bound() -> None:
    stream = LLAMACPP_CHAT + DONE

    assert joined(stream, bytes_max=len(stream)).status == 200
    joiner = Joiner(Api.CHAT, bytes_max=1_000)
    assert [joiner.take(b"x" * 400) for _ in range(4)] == [False, False, True, True]
    with pytest.raises(BrokenStream, match="longer answer than can be joined"):
        joiner.conclude()


# Events that differ only in their text


def compact(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def text_event(api: Api, text: str, index: int = 0, **fields: object) -> bytes:
    said = {"text": text} if api is Api.COMPLETIONS else {"delta": {"content": text}}
    return compact(
        {"id": "a", "choices": [{"index": index} | said | {"logprobs": None, "finish_reason": None}]} | fields
    )


def answer_of(api: Api, reads: list[bytes]) -> Any:
    joiner = Joiner(api)
    assert not any(joiner.take(read) for read in reads)
    assert joiner.take(DONE)
    return json.loads(joiner.conclude().body), joiner.events


TEXTS = ["One", " two", "", "\n", 'said "', "\\", "ü", "😀", "\u2028", '","text":"', '"content":"', "\x07", "/", "end"]


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(0, 1), st.sampled_from([1, 2])), max_size=12))
def test_similar_events_join_to_the_same_response_however_the_stream_is_split(
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
    joiner = Joiner(Api.CHAT)
    first = text_event(Api.CHAT, "TEXT")
    joiner.take(first)
    joiner.take(first)
    joiner.take(first.replace(b"TEXT", text))
    joiner.take(DONE)

    with pytest.raises(BrokenStream, match="no part of an answer"):
        joiner.conclude()


def test_joined_text_of_similar_events_is_bounded() -> None:
    joiner = Joiner(Api.CHAT, assembled_bytes_max=1_000)

    taken = [joiner.take(text_event(Api.CHAT, "x" * 300)) for _ in range(4)]

    assert taken == [False, False, False, True]
    with pytest.raises(BrokenStream, match="answer that is too long to assemble"):
        joiner.conclude()


# Any answer, however it is cut

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
    """As an engine would stream it."""
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
def test_every_answer_comes_back_however_it_is_cut(choices: list[Chunk], order: Any, cuts: st.DataObject) -> None:
    queues = [chunks_of(index, choice) for index, choice in enumerate(choices)]
    stream = b""
    while waiting := [queue for queue in queues if queue]:
        stream += event(order.choice(waiting).pop(0))
    stream += DONE
    places = sorted(cuts.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    joiner = Joiner(Api.CHAT)
    told = [joiner.take(stream[start:end]) for start, end in zip([0, *places], [*places, len(stream)], strict=True)]

    assert told[-1]
    answer = json.loads(joiner.conclude().body)
    assert answer["choices"] == [expected(index, choice) for index, choice in enumerate(choices)]


@given(places=st.lists(st.integers(0, len(LLAMACPP_CHAT)), max_size=8))
def test_a_stream_without_its_end_is_never_an_answer_however_it_is_cut(places: list[int]) -> None:
    joiner = Joiner(Api.CHAT)
    edges = [0, *sorted(places), len(LLAMACPP_CHAT)]
    assert not any(joiner.take(LLAMACPP_CHAT[start:end]) for start, end in pairwise(edges))
    with pytest.raises(BrokenStream):
        joiner.conclude()
