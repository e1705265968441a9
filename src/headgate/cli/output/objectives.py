"""Objectives of each class in a configuration file."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.config.settings import Settings
    from headgate.slo.objectives import ClassObjectives

_SECOND = 1_000_000_000
_USD = 1_000_000_000


def load_objectives(file: Path) -> "list[ClassObjectives] | None":
    """Each class's objectives, in configuration file order. If the file is invalid, prints its problems and returns
    None.
    """
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    try:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return None
    return class_objectives(settings)


def class_objectives(settings: "Settings") -> "list[ClassObjectives]":
    from headgate.slo.objectives import ClassObjectives
    from headgate.telemetry.options import Objectives

    found: list[ClassObjectives] = []
    for each in settings.policy.classes:
        given = settings.objectives.get(each.name, Objectives())
        cost = given.cost_per_1k_tokens
        found.append(
            ClassObjectives(
                name=each.name,
                optimize_for=each.optimize_for.value,
                ttft_s=None if each.ttft_ns is None else each.ttft_ns / _SECOND,
                ttft_ppm=given.ttft_ppm,
                duration_s=None if given.duration_ns is None else given.duration_ns / _SECOND,
                duration_ppm=given.duration_ppm,
                availability_ppm=given.availability_ppm,
                cost_usd_per_1k_tokens=None if cost is None else cost / _USD,
            )
        )
    return found
