"""Tests for the request bodies of the audio APIs."""

import json

import pytest

from headgate.model.caps import Caps
from headgate.model.ticket import FORM_APIS, Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.model.usage import TOKENS_MAX
from headgate.wire.audio_length import COMPRESSED_BYTES_PER_SECOND, TOKENS_PER_SECOND
from headgate.wire.fields import BadRequest
from headgate.wire.multipart import MultipartParser
from headgate.wire.request_body import LARGE_BYTES, RequestBody
from headgate.wire.transcription import TEXT_BYTES_MAX, TranscriptionBody
from headgate.wire.usage import read_usage
from testing.fake_http import Form, Received
from testing.forms import BOUNDARY, SPEECH, a_field, a_file, a_form, a_part


def body_of(*parts: bytes, api: Api = Api.TRANSCRIPTIONS, file: bytes | None = None) -> TranscriptionBody:
    raw = a_form(a_field("model", "m"), *parts, a_file() if file is None else file)
    return body_from(raw, api)


def body_from(raw: bytes, api: Api = Api.TRANSCRIPTIONS) -> TranscriptionBody:
    parser = MultipartParser(raw, BOUNDARY.encode())
    while not parser.parse_step():
        pass
    return TranscriptionBody.of(raw, api, parser.parts)


def refusal(*parts: bytes) -> tuple[str, str | None]:
    with pytest.raises(BadRequest) as caught:
        body_from(a_form(*parts))
    return caught.value.message, caught.value.param


def sent(body: RequestBody) -> Form:
    """The form that an engine receives."""
    raw = body.encode(served_model="served")
    return Received("POST", "", {"content-type": body.content_type}, raw, 0).form


@pytest.mark.parametrize("api", FORM_APIS)
def test_engine_receives_the_file_and_all_fields_with_its_own_model(api: Api) -> None:
    given = [
        ("language", "en"),
        ("prompt", 'é "quoted"\r\n--x'),
        ("timestamp_granularities[]", "word"),
        ("timestamp_granularities[]", "segment"),
        ("chunking_strategy[type]", "server_vad"),
        ("chunking_strategy[prefix_padding_ms]", "300"),
        ("unknown", ""),
    ]
    body = body_of(*(a_field(*each) for each in given), api=api)
    form = sent(body)

    assert (body.api, body.model, body.stream, body.n, body.output_tokens_max) == (api, "m", False, 1, None)
    assert form.texts == [("model", "served"), *given]
    assert form.file == SPEECH
    assert form.file_headers.splitlines() == [
        'Content-Disposition: form-data; name="file"; filename="audio.wav"',
        "Content-Type: audio/wav",
    ]


def test_content_of_the_file_is_not_copied() -> None:
    raw = a_form(a_field("model", "m"), a_file())
    [_, content, _] = body_from(raw).encode_in_pieces(served_model="served")

    assert isinstance(content, memoryview)
    assert content.obj is raw


def test_engine_form_has_a_boundary_that_the_client_cannot_know() -> None:
    one, other = body_of(), body_of()

    assert one.boundary != other.boundary
    assert f"boundary={BOUNDARY}" not in one.content_type
    assert sent(body_of(file=a_file(one.encode(served_model="m")))).file == one.encode(served_model="m")


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        ("/home/ann/diagnosis of bob.MP3", "audio.MP3"),
        ("a.tar.gz", "audio.gz"),
        ("none", "audio"),
        ("", "audio"),
        ("x.wav/../../etc", "audio"),
        ("x.verylongname", "audio"),
        ('x.w\\"av', "audio"),
    ],
)
def test_only_the_extension_of_the_filename_is_forwarded(filename: str, shown: str) -> None:
    assert f'filename="{shown}"' in sent(body_of(file=a_file(filename=filename))).file_headers


def test_file_without_a_type_is_binary() -> None:
    form = sent(body_of(file=a_part('form-data; name="file"; filename="a"')))

    assert form.file_headers.endswith("\r\nContent-Type: application/octet-stream")


