"""Text charts of the time a request spent in each stage. They use only letters, so that they are readable without
colour.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.cli.output.explanation import ExplainedBudget, ExplainedStage, RequestSummary

WITHIN_BUDGET: Final = "#"
OVER_BUDGET: Final = "!"
_LABEL_MAX: Final = 22
_BAR_MIN: Final = 10
_COLUMNS: Final = 20
"""Width of the number columns, including the space around them."""
_LETTERS: Final = {
    "ingress": "i",
    "auth": "a",
    "classify": "c",
    "queue": "q",
    "route": "r",
    "connect": "n",
    "prefill": "p",
    "decode": "d",
    "post_processing": "o",
    "settle": "s",
}
"""Letter for each stage in a one-line chart."""
_UNKNOWN: Final = "?"
"""Letter for a stage that this version does not know."""


def bars(stages: "Sequence[ExplainedStage]", budget: "ExplainedBudget", width: int) -> Iterator[str]:
    """One line per stage with its duration, its budget, and a bar at its position in the request."""
    total = max((each.at_ms + each.duration_ms for each in stages), default=0.0)
    tries = {each.attempt for each in stages if each.attempt is not None}
    labels = [_label(each, several=len(tries) > 1) for each in stages]
    label_width = max(len("STAGE"), *(len(label) for label in labels))
    room = max(_BAR_MIN, width - label_width - _COLUMNS)
    end = f"{total / 1000:.3f} s"
    yield f"{'STAGE'.ljust(label_width)}  SECONDS   BUDGET  {'0 s'.ljust(room - len(end))}{end}"
    left = dict(budget.stages)
    for each, label in zip(stages, labels, strict=True):
        allowed = left.get(each.stage)
        bar = _bar(each, allowed, total=total, room=room)
        if allowed is not None:
            # A retry gets what the first attempt left of the budget.
            left[each.stage] = max(0.0, allowed - each.duration_ms)
        told = budget.stages.get(each.stage)
        may = "" if told is None else f"{told / 1000:.3f}"
        yield f"{label.ljust(label_width)}  {each.duration_ms / 1000:>7.3f}  {may:>7}  {bar}".rstrip()


def _label(span: "ExplainedStage", *, several: bool) -> str:
    name = _printable(span.stage)[:_LABEL_MAX]
    return f"{name}, attempt {span.attempt}" if several and span.attempt is not None else name


def _bar(span: "ExplainedStage", allowed: float | None, *, total: float, room: int) -> str:
    if total <= 0:
        return ""
    begin = min(room - 1, round(span.at_ms / total * room))
    length = max(1, min(room - begin, round(span.duration_ms / total * room)))
    beyond = 0
    if allowed is not None and span.duration_ms > allowed:
        beyond = max(1, min(length, round((span.duration_ms - allowed) / total * room)))
    return " " * begin + WITHIN_BUDGET * (length - beyond) + OVER_BUDGET * beyond


def line_bar(listed: "RequestSummary", *, slowest_ms: float, room: int) -> str:
    """The request on one line, with one letter per stage. Stages that exceeded their budget are in capitals."""
    if slowest_ms <= 0 or not listed.stages:
        return ""
    length = max(1, round(listed.total_ms / slowest_ms * room))
    drawn = ""
    for each in listed.stages:
        letter = _LETTERS.get(each.stage, _UNKNOWN)
        upto = round((each.at_ms + each.duration_ms) / max(listed.total_ms, 0.001) * length)
        drawn += (letter.upper() if each.stage in listed.over_budget else letter) * max(0, upto - len(drawn))
    return drawn[:room]


def legend() -> str:
    named = ", ".join(f"{letter} {stage}" for stage, letter in _LETTERS.items())
    return f"{named}; stages in capitals exceeded their budget."


def lateness(late: Mapping[str, str], budget: "ExplainedBudget") -> Iterator[str]:
    """One sentence per missed target."""
    for goal, stage in late.items():
        allowed = budget.ttft_ms if goal == "ttft" else budget.duration_ms
        within = "" if allowed is None else f" ({allowed / 1000:.3f} s)"
        what = "time to first token" if goal == "ttft" else "duration"
        yield f"The {what} missed the class's target{within}; the slowest stage was {_printable(stage)}."


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
