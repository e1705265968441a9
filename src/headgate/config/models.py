"""Which pools serve a model, for whom, and what serves when none of them can?

The rungs of a model are rules, read from the first on; its fallbacks are other models.
"""

from collections.abc import Collection, Mapping

from headgate.config.problems import Place, Report
from headgate.config.references import A_NAME, References, is_name
from headgate.config.schema import ModelSection, RungSection
from headgate.config.words import one_of
from headgate.model.policy import Model, RungRule
from headgate.model.tenant import Plan
from headgate.model.units import ClassName, ModelName, PoolName


def models(sections: Mapping[str, ModelSection], report: Report) -> tuple[Model, ...]:
    return tuple(
        Model(
            ModelName(name),
            tuple(PoolName(each) for each in section.pools),
            rungs=tuple(
                _rung(rung, ("models", name, "rungs", number), report) for number, rung in enumerate(section.rungs)
            ),
            fallbacks=tuple(ModelName(each) for each in section.fallbacks),
        )
        for name, section in sections.items()
    )


def _rung(section: RungSection, place: Place, report: Report) -> RungRule:
    return RungRule(
        pools=tuple(PoolName(each) for each in section.pools),
        classes=tuple(ClassName(each) for each in section.classes),
        plans=tuple(
            one_of(Plan, each, Plan.STANDARD, (*place, "plans", number), report)
            for number, each in enumerate(section.plans)
        ),
        prompt_tokens_max=section.prompt_tokens_max,
        named=section.named,
    )


def check_models(
    sections: Mapping[str, ModelSection], pools: Collection[str], classes: Collection[str], report: Report
) -> None:
    """Whether all that models name is there."""
    check = References(report)
    for name, section in sections.items():
        place: Place = ("models", name)
        if not section.pools:
            report.problem((*place, "pools"), "names no pool; name the pools that serve this model")
        check.all_known(section.pools, pools, "pool", (*place, "pools"))
        check.all_known(section.fallbacks, sections, "model", (*place, "fallbacks"))
        if name in section.fallbacks:
            problem = "is the model itself, whose pools have just been tried; remove it"
            report.problem((*place, "fallbacks", section.fallbacks.index(name)), problem)
        _check_rungs(section, classes, (*place, "rungs"), report)


def _check_rungs(section: ModelSection, classes: Collection[str], place: Place, report: Report) -> None:
    check = References(report)
    for number, rung in enumerate(section.rungs):
        here = (*place, number)
        if not rung.pools:
            report.problem((*here, "pools"), "names no pool; name the pools of the model that serve this rung")
        check.all_known(rung.pools, section.pools, "pool of this model", (*here, "pools"))
        check.all_known(rung.classes, classes, "class", (*here, "classes"))
        if rung.named is not None and not is_name(rung.named):
            report.problem((*here, "named"), A_NAME)
        if _takes_all(rung) and number + 1 < len(section.rungs):
            report.warn(here, "takes every request, so that what stands after it is never reached; put it last")


def _takes_all(rung: RungSection) -> bool:
    return not (rung.classes or rung.plans or rung.prompt_tokens_max or rung.named)
