"""Table of class rules, which determine the class of requests that specify neither a class nor a tier.

If the file has no `class_rules`, the table is `DEFAULT_RULES`. Otherwise it is exactly the table in the file. With an
empty table, the prompt length determines the class.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from headgate.config.class_schema import ClassRuleSection
from headgate.config.enum_values import parse_enum
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import TENANT_PATH_RULE, ReferenceChecker, is_tenant_path
from headgate.config.schema import ConfigFile
from headgate.config.schema_reader import available, suggestion
from headgate.model.policy import AUTO_SERVICE_TIERS, ClassRule, Policy, ServiceClass
from headgate.model.tenant import Plan
from headgate.model.ticket import Api
from headgate.model.units import ClassName, TenantId

DEFAULT_RULES: Final = (ClassRule(ClassName("interactive"), plans=(Plan.CRITICAL,)),)
"""Rules used if the file has no `class_rules`. Rules whose class does not exist are omitted."""
METADATA_KEYS_MAX: Final = 8
"""Maximum number of metadata keys in the whole table. Each key is looked up in every request."""


def class_rules(file: ConfigFile, classes: Sequence[ServiceClass], report: ConfigReport) -> tuple[ClassRule, ...]:
    names = [each.name for each in classes]
    if file.class_rules is None:
        return tuple(rule for rule in DEFAULT_RULES if rule.service_class in names)
    rules = tuple(_rule(section, number, file, names, report) for number, section in enumerate(file.class_rules))
    if len(keys := metadata_keys(rules)) > METADATA_KEYS_MAX:
        problem = f"use {len(keys)} metadata keys; at most {METADATA_KEYS_MAX} are allowed"
        report.add_problem(("class_rules",), problem)
    _check_unreachable(rules, report)
    return rules


def _rule(
    section: ClassRuleSection, number: int, file: ConfigFile, names: Sequence[str], report: ConfigReport
) -> ClassRule:
    place: SettingPath = ("class_rules", number)
    if section.class_name not in names:
        hint = suggestion(section.class_name, names, otherwise=available(names))
        report.add_problem((*place, "class"), f'class "{section.class_name}" does not exist{hint}')
    _check_tenants(section, place, file, report)
    for name, values in section.metadata.items():
        if not values:
            report.add_problem((*place, "metadata", name), "has no values; list the values to match")
    return ClassRule(
        ClassName(section.class_name),
        plans=tuple(
            parse_enum(Plan, each, Plan.STANDARD, (*place, "plans", index), report)
            for index, each in enumerate(section.plans)
        ),
        tenants=tuple(TenantId(each) for each in section.tenants),
        stream=section.stream,
        apis=tuple(
            parse_enum(Api, each, Api.CHAT, (*place, "apis", index), report) for index, each in enumerate(section.apis)
        ),
        metadata=tuple((name, tuple(values)) for name, values in section.metadata.items()),
        prompt_tokens_max=section.prompt_tokens_max,
    )


def _check_tenants(section: ClassRuleSection, place: SettingPath, file: ConfigFile, report: ConfigReport) -> None:
    here = (*place, "tenants")
    if file.database is None:
        # A rule may refer to a parent tenant that the file does not define.
        levels = {name[:end] for name in file.tenants for end, sign in enumerate(name) if sign == "/"}
        ReferenceChecker(report).check_all_known(section.tenants, sorted({*file.tenants, *levels}), "tenant", here)
        return
    for number, name in enumerate(section.tenants):
        if not is_tenant_path(name):
            report.add_problem((*here, number), TENANT_PATH_RULE)


def _check_unreachable(rules: Sequence[ClassRule], report: ConfigReport) -> None:
    """Warns about a rule that matches every request but is not the last one."""
    for number, rule in enumerate(rules[:-1]):
        if rule == ClassRule(rule.service_class):
            warning = f"has no criteria, so rule {number + 2} and those after it apply only to tenants that may not"
            report.add_warning(
                ("class_rules", number), f'{warning} use class "{rule.service_class}"; move it to the end'
            )
            return


def metadata_keys(rules: Sequence[ClassRule]) -> tuple[str, ...]:
    """Metadata keys used by the rules."""
    return tuple(dict.fromkeys(name for rule in rules for name, _ in rule.metadata))


# The table in words


def class_table(policy: Policy) -> Iterator[tuple[str, str]]:
    """The steps that choose a class, in order, each with its description."""
    yield "x-headgate-class", "the class named in the request"
    tiers = "; ".join(
        f"{', '.join(each.service_tiers)} -> {each.name}" for each in policy.classes if each.service_tiers
    )
    yield "service_tier", f"{tiers or 'selects no class'}; {' and '.join(AUTO_SERVICE_TIERS)} choose none"
    for number, rule in enumerate(policy.class_rules):
        yield rule_name(number), f"{criteria_text(rule)} -> {rule.service_class}"
    yield "tenant", "its only class, if it may use only one"
    yield "prompt length", _prompt_lengths(policy) or "no class accepts requests that name neither class nor tier"


def rule_name(number: int) -> str:
    return f"class_rules[{number}]"


def criteria_text(rule: ClassRule) -> str:
    said: list[str] = []
    if rule.plans:
        said.append(f"plan {' or '.join(rule.plans)}")
    if rule.tenants:
        said.append(f"tenant {' or '.join(rule.tenants)}")
    if rule.stream is not None:
        said.append("streamed" if rule.stream else "not streamed")
    if rule.apis:
        said.append(f"API {' or '.join(rule.apis)}")
    said += [f"metadata {name} = {' or '.join(values)}" for name, values in rule.metadata]
    if rule.prompt_tokens_max is not None:
        said.append(f"prompt up to {rule.prompt_tokens_max:,} tokens")
    return ", ".join(said) or "every request"


def _prompt_lengths(policy: Policy) -> str:
    return "; ".join(
        f"{'any' if each.prompt_tokens_max is None else f'up to {each.prompt_tokens_max:,} tokens'} -> {each.name}"
        for each in policy.classes
        if each.accepts_unclassified
    )
