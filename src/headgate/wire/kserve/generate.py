"""How is a chat or a completion put to a model that only takes text?

Triton's generate extension takes one JSON object: what bears the name of one of the model's inputs becomes that tensor,
everything else a parameter of the request. So which names to use is read off the model's own metadata. TensorRT-LLM's
models have an input for each setting; those of vLLM's backend take all of them as one text, `sampling_parameters`;
other models may have either, or neither.

What such a model cannot do (tools, images, several answers) is refused, with the name of the field. Leaving it out
silently would answer another question than the one that was asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, cast

import msgspec

from headgate.model.ticket import Api
from headgate.wire.fields import BadRequest, Fields
from headgate.wire.kserve.chat import FORMS, PLAIN, ChatForm, Turn, render

CHAT_FORM_PARAMETER: Final = "headgate_chat_form"
"""The parameter of a model's configuration that names the form of its conversations."""
CHAT_TOKENS_DEFAULT: Final = 512
COMPLETION_TOKENS_DEFAULT: Final = 16
"""How long an answer may be where the caller sets no limit. Some models have no limit of their own."""

_TEXT: Final = "BYTES"
_SAMPLING: Final = "sampling_parameters"
_SWITCHES: Final = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
"""Inputs that have a model say more of its answer, or only the answer; set where the model has them."""
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "seed": ("random_seed", "seed"),
    "min_tokens": ("min_length", "min_tokens"),
    "stop": ("stop_words", "stop"),
}
"""Settings that models call otherwise than OpenAI does; the last is what parameters are called."""
_UNSUPPORTED: Final = (
    *("tools", "functions", "audio", "logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
)
_NOTHING: Final = (b"null", b"false", b"[]", b"{}", b"0", b'""')

_Number = float | None
_Count = Annotated[int, msgspec.Meta(ge=0)] | None


class _Format(msgspec.Struct):
    type: str = "text"


class _Request(msgspec.Struct):
    """What a text model can follow of a chat or a completion."""

    messages: list[Turn] = []
    prompt: str | list[str] = ""
    max_tokens: _Count = None
    max_completion_tokens: _Count = None
    min_tokens: _Count = None
    temperature: _Number = None
    top_p: _Number = None
    top_k: int | None = None
    presence_penalty: _Number = None
    frequency_penalty: _Number = None
    repetition_penalty: _Number = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    best_of: int | None = None
    response_format: _Format | None = None


class _Tensor(msgspec.Struct):
    name: str
    datatype: str = ""


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor] = []
    outputs: list[_Tensor] = []


class _Parameter(msgspec.Struct):
    string_value: str = ""


class _Config(msgspec.Struct):
    parameters: dict[str, _Parameter] = {}


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model that takes text and gives text, as it describes itself."""

    text_input: str
    text_output: str
    inputs: frozenset[str]
    form: ChatForm


@dataclass(frozen=True, slots=True)
class Question:
    body: bytes
    prompt_bytes: int
    output_tokens_max: int


def read_model(metadata: bytes, config: bytes) -> TextModel | None:
    """What the two pages about a model say; None where it neither takes nor gives text.

    The second page may be missing: some servers keep it to themselves.
    """
    try:
        said = msgspec.json.decode(metadata, type=_Metadata)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    text_input, text_output = _text_tensor(said.inputs, "text_input"), _text_tensor(said.outputs, "text_output")
    if text_input is None or text_output is None:
        return None
    form = FORMS.get(_form_named(config), FORMS[PLAIN])
    return TextModel(text_input, text_output, frozenset(each.name for each in said.inputs), form)


def _text_tensor(tensors: list[_Tensor], usual: str) -> str | None:
    texts = [each.name for each in tensors if each.datatype == _TEXT]
    return usual if usual in texts else next(iter(texts), None)


def _form_named(config: bytes) -> str:
    try:
        parameters = msgspec.json.decode(config, type=_Config).parameters
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return PLAIN
    named = parameters.get(CHAT_FORM_PARAMETER)
    return PLAIN if named is None else named.string_value


def ask(raw: bytes, api: Api, model: TextModel) -> Question:
    """What Triton's generate extension is sent for an OpenAI body. Raises `BadRequest`."""
    fields = msgspec.json.decode(raw, type=Fields)
    _refuse_unsupported(fields)
    request = _read(raw)
    text = render(request.messages, model.form) if api is Api.CHAT else _one_prompt(request.prompt)
    most = request.max_completion_tokens or request.max_tokens
    if most is None:
        most = CHAT_TOKENS_DEFAULT if api is Api.CHAT else COMPLETION_TOKENS_DEFAULT
    settings = _settings(request, most)
    sent: dict[str, object] = {model.text_input: text, "stream": True}
    if _SAMPLING in model.inputs:
        sent[_SAMPLING] = msgspec.json.encode(settings).decode()
    else:
        sent |= _named(settings, model)
    for name in _SWITCHES:
        if name in model.inputs:
            sent[name] = True
    for name, value in fields.items():
        # What only this model knows, such as a width of beams.
        if name in model.inputs and name not in sent:
            sent[name] = value
    return Question(msgspec.json.encode(sent), len(text.encode("utf-8", "replace")), most)


def _read(raw: bytes) -> _Request:
    try:
        request = msgspec.json.decode(raw, type=_Request)
    except msgspec.ValidationError as error:
        wrong = "a field has a value of another type"
        raise BadRequest(f"{wrong}: {error}", kept=wrong) from None
    for name, count in ("n", request.n), ("best_of", request.best_of):
        if count is not None and count > 1:
            raise BadRequest(f'this model gives one answer; leave "{name}" out', name)
    if request.response_format is not None and request.response_format.type != "text":
        raise _unsupported("response_format")
    return request


def _refuse_unsupported(fields: Fields) -> None:
    for name in _UNSUPPORTED:
        if name in fields and bytes(fields[name]) not in _NOTHING:
            raise _unsupported(name)


def _unsupported(name: str) -> BadRequest:
    return BadRequest(f'this model takes text and gives text; it has nothing for "{name}", so leave it out', name)


def _one_prompt(prompt: str | list[str]) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) != 1:
        raise BadRequest(
            'this model takes one prompt at a time; send each in "prompt" of a request of its own', "prompt"
        )
    return prompt[0]


def _settings(request: _Request, output_tokens_max: int) -> dict[str, object]:
    """What was asked for, by OpenAI's names."""
    given: dict[str, object | None] = {
        "max_tokens": output_tokens_max,
        "min_tokens": request.min_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "repetition_penalty": request.repetition_penalty,
        "seed": request.seed,
        "stop": [request.stop] if isinstance(request.stop, str) else request.stop,
        "ignore_eos": request.ignore_eos,
    }
    return {name: value for name, value in given.items() if value is not None}


def _named(settings: dict[str, object], model: TextModel) -> dict[str, object]:
    """The same by the model's own names; what is none of its inputs goes along as a parameter."""
    named: dict[str, object] = {}
    for name, value in settings.items():
        names = _NAMES.get(name, (name,))
        known = next((each for each in names if each in model.inputs), None)
        named[known or names[-1]] = value if known is not None else _as_parameter(name, value)
    return named


def _as_parameter(name: str, value: object) -> object:
    """A parameter is one number, text or flag."""
    if not isinstance(value, list):
        return value
    texts = cast("list[str]", value)
    if len(texts) != 1:
        raise BadRequest(f'this model takes one text for "{name}"; send one', name)
    return texts[0]
