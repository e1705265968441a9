"""Parsing and validation of the `class_rules` table."""

import pytest

from headgate.config.class_rules import DEFAULT_RULES, METADATA_KEYS_MAX, class_table
from headgate.config.problems import ConfigErrors
from headgate.model.policy import ClassRule
from headgate.model.tenant import Plan
from headgate.model.ticket import Api
from tests.config.builders import settings_of, small_with


def rules_of(*lines: str) -> tuple[ClassRule, ...]:
    return settings_of(small_with(*lines)).policy.class_rules


def problems_of(*lines: str) -> str:
    with pytest.raises(ConfigErrors) as raised:
        settings_of(small_with(*lines))
    return str(raised.value)


def test_plan_critical_is_interactive_by_default() -> None:
    assert rules_of() == DEFAULT_RULES == (ClassRule("interactive", plans=(Plan.CRITICAL,)),)


def test_default_rule_applies_only_if_its_class_exists() -> None:
    assert rules_of("classes: {mine: {priority_band: 0}}") == ()


def test_empty_table_has_no_rules() -> None:
    assert rules_of("class_rules: []") == ()


def test_every_criterion_is_read() -> None:
    criteria = "plans: free, tenants: [demo], stream: false, apis: [embeddings, chat], prompt_tokens_max: 100"
    rules = rules_of(
        "class_rules:",
        f"  - {{class: batch, {criteria}, metadata: {{purpose: [eval, backfill], team: ml}}}}",
        "  - {class: long}",
    )

    assert rules == (
        ClassRule(
            "batch",
            plans=(Plan.FREE,),
            tenants=("demo",),
            stream=False,
            apis=(Api.EMBEDDINGS, Api.CHAT),
            metadata=(("purpose", ("eval", "backfill")), ("team", ("ml",))),
            prompt_tokens_max=100,
        ),
        ClassRule("long"),
    )


def test_rule_metadata_keys_are_added_to_ledger_metadata_keys() -> None:
    rules = "class_rules: [{class: batch, metadata: {purpose: eval}}, {class: long, metadata: {purpose: qa, team: ml}}]"
    accounts = ("database: postgresql://db/headgate", "key_secret: a secret of more than sixteen letters")
    ledger = "ledger: {spool_directory: /var/spool/headgate, metadata_keys: [team, feature]}"

    assert settings_of(small_with(rules)).metadata_names == ("purpose", "team")
    assert settings_of(small_with(*accounts, ledger, rules)).metadata_names == ("team", "feature", "purpose")


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("{}", "class_rules[0].class: missing; set the class"),
        ("{class: bach}", 'class "bach" does not exist; did you mean "batch"?'),
        ("{class: batch, plans: [gold]}", '"gold" is not a valid value; available: free, standard, critical'),
        ("{class: batch, apis: [chats]}", '"chats" is not a valid value; did you mean "chat"?'),
        ("{class: batch, tenants: [dem]}", 'tenant "dem" does not exist; did you mean "demo"?'),
        ("{class: batch, stream: maybe}", "expected true or false"),
        ("{class: batch, metadata: {purpose: []}}", "has no values"),
        ("{class: batch, tier: flex}", "unknown key"),
    ],
)
def test_invalid_rule_is_reported_with_its_position(rule: str, problem: str) -> None:
    said = problems_of(f"class_rules: [{rule}]")

    assert "class_rules[0]" in said
    assert problem in said


def test_number_of_metadata_keys_is_limited() -> None:
    keys = ", ".join(f"k{number}: x" for number in range(METADATA_KEYS_MAX + 1))

    assert "at most 8 are allowed" in problems_of(f"class_rules: [{{class: batch, metadata: {{{keys}}}}}]")


def test_tenants_are_checked_only_for_path_syntax_with_a_database() -> None:
    accounts = ("database: postgresql://db/headgate", "key_secret: a secret of more than sixteen letters")

    assert rules_of(*accounts, "class_rules: [{class: batch, tenants: [acme/search]}]")[0].tenants == ("acme/search",)
    assert "a tenant name must have" in problems_of(*accounts, "class_rules: [{class: batch, tenants: [a//b]}]")


def test_rule_accepts_a_parent_tenant() -> None:
    text = small_with("class_rules: [{class: batch, tenants: [acme]}]").replace(
        "demo: {}", "demo: {}\n  acme/search: {}"
    )

    assert settings_of(text).policy.class_rules[0].tenants == ("acme",)


def test_catch_all_rule_before_other_rules_causes_a_warning() -> None:
    [warning] = settings_of(small_with("class_rules: [{class: batch}, {class: long, stream: true}]")).warnings

    assert "class_rules[0]: has no criteria" in warning
    assert "move it to the end" in warning
    assert settings_of(small_with("class_rules: [{class: long, stream: true}, {class: batch}]")).warnings == ()


def test_class_table_describes_each_rule_in_words() -> None:
    rule = "{class: batch, plans: [free, standard], tenants: demo, stream: true, apis: chat, metadata: {a: [b, c]}}"
    table = dict(class_table(settings_of(small_with(f"class_rules: [{rule}, {{class: long}}]")).policy))

    fits = "plan free or standard, tenant demo, streamed, API chat, metadata a = b or c -> batch"
    assert table["class_rules[0]"] == fits
    assert table["class_rules[1]"] == "every request -> long"
