"""The configuration reference lists exactly the existing settings with their defaults."""

import re

import pytest
from msgspec import NODEFAULT, inspect

from headgate.config import quantities
from headgate.config.class_schema import (
    BudgetSection,
    BudgetsSection,
    CapsSection,
    ClassRuleSection,
    ClassSection,
    DegradationStepSection,
    ObjectivesSection,
    StageBudgetSection,
)
from headgate.config.classes import DEFAULT_CLASSES
from headgate.config.fleets import SETTINGS_BY_KIND
from headgate.config.identity_schema import IdentitySection, IssuerSection, LoginSection, OperatorTokensSection
from headgate.config.load import parse
from headgate.config.pool_schema import (
    AdapterSection,
    BatchingSection,
    CalendarEventSection,
    EndpointSection,
    EngineTlsSection,
    FleetSection,
    PoolSection,
    PriceSection,
    ScalingSection,
    SpeedSection,
)
from headgate.config.schema import (
    UNLIMITED,
    AdminKeySection,
    AdminListenTlsSection,
    AdmissionSection,
    AuditSection,
    CellSection,
    ConfigFile,
    DatabaseSection,
    DegradationSection,
    HeadroomSection,
    HealthSection,
    LedgerSection,
    LimitsSection,
    ListenTlsSection,
    MirrorFractionSection,
    MirrorSection,
    ModelSection,
    NotificationsSection,
    OverflowSection,
    RecordsSection,
    RetrySection,
    RouteMatchSection,
    RouteSection,
    RoutingSection,
    SheddingSection,
    TenantLimitsSection,
    TenantSection,
    TierSection,
    TracingSection,
)
from headgate.config.section import Section
from headgate.engines.dialects import DIALECTS
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.ray.options import RayOptions
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import OptimizationGoal, ServiceClass
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/reference/configuration.md").read_text()

SECTIONS: dict[str, type[Section]] = {
    "The file": ConfigFile,
    "`listen_tls`": ListenTlsSection,
    "`admin_listen_tls`": AdminListenTlsSection,
    "`limits`": LimitsSection,
    "`pools.NAME`": PoolSection,
    "`pools.NAME.adapters[]`": AdapterSection,
    "`pools.NAME.prices[]`": PriceSection,
    "`pools.NAME.speed`": SpeedSection,
    "`pools.NAME.endpoints[]`": EndpointSection,
    "`pools.NAME.batching`": BatchingSection,
    "`pools.NAME.tls`": EngineTlsSection,
    "`pools.NAME.fleet`": FleetSection,
    "`pools.NAME.scaling`": ScalingSection,
    "`pools.NAME.scaling.calendar[]`": CalendarEventSection,
    "`models.NAME`": ModelSection,
    "`models.NAME.overflow`": OverflowSection,
    "`models.NAME.tiers[]`": TierSection,
    "`models.NAME.routes[]`": RouteSection,
    "`models.NAME.routes[].mirror`": MirrorSection,
    "`models.NAME.routes[].mirror.fraction`": MirrorFractionSection,
    "`models.NAME.routes[].match`": RouteMatchSection,
    "`classes.NAME`": ClassSection,
    "`class_rules[]`": ClassRuleSection,
    "`classes.NAME.caps`": CapsSection,
    "`classes.NAME.degradation_steps[]`": DegradationStepSection,
    "`classes.NAME.stage_budget`": StageBudgetSection,
    "`classes.NAME.objectives`": ObjectivesSection,
    "`tenants.NAME`": TenantSection,
    "`tenants.NAME.limits`": TenantLimitsSection,
    "`budgets`": BudgetsSection,
    "`budgets.PERIOD`": BudgetSection,
    "`identity`": IdentitySection,
    "`identity.issuers.NAME`": IssuerSection,
    "`identity.operators`": OperatorTokensSection,
    "`identity.operators.login`": LoginSection,
    "`retry`": RetrySection,
    "`health`": HealthSection,
    "`headroom`": HeadroomSection,
    "`admission`": AdmissionSection,
    "`routing`": RoutingSection,
    "`shedding`": SheddingSection,
    "`degradation`": DegradationSection,
    "`cell`": CellSection,
    "`database`": DatabaseSection,
    "`ledger`": LedgerSection,
    "`tracing`": TracingSection,
    "`records`": RecordsSection,
    "`audit`": AuditSection,
    "`notifications`": NotificationsSection,
    "`admin_keys.NAME`": AdminKeySection,
}
ANY_CLASS = ServiceClass("any", band=0)


def rows_under(heading: str, page: str = PAGE) -> dict[str, list[str]]:
    """Return the first table under a heading as a map from setting to the other cells of its row."""
    [body] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


def shown(value: object, reads: object) -> str:
    """Format a default the way the page does."""
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
    if section is ClassSection and field.name != "priority_band":
        return shown(of_class(ANY_CLASS, field.name), reads_of(field.type))
    if field.required or section is ClassSection:
        return "*required*"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    return shown(default, reads_of(field.type))


def shown_cap(caps: Caps, name: str) -> str:
    """Format a cap the way the page does. A missing cap is shown as the value that removes it."""
    value = getattr(caps, name)
    return f"`{UNLIMITED}`" if value is None else shown(value, None)


def of_class(service_class: ServiceClass, setting: str) -> object:
    """Look up the model attribute for a setting. Attributes for durations end in their unit."""
    by_another_name = {
        "priority_band": "band",
        "first_token_timeout": "first_token_ns_max",
        "stream_idle_timeout": "idle_ns_max",
        "attempt_timeout": "total_ns_max",
    }
    for name in (by_another_name.get(setting, setting), setting.replace("_max", "_ns_max"), f"{setting}_ns"):
        if hasattr(service_class, name):
            return getattr(service_class, name)
    raise AssertionError(setting)


