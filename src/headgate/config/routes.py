"""Routes of a model: weighted alternatives, the requests that they match, and what the gateway reads for them."""

from collections.abc import Collection, Mapping
from typing import Final

from headgate.config.enum_values import parse_enum
from headgate.config.pool_schema import HOSTED_ENGINE, PoolSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import NAME_RULE, TENANT_PATH_RULE, ReferenceChecker, is_name, is_tenant_path
from headgate.config.route_inputs import route_inputs
from headgate.config.schema import MirrorSection, ModelSection, RouteMatchSection, RouteSection
from headgate.config.schema_reader import available, suggestion
from headgate.model.policy import Model
from headgate.model.routes import (
    ROUTES_MAX,
    WEIGHT_MAX,
    WHOLE_SHARE_PPM,
    ModelRoute,
    RouteMatch,
    RouteMirror,
    Sticky,
)
from headgate.model.tenant import Plan
from headgate.model.units import ClassName, PoolName, TenantId

HEADERS_MAX: Final = 8
"""Maximum number of header names in the routes of all models. Each one is looked up in every request."""


def model_routes(
    name: str, sections: Mapping[str, ModelSection], report: ConfigReport
) -> tuple[tuple[ModelRoute, ...], Sticky]:
    section, place = sections[name], ("models", name)
    routes = tuple(
        ModelRoute(
            _route_name(each),
            tuple(PoolName(pool) for pool in _pools(each, section, sections)),
            weight=each.weight,
            match=_match(each.match, (*place, "routes", number, "match"), report),
            mirror=None if each.mirror is None else _mirror(each.mirror, section, sections),
        )
        for number, each in enumerate(section.routes)
    )
    return routes, parse_enum(Sticky, section.sticky, Sticky.REQUEST, (*place, "sticky"), report)


def _route_name(section: RouteSection) -> str:
    """Returns the configured name or the name of the target."""
    return section.name or section.tier or section.model or "+".join(section.pools)


