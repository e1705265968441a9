"""Which class does a request belong to?

The caller's own choice comes first: a class, then a `service_tier`. The policy's table of class rules is next: the
first rule that matches tenant, plan, API, streaming, metadata and size decides. The size of the prompt is last: the
first class, in the order of the policy, that accepts prompts of that length. Rules and sizes choose only among the
classes that the tenant may use; a tenant with one class gets it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from headgate.core.rules import Rules
from headgate.model.policy import NO_TIER_CHOICE, ClassRule, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, ClassName


class ChosenBy(StrEnum):
    NAME = "name"
    """The class that the caller named in `x-headgate-class`."""
    TIER = "tier"
    """The caller's `service_tier`."""
    RULE = "rule"
    """A class rule of the policy."""
    SIZE = "size"
    """The length of the prompt."""
    ONLY_CLASS = "only_class"
    """The only class that the tenant may use."""


class ClassChoice(NamedTuple):
    service_class: ServiceClass | None
    """None if the caller named a class or a tier that does not exist, or no class accepts the request."""
    by: ChosenBy
    rule: int | None = None
    """The index of the rule in the table."""


def classify(ticket: Ticket, rules: Rules) -> ServiceClass | None:
    """The class, or None if the caller named one that does not exist, or no class accepts the request."""
    return choose_class(ticket, rules).service_class


def choose_class(ticket: Ticket, rules: Rules) -> ClassChoice:
    if ticket.class_named is not None:
        return ClassChoice(rules.classes.get(ClassName(ticket.class_named)), ChosenBy.NAME)
    if ticket.service_tier is not None and ticket.service_tier not in NO_TIER_CHOICE:
        return ClassChoice(rules.tiers.get(ticket.service_tier), ChosenBy.TIER)
    tenant = rules.tenants.get(ticket.tenant)
    if rules.policy.class_rules and tenant is not None:
        for number, rule in enumerate(rules.policy.class_rules):
            if _may_use(tenant, rule.service_class) and _fits(rule, ticket, tenant):
                return ClassChoice(rules.classes.get(rule.service_class), ChosenBy.RULE, number)
    if tenant is not None and tenant.classes:
        return _among_its_own(ticket, rules, tenant)
    return ClassChoice(_by_size(ticket, rules.policy.classes), ChosenBy.SIZE)


def _among_its_own(ticket: Ticket, rules: Rules, tenant: Tenant) -> ClassChoice:
    """Chooses among the classes that the tenant may use."""
    own = [each for each in rules.policy.classes if each.name in tenant.classes]
    if len(own) == 1:
        return ClassChoice(own[0], ChosenBy.ONLY_CLASS)
    # If none of the tenant's classes accepts the request, the rejection names the class that other tenants would get.
    found = _by_size(ticket, own) or _by_size(ticket, rules.policy.classes)
    return ClassChoice(found, ChosenBy.SIZE)


def _may_use(tenant: Tenant, name: ClassName) -> bool:
    return not tenant.classes or name in tenant.classes


def _fits(rule: ClassRule, ticket: Ticket, tenant: Tenant) -> bool:
    return (
        (not rule.plans or tenant.plan in rule.plans)
        and (rule.stream is None or rule.stream is ticket.stream)
        and (not rule.apis or ticket.api in rule.apis)
        and (rule.prompt_tokens_max is None or ticket.prompt_bytes // BYTES_PER_TOKEN <= rule.prompt_tokens_max)
        and (not rule.tenants or any(tenant.id == each or tenant.id.startswith(f"{each}/") for each in rule.tenants))
        and all(dict(ticket.metadata).get(name) in values for name, values in rule.metadata)
    )


def _by_size(ticket: Ticket, classes: Sequence[ServiceClass]) -> ServiceClass | None:
    tokens = ticket.prompt_bytes // BYTES_PER_TOKEN
    largest: ServiceClass | None = None
    for service_class in classes:
        if not service_class.unnamed:
            continue
        limit = service_class.prompt_tokens_max
        if limit is None or tokens <= limit:
            return service_class
        largest = service_class
    return largest