def fields_of(section: type[Section]) -> dict[str, inspect.Field]:
    info = inspect.type_info(section)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


@pytest.mark.parametrize("heading", SECTIONS)
def test_page_lists_exactly_the_settings_with_their_defaults(heading: str) -> None:
    section = SECTIONS[heading]

    described = {setting: cells[0] for setting, cells in rows_under(heading).items()}

    assert described == {name: default_of(field, section) for name, field in fields_of(section).items()}


@pytest.mark.parametrize("heading", SECTIONS)
def test_page_describes_every_setting(heading: str) -> None:
    assert [setting for setting, cells in rows_under(heading).items() if not cells[1].endswith(".")] == []


def test_page_covers_every_section_of_the_schema() -> None:
    modules = {each.__module__ for each in (ConfigFile, ClassSection, IssuerSection, PoolSection)}

    assert set(SECTIONS.values()) == {each for each in Section.__subclasses__() if each.__module__ in modules}


def test_page_shows_default_class_settings() -> None:
    # The scheduler does not use these settings, so they are not part of its policy. No default class sets them.
    beside = ("stage_budget", "objectives")
    fields = {name: each for name, each in fields_of(ClassSection).items() if name not in beside}

    assert rows_under("The default classes") == {
        setting: [shown(of_class(each, setting), reads_of(fields[setting].type)) for each in DEFAULT_CLASSES.values()]
        for setting in fields
        if any(of_class(each, setting) != of_class(ANY_CLASS, setting) for each in DEFAULT_CLASSES.values())
    }


def test_default_classes_have_the_documented_caps() -> None:
    assert "All three have the usual caps" in PAGE
    assert {each.caps for each in DEFAULT_CLASSES.values()} == {Caps()}


def test_page_lists_every_reasoning_effort() -> None:
    [_, meaning] = rows_under("`classes.NAME.caps`")["reasoning_effort"]

    assert re.findall("`([a-z]+)`", meaning) == list(ReasoningEffort)


def test_page_lists_every_image_detail() -> None:
    [_, meaning] = rows_under("`classes.NAME.caps`")["image_detail"]

    assert re.findall("`([a-z]+)`", meaning)[: len(ImageDetail)] == list(ImageDetail)


def test_page_lists_every_optimization_goal_and_plan() -> None:
    [_, goals] = rows_under("`classes.NAME`")["optimize_for"]
    [_, plans] = rows_under("`tenants.NAME`")["plan"]

    assert re.findall("`([a-z]+)`", goals) == list(OptimizationGoal)
    assert re.findall("`([a-z]+)`", plans)[: len(Plan)] == list(Plan)


def test_page_lists_every_profile() -> None:
    [_, meaning] = rows_under("`pools.NAME.speed`")["profile"]

    assert set(re.findall("`([a-z0-9-]+)`", meaning)) == set(PROFILES)


def test_page_shows_the_default_engine_speed() -> None:
    usual = EngineSpeed()
    told = {
        setting: re.findall(r"Default: (\S+)\.$", cells[1])
        for setting, cells in rows_under("`pools.NAME.speed`").items()
        if setting != "profile"
    }

    assert told == {
        setting: [quantities.short_duration_text(getattr(usual, f"{setting}_ps"))]
        for setting in ("step", "prefill_token", "decode_sequence", "kv_token", "attention")
    } | {"chunk_tokens": [str(usual.chunk_tokens)]}


def test_page_lists_every_fleet_kind_with_its_settings() -> None:
    rows = rows_under("`pools.NAME.fleet`")

    assert re.findall("`([a-z]+)`:", rows["kind"][1]) == list(SETTINGS_BY_KIND)
    for setting, cells in rows.items():
        if setting != "kind":
            named = re.findall("`([a-z]+)`", cells[1].split(":")[0])
            assert named == [kind for kind, settings in SETTINGS_BY_KIND.items() if setting in settings], setting


def test_page_shows_the_fleet_defaults() -> None:
    told = {
        setting: found[0]
        for setting, cells in rows_under("`pools.NAME.fleet`").items()
        if (found := re.findall(r"Default: ([0-9a-z:]+)\.$", cells[1]))
    }

    dns = DnsOptions(name="", in_flight_max=1)
    processes, ray = ProcessOptions(command=(), in_flight_max=1), RayOptions(python="")
    assert told == {
        "scheme": dns.scheme,
        "resolve_interval": quantities.duration_text(dns.resolve_interval_ns),
        "misses_max": str(dns.misses_max),
        "empty_after": quantities.duration_text(dns.empty_after_ns),
        "port_range": "{}:{}".format(*processes.port_range),
        "start_timeout": quantities.duration_text(processes.start_timeout_ns),
        "stop_timeout": quantities.duration_text(processes.stop_timeout_ns),
        "restart_backoff": quantities.duration_text(processes.restart_backoff_ns),
        "restart_backoff_max": quantities.duration_text(processes.restart_backoff_ns_max),
        "cpus": f"{ray.cpus:g}",
        "gpus": f"{ray.gpus:g}",
    }


def test_page_lists_every_engine() -> None:
    [_, meaning] = rows_under("`pools.NAME`")["engine"]

    assert set(re.findall("`([a-z_]+)`", meaning)) == set(DIALECTS)


def test_example_loads_without_warnings() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    settings = parse(
        example,
        "headgate.yaml",
        {"HEADGATE_KEY_SECRET": "x" * 43, "ENGINE_KEY": "y"},
        engines=DIALECTS,
        profiles=PROFILES,
    )

    assert settings.warnings == ()
