"""Priorities of the Gateway API inference extension as classes.

The endpoint picker gives a request the priority of the InferenceObjective that its header names. In Headgate, a request
names its class in a header, and classes with a higher priority are in a lower band.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.config.convert.draft import CLASSES, Draft, Setting, described, unused_name
from headgate.config.convert.kubernetes_objects import KubernetesObject
from headgate.config.references import RESERVED_NAMES

_CRITICALITY: Final = {"Critical": 1, "Standard": 0, "Sheddable": -1}
_PRIORITY_MAX: Final = 2**31


@dataclass(frozen=True, slots=True)
class InferenceClasses:
    draft: Draft

    def read(self, objectives: Sequence[KubernetesObject]) -> None:
        priorities = {each.name: self._priority(each) for each in objectives}
        if not priorities:
            return
        # Requests without an objective have the priority 0, and the default classes.
        ranks = sorted({*priorities.values(), 0}, reverse=True)
        above = sum(rank > 0 for rank in ranks)
        bands = {rank: number + (rank < 0) for number, rank in enumerate(ranks)}
        for name, band in zip(CLASSES, (above, above + 1, len(ranks) + 1), strict=True):
            self.draft.put(("classes", name, "priority_band"), str(band))
        for each in objectives:
            name = each.name if each.name in CLASSES else unused_name(each.name, (), RESERVED_NAMES["classes"])
            if name in self.draft.classes and name not in CLASSES:
                each.section.report("another objective has the same name")
                continue
            self._add(name, priorities[each.name], bands[priorities[each.name]], each)

    def _add(self, name: str, priority: int, band: int, objective: KubernetesObject) -> None:
        settings: dict[str, Setting] = {"priority_band": str(band)}
        if name not in CLASSES:
            self.draft.classes.append(name)
            settings["accepts_unclassified"] = "false"
        if priority < 0:
            settings["optimize_for"] = "cost"
        comment = f"From {described((objective.section.line(), objective.label))}, priority {priority}."
        self.draft.put(("classes", name), settings, comment)
        instead = "instead of an objective in x-gateway-inference-objective"
        self.draft.file.change(
            objective.section.line(), objective.label, f"clients name the class {name} in x-headgate-class, {instead}"
        )

    def _priority(self, objective: KubernetesObject) -> int:
        spec = objective.section.section("spec")
        # All classes may use all pools.
        spec.section("pool_ref").skip()
        criticality, text = spec.text("criticality"), spec.text("priority")
        if text is None:
            return _CRITICALITY.get(criticality or "", 0)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(digits) <= _PRIORITY_MAX):
            raise spec.error("priority", "must be a whole number")
        return int(text)
