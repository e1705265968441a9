"""Do the names in the file agree with each other, and can they be told apart outside it?

Names of classes and models travel in HTTP headers and all of them in metrics, so they are made
of plain characters.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from headgate.config.problems import Place, Report
from headgate.config.schema import ClassSection, File
from headgate.config.shape import suggestion
from headgate.model.policy import ServiceClass
from headgate.model.tenant import OTHER_TENANTS

PATH_LENGTH_MAX = 256
"""How long the path of a tenant may be altogether."""

A_NAME = "a name is made of up to 64 letters, digits, and . _ -"
A_PATH = "a tenant's name is made of up to 64 letters, digits, and . _ -, or of several such with / between them"

TAKEN: Final = {
    "pools": {"other": "what is of no pool of the policy", "gateway": "what is of the gateway itself"},
    "classes": {"other": "what is of no class of the policy", "none": "what ended before it had a class"},
    "tenants": {OTHER_TENANTS: "the tenants that are not told apart"},
}
"""What metrics call something else, by the section in which a name would mean two things."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}")


def is_name(text: str) -> bool:
    """Whether a pool or a class may be called so."""
    return _NAME.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Whether a tenant may be called so: names with slashes between them."""
    return len(text) <= PATH_LENGTH_MAX and all(is_name(step) for step in text.split("/"))


def check_names(file: File, report: Report) -> None:
    for section, names in (("pools", file.pools), ("classes", file.classes or {})):
        for name in names:
            if not is_name(name):
                report.problem((section, name), A_NAME, read=True)
    check_paths(file.tenants, report)
    _check_taken(file, report)
    for name in file.models:
        if not _MODEL_NAME.fullmatch(name):
            problem = "a model's name is made of up to 256 letters, digits, and . _ : / @ + -"
            report.problem(("models", name), problem, read=True)


def _check_taken(file: File, report: Report) -> None:
    for section, names in (("pools", file.pools), ("classes", file.classes or {}), ("tenants", file.tenants)):
        for name in names:
            if (meaning := TAKEN[section].get(name)) is not None:
                problem = f'metrics give {meaning} the name "{name}"; choose another'
                report.problem((section, name), problem, read=True)


def check_paths(tenants: Collection[str], report: Report) -> None:
    for name in tenants:
        if not is_path(name):
            report.problem(("tenants", name), A_PATH, read=True)


def check_references(file: File, classes: tuple[ServiceClass, ...], report: Report) -> None:
    names = [each.name for each in classes]
    check = References(report)
    check_classes(file.classes or {}, file.pools, file.models, report)
    for name, section in file.tenants.items():
        check.all_known(section.classes, names, "class", ("tenants", name, "classes"))
        check.all_known(section.models, file.models, "model", ("tenants", name, "models"))
    if not file.models:
        report.problem(("models",), "names no model; name at least one and the pools that serve it")


def check_classes(
    sections: Mapping[str, ClassSection], pools: Collection[str], models: Collection[str], report: Report
) -> None:
    """Whether the pools and models that classes name are there."""
    check = References(report)
    for name, section in sections.items():
        check.all_known(section.pools or [], pools, "pool", ("classes", name, "pools"))
        for number, variant in enumerate(section.variants or []):
            if variant.model is not None and variant.model not in models:
                hint = suggestion(variant.model, models, quiet=f"; there is {', '.join(models) or 'none'}")
                place = ("classes", name, "variants", number, "model")
                report.problem(place, f'model "{variant.model}" does not exist{hint}')


class References:
    """Notes the names that are not there, and those that stand twice."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def all_known(self, names: list[str], known: Collection[str], kind: str, place: Place) -> None:
        for number, name in enumerate(names):
            here = (*place, number)
            if name not in known:
                hint = suggestion(name, known, quiet=f"; there is {', '.join(known) or 'none'}")
                self._report.problem(here, f'{kind} "{name}" does not exist{hint}')
            elif name in names[:number]:
                self._report.problem(here, f'{kind} "{name}" is named twice; keep one')
