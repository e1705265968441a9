"""Scenarios to plan for, and a fake that replaces the simulation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from headgate.compose.planning import PlanOptions, plan_scenario
from headgate.compose.simulation import SCHEDULERS
from headgate.config.scenarios.load import parse
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND, ClassName, Duration, PoolName
from headgate.planning.cases import CaseResult, ClassResult, PlanCase, PoolResult
from headgate.planning.plan import CapacityPlan
from headgate.simulation.virtual.run_observer import PoolAttempts

CHAT = """
title: A chat
pools:
  main: {engines: [tiny], in_flight_max: 2, prices: {per_hour: 1.25}}
callers:
  interactive: {ttft: 1s, client_timeout: 5s}
objectives: {interactive: 97%}
duration: 30s
traffic:
  - {rate: 12, classes: interactive, tenants: {a: 2, b: 1}, prompt: 100:900, output: 200:400}
"""
QUICK = PlanOptions(
    multipliers=(0.5, 1.0, 2.0),
    seeds=(0, 1),
    window_ns=Duration(20 * SECOND),
    today=date(2026, 1, 1),
    alternatives=False,
)


def settings_of(text: str = CHAT) -> ScenarioSettings:
    return parse(text, Path("plan.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)


def plan_of(text: str = CHAT, options: PlanOptions = QUICK, **changes: object) -> CapacityPlan:
    return plan_scenario(settings_of(text), replace(options, **changes))  # type: ignore[arg-type]


class FakeRuns:
    """Holds the objective of one class if every pool has as many endpoints as it needs for the traffic."""

    def __init__(self, needed: Callable[[PlanCase], Mapping[PoolName, int]]) -> None:
        self._needed = needed
        self.cases: list[PlanCase] = []

    def __call__(self, cases: Sequence[PlanCase]) -> list[CaseResult]:
        self.cases += cases
        return [self._result(each) for each in cases]

    def _result(self, case: PlanCase) -> CaseResult:
        needed = self._needed(case)
        good = 100 if all(count >= needed[pool] for pool, count in case.endpoints) else 90
        return a_result(dict(case.endpoints), good=good)


def a_result(endpoints: Mapping[PoolName, int], *, good: int = 100, waiting: int = 0) -> CaseResult:
    pool = PoolResult(
        in_flight_mean=2.0,
        in_flight_p95=3,
        kv_tokens_mean=20,
        kv_tokens_p95=30,
        kv_tokens_each=100,
        attempts=PoolAttempts(100, 20 * SECOND, 200 * SECOND),
        paid_ns=Duration(60 * SECOND),
        billed_nano_usd=7,
    )
    return CaseResult(
        window_ns=Duration(10 * SECOND),
        elapsed_ns=Duration(12 * SECOND),
        arrivals=100,
        tokens_served=5_000,
        classes={ClassName("interactive"): ClassResult(100, good, waiting)},
        pools=dict.fromkeys(endpoints, pool),
    )
