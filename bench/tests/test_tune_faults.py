"""Tests of the check that `headgate tune` finds random faults."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tune_faults import BASE, FaultDraws, FoundFault, Tuning, figures_of
from headgate.compose.simulation import SCHEDULERS
from headgate.compose.tuning.scenario_tuning import TuneOptions
from headgate.compose.tuning.variants import ScenarioVariants, load_variants
from headgate.model.engine_profile import PROFILES
from headgate.planning.tuning.change import SettingChange

PATTERN = "pools.chat.in_flight_max"


@pytest.fixture(scope="module")
def base() -> ScenarioVariants:
    return load_variants(BASE, {}, profiles=PROFILES, schedulers=SCHEDULERS)


def test_drawn_faults_do_harm_and_are_found(base: ScenarioVariants) -> None:
    draws = FaultDraws(base, 0, PATTERN)
    fault = next(iter(draws))
    found = Tuning(base, TuneOptions(settings=PATTERN, only_rank=True)).look_for(fault)

    assert draws.does_harm(fault)
    assert not draws.does_harm(replace(fault, after=fault.before))
    assert found.rank == 1


def test_same_seed_draws_the_same_faults(base: ScenarioVariants) -> None:
    first, second = (next(iter(FaultDraws(base, 5, PATTERN))) for _ in range(2))

    assert first == second


def test_figures_count_the_faults_among_the_first_two_suggestions(base: ScenarioVariants) -> None:
    draws = FaultDraws(base, 0)
    draws.draws = 40
    draws.discarded.update({"retry.attempts_max": 30, "fairness_depth": 7})
    fault = SettingChange(PATTERN, "64", "6")
    found = [FoundFault(fault, rank, (), 100) for rank in (1, 2, 3, None)]

    assert figures_of(found, draws) == {
        "faults": 4,
        "in_top_two": 2,
        "first": 1,
        "draws": 40,
        "settings": len(draws.tunables),
        "settings_drawn_in_vain": 2,
    }


def test_base_has_every_kind_of_setting_to_draw(base: ScenarioVariants) -> None:
    sections = {each.path.partition(".")[0] for each in FaultDraws(base, 0).tunables}

    assert sections >= {"pools", "classes", "tenants", "retry", "health", "headroom", "admission", "degradation"}
    assert Path(BASE).name == "tune.yaml"
