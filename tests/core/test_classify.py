"""Which class does a request get?"""

import pytest

from headgate.core.classify import classify
from headgate.core.rules import Rules
from headgate.model.policy import ServiceClass
from testing.builders import a_class, a_policy, arrived

CLASSES = (
    a_class("short", prompt_tokens_max=100),
    a_class("long", prompt_tokens_max=1_000, service_tiers=("priority", "fast")),
    a_class("batch", service_tiers=("flex",), unnamed=False),
)


def classified(
    *, classes: tuple[ServiceClass, ...] = CLASSES, named: str | None = None, tier: str | None = None, size: int = 1
) -> str | None:
    ticket = arrived("r", service_class=named, tier=tier, prompt_bytes=size).ticket
    found = classify(ticket, Rules(a_policy(classes=classes), "h"))
    return None if found is None else found.name


def test_what_the_caller_names_outright_comes_first() -> None:
    assert classified(named="batch", tier="priority") == "batch"


def test_a_class_that_does_not_exist_is_not_replaced_by_another() -> None:
    assert classified(named="gold", tier="priority") is None


@pytest.mark.parametrize(("tier", "expected"), [("priority", "long"), ("fast", "long"), ("flex", "batch")])
def test_a_service_tier_selects_the_class_that_lists_it(tier: str, expected: str) -> None:
    assert classified(tier=tier) == expected


@pytest.mark.parametrize("tier", [None, "auto", "default", "scale"])
def test_a_tier_that_says_nothing_leaves_the_choice_to_the_size(tier: str | None) -> None:
    assert classified(tier=tier) == "short"


@pytest.mark.parametrize(("size", "expected"), [(403, "short"), (404, "long"), (4_003, "long"), (9_999_999, "long")])
def test_the_first_class_that_takes_the_length_is_used_and_the_largest_beyond_all(size: int, expected: str) -> None:
    assert classified(size=size) == expected


def test_a_class_without_a_limit_takes_every_length() -> None:
    assert classified(classes=(a_class("short", prompt_tokens_max=1), a_class("any")), size=9_999_999) == "any"


def test_where_every_class_must_be_named_an_unnamed_request_has_none() -> None:
    assert classified(classes=(a_class("batch", unnamed=False),)) is None
