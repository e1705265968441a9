"""What may the requests of a class ask of an engine, at most?

Each cap that a class leaves out is that of the class it starts from. `unlimited` lifts one.
"""

from typing import TypeVar

from headgate.config.problems import Place, Report
from headgate.config.schema import CapsSection
from headgate.config.setting_types import UNLIMITED
from headgate.config.shape import suggestion
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort

Word = TypeVar("Word", ReasoningEffort, ImageDetail)


def caps(section: CapsSection, base: Caps, place: Place, report: Report) -> Caps:
    found = read_caps(section, base, place, report)
    _check(found, place, report)
    return found


def read_caps(section: CapsSection, base: Caps, place: Place, report: Report) -> Caps:
    """As they are written, whether or not they go together."""
    return Caps(
        prompt_tokens=_number(section.prompt_tokens, base.prompt_tokens),
        trims_prompt=base.trims_prompt if section.trims_prompt is None else section.trims_prompt,
        output_tokens=_number(section.output_tokens, base.output_tokens),
        n=_number(section.n, base.n),
        best_of=_number(section.best_of, base.best_of),
        logprobs=_number(section.logprobs, base.logprobs),
        prompt_logprobs=_number(section.prompt_logprobs, base.prompt_logprobs),
        reasoning_effort=_most(
            ReasoningEffort, section.reasoning_effort, base.reasoning_effort, (*place, "reasoning_effort"), report
        ),
        image_detail=_most(ImageDetail, section.image_detail, base.image_detail, (*place, "image_detail"), report),
        prompts=_number(section.prompts, base.prompts),
        inputs=_number(section.inputs, base.inputs),
    )


def _number(value: int | str | None, otherwise: int | None) -> int | None:
    if value is None:
        return otherwise
    return value if isinstance(value, int) else None


def _most(kind: type[Word], word: str | None, otherwise: Word | None, place: Place, report: Report) -> Word | None:
    known = [each.value for each in kind]
    if word is None:
        return otherwise
    if word in known:
        return kind(word)
    if word != UNLIMITED:
        hint = suggestion(word, (*known, UNLIMITED), quiet=f"; they are {', '.join(known)}, or {UNLIMITED}")
        report.problem(place, f'{place[-1]} "{word}" does not exist{hint}')
    return None


def _check(found: Caps, place: Place, report: Report) -> None:
    if found.trims_prompt and found.prompt_tokens is None:
        report.warn((*place, "trims_prompt"), "has no effect without a cap on the prompt; set prompt_tokens beside it")
    if found.best_of is not None and (found.n is None or found.best_of < found.n):
        report.warn(
            (*place, "best_of"),
            f"is less than n, so that more answers are made than it allows; raise it, or lower n to {found.best_of}",
        )
