"""LoRA adapters of the pools. Each adapter is a public model."""

import re
from collections.abc import Mapping
from typing import Final

from headgate.config.pool_schema import PoolSection
from headgate.config.problems import ConfigReport
from headgate.config.schema import ModelSection
from headgate.config.settings import AdapterSettings
from headgate.model.policy import Model
from headgate.model.units import ModelName, PoolName

ENGINES_WITH_ADAPTERS: Final = ("vllm",)
_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}")


def has_adapters(section: PoolSection) -> bool:
    return section.discover_adapters or bool(section.adapters)


def model_names(pools: Mapping[str, PoolSection], models: Mapping[str, ModelSection]) -> dict[str, None]:
    """All configured models, including those that are adapters."""
    return dict.fromkeys((*models, *(each.model or each.name for pool in pools.values() for each in pool.adapters)))


def pool_adapters(pool: str, section: PoolSection, report: ConfigReport) -> tuple[AdapterSettings, ...]:
    """The adapters of a pool, by their names in the engines."""
    place = ("pools", pool)
    if has_adapters(section) and section.engine not in ENGINES_WITH_ADAPTERS:
        setting = "adapters" if section.adapters else "discover_adapters"
        problem = f'is not available for engine "{section.engine}"; the engines with adapters are '
        report.add_problem((*place, setting), problem + ", ".join(ENGINES_WITH_ADAPTERS))
    if section.max_lora is not None and not has_adapters(section):
        report.add_warning((*place, "max_lora"), "has no effect; list the pool's adapters, or set discover_adapters")
    found: dict[str, AdapterSettings] = {}
    for number, each in enumerate(section.adapters):
        here = (*place, "adapters", number)
        for setting, name in (("name", each.name), ("model", each.model)):
            if name is not None and not _MODEL_NAME.fullmatch(name):
                problem = "must have 1 to 256 characters: letters, digits, and . _ : / @ + -"
                report.add_problem((*here, setting), problem)
        if each.name in found:
            report.add_problem((*here, "name"), f'adapter "{each.name}" is listed twice; remove one')
        if each.name == section.served_model:
            report.add_problem((*here, "name"), "is the pool's served_model; set the name of the adapter")
        found[each.name] = AdapterSettings(each.name, each.model or each.name, each.source)
    return tuple(found.values())


def adapter_models(
    pools: Mapping[str, PoolSection], models: Mapping[str, ModelSection], report: ConfigReport
) -> tuple[Model, ...]:
    """The models that are adapters. Several pools may have the same adapter under the same name."""
    serving: dict[str, list[str]] = {}
    adapters: dict[str, str] = {}
    for pool, section in pools.items():
        for number, each in enumerate(section.adapters):
            name = each.model or each.name
            place = ("pools", pool, "adapters", number)
            if name in models:
                report.add_problem(place, f'model "{name}" is also in models; set another name as the adapter\'s model')
            elif adapters.setdefault(name, each.name) != each.name:
                problem = f'model "{name}" is also adapter "{adapters[name]}"; use the same name in all pools'
                report.add_problem(place, problem)
            elif pool in serving.setdefault(name, []):
                report.add_problem(place, f'model "{name}" is listed twice in this pool; remove one')
            else:
                serving[name].append(pool)
    return tuple(
        Model(ModelName(name), tuple(PoolName(pool) for pool in found), adapter=adapters[name])
        for name, found in serving.items()
    )
