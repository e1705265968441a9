"""Which class does a request belong to?

What the caller names outright comes first, then its `service_tier`, then the size of the
prompt: the first class, in the order of the policy, that takes prompts of that length.
"""

from headgate.core.rules import Rules
from headgate.model.policy import ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import BYTES_PER_TOKEN, ClassName

_TIERS_LEFT_TO_US = (None, "auto", "default")


def classify(ticket: Ticket, rules: Rules) -> ServiceClass | None:
    """The class, or None where the caller names one that does not exist."""
    if ticket.class_named is not None:
        return rules.classes.get(ClassName(ticket.class_named))
    if ticket.service_tier not in _TIERS_LEFT_TO_US:
        for service_class in rules.policy.classes:
            if ticket.service_tier in service_class.service_tiers:
                return service_class
    return _by_size(ticket, rules)


def _by_size(ticket: Ticket, rules: Rules) -> ServiceClass | None:
    tokens = ticket.prompt_bytes // BYTES_PER_TOKEN
    largest: ServiceClass | None = None
    for service_class in rules.policy.classes:
        if not service_class.unnamed:
            continue
        limit = service_class.prompt_tokens_max
        if limit is None or tokens <= limit:
            return service_class
        largest = service_class
    return largest
