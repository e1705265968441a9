"""Tenants and their limits.

A tenant is a path such as `acme/search`. The limits at every level that the file defines apply, so a parent's limits
apply to all its descendants combined. Levels that the file does not define have no limits.
"""

from collections.abc import Iterator, Mapping

from headgate.config.enum_values import parse_enum
from headgate.config.money import budgets
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema import TenantLimitsSection, TenantSection
from headgate.model.limits import Limits
from headgate.model.tenant import DataResidency, Plan, Tenant
from headgate.model.units import ClassName, ModelName, TenantId


def tenants(sections: Mapping[str, TenantSection], report: ConfigReport) -> tuple[Tenant, ...]:
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
            data_residency=parse_enum(
                DataResidency, section.data_residency, DataResidency.ANY, ("tenants", name, "data_residency"), report
            ),
        )
        for name, section in sections.items()
    )


def plan(text: str, place: SettingPath, report: ConfigReport) -> Plan:
    return parse_enum(Plan, text, Plan.STANDARD, (*place, "plan"), report)


def limits(section: TenantLimitsSection) -> Limits:
    return Limits(section.requests_per_minute, section.tokens_per_minute, section.concurrency)


def check_limits(sections: Mapping[str, TenantLimitsSection], report: ConfigReport) -> None:
    """Warns if a limit is larger than a parent tenant's, because the parent's is then always reached first."""
    for name, section in sections.items():
        for above in _ancestors(name):
            if above in sections:
                _check_within_parent(section, sections[above], above, ("tenants", name, "limits"), report)


def _check_within_parent(
    section: TenantLimitsSection, whole: TenantLimitsSection, above: str, place: SettingPath, report: ConfigReport
) -> None:
    for setting in section.__struct_fields__:
        own, of_whole = getattr(section, setting), getattr(whole, setting)
        if own is not None and of_whole is not None and own > of_whole:
            warning = f'is more than the {of_whole} of its parent "{above}"; lower it, or raise the parent\'s'
            report.add_warning((*place, setting), warning)


def _ancestors(name: str) -> Iterator[str]:
    """Parent tenants, nearest first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
