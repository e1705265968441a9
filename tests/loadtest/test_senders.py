"""Tests for `--mix` and `--key` parsing."""

import pytest

from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.senders import Sender, TokenRange, parse_sender, read_key

SIZES = {"prompt": TokenRange(200, 800), "output": TokenRange(20, 200)}


def test_mix_with_all_fields_is_parsed() -> None:
    text = "class=interactive, share=0.7,tenant=acme,key=env:ACME,prompt=200:2000,output=50,tier=priority"

    assert parse_sender(text, {"ACME": "sk-1"}, **SIZES) == Sender(
        prompt=TokenRange(200, 2000),
        output=TokenRange(50, 50),
        service_class="interactive",
        tier="priority",
        tenant="acme",
        key="sk-1",
        share=0.7,
    )


def test_mix_uses_the_options_as_defaults() -> None:
    assert parse_sender("class=batch", {}, key="sk-all", **SIZES) == Sender(
        prompt=TokenRange(200, 800), output=TokenRange(20, 200), service_class="batch", key="sk-all"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("klass=batch", 'klass=batch" is invalid'),
        ("class", '"class" is invalid'),
        ("class=", '"class=" is invalid'),
        ("share=0", "share must be a number above 0"),
        ("share=nan", "share must be a number above 0"),
        ("share=much", "share must be a number above 0"),
        ("prompt=0", "tokens; use"),
        ("prompt=9:3", "tokens; use"),
        ("output=few", "tokens; use"),
        ("class=a,class=b", '"class" is repeated'),
        ("key=env:NOT_THERE", "environment variable NOT_THERE is not set"),
    ],
)
def test_invalid_mix_is_rejected_with_a_message(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse_sender(text, {}, **SIZES)


def test_key_does_not_appear_in_messages() -> None:
    sender = parse_sender("key=canary-5f1d", {}, **SIZES)

    assert "canary" not in repr(sender)
    with pytest.raises(WorkloadError) as problem:
        parse_sender("key=canary-5f1d,class=a,class=b", {}, **SIZES)
    assert "canary" not in str(problem.value)


def test_key_that_would_break_the_header_is_rejected() -> None:
    with pytest.raises(WorkloadError, match="a header must not contain"):
        read_key("env:K", {"K": "a\r\nx-evil: 1"})


def test_class_label_is_the_class_or_else_the_tier() -> None:
    labels = [parse_sender(text, {}, **SIZES).class_label for text in ("class=a,tier=flex", "tier=flex", "tenant=t")]

    assert labels == ["a", "flex", "unnamed"]
