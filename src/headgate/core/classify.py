"""Classification: assigns each request to a class.

Three sources are tried in order:

1. The caller's choice: a class, then a `service_tier`.
2. The policy's class rules. The first rule that matches the tenant, plan, API, streaming flag, metadata and prompt size
   applies.
3. The prompt size. The first class in policy order that accepts prompts of that size is used.

Rules and sizes choose only among the classes that the tenant may use. A tenant with one class gets that class.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from headgate.core.rules import Rules
from headgate.model.policy import AUTO_SERVICE_TIERS, ClassRule, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, ClassName


class ChosenBy(StrEnum):
    NAME = "name"
    """Class named by the caller in `x-headgate-class`."""
    TIER = "tier"
    """The caller's `service_tier`."""
    RULE = "rule"
    """Class rule of the policy."""
    SIZE = "size"
    """Prompt size."""
    ONLY_CLASS = "only_class"
    """Only class that the tenant may use."""


class ClassChoice(NamedTuple):
    service_class: ServiceClass | None
    """None if the caller specified a class or tier that does not exist, or if no class accepts the request."""
    by: ChosenBy
    rule: int | None = None
    """Index of the matching rule in the policy's class rules."""


def classify(ticket: Ticket, rules: Rules) -> ServiceClass | None:
    """Returns the class, or None if the caller named one that does not exist or no class accepts the request."""
    tenant = rules.tenants.get(ticket.tenant)
    if ticket.requested_class is not None or ticket.service_tier is not None or tenant is None or tenant.classes:
        return choose_class(ticket, rules).service_class
    # The usual case, without the cost of a `ClassChoice`.
    for rule in rules.policy.class_rules:
        if _matches(rule, ticket, tenant):
            return rules.classes.get(rule.service_class)
    return _by_size(ticket, rules.policy.classes)


def choose_class(ticket: Ticket, rules: Rules) -> ClassChoice:
    """Returns the class and how it was chosen. `classify` must choose the same class."""
    if ticket.requested_class is not None:
        return ClassChoice(rules.classes.get(ClassName(ticket.requested_class)), ChosenBy.NAME)
    if ticket.service_tier is not None and ticket.service_tier not in AUTO_SERVICE_TIERS:
        return ClassChoice(rules.service_tiers.get(ticket.service_tier), ChosenBy.TIER)
    tenant = rules.tenants.get(ticket.tenant)
    if rules.policy.class_rules and tenant is not None:
        for number, rule in enumerate(rules.policy.class_rules):
            if _may_use(tenant, rule.service_class) and _matches(rule, ticket, tenant):
                return ClassChoice(rules.classes.get(rule.service_class), ChosenBy.RULE, number)
    if tenant is not None and tenant.classes:
        return _choose_own_class(ticket, rules, tenant)
    return ClassChoice(_by_size(ticket, rules.policy.classes), ChosenBy.SIZE)


def _choose_own_class(ticket: Ticket, rules: Rules, tenant: Tenant) -> ClassChoice:
    """Chooses among the classes that the tenant may use."""
    own = [each for each in rules.policy.classes if each.name in tenant.classes]
    if len(own) == 1:
        return ClassChoice(own[0], ChosenBy.ONLY_CLASS)
    # If none of the tenant's classes accepts the request, the rejection names the class that other tenants would get.
    found = _by_size(ticket, own) or _by_size(ticket, rules.policy.classes)
    return ClassChoice(found, ChosenBy.SIZE)


def _may_use(tenant: Tenant, name: ClassName) -> bool:
    return not tenant.classes or name in tenant.classes


def _matches(rule: ClassRule, ticket: Ticket, tenant: Tenant) -> bool:
    return (
        (not rule.plans or tenant.plan in rule.plans)
        and (rule.stream is None or rule.stream is ticket.stream)
        and (not rule.apis or ticket.api in rule.apis)
        and (rule.prompt_tokens_max is None or ticket.prompt_bytes // BYTES_PER_TOKEN <= rule.prompt_tokens_max)
        and (not rule.tenants or any(tenant.id == each or tenant.id.startswith(f"{each}/") for each in rule.tenants))
        and (not rule.metadata or all(dict(ticket.metadata).get(name) in values for name, values in rule.metadata))
    )


def _by_size(ticket: Ticket, classes: Sequence[ServiceClass]) -> ServiceClass | None:
    tokens = ticket.prompt_bytes // BYTES_PER_TOKEN
    largest: ServiceClass | None = None
    for service_class in classes:
        if not service_class.accepts_unclassified:
            continue
        limit = service_class.prompt_tokens_max
        if limit is None or tokens <= limit:
            return service_class
        largest = service_class
    return largest
