"""What do endpoints cost, and how much may be spent?

Prices and budgets are written in dollars and become whole billionths of one, exactly as many as are written. A pool has
one kind of price at a time: by the hour of each of its endpoints, or by the million tokens where others host it. Each
price holds from midnight UTC of its day until the next one begins; one without a day has held since ever.
"""

from collections.abc import Iterator, Mapping, Sequence

from headgate.config.problems import Place, Report
from headgate.config.quantities import day_text, usd_text
from headgate.config.schema import BudgetsSection, ClassSection, File, PoolSection, PriceSection, TenantSection
from headgate.config.shape import suggestion
from headgate.config.words import one_of
from headgate.model.money import Budget, NanoUsd, Period, Price, PriceKind
from headgate.model.policy import Promise, ServiceClass
from headgate.model.units import Instant

_TOKENS = ("input", "cached", "output")
_KINDS = ("hard", "soft")


def prices(section: PoolSection, place: Place, report: Report) -> tuple[Price, ...]:
    found: list[Price] = []
    for number, each in enumerate(section.prices):
        here = (*place, "prices", number)
        price = _price(each, here, report)
        if found and price.since == found[-1].since:
            when = "without a day" if each.since is None else f"from {day_text(price.since)}"
            report.problem(here, f"is a second price {when}; keep one, or give it the day from which it holds")
        elif found and price.since < found[-1].since:
            before = f"the price before it holds from {day_text(found[-1].since)}, which is later"
            report.problem(here, f"{before}; put them in the order of their days")
        found.append(price)
    return tuple(found)


def _price(section: PriceSection, place: Place, report: Report) -> Price:
    since = Instant(section.since or 0)
    by_token = [name for name in _TOKENS if getattr(section, name) is not None]
    if section.per_hour is not None and by_token:
        problem = f"has a price by the hour and by the token ({', '.join(by_token)}); keep one of the two"
        report.problem(place, problem)
    elif section.per_hour is None and not by_token:
        report.problem(place, "says no price; write per_hour, or input and output for a million tokens each")
    elif by_token:
        _check_tokens(section, by_token, place, report)
    if section.per_hour is not None:
        kind = one_of(PriceKind, section.kind, PriceKind.ON_DEMAND, (*place, "kind"), report)
        return Price(since, hour=NanoUsd(section.per_hour), kind=kind)
    fresh = NanoUsd(section.input or 0)
    return Price(
        since,
        input_tokens=fresh,
        cached_tokens=fresh if section.cached is None else NanoUsd(section.cached),
        output_tokens=NanoUsd(section.output or 0),
    )


def _check_tokens(section: PriceSection, given: Sequence[str], place: Place, report: Report) -> None:
    for name in ("input", "output"):
        if name not in given:
            report.problem((*place, name), f"missing; say what a million {name} tokens cost, be it 0")
    if section.kind is not None:
        report.problem((*place, "kind"), "says how an hour is bought, and this price is by the token; take it out")
    if section.cached is not None and section.input is not None and section.cached > section.input:
        report.warn((*place, "cached"), "is more than input, so a cached prompt costs more than a new one; lower it")


def budgets(section: BudgetsSection, place: Place, report: Report) -> tuple[Budget, ...]:
    found: list[Budget] = []
    for period in Period:
        each = getattr(section, period)
        if each is None:
            continue
        if each.kind not in _KINDS:
            hint = suggestion(each.kind, _KINDS, quiet=f"; there is {', '.join(_KINDS)}")
            report.problem((*place, "budgets", period, "kind"), f'kind "{each.kind}" does not exist{hint}')
        found.append(Budget(period, NanoUsd(each.usd), hard=each.kind != "soft"))
    by_period = {each.period: each for each in found}
    if len(by_period) == len(Period) and by_period[Period.DAY].limit > by_period[Period.MONTH].limit:
        warning = f"is more than the {usd_text(by_period[Period.MONTH].limit)} of the month; lower it, or raise that"
        report.warn((*place, "budgets", "day"), warning)
    return tuple(found)


def check_money(file: File, classes: Sequence[ServiceClass], report: Report) -> None:
    """Whether what may be spent can be counted at all."""
    _check_parts(file.tenants, report)
    priced = [name for name, pool in file.pools.items() if pool.prices]
    limited = _limited(file)
    for place in limited if not priced else ():
        report.warn((*place, "budgets"), "is never spent, since no pool has a price; write prices in pools")
    if limited and priced and file.ledger is None:
        warning = "begin at nothing spent with every start, since nothing is written down; add ledger"
        report.warn((*limited[0], "budgets"), warning)
    for each in classes:
        section = (file.classes or {}).get(each.name)
        if section is not None:
            _check_cost(each, section, file, report)


def check_nothing_spent(sections: Mapping[str, ClassSection], report: Report) -> None:
    """For files in which no pool has a price."""
    for name, section in sections.items():
        given = (section.max_cost_per_request, section.max_cost_per_unit)
        if section.budgets != BudgetsSection() or given != (None, None):
            report.problem(
                ("classes", name), "has a budget or a highest cost, and nothing costs anything here; remove it"
            )


def _limited(file: File) -> list[Place]:
    """Where budgets stand."""
    none = BudgetsSection()
    tenants: list[Place] = [("tenants", name) for name, each in file.tenants.items() if each.budgets != none]
    return tenants + [("classes", name) for name, each in (file.classes or {}).items() if each.budgets != none]


def _check_cost(each: ServiceClass, section: ClassSection, file: File, report: Report) -> None:
    given = ("max_cost_per_request", section.max_cost_per_request), ("max_cost_per_unit", section.max_cost_per_unit)
    free = [name for name in each.pools or file.pools if name in file.pools and not file.pools[name].prices]
    for setting, value in given:
        place = ("classes", each.name, setting)
        if value is None:
            continue
        if each.promise is not Promise.COST:
            problem = f"is for a class that promises cost, and this one promises {each.promise}"
            report.problem(place, f"{problem}; set promise: cost, or take it out")
        elif free:
            problem = f'pool "{free[0]}" has no price, so nobody knows what a request costs there'
            report.problem(place, f"{problem}; write prices in pools.{free[0]}, or name the class's pools")
    if section.max_cost_per_unit is not None and (file.ledger is None or file.ledger.unit is None):
        place = ("classes", each.name, "max_cost_per_unit")
        report.problem(place, "nothing says what a unit is; name it in ledger.unit, such as conversation")


def _check_parts(tenants: Mapping[str, TenantSection], report: Report) -> None:
    """A part that may spend more than the whole never gets to its own budget."""
    for name, section in tenants.items():
        for above in (each for each in _above(name) if each in tenants):
            for period in Period:
                own, whole = getattr(section.budgets, period), getattr(tenants[above].budgets, period)
                if own is not None and whole is not None and own.usd > whole.usd:
                    warning = f'is more than the {usd_text(whole.usd)} of tenant "{above}", which it is a part of'
                    report.warn(("tenants", name, "budgets", period), f"{warning}; lower it, or raise that")


def _above(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
