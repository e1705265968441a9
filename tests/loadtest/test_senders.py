"""Is a mix understood, and are secrets kept?"""

import pytest

from headgate.loadtest.problem import Problem
from headgate.loadtest.senders import Sender, Sizes, parse_sender, read_key

SIZES = {"prompt": Sizes(200, 800), "output": Sizes(20, 200)}


def test_all_fields_of_a_mix_are_understood() -> None:
    text = "class=interactive, share=0.7,tenant=acme,key=env:ACME,prompt=200:2000,output=50,tier=priority"

    assert parse_sender(text, {"ACME": "sk-1"}, **SIZES) == Sender(
        prompt=Sizes(200, 2000),
        output=Sizes(50, 50),
        service_class="interactive",
        tier="priority",
        tenant="acme",
        key="sk-1",
        share=0.7,
    )


def test_what_a_mix_leaves_out_is_as_the_options_say() -> None:
    assert parse_sender("class=batch", {}, key="sk-all", **SIZES) == Sender(
        prompt=Sizes(200, 800), output=Sizes(20, 200), service_class="batch", key="sk-all"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("klass=batch", 'klass=batch" is not understood'),
        ("class", '"class" is not understood'),
        ("class=", '"class=" is not understood'),
        ("share=0", "share must be a number above 0"),
        ("share=nan", "share must be a number above 0"),
        ("share=much", "share must be a number above 0"),
        ("prompt=0", "no size in tokens"),
        ("prompt=9:3", "no size in tokens"),
        ("output=few", "no size in tokens"),
        ("class=a,class=b", '"class" stands twice'),
        ("key=env:NOT_THERE", "the environment holds no NOT_THERE"),
    ],
)
def test_a_mix_that_is_not_understood_says_why(text: str, message: str) -> None:
    with pytest.raises(Problem, match=message):
        parse_sender(text, {}, **SIZES)


def test_a_key_is_in_no_message() -> None:
    sender = parse_sender("key=canary-5f1d", {}, **SIZES)

    assert "canary" not in repr(sender)
    with pytest.raises(Problem) as problem:
        parse_sender("key=canary-5f1d,class=a,class=b", {}, **SIZES)
    assert "canary" not in str(problem.value)


def test_a_key_that_would_break_the_header_is_refused() -> None:
    with pytest.raises(Problem, match="cannot stand in a header"):
        read_key("env:K", {"K": "a\r\nx-evil: 1"})


def test_a_class_is_called_by_its_name_or_its_tier() -> None:
    labels = [parse_sender(text, {}, **SIZES).class_label for text in ("class=a,tier=flex", "tier=flex", "tenant=t")]

    assert labels == ["a", "flex", "unnamed"]
