"""Tests for parsing, validating, measuring and encoding request bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.wire.media import AUDIO_TOKENS, FILE_TOKENS, IMAGE_TOKENS
from headgate.wire.request_body import DEPTH_MAX, METADATA_KEYS_MAX, BadRequest, RequestBody, is_large

MESSAGES = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


def parsed(api: Api = Api.CHAT, **fields: object) -> RequestBody:
    return RequestBody.parse(json.dumps(fields).encode(), api)


def chat(**fields: object) -> RequestBody:
    return parsed(**{"model": "m", "messages": MESSAGES} | fields)


def refusal(raw: bytes | dict[str, object], api: Api = Api.CHAT) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        RequestBody.parse(raw if isinstance(raw, bytes) else json.dumps(raw).encode(), api)
    return caught.value


def test_fields_needed_for_scheduling_are_read() -> None:
    body = chat(stream=True, service_tier="flex", stream_options={"include_usage": True})

    assert (body.model, body.stream, body.service_tier, body.wants_usage) == ("m", True, "flex", True)
    assert body.prompt_bytes == len(json.dumps(MESSAGES))


@pytest.mark.parametrize("absent", [{}, {"stream": None, "service_tier": None, "stream_options": None}])
def test_null_fields_are_treated_as_absent(absent: dict[str, object]) -> None:
    body = chat(**absent)

    assert (body.stream, body.service_tier, body.wants_usage) == (False, None, False)


def test_usage_is_wanted_only_if_requested_in_a_stream() -> None:
    assert not chat(stream=False, stream_options={"include_usage": True}).wants_usage
    assert not chat(stream=True, stream_options={"include_usage": False}).wants_usage
    assert not chat(stream=True, stream_options={"include_usage": None}).wants_usage


def test_embeddings_are_never_streamed() -> None:
    body = parsed(Api.EMBEDDINGS, model="m", input="hi", stream=True)

    assert not body.stream
    assert b"stream_options" not in body.encode(served_model="m")


def test_all_fields_except_the_model_are_passed_through_unchanged() -> None:
    raw = (
        b'{ "x" : {"deep": [1.50, 1e3, "\\u00e9\xc3\xa9"], "y":12345678901234567890} ,"model": "public",'
        b'"messages":[ {"role":"user","content":"hi"} ],"temperature":0.70, "tools" : [ ] }'
    )

    assert RequestBody.parse(raw, Api.CHAT).encode(served_model='own/"name"') == (
        b'{"x":{"deep": [1.50, 1e3, "\\u00e9\xc3\xa9"], "y":12345678901234567890},"model":"own/\\"name\\"",'
        b'"messages":[ {"role":"user","content":"hi"} ],"temperature":0.70,"tools":[ ]}'
    )


def test_stream_requests_usage_and_keeps_other_options() -> None:
    body = chat(stream=True, stream_options={"continuous_usage_stats": True, "include_usage": False})

    encoded = json.loads(body.encode(served_model="own"))

    assert encoded["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert json.loads(chat(stream=True).encode(served_model="o"))["stream_options"] == {"include_usage": True}
    assert "stream_options" not in json.loads(chat().encode(served_model="o"))


def test_duplicate_field_is_sent_once_with_its_last_value() -> None:
    body = RequestBody.parse(b'{"model":"a","model":"b","prompt":"x","stream":false,"stream":true}', Api.COMPLETIONS)

    assert (body.model, body.stream) == ("b", True)
    assert body.encode(served_model="own").count(b'"model"') == 1


@pytest.mark.parametrize(
    ("raw", "says", "param"),
    [
        (b"", "not JSON", None),
        (b'{"model":', "not JSON", None),
        (b'{"model":NaN}', "not JSON", None),
        (b'{"model":"m"} {}', "not JSON", None),
        (b'{"model":"\\ud800"}', "not JSON", None),
        (b'{"model":"m","messages":[{"content":"\xff"}]}', "not valid UTF-8 at byte 37", None),
        (b'{"\xff":1}', "not valid UTF-8", None),
        (b"[1]", "must be a JSON object", None),
        (b"null", "must be a JSON object", None),
        ({}, '"model" is missing', "model"),
        ({"model": None}, '"model" is missing', "model"),
        ({"model": ""}, '"model" is empty', "model"),
        ({"model": "  "}, '"model" is empty', "model"),
        ({"model": 3}, '"model" must be a string, not 3', "model"),
        ({"model": "m", "stream": "yes"}, '"stream" must be true or false, not "yes"', "stream"),
        ({"model": "m", "stream": 1}, '"stream" must be true or false, not 1', "stream"),
        ({"model": "m", "service_tier": 1}, '"service_tier" must be a string', "service_tier"),
        ({"model": "m", "stream_options": "x"}, '"stream_options" must be an object', "stream_options"),
        (
            {"model": "m", "stream_options": {"include_usage": 1}},
            '"stream_options.include_usage" must be true or false, not 1',
            "stream_options.include_usage",
        ),
        ({"model": "m"}, '"messages" is missing', "messages"),
        ({"model": "m", "messages": None}, '"messages" is missing', "messages"),
        ({"model": "m", "messages": "hi"}, '"messages" must be an array of messages, not "hi"', "messages"),
        (b'{"model":"m","messages":[' + b" " * 100 + b"]}", '"messages" is empty', "messages"),
        ({"model": "m", "messages": {}}, '"messages" must be an array of messages, not {}', "messages"),
        ({"model": "m", "messages": ["image_url"]}, "array of objects", "messages"),
        ({"model": "m", "messages": "x" * 999}, f'not "{"x" * 39}…', "messages"),
    ],
)
def test_invalid_body_is_rejected_with_its_reason(raw: bytes | dict[str, object], says: str, param: str | None) -> None:
    bad = refusal(raw)

    assert says in bad.message
    assert bad.param == param


@pytest.mark.parametrize(("api", "name"), [(Api.COMPLETIONS, "prompt"), (Api.EMBEDDINGS, "input")])
def test_each_api_requires_its_own_prompt_field(api: Api, name: str) -> None:
    assert refusal({"model": "m", "messages": MESSAGES}, api).param == name
    assert refusal({"model": "m", name: []}, api).param == name
    assert refusal({"model": "m", name: 3}, api).param == name
    assert parsed(api, model="m", **{name: "hello"}).prompt_bytes == len('"hello"')


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 400, 100_000])
def test_deeply_nested_body_is_rejected(depth: int) -> None:
    arrays = b"[" * (depth - 1) + b"]" * (depth - 1)
    objects = b'{"a":' * (depth - 1) + b"1" + b"}" * (depth - 1)
    for bomb in (arrays, objects):
        assert "levels of nested" in refusal(b'{"model":"m","messages":' + bomb + b"}").message


def test_brackets_inside_strings_are_not_counted_as_nesting() -> None:
    text = '[{"' * 1000 + "\\" * 7 + '"]'
    deepest: object = text
    for _ in range(DEPTH_MAX - 1):
        deepest = [deepest]

    assert chat(x=deepest, y=text).model == "m"
    assert "nested" in refusal({"model": "m", "messages": MESSAGES, "x": [deepest]}).message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[]{}/é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a"\\[{'), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case _:
            return 0


@given(value=_JSON, limit=st.integers(0, 4))
def test_depth_check_agrees_with_a_recursive_walk(value: object, limit: int) -> None:
    from headgate.wire.fields import is_deeper_than

    assert is_deeper_than(json.dumps(value).encode(), limit) == (depth_of(value) > limit)


@given(more=st.dictionaries(st.text(min_size=1), _JSON, max_size=6))
def test_unknown_fields_are_passed_through(more: dict[str, object]) -> None:
    sent = {f"x_{name}": value for name, value in more.items()} | {"model": "m", "messages": MESSAGES}

    encoded = json.loads(RequestBody.parse(json.dumps(sent).encode(), Api.CHAT).encode(served_model="own"))

    assert encoded == sent | {"model": "own"}


def test_media_is_counted_by_kind_rather_than_encoded_length() -> None:
    text = {"type": "text", "text": "What is this?"}
    audio = {"type": "input_audio", "input_audio": {"data": "A" * 50_000, "format": "wav"}}
    file = {"type": "file", "file": {"file_data": "A" * 50_000}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text, IMAGE, audio, file]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    ]

    counted = chat(messages=messages).prompt_bytes - 4 * (IMAGE_TOKENS + AUDIO_TOKENS + FILE_TOKENS)

    assert len("Be brief.What is this?") < counted < 150


@pytest.mark.parametrize(
    ("api", "prompt", "media"),
    [
        (Api.CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, True),
        (Api.CHAT, {"messages": MESSAGES}, False),
        (Api.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, True),
        (Api.RESPONSES, {"input": "input_file"}, False),
        (Api.EMBEDDINGS, {"input": [{"image_url": "https://example.com/a.png"}]}, True),
        (Api.EMBEDDINGS, {"input": ["image_url"]}, False),
    ],
)
def test_parser_detects_media_in_a_prompt(api: Api, prompt: dict[str, object], media: bool) -> None:
    assert parsed(api, model="m", **prompt).length.media is media


def test_text_in_unknown_parts_beside_an_image_is_counted() -> None:
    hidden = {"type": "refusal", "refusal": "x" * 5_000}
    messages = [{"role": "user", "content": [IMAGE, hidden]}]

    assert chat(messages=messages).prompt_bytes > 5_000 + 4 * IMAGE_TOKENS


@pytest.mark.parametrize(
    ("api", "prompt", "name"),
    [
        *((Api.CHAT, {"messages": MESSAGES}, name) for name in ("tools", "functions", "response_format", "documents")),
        *((Api.CHAT, {"messages": MESSAGES}, name) for name in ("chat_template", "chat_template_kwargs", "prediction")),
        *((Api.COMPLETIONS, {"prompt": "hi"}, name) for name in ("suffix", "response_format")),
        *((Api.RESPONSES, {"input": "hi"}, name) for name in ("tools", "text", "instructions")),
    ],
)
def test_every_field_that_becomes_tokens_is_measured(api: Api, prompt: dict[str, object], name: str) -> None:
    value: object = "x" * 4_000 if name in ("suffix", "instructions", "chat_template") else [{"a": "x" * 4_000}]
    plain, longer = parsed(api, model="m", **prompt), parsed(api, model="m", **prompt, **{name: value})

    added = len(json.dumps(value))

    assert longer.prompt_bytes == plain.prompt_bytes + added
    assert longer.prompt_bytes_kept == plain.prompt_bytes_kept + added


@pytest.mark.parametrize("value", [None, [], {}, ""])
def test_empty_fields_beside_the_prompt_add_no_bytes(value: object) -> None:
    assert chat(messages=MESSAGES, tools=value).prompt_bytes == chat(messages=MESSAGES).prompt_bytes


def test_only_fields_that_become_tokens_are_measured() -> None:
    fields = {"metadata": {"a": "x" * 400}, "user": "x" * 400, "stop": ["x" * 400]}

    assert chat(messages=MESSAGES, **fields).prompt_bytes == chat(messages=MESSAGES).prompt_bytes


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", 1),
        (["one"], 1),
        (["one", "two", "th,ree"], 3),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        ([[1, 2], "x"], 2),
        ([1, "x", 3], 1),
        ([1, "x", "y"], 2),
        (["x"] * 400, 400),
    ],
)
@pytest.mark.parametrize(("api", "name"), [(Api.COMPLETIONS, "prompt"), (Api.EMBEDDINGS, "input")])
def test_each_prompt_in_an_array_is_counted_as_a_sequence(api: Api, name: str, prompt: object, prompts: int) -> None:
    assert parsed(api, model="m", **{name: prompt}).length.prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "embeds", "tokens", "prompts"),
    [
        ("", "x" * 10_238, 10, 1),
        ("", ["x" * 10_238] * 3, 30, 3),
        ("hello", "x" * 1_022, 1, 2),
        (["one", "two"], ["x" * 1_023], 2, 3),
        ("", None, 0, 1),
        ("", [], 0, 1),
    ],
)
def test_each_embedding_tensor_is_counted_as_a_sequence_with_one_token_per_1024_characters(
    prompt: object, embeds: object, tokens: int, prompts: int
) -> None:
    bare = parsed(Api.COMPLETIONS, model="m", prompt=prompt)
    body = parsed(Api.COMPLETIONS, model="m", prompt=prompt, prompt_embeds=embeds)

    assert body.prompt_bytes - bare.prompt_bytes == 4 * tokens
    assert body.length.prompts == prompts


def test_tools_leave_less_room_for_turns() -> None:
    caps = Caps(prompt_tokens=1_000, trim_prompt=True)
    turns = [{"role": "user", "content": "x" * 900} for _ in range(4)]
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 1_800}}]

    _, told = chat(messages=turns).capped(caps)
    shorter, told_with_tools = chat(messages=turns, tools=tools).capped(caps)

    assert (told, told_with_tools) == ((), ("turns_dropped=2",))
    assert 3_600 < shorter.prompt_bytes <= 4_003


def test_media_keyword_inside_text_is_counted_as_text() -> None:
    messages = [{"role": "user", "content": 'say "image_url" ' + "x" * 5_000}]

    assert chat(messages=messages).prompt_bytes > 5_000


@pytest.mark.parametrize(
    ("prompt", "count"),
    [([1, 2, 3], 12), ([[1, 2], [3]], 12), ([50_000], 4), (["ab", "c"], len('["ab", "c"]'))],
)
@pytest.mark.parametrize(("api", "name"), [(Api.COMPLETIONS, "prompt"), (Api.EMBEDDINGS, "input")])
def test_token_ids_are_counted_as_four_bytes_each(api: Api, name: str, prompt: object, count: int) -> None:
    assert parsed(api, model="m", **{name: prompt}).prompt_bytes == count


def test_repr_of_a_body_does_not_contain_the_prompt() -> None:
    assert "secret" not in repr(chat(messages=[{"role": "user", "content": "secret"}], metadata={"x": "secret"}))


def test_priority_is_sent_only_to_engines_that_schedule_by_it() -> None:
    body = chat(priority=-3)

    assert "priority" not in json.loads(body.encode(served_model="o"))
    assert json.loads(body.encode(served_model="o", passes_priority=True))["priority"] == -3


def test_client_cache_salt_is_never_sent_to_the_engine() -> None:
    def salt(body: RequestBody, tenant: str | None) -> object:
        return json.loads(body.encode(served_model="o", cache_salt=tenant)).get("cache_salt")

    plain, salted = chat(), chat(cache_salt="mine")
    seen = [salt(body, tenant) for body in (plain, salted, chat(cache_salt="other")) for tenant in ("t1", "t2")]

    assert len(set(seen)) == 6
    assert {len(str(each)) for each in seen} == {64}
    assert salt(salted, "t1") == salt(chat(cache_salt="mine"), "t1")
    assert salt(salted, None) is None
    assert salt(parsed(Api.EMBEDDINGS, model="m", input="hi", cache_salt="mine"), "t1") is None


def test_responses_request_is_parsed() -> None:
    body = parsed(Api.RESPONSES, model="m", input="hello", instructions="be brief", stream=True, service_tier="flex")

    assert (body.model, body.stream, body.service_tier) == ("m", True, "flex")
    assert body.prompt_bytes == body.prompt_bytes_kept == len('"hello""be brief"')
    assert json.loads(body.encode(served_model="own")) == {
        "model": "own",
        "input": "hello",
        "instructions": "be brief",
        "stream": True,
        "service_tier": "flex",
    }


def test_responses_request_keeps_its_stream_options() -> None:
    body = parsed(Api.RESPONSES, model="m", input="hi", stream=True, stream_options={"include_obfuscation": False})

    assert json.loads(body.encode(served_model="m"))["stream_options"] == {"include_obfuscation": False}


def test_responses_items_are_counted_by_text_and_media_kind() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 100_000}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, image]}]

    assert parsed(Api.RESPONSES, model="m", input=MESSAGES).prompt_bytes == len(json.dumps(MESSAGES))
    counted = parsed(Api.RESPONSES, model="m", input=items).prompt_bytes - 4 * IMAGE_TOKENS
    assert len("What is this?") < counted < 50


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": "hi", "instructions": ["x"]}, "instructions"),
        ({"input": ["input_image"]}, "input"),
    ],
)
def test_responses_request_without_a_prompt_is_rejected(fields: dict[str, object], param: str) -> None:
    assert refusal({"model": "m"} | fields, Api.RESPONSES).param == param


@pytest.mark.parametrize("name", ["best_of", "min_tokens"])
@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES])
def test_fields_lowered_by_caps_are_validated_in_every_api(api: Api, name: str) -> None:
    prompt = {Api.CHAT: {"messages": [{}]}, Api.COMPLETIONS: {"prompt": "x"}, Api.RESPONSES: {"input": "x"}}
    assert refusal({"model": "m", **prompt[api], name: 2.5}, api).param == name


def test_text_beside_token_ids_is_counted_as_text() -> None:
    assert parsed(Api.COMPLETIONS, model="m", prompt=[1, "x" * 1000]).prompt_bytes > 1000


def test_image_in_a_tool_result_is_not_counted_as_text() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 100_000}
    for output in ([picture], picture):
        found = {"type": "function_call_output", "call_id": "c", "output": output}
        assert parsed(Api.RESPONSES, model="m", input=[found]).prompt_bytes < 4 * IMAGE_TOKENS + 1000


def test_body_is_considered_large_by_its_length_or_number_of_elements() -> None:
    assert not is_large(b"{}" * 4096)
    assert is_large(b"{}" * 4097)
    assert not is_large(b"[]" * 4096)
    assert is_large(b"[]" * 4097)
    assert is_large(b"[]" * 2048 + b"{}" * 2049)
    assert not is_large(b'"",' * 4096)
    assert is_large(b'"",' * 4097)
    assert not is_large(b"x" * 262_144)
    assert is_large(b"x" * 262_145)


# Requested output


@pytest.mark.parametrize(
    ("api", "fields", "most"),
    [
        (Api.CHAT, {}, None),
        (Api.CHAT, {"max_tokens": 7}, 7),
        (Api.CHAT, {"max_completion_tokens": 7}, 7),
        (Api.CHAT, {"max_tokens": None, "max_completion_tokens": 7}, 7),
        (Api.CHAT, {"max_tokens": 9, "max_completion_tokens": 7}, 9),
        (Api.CHAT, {"max_tokens": 9, "n_predict": -1}, None),
        (Api.COMPLETIONS, {"max_tokens": 0, "echo": True}, 0),
        (Api.RESPONSES, {"max_output_tokens": 7}, 7),
        (Api.EMBEDDINGS, {"max_tokens": 7}, None),
    ],
)
def test_output_limit_is_the_largest_any_engine_would_apply(
    api: Api, fields: dict[str, object], most: int | None
) -> None:
    asked = {"model": "m", "messages": MESSAGES, "prompt": "hi", "input": "hi"} | fields

    assert parsed(api, **asked).output_tokens_max == most


@pytest.mark.parametrize(
    ("api", "fields", "n"),
    [
        (Api.CHAT, {}, 1),
        (Api.CHAT, {"n": 3}, 3),
        (Api.CHAT, {"n": None}, 1),
        (Api.CHAT, {"n": 2, "n_cmpl": 4}, 4),
        (Api.COMPLETIONS, {"n": 1, "best_of": 5}, 5),
        (Api.EMBEDDINGS, {"n": 3}, 1),
    ],
)
def test_choices_are_counted_the_way_an_engine_generates_them(api: Api, fields: dict[str, object], n: int) -> None:
    asked = {"model": "m", "messages": MESSAGES, "prompt": "hi", "input": "hi"} | fields

    assert parsed(api, **asked).n == n


# Metadata for the ledger


def test_selected_metadata_keys_are_returned_in_the_given_order() -> None:
    body = chat(metadata={"feature": "search", "other": "x", "conversation": "c1"})

    assert body.metadata(("conversation", "feature", "absent")) == (("conversation", "c1"), ("feature", "search"))
    assert b'"other": "x"' in body.encode(served_model="e")


@pytest.mark.parametrize(
    "metadata",
    [
        *(None, "text", [], {}, 7, {"feature": 7}, {"feature": None}, {"feature": ["a"]}),
        *({"feature": "x" * 129}, {"feature": "é" * 65}, {"feature": "a\0b"}),
        {"feature": "a", "other": "x" * 20_000},
    ],
)
def test_malformed_metadata_is_ignored(metadata: object) -> None:
    assert chat(metadata=metadata).metadata(("feature",)) == ()


def test_number_of_metadata_keys_is_limited() -> None:
    names = tuple(f"k{number}" for number in range(20))
    assert len(chat(metadata=dict.fromkeys(names, "v")).metadata(names)) == METADATA_KEYS_MAX
