"""The table of class rules, which choose the class of requests that name neither a class nor a tier.

Without `class_rules` in the file the table is `DEFAULT_RULES`; otherwise it is exactly the table of the file. With an
empty table the length of the prompt decides.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from headgate.config.problems import Place, Report
from headgate.config.references import A_PATH, References, is_path
from headgate.config.schema import ClassRuleSection, File
from headgate.config.shape import suggestion
from headgate.config.words import one_of
from headgate.model.policy import NO_TIER_CHOICE, ClassRule, Policy, ServiceClass
from headgate.model.tenant import Plan
from headgate.model.ticket import Api
from headgate.model.units import ClassName, TenantId

DEFAULT_RULES: Final = (ClassRule(ClassName("interactive"), plans=(Plan.CRITICAL,)),)
"""Rules used without `class_rules`, if their class exists."""
METADATA_KEYS_MAX: Final = 8
"""Maximum number of metadata keys in the whole table. Each is looked up in every request."""


def class_rules(file: File, classes: Sequence[ServiceClass], report: Report) -> tuple[ClassRule, ...]:
    names = [each.name for each in classes]
    if file.class_rules is None:
        return tuple(rule for rule in DEFAULT_RULES if rule.service_class in names)
    rules = tuple(_rule(section, number, file, names, report) for number, section in enumerate(file.class_rules))
    if len(keys := metadata_keys(rules)) > METADATA_KEYS_MAX:
        problem = f"name {len(keys)} keys of metadata; at most {METADATA_KEYS_MAX} are allowed"
        report.problem(("class_rules",), problem)
    _check_reached(rules, report)
    return rules


def _rule(section: ClassRuleSection, number: int, file: File, names: Sequence[str], report: Report) -> ClassRule:
    place: Place = ("class_rules", number)
    if section.class_name not in names:
        hint = suggestion(section.class_name, names, quiet=f"; there is {', '.join(names) or 'none'}")
        report.problem((*place, "class"), f'class "{section.class_name}" does not exist{hint}')
    _check_tenants(section, place, file, report)
    for name, values in section.metadata.items():
        if not values:
            report.problem((*place, "metadata", name), "lists no value; name those that it may have")
    return ClassRule(
        ClassName(section.class_name),
        plans=tuple(
            one_of(Plan, each, Plan.STANDARD, (*place, "plans", index), report)
            for index, each in enumerate(section.plans)
        ),
        tenants=tuple(TenantId(each) for each in section.tenants),
        stream=section.stream,
        apis=tuple(
            one_of(Api, each, Api.CHAT, (*place, "apis", index), report) for index, each in enumerate(section.apis)
        ),
        metadata=tuple((name, tuple(values)) for name, values in section.metadata.items()),
        prompt_tokens_max=section.prompt_tokens_max,
    )


def _check_tenants(section: ClassRuleSection, place: Place, file: File, report: Report) -> None:
    here = (*place, "tenants")
    if file.database is None:
        # A rule may name a level above tenants, which the file need not name itself.
        levels = {name[:end] for name in file.tenants for end, sign in enumerate(name) if sign == "/"}
        References(report).all_known(section.tenants, sorted({*file.tenants, *levels}), "tenant", here)
        return
    for number, name in enumerate(section.tenants):
        if not is_path(name):
            report.problem((*here, number), A_PATH)


def _check_reached(rules: Sequence[ClassRule], report: Report) -> None:
    """Warns about a rule that fits every request and is not the last."""
    for number, rule in enumerate(rules[:-1]):
        if rule == ClassRule(rule.service_class):
            warning = f"names no criterion, so rule {number + 2} and those after it apply only to tenants that may not"
            report.warn(("class_rules", number), f'{warning} use class "{rule.service_class}"; move it to the end')
            return


def metadata_keys(rules: Sequence[ClassRule]) -> tuple[str, ...]:
    """Metadata keys that the rules use."""
    return tuple(dict.fromkeys(name for rule in rules for name, _ in rule.metadata))


# The table in words


def class_table(policy: Policy) -> Iterator[tuple[str, str]]:
    """The steps that choose a class, in order, each with its description."""
    yield "x-headgate-class", "the class that the request names"
    tiers = "; ".join(
        f"{', '.join(each.service_tiers)} -> {each.name}" for each in policy.classes if each.service_tiers
    )
    yield "service_tier", f"{tiers or 'selects no class'}; {' and '.join(NO_TIER_CHOICE)} choose none"
    for number, rule in enumerate(policy.class_rules):
        yield rule_name(number), f"{criteria(rule)} -> {rule.service_class}"
    yield "tenant", "its only class, if it may use only one"
    yield "prompt length", _sizes(policy) or "no class takes requests that name neither class nor tier"


def rule_name(number: int) -> str:
    return f"class_rules[{number}]"


def criteria(rule: ClassRule) -> str:
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


def _sizes(policy: Policy) -> str:
    return "; ".join(
        f"{'any' if each.prompt_tokens_max is None else f'up to {each.prompt_tokens_max:,} tokens'} -> {each.name}"
        for each in policy.classes
        if each.unnamed
    )
