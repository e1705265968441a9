"""How is it drawn where the time of a request went?

In letters alone, so that it reads the same without colour, in a log and in a mail.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.cli.output.explanation import Budget, Listed, StageSpan

WITHIN: Final = "#"
BEYOND: Final = "!"
_LABEL_MAX: Final = 22
_BAR_MIN: Final = 10
_COLUMNS: Final = 20
"""What the numbers take, with the space around them."""
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
"""One for each stage, where there is room for a line only."""
_UNKNOWN: Final = "?"
"""The stage of another version."""


def bars(stages: "Sequence[StageSpan]", budget: "Budget", width: int) -> Iterator[str]:
    """A line for each stage, at its place in the whole, with what it took and what it may take."""
    total = max((each.at_ms + each.took_ms for each in stages), default=0.0)
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
            # What is tried again has what its first try left.
            left[each.stage] = max(0.0, allowed - each.took_ms)
        told = budget.stages.get(each.stage)
        may = "" if told is None else f"{told / 1000:.3f}"
        yield f"{label.ljust(label_width)}  {each.took_ms / 1000:>7.3f}  {may:>7}  {bar}".rstrip()


def _label(span: "StageSpan", *, several: bool) -> str:
    name = _plain(span.stage)[:_LABEL_MAX]
    return f"{name}, try {span.attempt}" if several and span.attempt is not None else name


def _bar(span: "StageSpan", allowed: float | None, *, total: float, room: int) -> str:
    if total <= 0:
        return ""
    begin = min(room - 1, round(span.at_ms / total * room))
    length = max(1, min(room - begin, round(span.took_ms / total * room)))
    beyond = 0
    if allowed is not None and span.took_ms > allowed:
        beyond = max(1, min(length, round((span.took_ms - allowed) / total * room)))
    return " " * begin + WITHIN * (length - beyond) + BEYOND * beyond


def line_bar(listed: "Listed", *, slowest_ms: float, room: int) -> str:
    """The whole request on one line, a letter for each stage; capitals took longer than they may."""
    if slowest_ms <= 0 or not listed.stages:
        return ""
    length = max(1, round(listed.total_ms / slowest_ms * room))
    drawn = ""
    for each in listed.stages:
        letter = _LETTERS.get(each.stage, _UNKNOWN)
        upto = round((each.at_ms + each.took_ms) / max(listed.total_ms, 0.001) * length)
        drawn += (letter.upper() if each.stage in listed.over_budget else letter) * max(0, upto - len(drawn))
    return drawn[:room]


def legend() -> str:
    named = ", ".join(f"{letter} {stage}" for stage, letter in _LETTERS.items())
    return f"{named}; capitals took longer than their budget."


def lateness(late: Mapping[str, str], budget: "Budget") -> Iterator[str]:
    """One sentence for each goal that was missed."""
    for goal, stage in late.items():
        allowed = budget.ttft_ms if goal == "ttft" else budget.duration_ms
        within = "" if allowed is None else f" ({allowed / 1000:.3f} s)"
        what = "Its first token" if goal == "ttft" else "Its end"
        yield f"{what} came later than its class allows{within}: {_plain(stage)} took the most of that time."


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
