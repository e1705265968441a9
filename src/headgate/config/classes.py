"""Service classes and their defaults.

Without `classes`, the file has three default classes: `interactive` for short prompts, `long` for all others, and
`batch` for requests that select it. With `classes`, only the classes in the file exist; unclassified requests are
matched in file order. A class with the same name as a default class inherits its settings, so that changing a setting
takes one line.

Targets of a default class are marked as assumed until the file sets them. An assumed target is not enforced if the
engines cannot meet it.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from headgate.config.caps import caps
from headgate.config.class_schema import ClassSection
from headgate.config.degradation_steps import degradation_steps
from headgate.config.enum_values import parse_enum
from headgate.config.money import budgets
from headgate.config.problems import ConfigReport
from headgate.config.quantities import duration_text
from headgate.config.schema_reader import suggestion
from headgate.model.money import NanoUsd
from headgate.model.policy import AUTO_SERVICE_TIERS, OptimizationGoal, ServiceClass
from headgate.model.tenant import DataResidency
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
    accepts_unclassified=False,
    queue_wait_ns_max=Duration(10 * MINUTE),
    ttft_ns=Duration(10 * MINUTE),
    tpot_ns=Duration(SECOND),
    ttft_assumed=True,
    tpot_assumed=True,
    min_share_percent=5,
    optimize_for=OptimizationGoal.COST,
    first_token_ns_max=Duration(5 * MINUTE),
    idle_ns_max=Duration(2 * MINUTE),
    total_ns_max=Duration(60 * MINUTE),
)
DEFAULT_CLASSES: Mapping[str, ServiceClass] = MappingProxyType(
    {each.name: each for each in (_INTERACTIVE, _LONG, _BATCH)}
)

SERVICE_TIERS = ("priority", "fast", "flex", "scale")
"""The `service_tier` values that can select a class."""
T = TypeVar("T")
DurationT = TypeVar("DurationT", Duration, Duration | None)


def service_classes(sections: Mapping[str, ClassSection] | None, report: ConfigReport) -> tuple[ServiceClass, ...]:
    """Service classes built from the `classes` section. `sections` is None if the file does not have one."""
    if sections is None:
        return tuple(DEFAULT_CLASSES.values())
    if not sections:
        report.add_problem(
            ("classes",), "has no classes; define at least one, or remove the section to use the default classes"
        )
    classes = tuple(_service_class(name, section, report) for name, section in sections.items())
    _check_tiers(classes, report)
    _check_shares(classes, report)
    if classes and not any(each.accepts_unclassified for each in classes):
        report.add_warning(
            ("classes",),
            "no class accepts requests without a class or tier; set accepts_unclassified: true for one of them",
        )
    return classes


def _service_class(name: str, section: ClassSection, report: ConfigReport) -> ServiceClass:
    base = DEFAULT_CLASSES.get(name)
    if base is None and section.priority_band is None:
        report.add_problem(("classes", name, "priority_band"), "missing; set the priority, where 0 is the highest")
    base = base or ServiceClass(ClassName(name), band=section.priority_band or 0)
    tiers, pools = section.service_tiers, section.pools
    wait_ns = _duration_or(section.queue_wait_max, base.queue_wait_ns_max)
    service_class = replace(
        base,
        band=_or_default(section.priority_band, base.band),
        service_tiers=base.service_tiers if tiers is None else tuple(tiers),
        prompt_tokens_max=_or_default(section.prompt_tokens_max, base.prompt_tokens_max),
        accepts_unclassified=_or_default(section.accepts_unclassified, base.accepts_unclassified),
        pools=base.pools if pools is None else tuple(PoolName(pool) for pool in pools),
        queue_wait_ns_max=wait_ns,
        queue_length_max=_or_default(section.queue_length_max, base.queue_length_max),
        queue_length_per_tenant_max=_or_default(section.queue_length_per_tenant_max, base.queue_length_per_tenant_max),
        first_token_ns_max=_duration_or(section.first_token_timeout, base.first_token_ns_max),
        idle_ns_max=_duration_or(section.stream_idle_timeout, base.idle_ns_max),
        total_ns_max=_duration_or(section.attempt_timeout, base.total_ns_max),
        caps=caps(section.caps, base.caps, ("classes", name, "caps"), report),
        ttft_ns=_target(section.ttft, _default_ttft(base, wait_ns)),
        tpot_ns=_target(section.tpot, base.tpot_ns),
        e2e_ns=_target(section.e2e, base.e2e_ns),
        ttft_assumed=base.ttft_assumed and section.ttft is None,
        tpot_assumed=base.tpot_assumed and section.tpot is None,
        min_share_percent=_or_default(section.min_share_percent, base.min_share_percent),
        reserve_percent=_or_default(section.reserve_percent, base.reserve_percent),
        optimize_for=parse_enum(
            OptimizationGoal, section.optimize_for, base.optimize_for, ("classes", name, "optimize_for"), report
        ),
        degradation_steps=base.degradation_steps
        if section.degradation_steps is None
        else degradation_steps(section, ("classes", name), report),
        hedging=_or_default(section.hedging, base.hedging),
        cold_start_wait_ns_max=_duration_or(section.cold_start_wait_max, base.cold_start_wait_ns_max),
        budgets=budgets(section.budgets, ("classes", name), report),
        data_residency=parse_enum(
            DataResidency, section.data_residency, base.data_residency, ("classes", name, "data_residency"), report
        ),
        cost_per_request_max=None if section.cost_per_request_max is None else NanoUsd(section.cost_per_request_max),
        cost_per_unit_max=None if section.cost_per_unit_max is None else NanoUsd(section.cost_per_unit_max),
    )
    _check_e2e(service_class, section, report)
    _check_prompt_cap(service_class, report)
    _check_degradation_steps(service_class, report)
    return service_class


def _default_ttft(base: ServiceClass, wait_ns: Duration) -> Duration | None:
    """The default target. If the class allows a longer queue wait than the default, the target is that wait."""
    if base.ttft_ns is None:
        return None
    # By default, a batch request must start before its queue timeout.
    return wait_ns if wait_ns > base.queue_wait_ns_max or base.ttft_ns == base.queue_wait_ns_max else base.ttft_ns


def _check_e2e(service_class: ServiceClass, section: ClassSection, report: ConfigReport) -> None:
    e2e_ns, ttft_ns, place = service_class.e2e_ns, service_class.ttft_ns, ("classes", service_class.name)
    if e2e_ns is None:
        return
    if section.ttft is not None and ttft_ns is not None and ttft_ns > e2e_ns:
        both = f"{duration_text(ttft_ns)} is longer than e2e {duration_text(e2e_ns)}"
        report.add_warning((*place, "ttft"), f"{both} and has no effect; lower ttft, or raise e2e")
    if e2e_ns > service_class.total_ns_max:
        both = f"{duration_text(e2e_ns)} is longer than attempt_timeout {duration_text(service_class.total_ns_max)}"
        report.add_warning((*place, "e2e"), f"{both}, after which attempts are aborted; lower e2e")


def _check_prompt_cap(service_class: ServiceClass, report: ConfigReport) -> None:
    taken, cap = service_class.prompt_tokens_max, service_class.caps.prompt_tokens
    if not service_class.accepts_unclassified or service_class.caps.trim_prompt or taken is None or cap is None:
        return
    if taken > cap:
        report.add_warning(
            ("classes", service_class.name, "caps", "prompt_tokens"),
            f"is less than prompt_tokens_max {taken}, so longer unclassified prompts get this class and are rejected; "
            f"lower prompt_tokens_max to {cap}, or set trim_prompt",
        )


def _check_degradation_steps(service_class: ServiceClass, report: ConfigReport) -> None:
    if service_class.degradation_steps and service_class.optimize_for is OptimizationGoal.QUALITY:
        warning = "have no effect with optimize_for: quality; remove them, or change optimize_for"
        report.add_warning(("classes", service_class.name, "degradation_steps"), warning)


def _check_shares(classes: tuple[ServiceClass, ...], report: ConfigReport) -> None:
    """Minimum shares and reserved shares must not exceed 100 percent in total."""
    floors: dict[int, int] = {}
    reserved = 0
    for each in classes:
        floors[each.band] = max(floors.get(each.band, 0), each.min_share_percent)
        reserved += each.reserve_percent
        if sum(floors.values()) > 100:
            problem = (
                f"the minimum shares of all bands add up to {sum(floors.values())} percent; lower them to at most 100"
            )
            report.add_problem(("classes", each.name, "min_share_percent"), problem)
        if reserved > 100:
            problem = f"the reserved shares of all classes add up to {reserved} percent; lower them to at most 100"
            report.add_problem(("classes", each.name, "reserve_percent"), problem)


def _check_tiers(classes: tuple[ServiceClass, ...], report: ConfigReport) -> None:
    taken: dict[str, ClassName] = {}
    for service_class in classes:
        for number, tier in enumerate(service_class.service_tiers):
            place = ("classes", service_class.name, "service_tiers", number)
            if tier in AUTO_SERVICE_TIERS:
                report.add_problem(place, f'tier "{tier}" lets the gateway choose and cannot select a class; remove it')
            elif tier not in SERVICE_TIERS:
                hint = suggestion(tier, SERVICE_TIERS, otherwise=f"; the tiers are {', '.join(SERVICE_TIERS)}")
                report.add_problem(place, f'tier "{tier}" does not exist{hint}')
            elif tier in taken:
                report.add_problem(
                    place, f'tier "{tier}" already selects class "{taken[tier]}"; remove it from one of the two'
                )
            else:
                taken[tier] = service_class.name


def _or_default(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _target(value: int | str | None, otherwise: Duration | None) -> Duration | None:
    """Target from the file: None if it is `unlimited`, or the default if it is omitted."""
    if value is None:
        return otherwise
    return Duration(value) if isinstance(value, int) else None


def _duration_or(value: int | None, otherwise: DurationT) -> Duration | DurationT:
    return otherwise if value is None else Duration(value)
