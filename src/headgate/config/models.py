"""Models: their pools, tiers, fallbacks and routes.

A model's tiers are rules, and the first one that matches a request applies. Fallbacks are other models.
"""

from collections.abc import Collection, Mapping

from headgate.config.enum_values import parse_enum
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import NAME_RULE, ReferenceChecker, is_name
from headgate.config.routes import check_header_count, check_routes, model_routes
from headgate.config.schema import ModelSection, OverflowSection, TierSection
from headgate.model.policy import Model, ModelTierRule, Overflow
from headgate.model.tenant import Plan
from headgate.model.units import ClassName, Duration, ModelName, PoolName


def models(sections: Mapping[str, ModelSection], report: ConfigReport) -> tuple[Model, ...]:
    found = tuple(_model(name, sections, report) for name in sections)
    check_header_count(found, report)
    return found


def _model(name: str, sections: Mapping[str, ModelSection], report: ConfigReport) -> Model:
    section = sections[name]
    routes, sticky = model_routes(name, sections, report)
    return Model(
        ModelName(name),
        tuple(PoolName(each) for each in section.pools),
        tiers=tuple(
            _tier(tier, ("models", name, "tiers", number), report) for number, tier in enumerate(section.tiers)
        ),
        fallbacks=tuple(ModelName(each) for each in section.fallbacks),
        routes=routes,
        sticky=sticky,
        overflow=_overflow(section.overflow),
    )


def _overflow(section: OverflowSection | None) -> Overflow | None:
    if section is None:
        return None
    pools, classes = (PoolName(each) for each in section.pools), (ClassName(each) for each in section.classes)
    return Overflow(tuple(pools), Duration(section.after), tuple(classes))


def _tier(section: TierSection, place: SettingPath, report: ConfigReport) -> ModelTierRule:
    return ModelTierRule(
        pools=tuple(PoolName(each) for each in section.pools),
        classes=tuple(ClassName(each) for each in section.classes),
        plans=tuple(
            parse_enum(Plan, each, Plan.STANDARD, (*place, "plans", number), report)
            for number, each in enumerate(section.plans)
        ),
        prompt_tokens_max=section.prompt_tokens_max,
        name=section.name,
    )


def check_models(
    sections: Mapping[str, ModelSection], pools: Collection[str], classes: Collection[str], report: ConfigReport
) -> None:
    """Reports references in models to pools, classes and fallback models that do not exist."""
    check = ReferenceChecker(report)
    for name, section in sections.items():
        place: SettingPath = ("models", name)
        if not section.pools:
            report.add_problem((*place, "pools"), "has no pools; list the pools that serve this model")
        check.check_all_known(section.pools, pools, "pool", (*place, "pools"))
        check.check_all_known(section.fallbacks, sections, "model", (*place, "fallbacks"))
        if name in section.fallbacks:
            problem = "is the model itself; remove it"
            report.add_problem((*place, "fallbacks", section.fallbacks.index(name)), problem)
        _check_tiers(section, classes, (*place, "tiers"), report)
        check_routes(name, sections, pools, classes, report)
        if section.overflow is not None:
            check.check_all_known(section.overflow.pools, pools, "pool", (*place, "overflow", "pools"))
            check.check_all_known(section.overflow.classes, classes, "class", (*place, "overflow", "classes"))
            _check_overflow(section, section.overflow, (*place, "overflow", "pools"), report)


def _check_overflow(model: ModelSection, overflow: OverflowSection, place: SettingPath, report: ConfigReport) -> None:
    if not overflow.pools:
        report.add_problem(place, "has no pools; list at least one, or remove overflow")
    for number, name in enumerate(overflow.pools):
        if name in model.pools:
            problem = f'pool "{name}" is one of the pools of the model; remove it here or there'
            report.add_problem((*place, number), problem)


def _check_tiers(section: ModelSection, classes: Collection[str], place: SettingPath, report: ConfigReport) -> None:
    check = ReferenceChecker(report)
    for number, tier in enumerate(section.tiers):
        here = (*place, number)
        if not tier.pools:
            report.add_problem((*here, "pools"), "has no pools; list the pools of the model that serve this tier")
        check.check_all_known(tier.pools, section.pools, "pool of this model", (*here, "pools"))
        check.check_all_known(tier.classes, classes, "class", (*here, "classes"))
        if tier.name is not None and not is_name(tier.name):
            report.add_problem((*here, "name"), NAME_RULE)
        if _matches_all(tier) and number + 1 < len(section.tiers):
            report.add_warning(here, "matches every request, so later tiers are never used; move it to the end")


def _matches_all(tier: TierSection) -> bool:
    return not (tier.classes or tier.plans or tier.prompt_tokens_max or tier.name)
