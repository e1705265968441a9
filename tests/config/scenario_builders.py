"""Scenario builders for tests."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.load import parse
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.model.engine_profile import PROFILES

SCHEDULERS = ("headgate", "static-cap")

SMALL = """\
pools:
  main: {in_flight_max: 8, engines: [tiny, tiny]}
traffic:
"""
"""The pools are on line 2, the first traffic entry on line 4."""


def small_with_traffic(*lines: str) -> str:
    """The small file. Lines that start with a brace are traffic entries; the others follow them."""
    entries = [f"  - {line}" for line in lines if line.startswith("{")]
    return SMALL + "\n".join([*entries, *(line for line in lines if not line.startswith("{"))]) + "\n"


def scenario_of(text: str, folder: Path, environ: Mapping[str, str] | None = None) -> ScenarioSettings:
    return parse(
        dedent(text).lstrip("\n"), folder / "small.yaml", environ or {}, profiles=PROFILES, schedulers=SCHEDULERS
    )


def problems_of(text: str, folder: Path = Path(), environ: Mapping[str, str] | None = None) -> list[str]:
    """Problems in the file; empty if it is valid."""
    try:
        scenario_of(text, folder, environ)
    except ConfigErrors as errors:
        return [str(problem).removeprefix(f"{folder / 'small.yaml'}:") for problem in errors.problems]
    return []
