"""Does the reference of scenarios name every setting with its true default, and no other?"""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from msgspec import NODEFAULT, inspect

from headgate.cli.simulate import SCHEDULERS as OFFERED
from headgate.compose.simulation import SCHEDULERS
from headgate.config.scenarios.load import parse
from headgate.config.scenarios.schema import (
    CallersSection,
    EnginesSection,
    FaultSection,
    LengthsSection,
    RandomFaultsSection,
    ScenarioFile,
    SchedulerSection,
    SimulatedPoolSection,
    SimulatedTenantSection,
    TrafficSection,
)
from headgate.config.scenarios.traces import SOURCES
from headgate.config.schema import Section
from headgate.model.engine_profile import PROFILES
from headgate.simulation.virtual.scenario import Scenario
from tests.docs.test_configuration_reference import reads_of, rows_under, shown
from tests.house.small_tree import PROJECT

PAGE = (PROJECT / "docs/reference/scenarios.md").read_text()
SECTIONS: dict[str, type[Section]] = {
    "The scenario": ScenarioFile,
    "`scheduler`": SchedulerSection,
    "`pools.NAME`": SimulatedPoolSection,
    "`pools.NAME.engines[]`": EnginesSection,
    "`tenants.NAME`": SimulatedTenantSection,
    "`callers.NAME`": CallersSection,
    "`traffic[]`": TrafficSection,
    "`traffic[].prompt` and `traffic[].output`": LengthsSection,
    "`faults[]`": FaultSection,
    "`faults[].random`": RandomFaultsSection,
}


def fields_of(section: type[Section]) -> dict[str, inspect.Field]:
    info = inspect.type_info(section)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def default_of(field: inspect.Field) -> str:
    if field.required:
        return "*required*"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    if isinstance(default, Section):
        return f"see `{field.encode_name}`"
    return f"`{default:g}`" if isinstance(default, float) else shown(default, reads_of(field.type))


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_is_on_the_page_with_its_default_and_no_other(heading: str) -> None:
    described = {setting: cells[0] for setting, cells in rows_under(heading, PAGE).items()}

    assert described == {name: default_of(field) for name, field in fields_of(SECTIONS[heading]).items()}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_has_a_meaning(heading: str) -> None:
    assert [setting for setting, cells in rows_under(heading, PAGE).items() if not cells[1].endswith(".")] == []


def test_every_section_of_the_schema_is_on_the_page() -> None:
    ours = {each for each in Section.__subclasses__() if each.__module__ == ScenarioFile.__module__}

    assert set(SECTIONS.values()) == ours


@pytest.mark.parametrize("setting", ["probe_every", "scrape_every", "progress_every"])
def test_what_a_scenario_leaves_out_is_as_the_simulation_has_it(setting: str) -> None:
    default = fields_of(ScenarioFile)[setting].default

    assert default == {each.name: each.default for each in fields(Scenario)}[f"{setting}_ns"]


def test_every_scheduler_is_named_and_offered_on_the_command_line() -> None:
    [_, meaning] = rows_under("`scheduler`", PAGE)["name"]

    assert re.findall("`([a-z-]+)`", meaning) == list(SCHEDULERS) == list(OFFERED)


def test_every_profile_is_named() -> None:
    [_, meaning] = rows_under("`pools.NAME.engines[]`", PAGE)["profile"]

    assert set(re.findall("`([a-z0-9-]+)`", meaning)) == set(PROFILES)


def test_the_page_tells_where_each_public_trace_comes_from() -> None:
    names = re.findall(
        r"`(\w+)`", "".join(line for line in PAGE.splitlines() if "GitHub" in line or "the same" in line)
    )

    assert [begin for begin in SOURCES if not any(name.startswith(begin) for name in names)] == []


def test_the_example_is_right() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    settings = parse(example, Path("example.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert settings.warnings == ()
    assert len(settings.engines) == 4
