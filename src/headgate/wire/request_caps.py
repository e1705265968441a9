"""Applies a class's caps to the fields of a request.

A cap can apply to several fields, because engines have more than one name for some of them. A value above the cap is
lowered to the cap and reported as `name=value`, with the cap's name. All other fields are kept as received.
"""

from itertools import chain
from typing import Final

import msgspec

from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Api
from headgate.wire.fields import BOOL, FIELDS, INTEGER, STRING, Fields, read_field
from headgate.wire.image_detail import lower_detail

_ENCODER: Final = msgspec.json.Encoder()
_EFFORTS: Final = tuple(ReasoningEffort)

# The first name is added if the client sends none of them. llama.cpp also has `n_predict`, `n_cmpl` and `n_probs`,
# which take precedence over OpenAI's names.
_OUTPUT: Final = {
    Api.CHAT: ("max_tokens", "max_completion_tokens", "n_predict"),
    Api.COMPLETIONS: ("max_tokens", "max_completion_tokens", "n_predict"),
    Api.RESPONSES: ("max_output_tokens", "n_predict"),
    Api.MESSAGES: ("max_tokens", "n_predict"),
}
_UNIVERSAL_NAMES: Final = {Api.CHAT: 2, Api.COMPLETIONS: 1, Api.RESPONSES: 1, Api.MESSAGES: 1}
"""Number of names at the start of `_OUTPUT` that every engine supports. The other names limit only some engines."""
_CHOICES: Final = ("n", "n_cmpl")
_GENERATED_CHOICES: Final = (*_CHOICES, "best_of")
_LOGPROBS: Final = {
    Api.CHAT: ("top_logprobs", "n_probs"),
    Api.COMPLETIONS: ("logprobs", "n_probs"),
    Api.RESPONSES: ("top_logprobs", "n_probs"),
    Api.MESSAGES: ("n_probs",),
}
_PROMPT_LOGPROBS: Final = "prompt_logprobs"
_EFFORT: Final = "reasoning_effort"
_REASONING: Final = "reasoning"
_OUTPUT_CONFIG: Final = "output_config"
_EFFORT_OBJECTS: Final = {Api.RESPONSES: _REASONING, Api.MESSAGES: _OUTPUT_CONFIG}
"""Field with the reasoning effort in its `effort`, for APIs that have such a field."""
_MESSAGES_EFFORT_MIN: Final = ReasoningEffort.LOW
"""Lowest effort of the Messages API."""
_THINKING: Final = "thinking"
_THINKING_TOKENS_MIN: Final = 1024
"""Lowest `budget_tokens` of the Messages API. Engines reject a budget that is not below `max_tokens`."""
_ANY_CAPPED: Final = frozenset(
    (
        *_GENERATED_CHOICES,
        *chain.from_iterable(_LOGPROBS.values()),
        _PROMPT_LOGPROBS,
        _EFFORT,
        *_EFFORT_OBJECTS.values(),
    )
)
"""Fields that caps other than those on output tokens and images apply to."""


def apply_caps(fields: Fields, api: Api, caps: Caps) -> tuple[Fields, list[str]]:
    """Applies the caps. Returns the fields, which are the same object if nothing changed, and the degradations."""
    if api in APIS_WITHOUT_OUTPUT:
        return fields, []
    if caps.output_tokens is None and caps.image_detail is None and _ANY_CAPPED.isdisjoint(fields):
        return fields, []
    shaping = _CappedFields(fields)
    if caps.output_tokens is not None:
        _cap_output(shaping, api, caps.output_tokens)
    _cap_choices(shaping, caps)
    if caps.logprobs is not None:
        shaping.lower("logprobs", _LOGPROBS[api], caps.logprobs)
    if caps.prompt_logprobs is not None and api is not Api.RESPONSES:
        _cap_prompt_logprobs(shaping, api, caps.prompt_logprobs)
    if caps.reasoning_effort is not None:
        _cap_effort(shaping, api, caps.reasoning_effort)
    if caps.image_detail is not None:
        _cap_images(shaping, caps.image_detail)
    return shaping.fields, shaping.changes


def requested_output_tokens(fields: Fields, api: Api) -> int | None:
    """Returns the requested maximum number of output tokens per choice, or None if the request sets no limit."""
    most: int | None = None
    for name in _OUTPUT.get(api, ()):
        if name in fields and (asked := read_field(fields, name, INTEGER, "an integer")) is not None:
            if asked < 0:
                return None
            most = max(asked, most or 0)
    return most


def requested_choices(fields: Fields, api: Api) -> int:
    """Returns the number of choices that an engine would generate, including those it does not return."""
    most = 1
    for name in () if api in APIS_WITHOUT_OUTPUT else _GENERATED_CHOICES:
        if name in fields:
            most = max(most, read_field(fields, name, INTEGER, "an integer") or 1)
    return most


