"""Does the reference of the configuration name every setting with its true default, and no other?"""

import re

import pytest
from msgspec import NODEFAULT, inspect

from headgate.config import quantities
from headgate.config.classes import DEFAULT_CLASSES
from headgate.config.fleets import KINDS
from headgate.config.load import parse
from headgate.config.schema import (
    UNLIMITED,
    AdminKeySection,
    AdmissionSection,
    BatchingSection,
    BudgetSection,
    BudgetsSection,
    CapsSection,
    CellSection,
    ClassRuleSection,
    ClassSection,
    DatabaseSection,
    EndpointSection,
    File,
    FleetSection,
    HeadroomSection,
    HealthSection,
    KnownEventSection,
    LadderSection,
    LedgerSection,
    LimitsSection,
    ModelSection,
    NoticesSection,
    ObjectivesSection,
    PoolSection,
    PriceSection,
    RecordsSection,
    RetrySection,
    RoutingSection,
    RungSection,
    ScalingSection,
    Section,
    SheddingSection,
    SpeedSection,
    StageBudgetSection,
    TenantLimitsSection,
    TenantSection,
    TracingSection,
    VariantSection,
)
from headgate.engines.dialects import DIALECTS
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.ray.options import RayOptions
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import Promise, ServiceClass
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/reference/configuration.md").read_text()

SECTIONS: dict[str, type[Section]] = {
    "The file": File,
    "`limits`": LimitsSection,
    "`pools.NAME`": PoolSection,
    "`pools.NAME.prices[]`": PriceSection,
    "`pools.NAME.speed`": SpeedSection,
    "`pools.NAME.endpoints[]`": EndpointSection,
    "`pools.NAME.batching`": BatchingSection,
    "`pools.NAME.fleet`": FleetSection,
    "`pools.NAME.scaling`": ScalingSection,
    "`pools.NAME.scaling.calendar[]`": KnownEventSection,
    "`models.NAME`": ModelSection,
    "`models.NAME.rungs[]`": RungSection,
    "`classes.NAME`": ClassSection,
    "`class_rules[]`": ClassRuleSection,
    "`classes.NAME.caps`": CapsSection,
    "`classes.NAME.variants[]`": VariantSection,
    "`classes.NAME.stage_budget`": StageBudgetSection,
    "`classes.NAME.objectives`": ObjectivesSection,
    "`tenants.NAME`": TenantSection,
    "`tenants.NAME.limits`": TenantLimitsSection,
    "`budgets`": BudgetsSection,
    "`budgets.PERIOD`": BudgetSection,
    "`retry`": RetrySection,
    "`health`": HealthSection,
    "`headroom`": HeadroomSection,
    "`admission`": AdmissionSection,
    "`routing`": RoutingSection,
    "`shedding`": SheddingSection,
    "`ladder`": LadderSection,
    "`cell`": CellSection,
    "`database`": DatabaseSection,
    "`ledger`": LedgerSection,
    "`tracing`": TracingSection,
    "`records`": RecordsSection,
    "`notices`": NoticesSection,
    "`admin_keys.NAME`": AdminKeySection,
}
ANY_CLASS = ServiceClass("any", band=0)


def rows_under(heading: str, page: str = PAGE) -> dict[str, list[str]]:
    """The first table under a heading: setting -> the other cells of its row."""
    [body] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


def shown(value: object, reads: object) -> str:
    """A default as the page writes it."""
    match value, reads:
        case None, _:
            return "*none*"
        case int(), "duration":
            return f"`{quantities.duration_text(value)}`"
        case int(), "size":
            return f"`{quantities.size_text(value)}`"
        case int(), "days":
            return f"`{quantities.days_text(value)}`"
        case (str(host), int(port)), "address":
            return f"`{quantities.address_text(host, port)}`"
        case bool(), _:
            return f"`{str(value).lower()}`"
        case ((list() | tuple() | dict()), _):
            return ", ".join(f"`{each}`" for each in value) or "*none*"
        case _:
            return f"`{value}`"


def reads_of(info: inspect.Type) -> object:
    if isinstance(info, inspect.UnionType):
        return next((reads_of(each) for each in info.types if not isinstance(each, inspect.NoneType)), None)
    return (info.extra or {}).get("reads") if isinstance(info, inspect.Metadata) else None


def default_of(field: inspect.Field, section: type[Section]) -> str:
    if isinstance(field.default, Section):
        return f"see `{field.name}`"
    if section is CapsSection:
        return shown_cap(ANY_CLASS.caps, field.name)
    if section is ClassSection and field.name != "band":
        return shown(of_class(ANY_CLASS, field.name), reads_of(field.type))
    if field.required or section is ClassSection:
        return "*required*"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    return shown(default, reads_of(field.type))


def shown_cap(caps: Caps, name: str) -> str:
    """A cap as the page writes it: where there is none, by the word that lifts one."""
    value = getattr(caps, name)
    return f"`{UNLIMITED}`" if value is None else shown(value, None)


def of_class(service_class: ServiceClass, setting: str) -> object:
    """A setting of the file, as the model has it: what lasts carries its unit there."""
    by_another_name = {"max_cost_per_request": "cost_max", "max_cost_per_unit": "unit_cost_max"}
    for name in (by_another_name.get(setting, setting), setting.replace("_max", "_ns_max"), f"{setting}_ns"):
        if hasattr(service_class, name):
            return getattr(service_class, name)
    raise AssertionError(setting)


