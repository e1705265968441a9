"""Tests for generated prompts and requests: sizes, shared prefixes, headers and URLs."""

import json

import pytest

from headgate.loadtest.prompts import Prompts
from headgate.loadtest.request import LoadTestRequest
from headgate.loadtest.request_writer import RequestWriter
from headgate.loadtest.target import TargetUrl
from tests.loadtest.builders import a_sender


@pytest.mark.parametrize("tokens", [1, 2, 3, 100, 65_536, 200_000])
def test_prompt_has_four_bytes_per_token(tokens: int) -> None:
    assert len(Prompts(1).text(5, tokens)) == 4 * tokens


def test_same_seed_produces_the_same_text() -> None:
    assert Prompts(1).text(5, 100) == Prompts(1).text(5, 100)
    assert Prompts(1).text(5, 100) != Prompts(2).text(5, 100)


def test_prompts_share_no_prefix_by_default() -> None:
    prompts = Prompts(1)

    assert len({prompts.text(number, 4) for number in range(10_000)}) == 10_000


def test_shared_prefix_counts_towards_the_prompt_size() -> None:
    prompts = Prompts(1, shared_prefix_tokens=50)
    first, second = prompts.text(1, 60), prompts.text(2, 60)

    assert len(first) == len(second) == 240
    assert first[:200] == second[:200]
    assert first[200:] != second[200:]
    assert prompts.text(3, 20) == first[:80]


def test_prompt_text_requires_no_json_escapes() -> None:
    text = Prompts(1, shared_prefix_tokens=10).text(1, 1000).decode()

    assert json.dumps(text) == f'"{text}"'


def asked(*, retries: int = 0, **fields: object) -> tuple[str, dict[str, str], dict[str, object]]:
    options = {name: fields.pop(name) for name in ("stream", "exact_output") if name in fields}
    target = TargetUrl.parse("http://127.0.0.1:1")
    senders = [a_sender(**fields)]
    questions = RequestWriter(target, senders, Prompts(0), model='m"x', run_id="r", **options)  # type: ignore[arg-type]
    head, _, body = questions.write(LoadTestRequest(0, 0, 10, 4, 0), retries).partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return line, dict(each.split(": ", 1) for each in headers), json.loads(body)


def test_request_contains_key_class_tier_and_sizes() -> None:
    line, headers, body = asked(service_class="batch", tier="flex", key="sk-1", retries=1)

    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert headers["authorization"] == "Bearer sk-1"
    assert headers["x-headgate-class"] == "batch"
    assert headers["x-stainless-retry-count"] == "1"
    assert headers["x-request-id"] == "r-0-1"
    [message] = body.pop("messages")  # type: ignore[misc]
    assert len(message["content"]) == 40  # type: ignore[index]
    assert body == {
        "model": 'm"x',
        "stream": True,
        "stream_options": {"include_usage": True},
        "service_tier": "flex",
        "max_tokens": 4,
    }


def test_request_omits_unset_fields() -> None:
    _, headers, body = asked(stream=False)

    assert headers.keys().isdisjoint({"authorization", "x-headgate-class"})
    assert body.keys() == {"model", "max_tokens", "messages"}


def test_exact_output_sets_ignore_eos() -> None:
    assert asked(exact_output=True)[2]["ignore_eos"] is True


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("http://h", "http://h/v1/chat/completions"),
        ("h:81", "http://h:81/v1/chat/completions"),
        ("http://h:80/v1/", "http://h/v1/chat/completions"),
        ("https://h/team/v1", "https://h/team/v1/chat/completions"),
        ("https://h:8443/x", "https://h:8443/x/v1/chat/completions"),
        ("http://[::1]:5/v1/chat/completions", "http://[::1]:5/v1/chat/completions"),
    ],
)
def test_target_accepts_several_url_forms(url: str, means: str) -> None:
    assert str(TargetUrl.parse(url)) == means


def test_blocks_of_a_trace_have_equal_text_if_their_names_are_equal() -> None:
    prompts = Prompts(1)
    first, second, third = (
        prompts.text(number, 1_300, blocks=blocks) for number, blocks in enumerate([(1, 2), (1, 2), (1, 3)])
    )

    assert len(first) == len(third) == 4 * 1_300
    assert first[: 4 * 1_024] == second[: 4 * 1_024] != third[: 4 * 1_024]
    assert first[: 4 * 512] == third[: 4 * 512]
    # The rest of each prompt is its own, from the first bytes on.
    assert first[4 * 1_024 :][:16] != second[4 * 1_024 :][:16]
    # The last block of a trace may be only a part of one.
    assert prompts.text(0, 700, blocks=(1, 2)) == first[: 4 * 700]


@pytest.mark.parametrize("stream", [True, False])
def test_sender_of_a_trace_overrides_model_and_streaming(*, stream: bool) -> None:
    target, senders = TargetUrl.parse("http://127.0.0.1:1"), [a_sender(model="other", stream=stream)]
    writer = RequestWriter(target, senders, Prompts(0), model="m", stream=not stream)
    body = json.loads(writer.write(LoadTestRequest(0, 0, 10, 4, 0), 0).partition(b"\r\n\r\n")[2])

    assert (body["model"], body.get("stream", False)) == ("other", stream)
