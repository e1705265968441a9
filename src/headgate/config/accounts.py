"""How much of the engines is each tenant given?

A tenant is a path such as `acme/search`. Limits hold at every step of it that the file names, so a limit of the whole
stands above the limits of its parts; steps that the file does not name have none.
"""

from collections.abc import Iterator, Mapping

from headgate.config.money import budgets
from headgate.config.problems import Place, Report
from headgate.config.schema import TenantLimitsSection, TenantSection
from headgate.config.words import one_of
from headgate.model.limits import Limits
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import ClassName, ModelName, TenantId


def tenants(sections: Mapping[str, TenantSection], report: Report) -> tuple[Tenant, ...]:
    check_limits({name: section.limits for name, section in sections.items()}, report)
    return tuple(
        Tenant(
            TenantId(name),
            classes=tuple(ClassName(each) for each in section.classes),
            models=tuple(ModelName(each) for each in section.models),
            weight=section.weight,
            plan=plan(section.plan, ("tenants", name), report),
            limits=limits(section.limits),
            budgets=budgets(section.budgets, ("tenants", name), report),
        )
        for name, section in sections.items()
    )


def plan(word: str, place: Place, report: Report) -> Plan:
    return one_of(Plan, word, Plan.STANDARD, (*place, "plan"), report)


def limits(section: TenantLimitsSection) -> Limits:
    return Limits(section.requests_per_minute, section.tokens_per_minute, section.concurrency)


def check_limits(sections: Mapping[str, TenantLimitsSection], report: Report) -> None:
    """A part that may do more than the whole never gets to its own limit."""
    for name, section in sections.items():
        for above in _above(name):
            if above in sections:
                _check_below(section, sections[above], above, ("tenants", name, "limits"), report)


def _check_below(
    section: TenantLimitsSection, whole: TenantLimitsSection, above: str, place: Place, report: Report
) -> None:
    for setting in section.__struct_fields__:
        own, of_whole = getattr(section, setting), getattr(whole, setting)
        if own is not None and of_whole is not None and own > of_whole:
            warning = f'is more than the {of_whole} of tenant "{above}", which it is a part of; lower it, or raise that'
            report.warn((*place, setting), warning)


def _above(name: str) -> Iterator[str]:
    """The tenants that it is a part of, the nearest first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