class _CappedFields:
    """Fields of a body while caps are being applied. They are copied on the first change."""

    __slots__ = ("_copied", "changes", "fields")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.changes: list[str] = []
        self._copied = False

    def integer(self, name: str) -> int | None:
        return read_field(self.fields, name, INTEGER, "an integer") if name in self.fields else None

    def put(self, name: str, value: object) -> None:
        self._copy()
        self.fields[name] = msgspec.Raw(_ENCODER.encode(value))

    def remove(self, name: str) -> None:
        self._copy()
        del self.fields[name]

    def record_change(self, name: str, value: object) -> None:
        self.changes.append(f"{name}={value}")

    def lower(self, cap: str, names: tuple[str, ...], most: int) -> None:
        """Lowers each of these fields that exceeds `most`. Negative numbers mean no limit, so they are lowered too."""
        beyond = False
        for name in names:
            if name in self.fields and (asked := self.integer(name)) is not None and not 0 <= asked <= most:
                beyond = True
                self.put(name, most)
        if beyond:
            self.record_change(cap, most)

    def _copy(self) -> None:
        if not self._copied:
            self.fields = dict(self.fields)
            self._copied = True


def _cap_output(shaping: _CappedFields, api: Api, most: int) -> None:
    names = _OUTPUT[api]
    if all(shaping.integer(name) is None for name in names[: _UNIVERSAL_NAMES[api]]):
        # Set above the cap, so that `lower` lowers and reports it.
        shaping.put(names[0], most + 1)
    shaping.lower("output_tokens", names, most)
    if (least := shaping.integer("min_tokens")) is not None and least > most:
        # Engines reject requests whose minimum is above the maximum.
        shaping.put("min_tokens", most)
    if api is Api.MESSAGES and _THINKING in shaping.fields:
        _cap_thinking(shaping, most)


def _cap_thinking(shaping: _CappedFields, most: int) -> None:
    inner = read_field(shaping.fields, _THINKING, FIELDS, "an object")
    budget = None if inner is None else read_field(inner, "budget_tokens", INTEGER, "an integer", inside=_THINKING)
    if inner is None or budget is None or budget < most:
        return
    if most > _THINKING_TOKENS_MIN:
        shaping.put(_THINKING, inner | {"budget_tokens": msgspec.Raw(_ENCODER.encode(most - 1))})
    else:
        shaping.put(_THINKING, {"type": "disabled"})


def _cap_choices(shaping: _CappedFields, caps: Caps) -> None:
    n = caps.n
    if caps.best_of is not None and (made := shaping.integer("best_of")) is not None and made > caps.best_of:
        # An engine cannot return more choices than it generates.
        n = caps.best_of if n is None else min(n, caps.best_of)
    if n is not None:
        shaping.lower("n", _CHOICES, n)
    if caps.best_of is not None:
        shaping.lower("best_of", ("best_of",), caps.best_of)


def _cap_prompt_logprobs(shaping: _CappedFields, api: Api, most: int) -> None:
    names = [_PROMPT_LOGPROBS]
    if api is Api.COMPLETIONS and read_field(shaping.fields, "echo", BOOL, "true or false"):
        # An echoed prompt includes as many log probabilities as `logprobs` requests. This also holds if
        # `prompt_logprobs` is set, because an engine falls back to `logprobs` when that field is removed.
        names.append("logprobs")
    asked = [name for name in names if shaping.integer(name) is not None]
    if most > 0:
        shaping.lower("prompt_logprobs", tuple(asked), most)
    elif asked:
        # Even a value of 0 makes engines compute the log probabilities of all prompt tokens.
        for name in asked:
            shaping.remove(name)
        shaping.record_change("prompt_logprobs", 0)


def _cap_effort(shaping: _CappedFields, api: Api, most: ReasoningEffort) -> None:
    if (name := _EFFORT_OBJECTS.get(api)) is not None:
        if api is Api.MESSAGES and _EFFORTS.index(most) < _EFFORTS.index(_MESSAGES_EFFORT_MIN):
            most = _MESSAGES_EFFORT_MIN
        inner = read_field(shaping.fields, name, FIELDS, "an object")
        asked = None if inner is None else read_field(inner, "effort", STRING, "a string", inside=name)
        if inner is not None and asked is not None and _exceeds(asked, most):
            shaping.put(name, inner | {"effort": msgspec.Raw(_ENCODER.encode(most))})
            shaping.record_change("reasoning_effort", most)
        return
    asked = read_field(shaping.fields, _EFFORT, STRING, "a string")
    if asked is not None and _exceeds(asked, most):
        shaping.put(_EFFORT, most)
        shaping.record_change("reasoning_effort", most)


def _cap_images(shaping: _CappedFields, most: ImageDetail) -> None:
    for name in ("messages", "input"):
        if name in shaping.fields and (changed := lower_detail(bytes(shaping.fields[name]), most)) is not None:
            shaping.put(name, msgspec.Raw(changed))
            shaping.record_change("image_detail", most)


def _exceeds(asked: str, most: ReasoningEffort) -> bool:
    """Returns whether the effort exceeds `most`. Unknown efforts always do."""
    return asked not in _EFFORTS[: _EFFORTS.index(most) + 1]