def _mirror(section: MirrorSection, model: ModelSection, models: Mapping[str, ModelSection]) -> RouteMirror:
    pools = tuple(PoolName(pool) for pool in _pools(section, model, models))
    if section.fraction is not None:
        return RouteMirror(pools, section.fraction.numerator * WHOLE_SHARE_PPM // section.fraction.denominator)
    return RouteMirror(pools, WHOLE_SHARE_PPM * (100 if section.percent is None else section.percent) // 100)


def _pools(section: RouteSection | MirrorSection, model: ModelSection, models: Mapping[str, ModelSection]) -> list[str]:
    if section.tier is not None:
        found = dict.fromkeys(pool for tier in model.tiers if tier.name == section.tier for pool in tier.pools)
        return [each for each in model.pools if each in found]
    if section.model is not None:
        return models[section.model].pools if section.model in models else []
    return section.pools


def _match(section: RouteMatchSection, place: SettingPath, report: ConfigReport) -> RouteMatch:
    return RouteMatch(
        tenants=tuple(TenantId(each) for each in section.tenants),
        plans=tuple(
            parse_enum(Plan, each, Plan.STANDARD, (*place, "plans", number), report)
            for number, each in enumerate(section.plans)
        ),
        classes=tuple(ClassName(each) for each in section.classes),
        headers=tuple((name.lower(), tuple(values)) for name, values in section.headers.items()),
    )


def check_routes(
    name: str,
    sections: Mapping[str, ModelSection],
    pools: Collection[str],
    classes: Collection[str],
    report: ConfigReport,
) -> None:
    """Reports routes whose targets or names are wrong."""
    section, check = sections[name], ReferenceChecker(report)
    if len(section.routes) > ROUTES_MAX:
        report.add_problem(("models", name, "routes"), f"has {len(section.routes)} routes; at most {ROUTES_MAX}")
    names: list[str] = []
    for number, route in enumerate(section.routes):
        here: SettingPath = ("models", name, "routes", number)
        _check_target(route, here, report, model=name, sections=sections, pools=pools)
        if route.mirror is not None:
            _check_target(route.mirror, (*here, "mirror"), report, model=name, sections=sections, pools=pools)
            _check_share(route.mirror, (*here, "mirror"), report)
        check.check_all_known(route.match.classes, classes, "class", (*here, "match", "classes"))
        _check_match(route.match, (*here, "match"), report)
        if route.weight > WEIGHT_MAX:
            report.add_problem((*here, "weight"), f"is {route.weight:,}; the maximum is {WEIGHT_MAX:,}")
        own = _route_name(route)
        if route.name is not None and not is_name(route.name):
            report.add_problem((*here, "name"), NAME_RULE)
        elif own in names:
            report.add_problem(here, f'two routes are called "{own}"; set name to tell them apart')
        names.append(own)
    _check_groups(section, ("models", name, "routes"), report)


def check_mirror_pools(
    sections: Mapping[str, ModelSection], pools: Mapping[str, PoolSection], report: ConfigReport
) -> None:
    """Reports mirrors in pools of hosted providers.

    A copy does not belong to the caller's tenant, so the tenant's `data_residency` would not apply to it.
    """
    for name, section in sections.items():
        for number, route in enumerate(section.routes):
            for pool in () if route.mirror is None else _pools(route.mirror, section, sections):
                if pool in pools and pools[pool].engine == HOSTED_ENGINE:
                    problem = f'pool "{pool}" is a hosted provider; a mirror needs pools with your own engines'
                    report.add_problem(("models", name, "routes", number, "mirror"), problem)


def _check_target(
    target: RouteSection | MirrorSection,
    place: SettingPath,
    report: ConfigReport,
    *,
    model: str,
    sections: Mapping[str, ModelSection],
    pools: Collection[str],
) -> None:
    """Reports the target of a route or mirror of a model if it is wrong."""
    if sum((bool(target.pools), target.tier is not None, target.model is not None)) != 1:
        report.add_problem(place, "needs exactly one of pools, tier and model")
    ReferenceChecker(report).check_all_known(target.pools, pools, "pool", (*place, "pools"))
    tiers = [each.name for each in sections[model].tiers if each.name is not None]
    _check_name(target.tier, tiers, "tier", (*place, "tier"), report)
    others = [each for each in sections if each != model]
    _check_name(target.model, others, "other model", (*place, "model"), report)


def _check_share(mirror: MirrorSection, place: SettingPath, report: ConfigReport) -> None:
    fraction = mirror.fraction
    if fraction is None:
        return
    if mirror.percent is not None:
        report.add_problem(place, "has both percent and fraction; remove one")
    if fraction.numerator > fraction.denominator:
        problem = f"is {fraction.numerator}/{fraction.denominator}; it must not exceed 1"
        report.add_problem((*place, "fraction"), problem)


def _check_name(name: str | None, known: Collection[str], kind: str, place: SettingPath, report: ConfigReport) -> None:
    if name is not None and name not in known:
        hint = suggestion(name, known, otherwise=available(known))
        report.add_problem(place, f'{kind} "{name}" does not exist{hint}')


def _check_match(section: RouteMatchSection, place: SettingPath, report: ConfigReport) -> None:
    for number, tenant in enumerate(section.tenants):
        if not is_tenant_path(tenant):
            report.add_problem((*place, "tenants", number), TENANT_PATH_RULE)
    for header, values in section.headers.items():
        if not values:
            report.add_problem((*place, "headers", header), "has no values; list the values to match")


def _check_groups(section: ModelSection, place: SettingPath, report: ConfigReport) -> None:
    """Warns about groups without traffic, and about groups that are never reached."""
    matches = list(dict.fromkeys(_key(each) for each in section.routes))
    for match in matches:
        group = [number for number, each in enumerate(section.routes) if _key(each) == match]
        if not any(section.routes[number].weight for number in group):
            report.add_warning((*place, group[0]), "gets no traffic, because all routes with this match have weight 0")
        if match == _key(RouteSection()) and match != matches[-1]:
            report.add_warning(
                (*place, group[0]), "matches every request, so later groups are never used; move it to the end"
            )


def _key(section: RouteSection) -> str:
    """Identifies the group of a route."""
    return repr(section.match)


def check_header_count(models: Collection[Model], report: ConfigReport) -> None:
    inputs = route_inputs(models)
    if inputs is not None and len(inputs.headers) > HEADERS_MAX:
        problem = f"have routes that match {len(inputs.headers)} headers; at most {HEADERS_MAX} are allowed"
        report.add_problem(("models",), problem)
