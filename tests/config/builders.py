"""Configuration builders for tests."""

from collections.abc import Mapping
from textwrap import dedent

from headgate.config.load import parse
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.model.engine_profile import PROFILES

ENGINES = ("llamacpp", "openai_compatible", "vllm")

SMALL = """
pools:
  small: {engine: llamacpp, in_flight_max: 4, endpoints: ["http://127.0.0.1:8081"]}
models:
  smollm2: small
tenants:
  demo: {}
anonymous_tenant: demo
"""
"""The shortest valid file."""


def settings_of(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    return parse(dedent(text).lstrip("\n"), "headgate.yaml", environ or {}, engines=ENGINES, profiles=PROFILES)


def problems_of(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Problems in the file; empty if it is valid."""
    try:
        settings_of(text, environ)
    except ConfigErrors as errors:
        return [str(problem).removeprefix("headgate.yaml:") for problem in errors.problems]
    return []


def warnings_of(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    return [warning.removeprefix("headgate.yaml:") for warning in settings_of(text, environ).warnings]


def small_with(*lines: str) -> str:
    """The small file, which occupies lines 1 to 7, followed by these lines."""
    return SMALL.lstrip("\n") + "\n".join(lines) + "\n"


def small_with_classes(*lines: str) -> str:
    """The small file with these lines in `classes`, from line 9 on."""
    return small_with("classes:", *(f"  {line}" for line in lines))


def small_with_endpoint(url: str) -> str:
    """The small file with this endpoint, on line 2."""
    return SMALL.replace('"http://127.0.0.1:8081"', url)
