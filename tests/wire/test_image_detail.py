"""Tests for capping the detail level of images."""

import json

import pytest

from headgate.model.caps import Caps, ImageDetail
from headgate.model.ticket import Api
from headgate.wire.image_detail import lower_detail
from headgate.wire.request_body import RequestBody

LOW = Caps(image_detail=ImageDetail.LOW)
ADDRESS = "data:image/png;base64,AAAA"


def image(detail: object = None, **others: object) -> dict[str, object]:
    inner: dict[str, object] = {"url": ADDRESS} | ({} if detail is None else {"detail": detail}) | others
    return {"type": "image_url", "image_url": inner}


def asking(*parts: object) -> list[object]:
    return [{"role": "system", "content": "look"}, {"role": "user", "content": [{"type": "text", "text": "?"}, *parts]}]


def capped(fields: dict[str, object], caps: Caps, api: Api = Api.CHAT) -> tuple[dict[str, object], tuple[str, ...]]:
    body, told = RequestBody.parse(json.dumps({"model": "m"} | fields).encode(), api).capped(caps)
    return json.loads(body.encode(served_model="m")), told


@pytest.mark.parametrize("detail", ["high", "auto", None, "original"])
def test_detail_is_lowered_for_every_image_and_reported_once(detail: str | None) -> None:
    sent, told = capped({"messages": asking(image(detail), image("low"), image(detail, extra=1))}, LOW)

    assert sent["messages"] == asking(image("low"), image("low"), image("low", extra=1))
    assert told == ("image_detail=low",)


@pytest.mark.parametrize(
    ("most", "beyond"),
    [("low", ["auto", "high", "x", None]), ("auto", ["high", "x"]), ("high", ["x"])],
)
def test_detail_within_the_cap_is_unchanged(most: str, beyond: list[str | None]) -> None:
    for detail in ("low", "auto", "high", "x", None):
        raw = json.dumps(asking(image(detail))).encode()

        assert (lower_detail(raw, ImageDetail(most)) is not None) == (detail in beyond)


def test_image_detail_in_responses_items_is_lowered() -> None:
    picture = {"type": "input_image", "image_url": ADDRESS}
    found = {"type": "function_call_output", "call_id": "c", "output": [picture | {"detail": "high"}]}
    sent, told = capped({"input": [{"role": "user", "content": [picture]}, found]}, LOW, Api.RESPONSES)

    low = picture | {"detail": "low"}
    assert sent["input"] == [{"role": "user", "content": [low]}, found | {"output": [low]}]
    assert told == ("image_detail=low",)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": 'what is an "image_url"?'}],
        [{"role": "user", "content": [{"type": "text", "text": "image_url"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": ADDRESS}]}],
        [{"role": "user", "content": [{"type": "image_url"}, {"image_url": {}}]}],
        [{"role": "user", "content": {"type": "image_url"}}],
    ],
)
def test_body_without_images_to_lower_is_returned_as_the_same_object(messages: list[object]) -> None:
    body = RequestBody.parse(json.dumps({"model": "m", "messages": messages}).encode(), Api.CHAT)

    assert body.capped(LOW)[0] is body


@pytest.mark.parametrize("name", ["image_url", "content", "type", "detail"])
def test_detail_of_an_image_with_escaped_names_is_lowered(name: str) -> None:
    plain = json.dumps(asking(image("high")))
    hidden = plain.replace(f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"')
    lowered = lower_detail(hidden.encode(), ImageDetail.LOW)

    assert hidden != plain
    assert lowered is not None
    assert json.loads(lowered) == asking(image("low"))


def test_malformed_messages_are_left_to_the_engine() -> None:
    assert lower_detail(b'"image_url"', ImageDetail.LOW) is None
    assert lower_detail(b'["image_url"]', ImageDetail.LOW) is None
    assert lower_detail(b'[{"content": ["image_url", 7]}]', ImageDetail.LOW) is None


def test_turns_are_dropped_and_remaining_images_are_lowered() -> None:
    turns = [{"role": "user", "content": "x" * 400}, *asking(image("high"))[1:]]
    sent, told = capped({"messages": turns}, Caps(prompt_tokens=60, trim_prompt=True, image_detail=ImageDetail.LOW))

    assert sent["messages"] == asking(image("low"))[1:]
    assert told == ("image_detail=low", "turns_dropped=1")