@pytest.mark.parametrize(
    ("parts", "param", "message"),
    [
        ([a_file()], "model", "is missing"),
        ([a_file(), a_field("model", " ")], "model", "is empty"),
        ([a_file(), a_field("model", "a"), a_field("model", "b")], "model", "more than once"),
        ([a_file(), a_field("model", "a"), a_field("model[]", "b")], "model[]", "more than once"),
        ([a_file(), a_field("model[]", "a")], "model", "must be a string"),
        ([a_file(), a_field("model[a]", "a")], "model", "must be a string"),
        ([a_file(), a_field("x[a]", "1"), a_field("x[a]", "2")], "x[a]", "more than once"),
        ([a_file(), a_field("x[a]", "1"), a_field("x[]", "2")], "x[]", "more than once"),
        ([a_file(), a_field("x[a][b]", "1")], "x[a][b]", "invalid name"),
        ([a_file(), a_field("[x]", "1")], "[x]", "invalid name"),
        ([a_file(), a_field("x]", "1")], "x]", "invalid name"),
        ([a_field("model", "m")], "file", "must be an uploaded audio file"),
        ([a_field("model", "m"), a_field("file", "text")], "file", "must be an uploaded audio file"),
        ([a_field("model", "m"), a_file(), a_file()], "file", "given 2 times"),
        ([a_field("model", "m"), a_file(), a_field("file", "text")], "file", "given 2 times"),
        ([a_field("model", "m"), a_file(), a_file(name="model")], "model", "must not be a file"),
        ([a_field("model", "m"), a_file(), a_field("prompt", b"\xff")], "prompt", "not valid UTF-8"),
        ([a_field("model", "m"), a_file(), a_field("stream", "maybe")], "stream", "must be true or false"),
        ([a_field("model", "m"), a_file(), a_field("stream[]", "true")], "stream", "must be true or false"),
        ([a_field("model", "m"), a_file(), a_field("n", "129")], "n", "from 1 to 128"),
        ([a_field("model", "m"), a_file(), a_field("n", "many")], "n", "from 1 to 128"),
        ([a_field("model", "m"), a_file(), a_field("max_completion_tokens", "0")], "max_completion_tokens", "from 1"),
        ([a_field("model", "m"), a_file(), a_field("file_url", "http://a/b")], "file_url", "is not supported"),
        ([a_field("model", "m"), a_file(), a_field("kv_transfer_params[a]", "b")], "kv_transfer_params", "reserved"),
        ([a_field("model", "m"), a_file(), a_field("response_format[]", "json")], "response_format", "a string"),
        ([a_field("model", "m"), a_file(), a_field("prompt", "x" * TEXT_BYTES_MAX)], None, "exceed the limit"),
        ([a_field("model", "m"), a_file(), a_field("prompt", "a\x01b")], "prompt", "contains a control character"),
    ],
)
def test_invalid_field_is_named_in_the_rejection(parts: list[bytes], param: str | None, message: str) -> None:
    said, named = refusal(*parts)

    assert (named, message in said) == (param, True), said
    assert len(said) < 200


def test_valid_numbers_are_forwarded_as_sent() -> None:
    form = sent(body_of(a_field("n", "5"), a_field("max_completion_tokens", "100"), a_field("temperature", "0.2")))

    assert form.texts[1:] == [("n", "5"), ("max_completion_tokens", "100"), ("temperature", "0.2")]


@pytest.mark.parametrize(
    ("value", "stream", "forwarded"),
    [("true", True, "true"), ("True", True, "true"), ("1", True, "true"), ("0", False, "false"), ("", False, "false")],
)
def test_flag_is_normalized(value: str, forwarded: str, *, stream: bool) -> None:
    body = body_of(a_field("stream", value))

    assert body.stream is stream
    assert sent(body).texts[1:] == [("stream", forwarded)]


@pytest.mark.parametrize(
    ("format_name", "is_json"),
    [(None, True), ("json", True), ("verbose_json", True), ("text", False), ("srt", False), ("vtt", False)],
)
def test_response_format_says_whether_the_response_is_json(format_name: str | None, *, is_json: bool) -> None:
    body = body_of(*([] if format_name is None else [a_field("response_format", format_name)]))

    assert body.returns_json is is_json
    assert body.requires_stream is False


