"""Tests for translating Triton's generate stream into OpenAI responses."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.model.usage import TOKENS_MAX, Usage, UsageSource
from headgate.wire.kserve.generate_stream import ChunkTranslator, GeneratedText, TranslationContext, whole_body
from headgate.wire.sse import EVENT_BYTES_MAX, StreamScanner
from headgate.wire.usage import UsageFinder


def a_setting(api: Api = Api.CHAT, *, prompt_bytes: int = 40, output_tokens_max: int = 100) -> TranslationContext:
    return TranslationContext(
        api, "chatcmpl-r1", 1_700_000_000, "served", "text_output", prompt_bytes, output_tokens_max
    )


def event(text: object = None, **fields: object) -> bytes:
    said = {"model_name": "m", "model_version": "1"} | ({} if text is None else {"text_output": text}) | fields
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def translated(stream: bytes, setting: TranslationContext | None = None, *, at: tuple[int, ...] = ()) -> bytes:
    chunks = ChunkTranslator(setting or a_setting())
    cuts = [0, *sorted(min(cut, len(stream)) for cut in at), len(stream)]
    passed = [chunks.feed(stream[start:end]) for start, end in itertools.pairwise(cuts)]
    return b"".join([*passed, chunks.finish()])


def objects(stream: bytes) -> list[Any]:
    return [json.loads(each[6:]) for each in stream.split(b"\n\n") if each and each != b"data: [DONE]"]


def scanned(stream: bytes) -> StreamScanner:
    scanner = StreamScanner(keep_usage_chunk=True)
    scanner.feed(stream)
    return scanner


def whole(stream: bytes, setting: TranslationContext | None = None) -> Any:
    generated = GeneratedText(setting or a_setting())
    generated.feed(stream)
    return json.loads(whole_body(generated, setting or a_setting()))


def test_each_event_becomes_a_chunk_and_the_stream_end_adds_finish_usage_and_done() -> None:
    stream = translated(event(" a") + event(" b"))
    first, second, last, usage = objects(stream)

    assert first["choices"] == [
        {"index": 0, "finish_reason": None, "logprobs": None, "delta": {"role": "assistant", "content": " a"}}
    ]
    assert second["choices"][0]["delta"] == {"content": " b"}
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert usage["choices"] == []
    assert {each["id"] for each in objects(stream)} == {"chatcmpl-r1"}
    assert {(each["object"], each["model"]) for each in objects(stream)} == {("chat.completion.chunk", "served")}
    assert stream.endswith(b"data: [DONE]\n\n")
    assert (scanned(stream).done, scanned(stream).error) == (True, None)


def test_completion_chunks_have_text() -> None:
    first, last, _ = objects(translated(event("a"), a_setting(Api.COMPLETIONS)))

    assert (first["object"], first["choices"][0]["text"]) == ("text_completion", "a")
    assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("", "stop")


@given(st.lists(st.integers(0, 400), max_size=8))
def test_translation_does_not_depend_on_how_the_stream_is_split(cuts: list[int]) -> None:
    stream = event(" ä") + b": comment\n\n" + event([" b", " c"]) + event("", finish_reason="stop") + event(" d")

    assert translated(stream, at=tuple(cuts)) == translated(stream)


def test_usage_is_taken_from_the_model_if_reported() -> None:
    told = [event("a", num_input_tokens=7, num_output_tokens=2), event("b", num_input_tokens=[7], num_output_tokens=3)]

    assert scanned(translated(b"".join(told))).usage == Usage(7, 5, 0, UsageSource.ENGINE)


@pytest.mark.parametrize("count", [10**30, [2**30] * 3, -1])
def test_impossible_token_count_is_ignored(count: object) -> None:
    stream = event("a", num_input_tokens=count, num_output_tokens=count) + event("b")

    assert scanned(translated(stream)).usage == Usage(10, 2, 0, UsageSource.ESTIMATED)


def test_sum_of_token_counts_is_limited() -> None:
    stream = event("a", num_input_tokens=1, num_output_tokens=TOKENS_MAX) * 3

    assert scanned(translated(stream)).usage == Usage(1, TOKENS_MAX, 0, UsageSource.ENGINE)


def test_usage_is_estimated_and_marked_if_the_model_does_not_report_it() -> None:
    stream = event("a") + event("") + event("b") + event("c")
    finder = UsageFinder()
    finder.feed(json.dumps(whole(stream)).encode())

    estimated = Usage(10, 3, 0, UsageSource.ESTIMATED)
    assert scanned(translated(stream)).usage == estimated
    assert finder.usage == estimated
    assert whole(stream)["usage"]["usage_source"] == "estimated"


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (event("a") + event("b", finish_reason="None"), "stop"),
        (event("a") + event("b") + event("c"), "length"),
        (event("a", finish_reason="None") + event("b") + event("c", finish_reason="stop"), "stop"),
        (event("a", num_output_tokens=3), "length"),
    ],
)
def test_finish_reason_is_reported_or_derived_from_the_length(stream: bytes, reason: str) -> None:
    setting = a_setting(output_tokens_max=3)

    assert objects(translated(stream, setting))[-2]["choices"][0]["finish_reason"] == reason
    assert whole(stream, setting)["choices"][0]["finish_reason"] == reason


def test_complete_response_equals_the_joined_chunks() -> None:
    body = whole(event(" a") + event([" b"]))

    assert body["choices"][0]["message"] == {"role": "assistant", "content": " a b"}
    assert (body["object"], body["created"], body["model"]) == ("chat.completion", 1_700_000_000, "served")
    assert whole(event("x"), a_setting(Api.COMPLETIONS))["choices"][0]["text"] == "x"


def test_error_ends_the_stream_without_done() -> None:
    stream = translated(event("a") + event(error="out of memory") + event("b"))

    assert b"[DONE]" not in stream
    assert scanned(stream).error == "out of memory"
    assert b'"b"' not in stream


@pytest.mark.parametrize("payload", [b"data: nonsense\n\n", b"data: [1]\n\n", b'data: {"text_output":5}\n\n'])
def test_invalid_event_causes_an_error(payload: bytes) -> None:
    assert scanned(translated(event("a") + payload)).error == "the engine sent an invalid event"


def test_unterminated_event_causes_an_error() -> None:
    generated = GeneratedText(a_setting())
    generated.feed(b"data: " + b"x" * (EVENT_BYTES_MAX + 1))

    assert generated.error == "the engine sent an event that is too long"


def test_stream_without_text_has_no_response() -> None:
    assert translated(b"") == b""
    assert translated(event(None)) == b""


def test_empty_text_is_a_valid_response() -> None:
    stream = translated(event("", num_input_tokens=3, num_output_tokens=0))
    only, usage = objects(stream)

    assert (only["choices"][0]["delta"], only["choices"][0]["finish_reason"]) == ({"role": "assistant"}, "stop")
    assert (usage["usage"]["completion_tokens"], scanned(stream).done) == (0, True)
    assert whole(event(""))["choices"][0]["message"] == {"role": "assistant", "content": ""}
