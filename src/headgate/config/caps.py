"""Caps on a class's requests.

An omitted cap is inherited from the class's base. `unlimited` removes a cap.
"""

from typing import TypeVar

from headgate.config.class_schema import CapsSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema_reader import available, suggestion
from headgate.config.setting_types import UNLIMITED
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort

Choice = TypeVar("Choice", ReasoningEffort, ImageDetail)


def caps(section: CapsSection, base: Caps, place: SettingPath, report: ConfigReport) -> Caps:
    found = read_caps(section, base, place, report)
    _check(found, place, report)
    return found


def read_caps(section: CapsSection, base: Caps, place: SettingPath, report: ConfigReport) -> Caps:
    """The caps as written, without consistency checks."""
    return Caps(
        prompt_tokens=_number(section.prompt_tokens, base.prompt_tokens),
        trim_prompt=base.trim_prompt if section.trim_prompt is None else section.trim_prompt,
        output_tokens=_number(section.output_tokens, base.output_tokens),
        n=_number(section.n, base.n),
        best_of=_number(section.best_of, base.best_of),
        logprobs=_number(section.logprobs, base.logprobs),
        prompt_logprobs=_number(section.prompt_logprobs, base.prompt_logprobs),
        reasoning_effort=_enum_cap(
            ReasoningEffort, section.reasoning_effort, base.reasoning_effort, (*place, "reasoning_effort"), report
        ),
        image_detail=_enum_cap(ImageDetail, section.image_detail, base.image_detail, (*place, "image_detail"), report),
        prompts=_number(section.prompts, base.prompts),
        inputs=_number(section.inputs, base.inputs),
    )


def _number(value: int | str | None, otherwise: int | None) -> int | None:
    if value is None:
        return otherwise
    return value if isinstance(value, int) else None


def _enum_cap(
    kind: type[Choice], word: str | None, otherwise: Choice | None, place: SettingPath, report: ConfigReport
) -> Choice | None:
    known = [each.value for each in kind]
    if word is None:
        return otherwise
    if word in known:
        return kind(word)
    if word != UNLIMITED:
        hint = suggestion(word, (*known, UNLIMITED), otherwise=available((*known, UNLIMITED)))
        report.add_problem(place, f'"{word}" is not a valid value{hint}')
    return None


def _check(found: Caps, place: SettingPath, report: ConfigReport) -> None:
    if found.trim_prompt and found.prompt_tokens is None:
        report.add_warning((*place, "trim_prompt"), "has no effect without prompt_tokens; set prompt_tokens too")
    if found.best_of is not None and (found.n is None or found.best_of < found.n):
        report.add_warning(
            (*place, "best_of"),
            f"is less than n, so a request may get more completions than it allows; raise it, or lower n to "
            f"{found.best_of}",
        )
