"""The scenarios reference lists exactly the existing settings with their defaults."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from msgspec import NODEFAULT, inspect

from headgate.cli.simulate import SCHEDULERS as OFFERED
from headgate.compose.simulation import SCHEDULERS
from headgate.config.scenarios.load import parse
from headgate.config.scenarios.schema import (
    CallersSection,
    DaySection,
    EnginesSection,
    FaultSection,
    LengthsSection,
    RampSection,
    RandomFaultsSection,
    ScenarioFile,
    SchedulerSection,
    SimulatedPoolSection,
    SimulatedTenantSection,
    SimulatedTrafficSection,
    SpikeSection,
)
from headgate.config.scenarios.traces import SOURCES
from headgate.config.section import Section
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
    "`traffic[]`": SimulatedTrafficSection,
    "`traffic[].prompt` and `traffic[].output`": LengthsSection,
    "`traffic[].ramp`": RampSection,
    "`traffic[].spikes[]`": SpikeSection,
    "`traffic[].day`": DaySection,
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
def test_page_lists_exactly_the_settings_with_their_defaults(heading: str) -> None:
    described = {setting: cells[0] for setting, cells in rows_under(heading, PAGE).items()}

    assert described == {name: default_of(field) for name, field in fields_of(SECTIONS[heading]).items()}


@pytest.mark.parametrize("heading", SECTIONS)
def test_page_describes_every_setting(heading: str) -> None:
    assert [setting for setting, cells in rows_under(heading, PAGE).items() if not cells[1].endswith(".")] == []


def test_page_covers_every_section_of_the_schema() -> None:
    assert set(SECTIONS.values()) == set(_most_specific(Section))


def _most_specific(section: type[Section]) -> Iterator[type[Section]]:
    """Yields the sections of a scenario file, without those that a scenario file extends."""
    for each in section.__subclasses__():
        extended = list(_most_specific(each))
        yield from extended
        if not extended and each.__module__ == ScenarioFile.__module__:
            yield each


@pytest.mark.parametrize("setting", ["probe_interval", "scrape_interval", "progress_interval"])
def test_scenario_defaults_match_the_simulation(setting: str) -> None:
    default = fields_of(ScenarioFile)[setting].default

    assert default == {each.name: each.default for each in fields(Scenario)}[f"{setting}_ns"]


def test_page_and_command_line_list_every_scheduler() -> None:
    [_, meaning] = rows_under("`scheduler`", PAGE)["name"]

    assert re.findall("`([a-z-]+)`", meaning) == list(SCHEDULERS) == list(OFFERED)


def test_page_lists_every_profile() -> None:
    [_, meaning] = rows_under("`pools.NAME.engines[]`", PAGE)["profile"]

    assert set(re.findall("`([a-z0-9-]+)`", meaning)) == set(PROFILES)


def test_page_names_the_source_of_each_public_trace() -> None:
    names = re.findall(
        r"`(\w+)`", "".join(line for line in PAGE.splitlines() if "GitHub" in line or "the same" in line)
    )

    assert [begin for begin in SOURCES if not any(name.startswith(begin) for name in names)] == []


def test_example_loads_without_warnings() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    settings = parse(example, Path("example.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert settings.warnings == ()
    assert len(settings.engines) == 4
