"""Which class does a request get?"""

from dataclasses import replace
from typing import Any

import pytest

from headgate.core.admission.gate import Refusal, judge
from headgate.core.classify import ChosenBy, ClassChoice, choose_class, classify
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.policy import ClassRule, ServiceClass
from headgate.model.tenant import Plan, Tenant
from headgate.model.ticket import Api
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


def test_what_the_caller_names_outright_comes_first() -> None:
    assert classified(named="batch", tier="priority") == "batch"


def test_a_class_that_does_not_exist_is_not_replaced_by_another() -> None:
    assert classified(named="gold", tier="priority") is None


@pytest.mark.parametrize(("tier", "expected"), [("priority", "long"), ("fast", "long"), ("flex", "batch")])
def test_a_service_tier_selects_the_class_that_lists_it(tier: str, expected: str) -> None:
    assert classified(tier=tier) == expected


@pytest.mark.parametrize("tier", [None, "auto", "default"])
def test_a_tier_that_says_nothing_leaves_the_choice_to_the_size(tier: str | None) -> None:
    assert classified(tier=tier) == "short"


@pytest.mark.parametrize(("size", "expected"), [(403, "short"), (404, "long"), (4_003, "long"), (9_999_999, "long")])
def test_the_first_class_that_takes_the_length_is_used_and_the_largest_beyond_all(size: int, expected: str) -> None:
    assert classified(size=size) == expected


def test_a_class_without_a_limit_takes_every_length() -> None:
    assert classified(classes=(a_class("short", prompt_tokens_max=1), a_class("any")), size=9_999_999) == "any"


def test_where_every_class_must_be_named_an_unnamed_request_has_none() -> None:
    assert classified(classes=(a_class("batch", unnamed=False),)) is None


@pytest.mark.parametrize("tier", ["scale", "gold", ""])
def test_an_unknown_tier_is_invalid_and_the_known_ones_are_listed(tier: str) -> None:
    refusal = judge(arrived("r", tier=tier).ticket, Rules(a_policy(classes=CLASSES), "h"))

    known = "auto, default, fast, flex, priority"
    reason = f'service_tier "{tier}" is not known here; the known values are: {known}'
    assert refusal == Refusal(Outcome.INVALID, reason)


def test_tier_removed_since_the_request_arrived_is_ignored() -> None:
    rules = Rules(a_policy(classes=CLASSES), "h")

    for tier, kept in (("scale", None), ("flex", "flex"), ("auto", "auto"), (None, None)):
        assert rules.without_gone_names(arrived("r", tier=tier).ticket).service_tier == kept


# The classes that a tenant may use


def chosen(*classes: str, size: int = 1, rules: tuple[ClassRule, ...] = (), **ticket: Any) -> ClassChoice:
    """The choice for a tenant of plan critical that may use these classes."""
    tenant = Tenant(TenantId("acme"), classes=tuple(map(ClassName, classes)), plan=Plan.CRITICAL)
    policy = replace(a_policy(classes=CLASSES, tenants=(tenant,)), class_rules=rules)
    asked = replace(arrived("r", prompt_bytes=size).ticket, **ticket)
    return choose_class(asked, Rules(policy, "h"))


def test_a_tenant_with_one_class_gets_it() -> None:
    assert chosen("batch") == ClassChoice(CLASSES[2], ChosenBy.ONLY_CLASS)
    assert chosen("batch", service_tier="default") == ClassChoice(CLASSES[2], ChosenBy.ONLY_CLASS)


def test_tenant_with_one_class_may_not_name_another() -> None:
    tenant = Tenant(TenantId("acme"), classes=(ClassName("batch"),))
    refusal = judge(
        arrived("r", service_class="short").ticket, Rules(a_policy(classes=CLASSES, tenants=(tenant,)), "h")
    )

    assert isinstance(refusal, Refusal)
    assert refusal.outcome is Outcome.FORBIDDEN


def test_the_size_chooses_among_the_classes_of_the_tenant() -> None:
    assert chosen("short", "batch", size=9_999_999) == ClassChoice(CLASSES[0], ChosenBy.SIZE)
    assert chosen("short", "long", size=404) == ClassChoice(CLASSES[1], ChosenBy.SIZE)


def test_classes_of_a_tenant_that_do_not_exist_are_ignored() -> None:
    assert chosen("batch", "gone", "", size=1).service_class == CLASSES[2]
    assert chosen("gone") == ClassChoice(CLASSES[0], ChosenBy.SIZE)


def test_class_of_an_unknown_tenant_is_chosen_by_size() -> None:
    rules = (ClassRule(ClassName("batch")),)
    assert chosen(tenant=TenantId("nobody"), rules=rules) == ClassChoice(CLASSES[0], ChosenBy.SIZE)


# The table of rules


FITS = {
    "everything": {},
    "plan": {"plans": (Plan.STANDARD, Plan.CRITICAL)},
    "tenant": {"tenants": (TenantId("bolt"), TenantId("acme"))},
    "tenant above": {"tenants": (TenantId("acme"),)},
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
    "one of two": {"plans": (Plan.CRITICAL,), "stream": False},
}


def by_rule(criteria: dict[str, Any], tenant: str = "acme/search") -> ClassChoice:
    rules = (ClassRule(ClassName("batch"), **criteria),)
    plans = Tenant(TenantId(tenant), plan=Plan.CRITICAL)
    policy = replace(a_policy(classes=CLASSES, tenants=(plans,)), class_rules=rules)
    ticket = replace(arrived("r", tenant, prompt_bytes=100).ticket, metadata=(("purpose", "eval"),))
    return choose_class(ticket, Rules(policy, "h"))


@pytest.mark.parametrize("criteria", FITS.values(), ids=FITS)
def test_a_rule_whose_criteria_all_fit_chooses_the_class(criteria: dict[str, Any]) -> None:
    assert by_rule(criteria) == ClassChoice(CLASSES[2], ChosenBy.RULE, 0)


@pytest.mark.parametrize("criteria", MISSES.values(), ids=MISSES)
def test_rule_with_an_unmet_criterion_is_skipped(criteria: dict[str, Any]) -> None:
    assert by_rule(criteria) == ClassChoice(CLASSES[0], ChosenBy.SIZE)


def test_first_matching_rule_chooses_the_class() -> None:
    rules = (
        ClassRule(ClassName("batch"), stream=False),
        ClassRule(ClassName("long"), plans=(Plan.CRITICAL,)),
        ClassRule(ClassName("batch")),
    )
    assert chosen(rules=rules) == ClassChoice(CLASSES[1], ChosenBy.RULE, 1)


def test_class_or_tier_named_by_the_caller_precedes_the_rules() -> None:
    rules = (ClassRule(ClassName("batch")),)
    assert chosen(rules=rules, class_named="long") == ClassChoice(CLASSES[1], ChosenBy.NAME)
    assert chosen(rules=rules, service_tier="fast") == ClassChoice(CLASSES[1], ChosenBy.TIER)


def test_rule_for_a_class_that_the_tenant_may_not_use_is_skipped() -> None:
    rules = (ClassRule(ClassName("batch")), ClassRule(ClassName("long")))
    assert chosen("short", "long", rules=rules) == ClassChoice(CLASSES[1], ChosenBy.RULE, 1)