def test_fields_for_the_gateway_are_not_forwarded() -> None:
    body = body_of(a_field("priority", "1"), a_field("cache_salt", "x"), a_field("service_tier", "flex"))

    assert body.service_tier == "flex"
    assert sent(body).texts == [("model", "served"), ("service_tier", "flex")]


def test_private_fields_are_removed_in_all_their_forms() -> None:
    body = body_of(
        a_field("user", "ann"), a_field("metadata[team]", "a"), a_field("tags[]", "b"), a_field("aws_x[y]", "c"),
        a_field("store", "true"), a_field("language", "en"),
    )  # fmt: skip
    names = frozenset({"user", "metadata", "tags"})

    kept = body.without(names, prefixes=("aws_",), disabled=frozenset({"store"}))

    assert sent(kept).texts == [("model", "served"), ("store", "false"), ("language", "en")]


def test_metadata_is_read_from_fields_with_keys() -> None:
    body = body_of(a_field("metadata[team]", "search"), a_field("metadata[other]", "x"), a_field("user", "ann"))

    assert body.metadata(("team", "cost")) == (("team", "search"),)
    assert body.short_text("user", 100) == "ann"


def test_engine_reports_usage_only_if_asked() -> None:
    body = body_of(a_field("stream", "true"))

    assert not body.wants_usage
    assert sent(body.as_stream("stream_include_usage")).texts[1:] == [
        ("stream", "true"),
        ("stream_include_usage", "true"),
    ]
    assert body_of(a_field("stream_include_usage", "true")).wants_usage


def test_caps_leave_the_body_unchanged() -> None:
    body = body_of()

    assert body.capped(Caps(output_tokens=1, prompt_tokens=1, trim_prompt=True)) == (body, ())


@pytest.mark.parametrize(
    ("file", "seconds"),
    [
        (SPEECH, 3),
        (bytes(COMPRESSED_BYTES_PER_SECOND * 5), 5),
        # An implausible sample rate, too small and too large.
        (SPEECH[:24] + (1).to_bytes(4, "little") + SPEECH[28:8_000], 1),
        (SPEECH[:24] + b"\xff" * 4 + SPEECH[28:8_000], 1),
        (SPEECH[:28] + (768_000).to_bytes(4, "little") + SPEECH[32:], 3),
        (SPEECH[:20] + b"\x55\0" + SPEECH[22:8_000], 1),
        (SPEECH[:20], 0),
        (b"", 0),
    ],
    ids=["wav", "compressed", "slow", "fast", "false bytes per second", "compressed WAV", "cut", "empty"],
)
def test_prompt_length_follows_from_the_duration(file: bytes, seconds: int) -> None:
    body = body_of(file=a_file(file))

    assert body.prompt_bytes // BYTES_PER_TOKEN == seconds * TOKENS_PER_SECOND
    assert body.length.media
    assert body.prompt_bytes >= 1


def test_prompt_text_adds_to_the_length() -> None:
    assert body_of(a_field("prompt", "x" * 100)).prompt_bytes - body_of().prompt_bytes == len(json.dumps("x" * 100))


def test_large_body_is_marked() -> None:
    assert not body_of().is_large
    assert body_of(file=a_file(bytes(LARGE_BYTES))).is_large


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (b'{"type":"duration","seconds":3}', 150),
        (b'{"type":"duration","seconds":0.01}', 1),
        (b'{"type":"duration","seconds":0}', 0),
        (b'{"type":"duration","seconds":-1}', None),
        (b'{"type":"duration","seconds":1e300}', None),
        (b'{"type":"tokens","input_tokens":7,"output_tokens":2,"seconds":9}', 7),
    ],
)
def test_reported_seconds_count_as_prompt_tokens(usage: bytes, tokens: int | None) -> None:
    read = read_usage(usage)

    assert (None if read is None else read.prompt_tokens) == tokens
    assert read is None or read.prompt_tokens <= TOKENS_MAX
