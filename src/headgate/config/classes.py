"""Which classes are there, and what does each promise?

Without `classes` in the file there are three: interactive for short prompts, long for the
rest, batch for those who ask for it. With it, the file names the whole set, in the order in
which unnamed requests are offered to them; a class that bears the name of a default one starts
from it, so that changing one number takes one line. The targets of a default class are marked as
assumed until the file gives them: they do not bind where the engines cannot keep them.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from headgate.config.caps import caps
from headgate.config.money import budgets
from headgate.config.problems import Report
from headgate.config.schema import ClassSection
from headgate.config.shape import suggestion
from headgate.config.variants import variants
from headgate.config.words import one_of
from headgate.model.money import NanoUsd
from headgate.model.policy import NO_TIER_CHOICE, Promise, ServiceClass
from headgate.model.units import MILLISECOND, MINUTE, SECOND, ClassName, Duration, PoolName

_INTERACTIVE = ServiceClass(
    ClassName("interactive"),
    band=0,
    service_tiers=("priority", "fast"),
    prompt_tokens_max=8_000,
    queue_wait_ns_max=Duration(10 * SECOND),
    ttft_ns=Duration(2 * SECOND),
    tpot_ns=Duration(100 * MILLISECOND),
    ttft_assumed=True,
    tpot_assumed=True,
)
_LONG = ServiceClass(
    ClassName("long"),
    band=1,
    queue_wait_ns_max=Duration(30 * SECOND),
    ttft_ns=Duration(15 * SECOND),
    tpot_ns=Duration(200 * MILLISECOND),
    ttft_assumed=True,
    tpot_assumed=True,
)
_BATCH = ServiceClass(
    ClassName("batch"),
    band=2,
    service_tiers=("flex",),
    unnamed=False,
    queue_wait_ns_max=Duration(10 * MINUTE),
    ttft_ns=Duration(10 * MINUTE),
    tpot_ns=Duration(SECOND),
    ttft_assumed=True,
    tpot_assumed=True,
    floor_percent=5,
    promise=Promise.COST,
    first_token_ns_max=Duration(5 * MINUTE),
    idle_ns_max=Duration(2 * MINUTE),
    total_ns_max=Duration(60 * MINUTE),
)
DEFAULT_CLASSES: Mapping[str, ServiceClass] = MappingProxyType(
    {each.name: each for each in (_INTERACTIVE, _LONG, _BATCH)}
)

TIERS = ("priority", "fast", "flex", "scale")
"""The values of `service_tier` that can select a class."""
T = TypeVar("T")
Span = TypeVar("Span", Duration, Duration | None)


def service_classes(sections: Mapping[str, ClassSection] | None, report: Report) -> tuple[ServiceClass, ...]:
    """What the section `classes` comes to; None where the file has none."""
    if sections is None:
        return tuple(DEFAULT_CLASSES.values())
    if not sections:
        report.problem(("classes",), "names no class; name at least one, or leave it out for the default ones")
    classes = tuple(_service_class(name, section, report) for name, section in sections.items())
    _check_tiers(classes, report)
    _check_shares(classes, report)
    if classes and not any(each.unnamed for each in classes):
        report.warn(
            ("classes",), "no class takes requests that name neither class nor tier; set unnamed: true on one of them"
        )
    return classes


def _service_class(name: str, section: ClassSection, report: Report) -> ServiceClass:
    base = DEFAULT_CLASSES.get(name)
    if base is None and section.band is None:
        report.problem(("classes", name, "band"), "missing; give its priority, where 0 goes first")
    base = base or ServiceClass(ClassName(name), band=section.band or 0)
    tiers, pools = section.service_tiers, section.pools
    wait_ns = _lasting(section.queue_wait_max, base.queue_wait_ns_max)
    service_class = replace(
        base,
        band=_given(section.band, base.band),
        service_tiers=base.service_tiers if tiers is None else tuple(tiers),
        prompt_tokens_max=_given(section.prompt_tokens_max, base.prompt_tokens_max),
        unnamed=_given(section.unnamed, base.unnamed),
        pools=base.pools if pools is None else tuple(PoolName(pool) for pool in pools),
        queue_wait_ns_max=wait_ns,
        queue_length_max=_given(section.queue_length_max, base.queue_length_max),
        queue_length_per_tenant_max=_given(section.queue_length_per_tenant_max, base.queue_length_per_tenant_max),
        first_token_ns_max=_lasting(section.first_token_max, base.first_token_ns_max),
        idle_ns_max=_lasting(section.idle_max, base.idle_ns_max),
        total_ns_max=_lasting(section.total_max, base.total_ns_max),
        caps=caps(section.caps, base.caps, ("classes", name, "caps"), report),
        ttft_ns=_target(section.ttft, _default_ttft(base, wait_ns)),
        tpot_ns=_target(section.tpot, base.tpot_ns),
        ttft_assumed=base.ttft_assumed and section.ttft is None,
        tpot_assumed=base.tpot_assumed and section.tpot is None,
        floor_percent=_given(section.floor_percent, base.floor_percent),
        reserve_percent=_given(section.reserve_percent, base.reserve_percent),
        promise=one_of(Promise, section.promise, base.promise, ("classes", name, "promise"), report),
        variants=base.variants if section.variants is None else variants(section, ("classes", name), report),
        hedges=_given(section.hedges, base.hedges),
        start_wait_ns=_lasting(section.start_wait, base.start_wait_ns),
        budgets=budgets(section.budgets, ("classes", name), report),
        cost_max=None if section.max_cost_per_request is None else NanoUsd(section.max_cost_per_request),
        unit_cost_max=None if section.max_cost_per_unit is None else NanoUsd(section.max_cost_per_unit),
    )
    _check_lengths(service_class, report)
    _check_variants(service_class, report)
    return service_class


def _default_ttft(base: ServiceClass, wait_ns: Duration) -> Duration | None:
    """The default target; a class whose requests may wait longer than by default has that wait as its target."""
    if base.ttft_ns is None:
        return None
    # The default target of batch is that its requests begin before they expire.
    return wait_ns if wait_ns > base.queue_wait_ns_max or base.ttft_ns == base.queue_wait_ns_max else base.ttft_ns


def _check_lengths(service_class: ServiceClass, report: Report) -> None:
    taken, cap = service_class.prompt_tokens_max, service_class.caps.prompt_tokens
    if not service_class.unnamed or service_class.caps.trims_prompt or taken is None or cap is None:
        return
    if taken > cap:
        report.warn(
            ("classes", service_class.name, "caps", "prompt_tokens"),
            f"is less than prompt_tokens_max {taken}, so longer unnamed prompts come to this class and are refused; "
            f"lower prompt_tokens_max to {cap}, or set trims_prompt",
        )


def _check_variants(service_class: ServiceClass, report: Report) -> None:
    if service_class.variants and service_class.promise is Promise.QUALITY:
        warning = "are never taken, since a class that promises quality gives nothing up; remove them, or the promise"
        report.warn(("classes", service_class.name, "variants"), warning)


def _check_shares(classes: tuple[ServiceClass, ...], report: Report) -> None:
    """What is promised of one whole must not be more than the whole."""
    floors: dict[int, int] = {}
    reserved = 0
    for each in classes:
        floors[each.band] = max(floors.get(each.band, 0), each.floor_percent)
        reserved += each.reserve_percent
        if sum(floors.values()) > 100:
            problem = f"the floors of the bands come to {sum(floors.values())} percent with this one; lower them"
            report.problem(("classes", each.name, "floor_percent"), problem)
        if reserved > 100:
            problem = f"what classes reserve comes to {reserved} percent with this one; lower some of it"
            report.problem(("classes", each.name, "reserve_percent"), problem)


def _check_tiers(classes: tuple[ServiceClass, ...], report: Report) -> None:
    taken: dict[str, ClassName] = {}
    for service_class in classes:
        for number, tier in enumerate(service_class.service_tiers):
            place = ("classes", service_class.name, "service_tiers", number)
            if tier in NO_TIER_CHOICE:
                report.problem(place, f'tier "{tier}" leaves the choice to us and can select no class; remove it')
            elif tier not in TIERS:
                hint = suggestion(tier, TIERS, quiet=f"; the tiers are {', '.join(TIERS)}")
                report.problem(place, f'tier "{tier}" does not exist{hint}')
            elif tier in taken:
                report.problem(place, f'tier "{tier}" already selects class "{taken[tier]}"; keep it in one of them')
            else:
                taken[tier] = service_class.name


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _target(value: int | str | None, otherwise: Duration | None) -> Duration | None:
    """A target of the file, none if it is `unlimited`, or the default."""
    if value is None:
        return otherwise
    return Duration(value) if isinstance(value, int) else None


def _lasting(value: int | None, otherwise: Span) -> Duration | Span:
    return otherwise if value is None else Duration(value)
