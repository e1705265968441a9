"""What does a class give up, and from which level of the ladder on?"""

from headgate.config.caps import read_caps
from headgate.config.problems import Place, Report
from headgate.config.schema import ClassSection
from headgate.model.policy import Variant
from headgate.model.units import ModelName

_AS_IT_IS = Variant(level=0).caps


def variants(section: ClassSection, place: Place, report: Report) -> tuple[Variant, ...]:
    """In the order of their levels, however the file has them."""
    found: dict[int, Variant] = {}
    for number, each in enumerate(section.variants or []):
        here = (*place, "variants", number)
        caps = read_caps(each.caps, _AS_IT_IS, (*here, "caps"), report)
        variant = Variant(each.level, caps, None if each.model is None else ModelName(each.model))
        if each.level in found:
            report.problem((*here, "level"), f"level {each.level} has a variant already; put both into one")
        elif variant == Variant(each.level):
            report.warn(here, "gives nothing up; set caps or model, or remove it")
        found[each.level] = variant
    return tuple(found[level] for level in sorted(found))
