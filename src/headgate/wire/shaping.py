"""What is left of a request where its class allows less than it asks?

Each cap looks at the fields that ask for what it limits; engines have more than one name for some. A value beyond the
cap is lowered to it and told as `name=value`, by the name of the cap. All other fields stay the bytes they came as.
"""

from typing import Final

import msgspec

from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.ticket import WITHOUT_OUTPUT, Api
from headgate.wire.fields import BOOL, FIELDS, INTEGER, STRING, Fields, read
from headgate.wire.images import lowered

_ENCODER: Final = msgspec.json.Encoder()
_EFFORTS: Final = tuple(ReasoningEffort)

# The first is the one that is added where the caller names none. llama.cpp has `n_predict`, `n_cmpl` and `n_probs`
# beside the names of OpenAI, and prefers them.
_OUTPUT: Final = {
    Api.CHAT: ("max_tokens", "max_completion_tokens", "n_predict"),
    Api.COMPLETIONS: ("max_tokens", "max_completion_tokens", "n_predict"),
    Api.RESPONSES: ("max_output_tokens", "n_predict"),
}
_KNOWN_EVERYWHERE: Final = {Api.CHAT: 2, Api.COMPLETIONS: 1, Api.RESPONSES: 1}
"""How many of these names bind every engine. One that does not know the others would not be bound at all."""
_CHOICES: Final = ("n", "n_cmpl")
_MADE: Final = (*_CHOICES, "best_of")
_LOGPROBS: Final = {
    Api.CHAT: ("top_logprobs", "n_probs"),
    Api.COMPLETIONS: ("logprobs", "n_probs"),
    Api.RESPONSES: ("top_logprobs", "n_probs"),
}


def shape(fields: Fields, api: Api, caps: Caps) -> tuple[Fields, list[str]]:
    """The fields as the class allows them, and what was lowered; the same fields where nothing was."""
    if api in WITHOUT_OUTPUT:
        return fields, []
    shaping = _Shaping(fields)
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
    return shaping.fields, shaping.told


def asked_output(fields: Fields, api: Api) -> int | None:
    """The longest answer that these fields ask for; None where they set no limit."""
    most: int | None = None
    for name in _OUTPUT.get(api, ()):
        if name in fields and (asked := read(fields, name, INTEGER, "an integer")) is not None:
            if asked < 0:
                return None
            most = max(asked, most or 0)
    return most


def asked_choices(fields: Fields, api: Api) -> int:
    """How many answers an engine would make for these fields, be they given out or not."""
    most = 1
    for name in () if api in WITHOUT_OUTPUT else _MADE:
        if name in fields:
            most = max(most, read(fields, name, INTEGER, "an integer") or 1)
    return most


class _Shaping:
    """The fields of one body while they are lowered; copied when the first is."""

    __slots__ = ("_own", "fields", "told")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.told: list[str] = []
        self._own = False

    def integer(self, name: str) -> int | None:
        return read(self.fields, name, INTEGER, "an integer") if name in self.fields else None

    def put(self, name: str, value: object) -> None:
        self._make_own()
        self.fields[name] = msgspec.Raw(_ENCODER.encode(value))

    def remove(self, name: str) -> None:
        self._make_own()
        del self.fields[name]

    def tell(self, name: str, value: object) -> None:
        self.told.append(f"{name}={value}")

    def lower(self, cap: str, names: tuple[str, ...], most: int) -> None:
        """Lowers each of these fields that is beyond; a negative number is how engines spell `without limit`."""
        beyond = False
        for name in names:
            if name in self.fields and (asked := self.integer(name)) is not None and not 0 <= asked <= most:
                beyond = True
                self.put(name, most)
        if beyond:
            self.tell(cap, most)

    def _make_own(self) -> None:
        if not self._own:
            self.fields = dict(self.fields)
            self._own = True


def _cap_output(shaping: _Shaping, api: Api, most: int) -> None:
    names = _OUTPUT[api]
    if all(shaping.integer(name) is None for name in names[: _KNOWN_EVERYWHERE[api]]):
        # Put there so that it is lowered, and told, with the others.
        shaping.put(names[0], most + 1)
    shaping.lower("output_tokens", names, most)
    if (least := shaping.integer("min_tokens")) is not None and least > most:
        # Engines refuse a least that is above the most.
        shaping.put("min_tokens", most)


def _cap_choices(shaping: _Shaping, caps: Caps) -> None:
    n = caps.n
    if caps.best_of is not None and (made := shaping.integer("best_of")) is not None and made > caps.best_of:
        # No more can be given than are made.
        n = caps.best_of if n is None else min(n, caps.best_of)
    if n is not None:
        shaping.lower("n", _CHOICES, n)
    if caps.best_of is not None:
        shaping.lower("best_of", ("best_of",), caps.best_of)


def _cap_prompt_logprobs(shaping: _Shaping, api: Api, most: int) -> None:
    names = ["prompt_logprobs"]
    if api is Api.COMPLETIONS and read(shaping.fields, "echo", BOOL, "true or false"):
        # A prompt that is echoed brings its log probabilities along, as many as are asked for the output; also where
        # those of the prompt were asked for by name, since an engine falls back to these once that name is gone.
        names.append("logprobs")
    asked = [name for name in names if shaping.integer(name) is not None]
    if most > 0:
        shaping.lower("prompt_logprobs", tuple(asked), most)
    elif asked:
        # Even to ask for none beside the token's own makes engines compute them all.
        for name in asked:
            shaping.remove(name)
        shaping.tell("prompt_logprobs", 0)


def _cap_effort(shaping: _Shaping, api: Api, most: ReasoningEffort) -> None:
    if api is Api.RESPONSES:
        inner = read(shaping.fields, "reasoning", FIELDS, "an object")
        asked = None if inner is None else read(inner, "effort", STRING, "a string", inside="reasoning")
        if inner is not None and asked is not None and _is_beyond(asked, most):
            shaping.put("reasoning", inner | {"effort": msgspec.Raw(_ENCODER.encode(most))})
            shaping.tell("reasoning_effort", most)
        return
    asked = read(shaping.fields, "reasoning_effort", STRING, "a string")
    if asked is not None and _is_beyond(asked, most):
        shaping.put("reasoning_effort", most)
        shaping.tell("reasoning_effort", most)


def _cap_images(shaping: _Shaping, most: ImageDetail) -> None:
    for name in ("messages", "input"):
        if name in shaping.fields and (changed := lowered(bytes(shaping.fields[name]), most)) is not None:
            shaping.put(name, msgspec.Raw(changed))
            shaping.tell("image_detail", most)


def _is_beyond(asked: str, most: ReasoningEffort) -> bool:
    """What only some engine knows may be any effort, so it is beyond every cap."""
    return asked not in _EFFORTS[: _EFFORTS.index(most) + 1]
