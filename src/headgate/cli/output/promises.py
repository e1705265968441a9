"""What does a configuration file promise of each class?"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.config.settings import Settings
    from headgate.slo.promises import ClassPromises

_SECOND = 1_000_000_000
_USD = 1_000_000_000


def promises_in(file: Path) -> "list[ClassPromises] | None":
    """Of every class, in the order of the file. Where the file is wrong, says so."""
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    try:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return None
    return promises_of(settings)


def promises_of(settings: "Settings") -> "list[ClassPromises]":
    from headgate.slo.promises import ClassPromises
    from headgate.telemetry.options import Objectives

    found: list[ClassPromises] = []
    for each in settings.policy.classes:
        given = settings.objectives.get(each.name, Objectives())
        cost = given.cost_per_1k_tokens
        found.append(
            ClassPromises(
                name=each.name,
                promise=each.promise.value,
                ttft_s=None if each.ttft_ns is None else each.ttft_ns / _SECOND,
                ttft_ppm=given.ttft_ppm,
                duration_s=None if given.duration_ns is None else given.duration_ns / _SECOND,
                duration_ppm=given.duration_ppm,
                served_ppm=given.served_ppm,
                cost_usd_per_1k_tokens=None if cost is None else cost / _USD,
            )
        )
    return found
