"""Tests for request classification."""

from dataclasses import replace
from typing import Any

import pytest

from headgate.core.admission.gate import Rejection, check_policy
from headgate.core.classify import ChosenBy, ClassChoice, choose_class, classify
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.policy import ClassRule, ServiceClass
from headgate.model.tenant import Plan, Tenant
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ClassName, TenantId
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


def both(ticket: Ticket, rules: Rules) -> ClassChoice:
    """The choice, after a check that `classify`, which has a shorter path, chooses the same class."""
    choice = choose_class(ticket, rules)
    assert classify(ticket, rules) is choice.service_class
    return choice


def test_named_class_takes_precedence() -> None:
    assert classified(named="batch", tier="priority") == "batch"


def test_unknown_class_is_not_replaced_by_another() -> None:
    assert classified(named="gold", tier="priority") is None


@pytest.mark.parametrize(("tier", "expected"), [("priority", "long"), ("fast", "long"), ("flex", "batch")])
def test_service_tier_selects_the_class_that_lists_it(tier: str, expected: str) -> None:
    assert classified(tier=tier) == expected


@pytest.mark.parametrize("tier", [None, "auto", "default"])
def test_neutral_service_tier_leaves_the_choice_to_prompt_size(tier: str | None) -> None:
    assert classified(tier=tier) == "short"


@pytest.mark.parametrize(("size", "expected"), [(403, "short"), (404, "long"), (4_003, "long"), (9_999_999, "long")])
def test_first_class_that_fits_the_prompt_is_selected_or_else_the_largest(size: int, expected: str) -> None:
    assert classified(size=size) == expected


def test_class_without_a_limit_accepts_every_prompt_length() -> None:
    assert classified(classes=(a_class("short", prompt_tokens_max=1), a_class("any")), size=9_999_999) == "any"


def test_unnamed_request_has_no_class_if_classes_must_be_named() -> None:
    assert classified(classes=(a_class("batch", unnamed=False),)) is None


@pytest.mark.parametrize("tier", ["scale", "gold", ""])
def test_unknown_service_tier_is_rejected_and_known_tiers_are_listed(tier: str) -> None:
    refusal = check_policy(arrived("r", tier=tier).ticket, Rules(a_policy(classes=CLASSES), "h"))

    known = "auto, default, fast, flex, priority"
    reason = f'unknown service_tier "{tier}"; known values: {known}'
    assert refusal == Rejection(Outcome.INVALID_REQUEST, reason)


def test_service_tier_removed_after_arrival_is_ignored() -> None:
    rules = Rules(a_policy(classes=CLASSES), "h")

    for tier, kept in (("scale", None), ("flex", "flex"), ("auto", "auto"), (None, None)):
        assert rules.without_unknown_names(arrived("r", tier=tier).ticket).service_tier == kept


# A tenant's classes


def chosen(*classes: str, size: int = 1, rules: tuple[ClassRule, ...] = (), **ticket: Any) -> ClassChoice:
    """Returns the choice for a tenant with the plan `critical` that may use these classes."""
    tenant = Tenant(TenantId("acme"), classes=tuple(map(ClassName, classes)), plan=Plan.CRITICAL)
    policy = replace(a_policy(classes=CLASSES, tenants=(tenant,)), class_rules=rules)
    asked = replace(arrived("r", prompt_bytes=size).ticket, **ticket)
    return both(asked, Rules(policy, "h"))


def test_tenant_with_one_class_always_gets_that_class() -> None:
    assert chosen("batch") == ClassChoice(CLASSES[2], ChosenBy.ONLY_CLASS)
    assert chosen("batch", service_tier="default") == ClassChoice(CLASSES[2], ChosenBy.ONLY_CLASS)


def test_tenant_with_one_class_may_not_name_another() -> None:
    tenant = Tenant(TenantId("acme"), classes=(ClassName("batch"),))
    refusal = check_policy(
        arrived("r", service_class="short").ticket, Rules(a_policy(classes=CLASSES, tenants=(tenant,)), "h")
    )

    assert isinstance(refusal, Rejection)
    assert refusal.outcome is Outcome.FORBIDDEN


