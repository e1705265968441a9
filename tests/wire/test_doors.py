"""Tests for measuring the requests of the APIs in the table of doors."""

import json

import pytest

from headgate.model.ticket import APIS_WITHOUT_OUTPUT, TOKENIZER_APIS, Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.cache_salts import engine_salt
from headgate.wire.doors import DOORS, PADDED_TOKENS
from headgate.wire.media import IMAGE_TOKENS
from headgate.wire.request_body import BadRequest, RequestBody


def a_body(api: Api, **fields: object) -> RequestBody:
    return RequestBody.parse(json.dumps({"model": "m", **fields}).encode(), api)


def test_no_door_has_output() -> None:
    assert set(DOORS) <= set(APIS_WITHOUT_OUTPUT)
    paths = [path for door in DOORS.values() for path in door.paths]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("fields", "pairs", "length"),
    [
        ({"query": "ab", "documents": ["c", "d", "e"]}, 3, 3 * len('"ab"') + len('["c", "d", "e"]')),
        ({"query": "ab", "documents": "c"}, 1, len('"ab"') + len('"c"')),
        ({"query": "ab", "documents": [{"text": "c"}]}, 1, len('"ab"') + len('[{"text": "c"}]')),
    ],
)
def test_query_is_repeated_for_each_document(fields: dict[str, object], pairs: int, length: int) -> None:
    body = a_body(Api.RERANK, **fields)

    assert (body.length.prompts, body.length.text, body.length.text_min) == (pairs, length, length)
    assert body.prefix == b""


def test_query_is_repeated_for_each_content_part_of_the_documents() -> None:
    parts = {"content": [{"type": "text", "text": "c"}] * 50}
    query = "q" * 1_000

    reranked = a_body(Api.RERANK, query=query, documents=parts).length
    scored = a_body(Api.SCORE, text_1=parts, text_2=query).length

    assert (reranked.prompts, scored.prompts) == (50, 50)
    assert reranked.text == scored.text == 50 * len(json.dumps(query)) + len(json.dumps(parts))


def test_object_without_content_parts_is_rejected() -> None:
    with pytest.raises(BadRequest, match='"documents" is empty'):
        a_body(Api.RERANK, query="a", documents={"content": []})


