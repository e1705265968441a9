"""Conversions of sources in tests."""

from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import yaml

from headgate.config.convert.conversion import Conversion, ConversionOptions, convert_text
from headgate.config.convert.source import ConversionError
from headgate.config.load import parse
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES


def converted(text: str, environ: Mapping[str, str] | None = None, **options: Any) -> Conversion:
    source_format = options.pop("source_format", None)
    given = ConversionOptions(environ or {}, DIALECTS.keys(), PROFILES, **options)
    return convert_text(dedent(text).lstrip("\n"), "source", given, source_format)


def tree_of(text: str, environ: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """The converted configuration as a tree."""
    return yaml.safe_load(converted(text, environ, **options).text)


def notes_of(text: str, environ: Mapping[str, str] | None = None, **options: Any) -> list[str]:
    return [str(each) for each in converted(text, environ, **options).notes]


def error_of(text: str, **options: Any) -> str:
    """Error message of a source that cannot be converted."""
    try:
        converted(text, **options)
    except ConversionError as error:
        return str(error)
    return ""


def settings_of(result: Conversion) -> Settings:
    environ = dict.fromkeys(result.variables, "a-value-for-the-test")
    return parse(result.text, "headgate.yaml", environ, engines=DIALECTS.keys(), profiles=PROFILES)
