"""Degradation steps of a class: the caps and models that apply from a degradation level upward."""

from headgate.config.caps import read_caps
from headgate.config.class_schema import ClassSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.model.policy import DegradationStep
from headgate.model.units import ModelName

_UNCHANGED_CAPS = DegradationStep(level=0).caps


def degradation_steps(section: ClassSection, place: SettingPath, report: ConfigReport) -> tuple[DegradationStep, ...]:
    """Degradation steps, sorted by level."""
    found: dict[int, DegradationStep] = {}
    for number, each in enumerate(section.degradation_steps or []):
        here = (*place, "degradation_steps", number)
        caps = read_caps(each.caps, _UNCHANGED_CAPS, (*here, "caps"), report)
        step = DegradationStep(each.level, caps, None if each.model is None else ModelName(each.model))
        if each.level in found:
            report.add_problem((*here, "level"), f"level {each.level} already has a step; merge the two")
        elif step == DegradationStep(each.level):
            report.add_warning(here, "has no effect; set caps or model, or remove it")
        found[each.level] = step
    return tuple(found[level] for level in sorted(found))