@pytest.mark.parametrize(
    ("left", "right"), [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
def test_sides_of_a_score_are_paired(left: str, right: str) -> None:
    one = a_body(Api.SCORE, **{left: ["aa", "bb"], right: ["c", "d"]})
    other = a_body(Api.SCORE, **{left: ["aa", "bb"], right: "c"})

    assert (one.length.prompts, one.length.text) == (2, len('["aa", "bb"]') + len('["c", "d"]'))
    assert (other.length.prompts, other.length.text) == (2, len('["aa", "bb"]') + 2 * len('"c"'))


@pytest.mark.parametrize(
    ("api", "fields", "prompts", "length"),
    [
        (Api.CLASSIFY, {"input": "hello"}, 1, len('"hello"')),
        (Api.CLASSIFY, {"input": ["a", "b"]}, 2, len('["a", "b"]')),
        (Api.POOLING, {"input": [[1, 2], [3]]}, 2, 3 * BYTES_PER_TOKEN),
        (Api.POOLING, {"messages": [{"role": "user", "content": "hi"}]}, 1, 35),
        (Api.POOLING, {"data": {"x": 1}}, 1, len('{"x": 1}')),
    ],
)
def test_input_is_measured_as_for_embeddings(api: Api, fields: dict[str, object], prompts: int, length: int) -> None:
    body = a_body(api, **fields)

    assert (body.length.prompts, body.length.text) == (prompts, length)


@pytest.mark.parametrize(
    ("api", "fields", "length"),
    [
        (Api.TOKENIZE, {"prompt": "word " * 1_000}, 5_002),
        (Api.TOKENIZE, {"content": "word " * 1_000}, 5_002),
        (Api.TOKENIZE, {"content": [1, "word", 2]}, len('[1, "word", 2]')),
        (Api.TOKENIZE, {"messages": [{"role": "user", "content": "word " * 1_000}]}, 5_033),
        (Api.TOKENIZE, {"prompt": "hi", "tools": [{"name": "f"}]}, 4 + len('[{"name": "f"}]')),
        (Api.DETOKENIZE, {"tokens": list(range(1_000))}, 1_000 * BYTES_PER_TOKEN),
        (Api.TOKENIZE, {"content": ""}, 2),
        (Api.DETOKENIZE, {"tokens": []}, 2),
    ],
)
def test_prompt_of_the_tokenizer_is_estimated_as_one_sequence(api: Api, fields: dict[str, object], length: int) -> None:
    body = a_body(api, **fields)

    assert api in TOKENIZER_APIS
    assert (body.prompt_bytes, body.length.prompts) == (length, 1)


@pytest.mark.parametrize(
    ("api", "fields", "param"),
    [
        (Api.RERANK, {"query": "a"}, "documents"),
        (Api.RERANK, {"documents": ["a"]}, "documents"),
        (Api.RERANK, {"query": "a", "documents": []}, "documents"),
        (Api.RERANK, {"query": None, "documents": ["a"]}, "documents"),
        (Api.SCORE, {"text_1": "a"}, "text_2"),
        (Api.SCORE, {"text_1": "a", "documents": ["a"]}, "text_2"),
        (Api.CLASSIFY, {}, "input"),
        (Api.CLASSIFY, {"input": []}, "input"),
        (Api.CLASSIFY, {"input": 5}, "input"),
        (Api.POOLING, {"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        (Api.POOLING, {"input": "a", "encoding_format": "bytes_only"}, "encoding_format"),
        (Api.TOKENIZE, {}, "prompt"),
        (Api.DETOKENIZE, {"tokens": None}, "tokens"),
    ],
)
def test_request_without_a_prompt_is_rejected(api: Api, fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        a_body(api, **fields)

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("api", "fields", "param"),
    [
        (Api.SCORE, {"text_1": "a", "text_2": "b", "queries": "q", "documents": ["d"]}, "queries"),
        (Api.SCORE, {"text_1": "a", "text_2": "b", "query": "q"}, "query"),
        (Api.RERANK, {"query": "a", "documents": "b", "texts": ["c"]}, "texts"),
        (Api.CLASSIFY, {"input": "a", "messages": [{"role": "user", "content": "b"}]}, "messages"),
        (Api.CLASSIFY, {"input": "a", "text": "b"}, "text"),
        (Api.POOLING, {"input": "a", "data": {"x": 1}}, "data"),
        (Api.TOKENIZE, {"prompt": "a", "content": "b"}, "content"),
    ],
)
def test_second_prompt_is_rejected(api: Api, fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest, match="remove one of them") as caught:
        a_body(api, **fields)

    assert caught.value.param == param


def test_second_prompt_that_is_null_is_ignored() -> None:
    assert a_body(Api.CLASSIFY, input="a", messages=None).length.prompts == 1


def test_media_in_a_pair_is_known() -> None:
    document = {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}

    assert a_body(Api.RERANK, query="a", documents=[document]).length.media
    assert not a_body(Api.RERANK, query="an image_url", documents=["a"]).length.media


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("api", "fields", "prompts", "images"),
    [
        (Api.RERANK, {"query": "a", "documents": [{"content": [IMAGE, IMAGE]}, "b"]}, 2, 2),
        (Api.RERANK, {"query": {"content": [IMAGE]}, "documents": ["a", "b", "c"]}, 3, 3),
        # The parts of a query are one text.
        (Api.RERANK, {"query": [{"type": "text", "text": "a"}, IMAGE], "documents": [[IMAGE], "b"]}, 2, 3),
        (Api.RERANK, {"query": "a", "documents": {"content": [IMAGE]}}, 1, 1),
        (Api.RERANK, {"query": {"content": [IMAGE]}, "documents": {"content": [IMAGE, IMAGE]}}, 2, 4),
        (Api.RERANK, {"query": {"content": [IMAGE, IMAGE]}, "documents": {"content": "a"}}, 1, 2),
        (Api.SCORE, {"data_1": {"content": [IMAGE, IMAGE]}, "data_2": IMAGE}, 2, 4),
        (Api.SCORE, {"data_1": [IMAGE], "data_2": ["a", "b"]}, 2, 2),
        (Api.CLASSIFY, {"messages": [{"role": "user", "content": [IMAGE]}]}, 1, 1),
        (Api.POOLING, {"messages": [{"role": "user", "content": [IMAGE, IMAGE]}]}, 1, 2),
        (Api.TOKENIZE, {"messages": [{"role": "user", "content": [IMAGE]}]}, 1, 1),
    ],
)
def test_images_count_by_type_in_every_pair(api: Api, fields: dict[str, object], prompts: int, images: int) -> None:
    body = a_body(api, **fields)
    tokens = images * IMAGE_TOKENS * BYTES_PER_TOKEN

    assert body.length.media
    assert body.length.prompts == prompts
    assert tokens <= body.prompt_bytes <= tokens + 200


LARGE_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}


@pytest.mark.parametrize("api", [Api.POOLING, Api.CLASSIFY, Api.EMBEDDINGS])
@pytest.mark.parametrize(
    ("prompts", "images"),
    [
        ([LARGE_IMAGE], 1),
        (["a", {"content": [LARGE_IMAGE, {"type": "text", "text": "b"}]}, [LARGE_IMAGE, LARGE_IMAGE]], 3),
    ],
)
def test_images_among_the_inputs_count_by_type(api: Api, prompts: list[object], images: int) -> None:
    body = a_body(api, input=prompts)
    tokens = images * IMAGE_TOKENS * BYTES_PER_TOKEN

    assert (body.length.media, body.length.prompts) == (True, len(prompts))
    assert tokens <= body.prompt_bytes <= tokens + 200


@pytest.mark.parametrize("text", ["image_url", '"image_url"', 'a "file" b'])
def test_name_of_media_in_a_text_counts_as_text(text: str) -> None:
    fields = {"query": text, "documents": [text]}

    assert a_body(Api.RERANK, **fields).length.text == len(json.dumps(text)) + len(json.dumps([text]))


def test_malformed_parts_are_rejected() -> None:
    with pytest.raises(BadRequest, match='"documents" must contain texts or arrays of content parts'):
        a_body(Api.RERANK, query="a", documents=[{"content": [[IMAGE]]}])


PAIRS = {"query": "a", "documents": ["b", "c", "d"]}
SCORED = {"text_1": "a", "text_2": ["b", "c", "d"]}
CHATTED = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("api", "fields", "name", "value", "times"),
    [
        (Api.RERANK, PAIRS, "instruction", "x" * 1_000, 3),
        (Api.RERANK, PAIRS, "instruct", "x" * 1_000, 3),
        (Api.SCORE, SCORED, "instruction", "x" * 1_000, 3),
        (Api.SCORE, SCORED, "chat_template_kwargs", {"instruction": "x" * 1_000}, 3),
        (Api.CLASSIFY, CHATTED, "chat_template", "x" * 1_000, 1),
        (Api.POOLING, CHATTED, "chat_template_kwargs", {"a": "x" * 1_000}, 1),
        (Api.POOLING, {"input": ["a", "b"]}, "chat_template_kwargs", {"a": "x" * 1_000}, 2),
    ],
)
def test_shared_fields_count_for_every_sequence(
    api: Api, fields: dict[str, object], name: str, value: object, times: int
) -> None:
    alone = a_body(api, **fields).prompt_bytes

    assert a_body(api, **fields, **{name: None}).prompt_bytes == alone
    assert a_body(api, **fields, **{name: value}).prompt_bytes == alone + times * len(json.dumps(value))


@pytest.mark.parametrize(
    ("api", "fields", "sequences"),
    [
        (Api.RERANK, PAIRS, 3),
        (Api.SCORE, SCORED, 3),
        (Api.CLASSIFY, {"input": ["a", "b"]}, 2),
        (Api.POOLING, CHATTED, 1),
        (Api.EMBEDDINGS, {"input": ["a", "b"]}, 2),
    ],
)
def test_padding_counts_for_every_sequence(api: Api, fields: dict[str, object], sequences: int) -> None:
    alone = a_body(api, **fields).prompt_bytes
    padded = a_body(api, **fields, padding="max_length").prompt_bytes

    assert padded == alone + sequences * PADDED_TOKENS * BYTES_PER_TOKEN
    for value in ("do_not_pad", None):
        assert a_body(api, **fields, padding=value).prompt_bytes == alone


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.RERANK, {"query": "a", "documents": ["b"]}),
        (Api.SCORE, {"text_1": "a", "text_2": "b"}),
        (Api.CLASSIFY, {"input": "a"}),
        (Api.POOLING, {"input": "a"}),
        (Api.TOKENIZE, {"prompt": "a"}),
        (Api.DETOKENIZE, {"tokens": [1]}),
    ],
)
def test_fields_reach_the_engine_as_they_are(api: Api, fields: dict[str, object]) -> None:
    body = a_body(api, **fields, stream=True, top_n=1, cache_salt="mine")
    expected = fields | {"model": "x", "stream": True, "top_n": 1}
    salted = {} if api in TOKENIZER_APIS else {"cache_salt": engine_salt("s", "mine")}

    assert not body.stream
    assert json.loads(body.encode(served_model="x", cache_salt="s")) == expected | salted
    assert json.loads(body.encode(served_model="x")) == expected
