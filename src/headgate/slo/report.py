"""SLO report: whether each class met its objectives.

Under overload, a class protects one of latency, quality and cost. The report evaluates that one and shows the other two
for information.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.slo.measurements import ClassMeasurements, quantile
from headgate.slo.objectives import AVAILABILITY, ClassObjectives, percent

LATENCY: Final = "latency"
QUALITY: Final = "quality"
COST: Final = "cost"
_TAIL_QUANTILE: Final = 0.95


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """Result for one objective."""

    objective: str
    target: str
    measured: str
    requests: int
    met: bool | None
    """Whether the objective was met; None if it was not measured."""


@dataclass(frozen=True, slots=True)
class ClassReport:
    name: str
    optimize_for: str
    met: bool | None
    """Whether all objectives were met; None if the class has no objectives or nothing was measured."""
    requests: int
    results: tuple[ObjectiveResult, ...]
    """Results for the objectives of the class."""
    tradeoffs: tuple[tuple[str, str], ...]
    """Measured values, as text, of the properties that the class does not protect."""


def report(objectives: Sequence[ClassObjectives], measurements: Mapping[str, ClassMeasurements]) -> list[ClassReport]:
    """Reports for all classes that have objectives or requests."""
    made = (_of_class(each, measurements.get(each.name, ClassMeasurements())) for each in objectives)
    return [each for each in made if each.requests or each.results]


def _of_class(promises: ClassObjectives, found: ClassMeasurements) -> ClassReport:
    kept_by = {LATENCY: _latency_results, QUALITY: _quality_results, COST: _cost_results}
    findings = (*kept_by[promises.optimize_for](promises, found), *_availability_results(promises, found))
    verdicts = [each.met for each in findings if each.met is not None]
    said = {LATENCY: _latency_text(promises, found), QUALITY: _quality_text(found), COST: _cost_text(found)}
    return ClassReport(
        name=promises.name,
        optimize_for=promises.optimize_for,
        met=all(verdicts) if verdicts else None,
        requests=round(found.requests),
        results=findings,
        tradeoffs=tuple((name, words) for name, words in said.items() if name != promises.optimize_for),
    )


def _latency_results(promises: ClassObjectives, found: ClassMeasurements) -> Iterator[ObjectiveResult]:
    for objective in promises.ratio_objectives():
        if objective.name != AVAILABILITY:
            yield _ratio_result(
                objective.name, f"{objective.description} for {percent(objective.ppm)}", objective.target_ratio, found
            )


def _availability_results(promises: ClassObjectives, found: ClassMeasurements) -> Iterator[ObjectiveResult]:
    """Result for the availability objective, which applies to every class that sets it."""
    for objective in promises.ratio_objectives():
        if objective.name == AVAILABILITY:
            yield _ratio_result(
                AVAILABILITY, f"{objective.description} for {percent(objective.ppm)}", objective.target_ratio, found
            )


def _ratio_result(objective: str, promised: str, least: float, found: ClassMeasurements) -> ObjectiveResult:
    share = found.good_share(objective)
    return ObjectiveResult(
        objective,
        promised,
        "n/a" if share is None else f"{share:.2%}",
        round(found.eligible.get(objective, 0.0)),
        None if share is None else share >= least,
    )


def _quality_results(promises: ClassObjectives, found: ClassMeasurements) -> Iterator[ObjectiveResult]:
    del promises
    share = found.degraded_share
    yield ObjectiveResult(
        "not degraded",
        "all requests as requested",
        "n/a" if share is None else f"{1 - share:.2%}",
        round(found.admitted),
        None if share is None else not found.degraded,
    )


def _cost_results(promises: ClassObjectives, found: ClassMeasurements) -> Iterator[ObjectiveResult]:
    promised = promises.cost_usd_per_1k_tokens
    if promised is None:
        return
    cost = found.cost_usd_per_1k_tokens
    yield ObjectiveResult(
        "cost",
        f"${promised:.4g} per 1k tokens",
        "n/a" if cost is None else f"${cost:.4g}",
        round(found.completed),
        None if cost is None else cost <= promised,
    )


def _latency_text(promises: ClassObjectives, found: ClassMeasurements) -> str:
    tails = (
        ("first token", quantile(found.ttft_buckets, _TAIL_QUANTILE)),
        ("complete response", quantile(found.duration_buckets, _TAIL_QUANTILE)),
    )
    said = [f"{what} within {tail_s:.3g} s for 95 %" for what, tail_s in tails if tail_s is not None]
    for each in promises.ratio_objectives():
        share = found.good_share(each.name)
        if each.name != AVAILABILITY and share is not None:
            said.append(f"{each.description} for {share:.2%}")
    return ", ".join(said) or "not measured"


def _quality_text(found: ClassMeasurements) -> str:
    share = found.degraded_share
    return "not measured" if share is None else f"{share:.2%} degraded"


def _cost_text(found: ClassMeasurements) -> str:
    cost = found.cost_usd_per_1k_tokens
    if cost is None:
        return "not measured"
    if not found.cost_usd:
        return "no price configured"
    in_all = f"${found.cost_usd:,.2f}" if found.cost_usd >= 1 else f"${found.cost_usd:.4g}"
    return f"${cost:.4g} per 1k tokens, {in_all} in total"
