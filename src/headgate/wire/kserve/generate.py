"""Converts chats and completions to requests for Triton's generate extension.

The generate extension takes one JSON object. Fields named after a model input become that tensor, and all others become
request parameters. The input names come from the model's metadata. TensorRT-LLM models have one input per setting.
Models on the vLLM backend take all settings as one text, `sampling_parameters`. Other models may have either or
neither.

Features that such a model does not support (tools, images, several choices) are rejected with an error that identifies
the field. Removing them silently would change the meaning of the request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, cast

import msgspec

from headgate.model.ticket import Api
from headgate.wire.fields import BadRequest, Fields
from headgate.wire.kserve.chat_template import CHAT_TEMPLATES, PLAIN, ChatMessage, ChatTemplate, render

CHAT_TEMPLATE_PARAMETER: Final = "headgate_chat_template"
"""Parameter in the model configuration that selects the chat template."""
CHAT_TOKENS_DEFAULT: Final = 512
COMPLETION_TOKENS_DEFAULT: Final = 16
"""Maximum output tokens for a completion that sets no limit. Needed because some models have no default."""

_TEXT: Final = "BYTES"
_SAMPLING: Final = "sampling_parameters"
_OUTPUT_FLAGS: Final = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
"""Model inputs that make the output more detailed or remove the prompt from it. Set if the model has these inputs."""
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "seed": ("random_seed", "seed"),
    "min_tokens": ("min_length", "min_tokens"),
    "stop": ("stop_words", "stop"),
}
"""Settings whose names differ from those in OpenAI's API. The last name is used for request parameters."""
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
    """Fields of a chat or completion that a text model supports."""

    messages: list[ChatMessage] = []
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
    """Model with text input and output, according to its metadata."""

    text_input: str
    text_output: str
    inputs: frozenset[str]
    chat_template: ChatTemplate


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    body: bytes
    prompt_bytes: int
    output_tokens_max: int


def read_model(metadata: bytes, config: bytes) -> TextModel | None:
    """Parses a model's metadata and configuration. Returns None if the model has no text input or no text output.

    `config` may be empty, because some servers do not publish it.
    """
    try:
        said = msgspec.json.decode(metadata, type=_Metadata)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    text_input, text_output = _text_tensor(said.inputs, "text_input"), _text_tensor(said.outputs, "text_output")
    if text_input is None or text_output is None:
        return None
    form = CHAT_TEMPLATES.get(_template_name(config), CHAT_TEMPLATES[PLAIN])
    return TextModel(text_input, text_output, frozenset(each.name for each in said.inputs), form)


def _text_tensor(tensors: list[_Tensor], usual: str) -> str | None:
    texts = [each.name for each in tensors if each.datatype == _TEXT]
    return usual if usual in texts else next(iter(texts), None)


def _template_name(config: bytes) -> str:
    try:
        parameters = msgspec.json.decode(config, type=_Config).parameters
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return PLAIN
    named = parameters.get(CHAT_TEMPLATE_PARAMETER)
    return PLAIN if named is None else named.string_value


def build_request(raw: bytes, api: Api, model: TextModel) -> GenerateRequest:
    """Converts an OpenAI body to a request for the generate extension. Raises `BadRequest`."""
    fields = msgspec.json.decode(raw, type=Fields)
    _reject_unsupported(fields)
    request = _read(raw)
    text = render(request.messages, model.chat_template) if api is Api.CHAT else _one_prompt(request.prompt)
    most = request.max_completion_tokens or request.max_tokens
    if most is None:
        most = CHAT_TOKENS_DEFAULT if api is Api.CHAT else COMPLETION_TOKENS_DEFAULT
    settings = _settings(request, most)
    sent: dict[str, object] = {model.text_input: text, "stream": True}
    if _SAMPLING in model.inputs:
        sent[_SAMPLING] = msgspec.json.encode(settings).decode()
    else:
        sent |= _by_model_names(settings, model)
    for name in _OUTPUT_FLAGS:
        if name in model.inputs:
            sent[name] = True
    for name, value in fields.items():
        # Inputs specific to this model, such as the beam width.
        if name in model.inputs and name not in sent:
            sent[name] = value
    return GenerateRequest(msgspec.json.encode(sent), len(text.encode("utf-8", "replace")), most)


def _read(raw: bytes) -> _Request:
    try:
        request = msgspec.json.decode(raw, type=_Request)
    except msgspec.ValidationError as error:
        wrong = "a field has the wrong type"
        raise BadRequest(f"{wrong}: {error}", log_message=wrong) from None
    for name, count in ("n", request.n), ("best_of", request.best_of):
        if count is not None and count > 1:
            raise BadRequest(f'this model returns one choice; remove "{name}"', name)
    if request.response_format is not None and request.response_format.type != "text":
        raise _unsupported("response_format")
    return request


def _reject_unsupported(fields: Fields) -> None:
    for name in _UNSUPPORTED:
        if name in fields and bytes(fields[name]) not in _NOTHING:
            raise _unsupported(name)


def _unsupported(name: str) -> BadRequest:
    return BadRequest(f'this text-only model does not support "{name}"; remove it', name)


def _one_prompt(prompt: str | list[str]) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) != 1:
        raise BadRequest("this model accepts one prompt per request; send each prompt in a separate request", "prompt")
    return prompt[0]


def _settings(request: _Request, output_tokens_max: int) -> dict[str, object]:
    """Returns the request's settings, by their OpenAI names."""
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


def _by_model_names(settings: dict[str, object], model: TextModel) -> dict[str, object]:
    """Returns the settings by the model's input names. Settings that have no input become request parameters."""
    named: dict[str, object] = {}
    for name, value in settings.items():
        names = _NAMES.get(name, (name,))
        known = next((each for each in names if each in model.inputs), None)
        named[known or names[-1]] = value if known is not None else _as_parameter(name, value)
    return named


def _as_parameter(name: str, value: object) -> object:
    """Returns the value as a request parameter, which must be a single number, text or boolean."""
    if not isinstance(value, list):
        return value
    texts = cast("list[str]", value)
    if len(texts) != 1:
        raise BadRequest(f'this model accepts one value for "{name}"; send only one', name)
    return texts[0]