def test_prompt_size_selects_among_the_tenants_classes() -> None:
    assert chosen("short", "batch", size=9_999_999) == ClassChoice(CLASSES[0], ChosenBy.SIZE)
    assert chosen("short", "long", size=404) == ClassChoice(CLASSES[1], ChosenBy.SIZE)


def test_unknown_classes_in_a_tenant_are_ignored() -> None:
    assert chosen("batch", "gone", "", size=1).service_class == CLASSES[2]
    assert chosen("gone") == ClassChoice(CLASSES[0], ChosenBy.SIZE)


def test_class_for_an_unknown_tenant_is_selected_by_prompt_size() -> None:
    rules = (ClassRule(ClassName("batch")),)
    assert chosen(tenant=TenantId("nobody"), rules=rules) == ClassChoice(CLASSES[0], ChosenBy.SIZE)


# Class rules


FITS = {
    "no criteria": {},
    "plan": {"plans": (Plan.STANDARD, Plan.CRITICAL)},
    "tenant": {"tenants": (TenantId("bolt"), TenantId("acme"))},
    "parent tenant": {"tenants": (TenantId("acme"),)},
    "stream": {"stream": True},
    "api": {"apis": (Api.RESPONSES, Api.CHAT)},
    "metadata": {"metadata": (("purpose", ("eval", "backfill")),)},
    "size": {"prompt_tokens_max": 25},
}
MISSES = {
    "plan": {"plans": (Plan.FREE,)},
    "tenant": {"tenants": (TenantId("acm"), TenantId("acme/search/web"))},
    "stream": {"stream": False},
    "api": {"apis": (Api.EMBEDDINGS,)},
    "metadata value": {"metadata": (("purpose", ("chat",)),)},
    "metadata key": {"metadata": (("purpose", ("eval",)), ("team", ("ml",)))},
    "size": {"prompt_tokens_max": 24},
    "one of two criteria": {"plans": (Plan.CRITICAL,), "stream": False},
}


def by_rule(criteria: dict[str, Any], tenant: str = "acme/search") -> ClassChoice:
    rules = (ClassRule(ClassName("batch"), **criteria),)
    plans = Tenant(TenantId(tenant), plan=Plan.CRITICAL)
    policy = replace(a_policy(classes=CLASSES, tenants=(plans,)), class_rules=rules)
    ticket = replace(arrived("r", tenant, prompt_bytes=100).ticket, metadata=(("purpose", "eval"),))
    return both(ticket, Rules(policy, "h"))


@pytest.mark.parametrize("criteria", FITS.values(), ids=FITS)
def test_rule_with_all_criteria_met_selects_the_class(criteria: dict[str, Any]) -> None:
    assert by_rule(criteria) == ClassChoice(CLASSES[2], ChosenBy.RULE, 0)


@pytest.mark.parametrize("criteria", MISSES.values(), ids=MISSES)
def test_rule_with_an_unmet_criterion_is_skipped(criteria: dict[str, Any]) -> None:
    assert by_rule(criteria) == ClassChoice(CLASSES[0], ChosenBy.SIZE)


def test_first_matching_rule_selects_the_class() -> None:
    rules = (
        ClassRule(ClassName("batch"), stream=False),
        ClassRule(ClassName("long"), plans=(Plan.CRITICAL,)),
        ClassRule(ClassName("batch")),
    )
    assert chosen(rules=rules) == ClassChoice(CLASSES[1], ChosenBy.RULE, 1)


def test_named_class_or_tier_takes_precedence_over_rules() -> None:
    rules = (ClassRule(ClassName("batch")),)
    assert chosen(rules=rules, requested_class="long") == ClassChoice(CLASSES[1], ChosenBy.NAME)
    assert chosen(rules=rules, service_tier="fast") == ClassChoice(CLASSES[1], ChosenBy.TIER)


def test_rule_for_a_forbidden_class_is_skipped() -> None:
    rules = (ClassRule(ClassName("batch")), ClassRule(ClassName("long")))
    assert chosen("short", "long", rules=rules) == ClassChoice(CLASSES[1], ChosenBy.RULE, 1)
