"""Prices, budgets and cost limits.

Amounts are written in dollars and converted exactly to billionths of a dollar. A price is per endpoint hour, or per
million tokens for engines hosted by a third party, but never both. It is valid from midnight UTC on its day until the
next price. A price without a day has no start date.
"""

from collections.abc import Iterator, Mapping, Sequence

from headgate.config.class_schema import BudgetsSection, ClassSection
from headgate.config.enum_values import parse_enum
from headgate.config.pool_schema import PriceSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.quantities import day_text, usd_text
from headgate.config.schema import ConfigFile, TenantSection
from headgate.config.schema_reader import available, suggestion
from headgate.model.money import Budget, NanoUsd, Period, Price, PriceKind
from headgate.model.policy import OptimizationGoal, ServiceClass
from headgate.model.units import Instant

_TOKENS = ("input_per_1m_tokens", "cached_per_1m_tokens", "output_per_1m_tokens")
_KINDS = ("hard", "soft")


def prices(sections: Sequence[PriceSection], place: SettingPath, report: ConfigReport) -> tuple[Price, ...]:
    """The prices of the pool at this path."""
    found: list[Price] = []
    for number, each in enumerate(sections):
        here = (*place, "prices", number)
        price = _price(each, here, report)
        if found and price.since == found[-1].since:
            when = "without a day" if each.since is None else f"from {day_text(price.since)}"
            report.add_problem(here, f"is a second price {when}; remove one, or change its from")
        elif found and price.since < found[-1].since:
            before = f"starts before the previous price, which starts on {day_text(found[-1].since)}"
            report.add_problem(here, f"{before}; sort the prices by day")
        found.append(price)
    return tuple(found)


def _price(section: PriceSection, place: SettingPath, report: ConfigReport) -> Price:
    since = Instant(section.since or 0)
    by_token = [name for name in _TOKENS if getattr(section, name) is not None]
    if section.per_hour is not None and by_token:
        problem = f"has a price per hour and per token ({', '.join(by_token)}); remove one of the two"
        report.add_problem(place, problem)
    elif section.per_hour is None and not by_token:
        report.add_problem(place, "has no price; set per_hour, or both input_per_1m_tokens and output_per_1m_tokens")
    elif by_token:
        _check_tokens(section, by_token, place, report)
    if section.per_hour is not None:
        kind = parse_enum(PriceKind, section.kind, PriceKind.ON_DEMAND, (*place, "kind"), report)
        return Price(since, per_hour=NanoUsd(section.per_hour), kind=kind)
    fresh = NanoUsd(section.input_per_1m_tokens or 0)
    return Price(
        since,
        input_per_1m_tokens=fresh,
        cached_per_1m_tokens=fresh if section.cached_per_1m_tokens is None else NanoUsd(section.cached_per_1m_tokens),
        output_per_1m_tokens=NanoUsd(section.output_per_1m_tokens or 0),
    )


def _check_tokens(section: PriceSection, given: Sequence[str], place: SettingPath, report: ConfigReport) -> None:
    for name in ("input", "output"):
        setting = f"{name}_per_1m_tokens"
        if setting not in given:
            report.add_problem(
                (*place, setting), f"missing; set the price of one million {name} tokens, which may be 0"
            )
    if section.kind is not None:
        report.add_problem((*place, "kind"), "has no effect on a price per token; remove it")
    if (
        section.cached_per_1m_tokens is not None
        and section.input_per_1m_tokens is not None
        and section.cached_per_1m_tokens > section.input_per_1m_tokens
    ):
        report.add_warning(
            (*place, "cached_per_1m_tokens"),
            "is more than input_per_1m_tokens, so a cached prompt costs more than an uncached one; lower it",
        )


