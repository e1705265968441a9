"""Tests for error and model list bodies."""

import json

import pytest

from headgate.wire.openai_bodies import MESSAGE_CHARS_MAX, error_body, models_body, read_error, reported_error


def test_error_has_all_four_fields() -> None:
    body = error_body(message='no "such" model', type="invalid_request_error", code="model_not_found", param="model")

    assert json.loads(body) == {
        "error": {
            "message": 'no "such" model',
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert b"\n" not in body
    assert json.loads(error_body(message="m", type="t", code="c"))["error"]["param"] is None


def test_model_list_has_the_openai_format() -> None:
    assert json.loads(models_body(["a", "b"])) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 0, "owned_by": "headgate"},
            {"id": "b", "object": "model", "created": 0, "owned_by": "headgate"},
        ],
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"code":400,"message":"\'messages\' is required","type":"x"}}', "'messages' is required"),
        (b'{"error":"plain"}', "plain"),
        (b'{"error":{"type":"x"},"message":"beside"}', "beside"),
        (b'{"object":"error","message":"older vLLM"}', "older vLLM"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"detail":[{"loc":["body"],"msg":"field required"}]}', "field required"),
        (b"Bad\n  Gateway", "Bad Gateway"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b"{}", ""),
        (b"17", ""),
        (b"[" * 100_000, "[" * (MESSAGE_CHARS_MAX - 1) + "…"),
        (b'{"error":{"error":{"error":{"error":{"error":"deep"}}}}}', ""),
    ],
)
def test_engine_error_message_is_read_from_any_format(body: bytes, message: str) -> None:
    assert read_error(body) == message


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error":{"message":"no luck"}}', "no luck"),
        (b'{"object":"error","message":"older vLLM"}', "older vLLM"),
        (b'{"error":{}}', ""),
        (b'{"error":null,"choices":[]}', None),
        (b'{"choices":[{"error":"inside"}]}', None),
        (b'{"choices":[{"text":"an \\"error\\""}]}', None),
        (b'["error"]', None),
        (b'{"error"', None),
        (b"", None),
    ],
)
def test_error_with_status_200_is_distinguished_from_a_response(body: bytes, told: str | None) -> None:
    assert reported_error(body) == told
