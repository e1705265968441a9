"""SLO report: whether each class met its objectives.

A class protects one of latency, quality and cost under overload. The report judges that one and shows the other two
for information.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.slo.measured import Measured, quantile
from headgate.slo.promises import SERVED, ClassPromises, percent

LATENCY: Final = "latency"
QUALITY: Final = "quality"
COST: Final = "cost"
_TAIL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    """Result for one objective."""

    objective: str
    promised: str
    measured: str
    requests: int
    kept: bool | None
    """None if not measured."""


@dataclass(frozen=True, slots=True)
class ClassReport:
    name: str
    promise: str
    kept: bool | None
    """None if the class has no objectives or nothing was measured."""
    requests: int
    findings: tuple[Finding, ...]
    """Results for the objectives of the class."""
    consequences: tuple[tuple[str, str], ...]
    """Measured values of the other two, as text."""


def report(promises: Sequence[ClassPromises], found: Mapping[str, Measured]) -> list[ClassReport]:
    """Reports of all classes with objectives or requests."""
    made = (_of_class(each, found.get(each.name, Measured())) for each in promises)
    return [each for each in made if each.requests or each.findings]


def _of_class(promises: ClassPromises, found: Measured) -> ClassReport:
    kept_by = {LATENCY: _latency, QUALITY: _quality, COST: _cost}
    findings = (*kept_by[promises.promise](promises, found), *_served(promises, found))
    verdicts = [each.kept for each in findings if each.kept is not None]
    said = {LATENCY: _say_latency(promises, found), QUALITY: _say_quality(found), COST: _say_cost(found)}
    return ClassReport(
        name=promises.name,
        promise=promises.promise,
        kept=all(verdicts) if verdicts else None,
        requests=round(found.requests),
        findings=findings,
        consequences=tuple((name, words) for name, words in said.items() if name != promises.promise),
    )


def _latency(promises: ClassPromises, found: Measured) -> Iterator[Finding]:
    for objective in promises.objectives():
        if objective.name != SERVED:
            yield _share(objective.name, f"{objective.meaning} for {percent(objective.ppm)}", objective.share, found)


def _served(promises: ClassPromises, found: Measured) -> Iterator[Finding]:
    """Result for the availability objective, which applies to every class that sets it."""
    for objective in promises.objectives():
        if objective.name == SERVED:
            yield _share(SERVED, f"{objective.meaning} for {percent(objective.ppm)}", objective.share, found)


def _share(objective: str, promised: str, least: float, found: Measured) -> Finding:
    share = found.good_share(objective)
    return Finding(
        objective,
        promised,
        "n/a" if share is None else f"{share:.2%}",
        round(found.asked.get(objective, 0.0)),
        None if share is None else share >= least,
    )


def _quality(promises: ClassPromises, found: Measured) -> Iterator[Finding]:
    del promises
    share = found.degraded_share
    yield Finding(
        "not degraded",
        "all requests as requested",
        "n/a" if share is None else f"{1 - share:.2%}",
        round(found.admitted),
        None if share is None else not found.degraded,
    )


def _cost(promises: ClassPromises, found: Measured) -> Iterator[Finding]:
    promised = promises.cost_usd_per_1k_tokens
    if promised is None:
        return
    cost = found.cost_usd_per_1k_tokens
    yield Finding(
        "cost",
        f"${promised:.4g} per 1k tokens",
        "n/a" if cost is None else f"${cost:.4g}",
        round(found.completed),
        None if cost is None else cost <= promised,
    )


def _say_latency(promises: ClassPromises, found: Measured) -> str:
    tails = (
        ("first token", quantile(found.ttft, _TAIL)),
        ("complete response", quantile(found.duration, _TAIL)),
    )
    said = [f"{what} within {tail_s:.3g} s for 95 %" for what, tail_s in tails if tail_s is not None]
    for each in promises.objectives():
        share = found.good_share(each.name)
        if each.name != SERVED and share is not None:
            said.append(f"{each.meaning} for {share:.2%}")
    return ", ".join(said) or "not measured"


def _say_quality(found: Measured) -> str:
    share = found.degraded_share
    return "not measured" if share is None else f"{share:.2%} degraded"


def _say_cost(found: Measured) -> str:
    cost = found.cost_usd_per_1k_tokens
    if cost is None:
        return "not measured"
    if not found.cost_usd:
        return "no price configured"
    in_all = f"${found.cost_usd:,.2f}" if found.cost_usd >= 1 else f"${found.cost_usd:.4g}"
    return f"${cost:.4g} per 1k tokens, {in_all} in total"
