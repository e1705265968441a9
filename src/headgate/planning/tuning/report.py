"""Text and JSON reports of tuning."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from statistics import mean
from typing import Any

from headgate.model.units import SECOND, ClassName
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.result import ERROR_RATE, Suggestion, TuningResult, TuningStep
from headgate.planning.tuning.score import Comparison, interval, missed
from headgate.simulation.report.confidence import CONFIDENCE
from headgate.simulation.report.text_table import WIDTH_MIN, Table, format_percent, render_table


def render_tuning(result: TuningResult, width: int) -> str:
    parts = [_wrapped(heading(result), width)]
    for title, rows in tuning_tables(result):
        parts.append([title, *render_table(rows, width)])
    if result.changes:
        parts.append(["Changes", *configuration_diff(result.changes)])
    parts.append(_wrapped(notes(result), width))
    return "\n\n".join("\n".join(part) for part in parts)


def _wrapped(sentences: Iterable[str], width: int) -> list[str]:
    width = max(width, WIDTH_MIN)
    return [line for each in sentences for line in textwrap.wrap(each, width, subsequent_indent="  ")]


# ---------------------------------------------------------------------------------------------------- text
def heading(result: TuningResult) -> Iterator[str]:
    yield result.title
    yield answer(result)
    if late := missed(result.overall.after, result.objectives):
        verb = "misses its objective" if len(late) == 1 else "miss their objectives"
        yield f"{', '.join(late)} {verb} {_when_missed(result)}"
    yield runs_sentence(result)


def _when_missed(result: TuningResult) -> str:
    if result.only_ranked:
        return "without a change"
    return "still; no further change of a single one of these settings helps" if result.is_complete else "still"


def answer(result: TuningResult) -> str:
    first = result.suggestions
    if not first:
        return "nothing to change" if result.is_complete else "no better setting found within the budget"
    if result.only_ranked:
        return f"{_count(len(first), 'setting')} to change; first: {first[0].change}"
    return f"{_count(len(result.changes), 'setting')} changed; first: {first[0].change}"


def runs_sentence(result: TuningResult) -> str:
    told = f"{result.runs} simulated runs; {result.seeds} seeds confirm each change"
    if result.window_ns < result.span_ns:
        return f"{told}; the busiest {result.window_ns / SECOND:.4g} s of {result.span_ns / SECOND:.4g} s"
    return f"{told}; the complete workload of {result.span_ns / SECOND:.4g} s"


def tuning_tables(result: TuningResult) -> Iterator[tuple[str, Table]]:
    if result.suggestions:
        yield "Suggestions, best first", _suggestion_rows(result.suggestions)
        yield "Effect of each suggestion", _effect_rows(result.suggestions, result.steps[0].confidence, result)
    if result.changes:
        for number, step in enumerate(result.steps, 1):
            if step.suggestions:
                made = step.suggestions[0]
                yield f"Step {number}: {made.change}", _class_rows(made.evidence, step.confidence, result)
        yield "All changes together", _class_rows(result.overall, CONFIDENCE, result)
    elif not result.suggestions:
        yield "Objectives", _class_rows(result.overall, CONFIDENCE, result)


def _suggestion_rows(suggestions: Sequence[Suggestion]) -> Table:
    rows = [["", "setting", "now", "change to", "improves"]]
    for number, each in enumerate(suggestions, 1):
        change = each.change
        rows.append([str(number), change.path, _value(change.before), _value(change.after), each.benefit.value])
    return rows


def _effect_rows(suggestions: Sequence[Suggestion], confidence: float, result: TuningResult) -> Table:
    rows = [["", "shortfall", "good requests", "cost"]]
    for number, each in enumerate(suggestions, 1):
        shortfall, good = (
            _points(change, confidence) for change in (each.evidence.shortfall_change, each.evidence.goodput_change)
        )
        rows.append([str(number), shortfall, good, _cost_change(each.evidence, result)])
    return rows


def _class_rows(evidence: Comparison, confidence: float, result: TuningResult) -> Table:
    is_changed = evidence.before != evidence.after
    rows = [["", "objective", "before", "after", "change"]]
    for name in evidence.classes:
        before, after = evidence.attainment(name)
        objective = result.objectives.get(name)
        wanted = "-" if objective is None else format_percent(objective)
        differences = evidence.attainment_change(name)
        change = _points(differences, confidence) if is_changed and len(differences) == len(evidence.before) else "-"
        rows.append([f"class {name}", wanted, format_percent(before), format_percent(after), change])
    costs = [mean(each.cost for each in scores) for scores in (evidence.before, evidence.after)]
    shown = [format_cost(each, result) for each in costs]
    rows.append(["cost", "-", *shown, _cost_change(evidence, result) if is_changed else "-"])
    return rows if is_changed else [[*row[:3]] for row in rows]


def notes(result: TuningResult) -> Iterator[str]:
    if result.suggestions:
        yield (
            "shortfall: share of good requests missing for the objectives, summed over the classes. Changes are in "
            "percentage points, with intervals that allow for the number of changes tested: a step without any real "
            f"benefit has a suggestion in at most {format_percent(ERROR_RATE)} of cases"
        )
    last = result.steps[-1]
    if last.unconfirmed:
        yield f"looked better at first, but was not confirmed: {'; '.join(str(each) for each in last.unconfirmed)}"
    if not result.is_complete:
        yield "the budget is used up before every setting was tried; raise --budget, or choose some with --settings"


def configuration_diff(changes: Sequence[SettingChange]) -> Iterator[str]:
    for each in changes:
        if each.before is not None:
            yield f"- {each.path}: {each.before}"
        if each.after is not None:
            yield f"+ {each.path}: {each.after}"


def format_cost(cost: float, result: TuningResult) -> str:
    return f"${cost:,.2f}/h" if result.has_prices else f"{cost:.2f} engines"


def _cost_change(evidence: Comparison, result: TuningResult) -> str:
    change = mean(evidence.cost_change)
    if abs(evidence.cost_ratio - 1) < 0.0005:
        return "same"
    sign = "+" if change > 0 else "-"
    return f"{sign}{format_cost(abs(change), result)}"


def _points(differences: Sequence[float], confidence: float) -> str:
    found = interval(differences, confidence)
    if found.low == found.high == 0:
        return "same"
    return f"{100 * found.estimate:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _value(value: str | None) -> str:
    return "not set" if value is None else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------------------------------------- JSON
def tuning_json(result: TuningResult) -> dict[str, Any]:
    return {
        "title": result.title,
        "holds": result.holds,
        "missed": missed(result.overall.after, result.objectives),
        "changes": [_change_json(each) for each in result.changes],
        "suggestions": [_suggestion_json(each, result.steps[0], result) for each in result.suggestions],
        "steps": [_step_json(each, result) for each in result.steps],
        "overall": _evidence_json(result.overall, CONFIDENCE, result),
        "complete": result.is_complete,
        "only_ranked": result.only_ranked,
        "objectives": dict(result.objectives),
        "cost_unit": "usd_per_hour" if result.has_prices else "engines",
        "error_rate_per_step": ERROR_RATE,
        "window_s": result.window_ns / SECOND,
        "span_s": result.span_ns / SECOND,
        "seeds": result.seeds,
        "runs": result.runs,
    }


def _step_json(step: TuningStep, result: TuningResult) -> dict[str, Any]:
    return {
        "settings": step.settings,
        "complete": step.is_complete,
        "confidence": step.confidence,
        "change": _change_json(step.suggestions[0].change) if step.suggestions and not result.only_ranked else None,
        "suggestions": [_suggestion_json(each, step, result) for each in step.suggestions],
        "unconfirmed": [_change_json(each) for each in step.unconfirmed],
    }


def _suggestion_json(suggestion: Suggestion, step: TuningStep, result: TuningResult) -> dict[str, Any]:
    evidence = _evidence_json(suggestion.evidence, step.confidence, result)
    return _change_json(suggestion.change) | {"improves": suggestion.benefit.value, "evidence": evidence}


def _change_json(change: SettingChange) -> dict[str, Any]:
    return {"path": change.path, "before": change.before, "after": change.after}


def _evidence_json(evidence: Comparison, confidence: float, result: TuningResult) -> dict[str, Any]:
    return {
        "confidence": confidence,
        "shortfall_change": _interval_json(evidence.shortfall_change, confidence),
        "goodput_change": _interval_json(evidence.goodput_change, confidence),
        "cost_change": _interval_json(evidence.cost_change, confidence),
        "classes": {name: _class_json(name, evidence, result) for name in evidence.classes},
    }


def _class_json(name: ClassName, evidence: Comparison, result: TuningResult) -> dict[str, Any]:
    before, after = evidence.attainment(name)
    return {"objective": result.objectives.get(name), "before": before, "after": after}


def _interval_json(differences: Sequence[float], confidence: float) -> dict[str, float]:
    found = interval(differences, confidence)
    return {"estimate": found.estimate, "low": found.low, "high": found.high}
