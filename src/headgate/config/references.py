"""Do the names in the file agree with each other, and can they be told apart outside it?

Names of classes and models travel in HTTP headers and all of them in metrics, so they are made
of plain characters.
"""

import re
from collections.abc import Collection

from headgate.config.problems import Place, Report
from headgate.config.schema import File
from headgate.config.shape import suggestion
from headgate.model.policy import ServiceClass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}")


def is_name(text: str) -> bool:
    """Whether a pool, class or tenant may be called so."""
    return _NAME.fullmatch(text) is not None


def check_names(file: File, report: Report) -> None:
    for section, names in (("pools", file.pools), ("classes", file.classes or {}), ("tenants", file.tenants)):
        for name in names:
            if not is_name(name):
                report.problem((section, name), "a name is made of up to 64 letters, digits, and . _ -", read=True)
    for name in file.models:
        if not _MODEL_NAME.fullmatch(name):
            problem = "a model's name is made of up to 256 letters, digits, and . _ : / @ + -"
            report.problem(("models", name), problem, read=True)


def check_references(file: File, classes: tuple[ServiceClass, ...], report: Report) -> None:
    names = [each.name for each in classes]
    check = References(report)
    for model, section in file.models.items():
        place = ("models", model, "pools")
        if not section.pools:
            report.problem(place, "names no pool; name the pools that serve this model")
        check.all_known(section.pools, file.pools, "pool", place)
    for name, section in (file.classes or {}).items():
        check.all_known(section.pools or [], file.pools, "pool", ("classes", name, "pools"))
    for name, section in file.tenants.items():
        check.all_known(section.classes, names, "class", ("tenants", name, "classes"))
        check.all_known(section.models, file.models, "model", ("tenants", name, "models"))
    if not file.models:
        report.problem(("models",), "names no model; name at least one and the pools that serve it")


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