def fields_of(section: type[Section]) -> dict[str, inspect.Field]:
    info = inspect.type_info(section)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_is_on_the_page_with_its_default_and_no_other(heading: str) -> None:
    section = SECTIONS[heading]

    described = {setting: cells[0] for setting, cells in rows_under(heading).items()}

    assert described == {name: default_of(field, section) for name, field in fields_of(section).items()}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_has_a_meaning(heading: str) -> None:
    assert [setting for setting, cells in rows_under(heading).items() if not cells[1].endswith(".")] == []


def test_every_section_of_the_schema_is_on_the_page() -> None:
    assert set(SECTIONS.values()) == {each for each in Section.__subclasses__() if each.__module__ == File.__module__}


def test_the_default_classes_are_told_as_they_are() -> None:
    # What the scheduler does not go by is no part of its policy, and no default class has any.
    beside = ("stage_budget", "objectives")
    fields = {name: each for name, each in fields_of(ClassSection).items() if name not in beside}

    assert rows_under("The default classes") == {
        setting: [shown(of_class(each, setting), reads_of(fields[setting].type)) for each in DEFAULT_CLASSES.values()]
        for setting in fields
        if any(of_class(each, setting) != of_class(ANY_CLASS, setting) for each in DEFAULT_CLASSES.values())
    }


def test_the_default_classes_have_the_usual_caps_as_the_page_says() -> None:
    assert "All three have the usual caps" in PAGE
    assert {each.caps for each in DEFAULT_CLASSES.values()} == {Caps()}


def test_every_reasoning_effort_is_named() -> None:
    [_, meaning] = rows_under("`classes.NAME.caps`")["reasoning_effort"]

    assert re.findall("`([a-z]+)`", meaning) == list(ReasoningEffort)


def test_every_image_detail_is_named() -> None:
    [_, meaning] = rows_under("`classes.NAME.caps`")["image_detail"]

    assert re.findall("`([a-z]+)`", meaning)[: len(ImageDetail)] == list(ImageDetail)


def test_every_promise_and_every_plan_is_named() -> None:
    [_, promises] = rows_under("`classes.NAME`")["promise"]
    [_, plans] = rows_under("`tenants.NAME`")["plan"]

    assert re.findall("`([a-z]+)`", promises) == list(Promise)
    assert re.findall("`([a-z]+)`", plans)[: len(Plan)] == list(Plan)


def test_every_profile_is_named() -> None:
    [_, meaning] = rows_under("`pools.NAME.speed`")["like"]

    assert set(re.findall("`([a-z0-9-]+)`", meaning)) == set(PROFILES)


def test_the_usual_speed_is_told_as_it_is() -> None:
    usual = EngineSpeed()
    told = {
        setting: re.findall(r"Left out: (\S+)\.$", cells[1])
        for setting, cells in rows_under("`pools.NAME.speed`").items()
        if setting != "like"
    }

    assert told == {
        setting: [quantities.fine_text(getattr(usual, f"{setting}_ps"))]
        for setting in ("step", "prefill_token", "decode_sequence", "kv_token", "attention")
    } | {"chunk_tokens": [str(usual.chunk_tokens)]}


def test_every_kind_of_fleet_is_named_and_each_setting_under_its_kinds() -> None:
    rows = rows_under("`pools.NAME.fleet`")

    assert re.findall("`([a-z]+)`:", rows["kind"][1]) == list(KINDS)
    for setting, cells in rows.items():
        if setting != "kind":
            named = re.findall("`([a-z]+)`", cells[1].split(":")[0])
            assert named == [kind for kind, settings in KINDS.items() if setting in settings], setting


def test_what_a_fleet_leaves_out_is_told_as_it_is() -> None:
    told = {
        setting: found[0]
        for setting, cells in rows_under("`pools.NAME.fleet`").items()
        if (found := re.findall(r"Left out: ([0-9a-z:]+)\.$", cells[1]))
    }

    dns = DnsOptions(name="", in_flight_max=1)
    processes, ray = ProcessOptions(command=(), in_flight_max=1), RayOptions(python="")
    assert told == {
        "every": quantities.duration_text(dns.every_ns),
        "misses_max": str(dns.misses_max),
        "empty_after": quantities.duration_text(dns.empty_ns_max),
        "ports": "{}:{}".format(*processes.ports),
        "start_max": quantities.duration_text(processes.start_ns_max),
        "stop_max": quantities.duration_text(processes.stop_ns_max),
        "restart": quantities.duration_text(processes.restart_ns),
        "restart_max": quantities.duration_text(processes.restart_ns_max),
        "cpus": f"{ray.cpus:g}",
        "gpus": f"{ray.gpus:g}",
    }


def test_every_engine_is_named() -> None:
    [_, meaning] = rows_under("`pools.NAME`")["engine"]

    assert set(re.findall("`([a-z_]+)`", meaning)) == set(DIALECTS)


def test_the_example_is_right() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    settings = parse(
        example,
        "headgate.yaml",
        {"HEADGATE_KEY_SECRET": "x" * 43, "ENGINE_KEY": "y"},
        engines=DIALECTS,
        profiles=PROFILES,
    )

    assert settings.warnings == ()
