"""Checks names and references between sections.

Names of classes and models appear in HTTP headers, and all names appear in metrics. They may therefore contain only
plain characters.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from headgate.config.adapters import model_names
from headgate.config.class_schema import ClassSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema import ConfigFile
from headgate.config.schema_reader import available, suggestion
from headgate.model.policy import ServiceClass
from headgate.model.routes import MIRROR_CLASS
from headgate.model.tenant import OTHER_TENANTS

PATH_LENGTH_MAX = 256
"""Maximum length of a tenant path."""

NAME_RULE = "a name must have 1 to 64 characters: letters, digits, and . _ -"
TENANT_PATH_RULE = (
    "a tenant name must have 1 to 64 characters: letters, digits, and . _ -; a path joins several names with /"
)

RESERVED_NAMES: Final = {
    "pools": {"other": "values without a known pool", "gateway": "values for the gateway itself"},
    "classes": {
        "other": "values without a known class",
        "none": "requests that ended without a class",
        MIRROR_CLASS: "copies of requests",
    },
    "tenants": {OTHER_TENANTS: "tenants without their own metrics"},
}
"""Names that have another meaning in metrics, by section, with that meaning."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}")


def is_name(text: str) -> bool:
    """Whether the text is a valid pool or class name."""
    return _NAME.fullmatch(text) is not None


def is_model_name(text: str) -> bool:
    return _MODEL_NAME.fullmatch(text) is not None


def is_tenant_path(text: str) -> bool:
    """Whether the text is a valid tenant path: names joined with slashes."""
    return len(text) <= PATH_LENGTH_MAX and all(is_name(step) for step in text.split("/"))


def check_names(file: ConfigFile, report: ConfigReport) -> None:
    for section, names in (("pools", file.pools), ("classes", file.classes or {})):
        for name in names:
            if not is_name(name):
                report.add_problem((section, name), NAME_RULE, contents_valid=True)
    check_tenant_paths(file.tenants, report)
    _check_reserved(file, report)
    for name in file.models:
        if not is_model_name(name):
            problem = "a model name must have 1 to 256 characters: letters, digits, and . _ : / @ + -"
            report.add_problem(("models", name), problem, contents_valid=True)


def _check_reserved(file: ConfigFile, report: ConfigReport) -> None:
    for section, names in (("pools", file.pools), ("classes", file.classes or {}), ("tenants", file.tenants)):
        for name in names:
            if (meaning := RESERVED_NAMES[section].get(name)) is not None:
                problem = f'is reserved: metrics use "{name}" for {meaning}; choose another name'
                report.add_problem((section, name), problem, contents_valid=True)


def check_tenant_paths(tenants: Collection[str], report: ConfigReport) -> None:
    for name in tenants:
        if not is_tenant_path(name):
            report.add_problem(("tenants", name), TENANT_PATH_RULE, contents_valid=True)


def check_references(file: ConfigFile, classes: tuple[ServiceClass, ...], report: ConfigReport) -> None:
    names = [each.name for each in classes]
    check = ReferenceChecker(report)
    models = model_names(file.pools, file.models)
    check_classes(file.classes or {}, file.pools, models, report)
    for name, section in file.tenants.items():
        check.check_all_known(section.classes, names, "class", ("tenants", name, "classes"))
        if not any(each.discover_adapters for each in file.pools.values()):
            check.check_all_known(section.models, models, "model", ("tenants", name, "models"))
    if not models and not any(each.discover_adapters for each in file.pools.values()):
        report.add_problem(("models",), "has no models; define at least one, with the pools that serve it")


def check_classes(
    sections: Mapping[str, ClassSection], pools: Collection[str], models: Collection[str], report: ConfigReport
) -> None:
    """Reports references in classes to pools and models that do not exist."""
    check = ReferenceChecker(report)
    for name, section in sections.items():
        check.check_all_known(section.pools or [], pools, "pool", ("classes", name, "pools"))
        for number, step in enumerate(section.degradation_steps or []):
            if step.model is not None and step.model not in models:
                hint = suggestion(step.model, models, otherwise=available(models))
                place = ("classes", name, "degradation_steps", number, "model")
                report.add_problem(place, f'model "{step.model}" does not exist{hint}')


class ReferenceChecker:
    """Reports unknown names and duplicates."""

    def __init__(self, report: ConfigReport) -> None:
        self._report = report

    def check_all_known(self, names: list[str], known: Collection[str], kind: str, place: SettingPath) -> None:
        for number, name in enumerate(names):
            here = (*place, number)
            if name not in known:
                hint = suggestion(name, known, otherwise=available(known))
                self._report.add_problem(here, f'{kind} "{name}" does not exist{hint}')
            elif name in names[:number]:
                self._report.add_problem(here, f'{kind} "{name}" is listed twice; remove one')