def budgets(section: BudgetsSection, place: SettingPath, report: ConfigReport) -> tuple[Budget, ...]:
    found: list[Budget] = []
    for period in Period:
        each = getattr(section, period)
        if each is None:
            continue
        if each.kind not in _KINDS:
            hint = suggestion(each.kind, _KINDS, otherwise=available(_KINDS))
            report.add_problem((*place, "budgets", period, "kind"), f'kind "{each.kind}" does not exist{hint}')
        found.append(Budget(period, NanoUsd(each.usd), hard=each.kind != "soft"))
    by_period = {each.period: each for each in found}
    if len(by_period) == len(Period) and by_period[Period.DAY].limit > by_period[Period.MONTH].limit:
        month = usd_text(by_period[Period.MONTH].limit)
        warning = f"is more than the monthly budget of {month}; lower it, or raise the monthly budget"
        report.add_warning((*place, "budgets", "day"), warning)
    return tuple(found)


def check_money(file: ConfigFile, classes: Sequence[ServiceClass], report: ConfigReport) -> None:
    """Reports budgets and cost limits that cannot be enforced."""
    _check_child_budgets(file.tenants, report)
    priced = [name for name, pool in file.pools.items() if pool.prices]
    limited = _budget_paths(file)
    for place in limited if not priced else ():
        report.add_warning((*place, "budgets"), "has no effect, because no pool has a price; add prices to pools")
    if limited and priced and file.ledger is None:
        warning = "start again from zero whenever the gateway restarts, because there is no ledger; add ledger"
        report.add_warning((*limited[0], "budgets"), warning)
    for each in classes:
        section = (file.classes or {}).get(each.name)
        if section is not None:
            _check_cost(each, section, file, report)


def check_no_costs(sections: Mapping[str, ClassSection], report: ConfigReport) -> None:
    """Reports budgets and cost limits in a scenario, whose run is too short for them."""
    for name, section in sections.items():
        given = (section.cost_per_request_max, section.cost_per_unit_max)
        if section.budgets != BudgetsSection() or given != (None, None):
            report.add_problem(
                ("classes", name), "has a budget or a cost limit, which a scenario does not simulate; remove it"
            )


def _budget_paths(file: ConfigFile) -> list[SettingPath]:
    """Setting paths of all tenant and class budgets."""
    none = BudgetsSection()
    tenants: list[SettingPath] = [("tenants", name) for name, each in file.tenants.items() if each.budgets != none]
    return tenants + [("classes", name) for name, each in (file.classes or {}).items() if each.budgets != none]


def _check_cost(each: ServiceClass, section: ClassSection, file: ConfigFile, report: ConfigReport) -> None:
    given = ("cost_per_request_max", section.cost_per_request_max), ("cost_per_unit_max", section.cost_per_unit_max)
    free = [name for name in each.pools or file.pools if name in file.pools and not file.pools[name].prices]
    for setting, value in given:
        place = ("classes", each.name, setting)
        if value is None:
            continue
        if each.optimize_for is not OptimizationGoal.COST:
            problem = f"needs optimize_for: cost, but the class has optimize_for: {each.optimize_for}"
            report.add_problem(place, f"{problem}; set optimize_for: cost, or remove it")
        elif free:
            problem = f'pool "{free[0]}" has no price, so the cost of a request is unknown'
            report.add_problem(place, f"{problem}; add prices to pools.{free[0]}, or set pools of the class")
    if section.cost_per_unit_max is not None and (file.ledger is None or file.ledger.unit_key is None):
        place = ("classes", each.name, "cost_per_unit_max")
        report.add_problem(
            place, "needs ledger.unit_key, the metadata key that identifies a unit; set it, for example to conversation"
        )


def _check_child_budgets(tenants: Mapping[str, TenantSection], report: ConfigReport) -> None:
    """Warns if a budget is larger than a parent tenant's, because the parent's is then always exhausted first."""
    for name, section in tenants.items():
        for above in (each for each in _ancestors(name) if each in tenants):
            for period in Period:
                own, whole = getattr(section.budgets, period), getattr(tenants[above].budgets, period)
                if own is not None and whole is not None and own.usd > whole.usd:
                    warning = f'is more than the {usd_text(whole.usd)} of its parent "{above}"'
                    report.add_warning(
                        ("tenants", name, "budgets", period), f"{warning}; lower it, or raise the parent's"
                    )


def _ancestors(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
