"""How does a stream of generated text read as an OpenAI answer?

Triton sends an event for each response of the model, and ends the stream where the model has said its last: there is no
event that says so. Here each becomes a chunk, and the end the three that OpenAI's clients wait for: why it ended, how
much was used, `[DONE]`.

Few models say how many tokens they read and wrote. Where one does not, each event is taken for one token and the prompt
is measured by its length, and the usage says of itself that it is estimated.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.model.usage import TOKENS_MAX, UsageSource
from headgate.wire.replies import error_body, read_error
from headgate.wire.sse import EventCutter, error_event

_ENCODER: Final = msgspec.json.Encoder()
_EVENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str | list[str])
_NUMBER: Final = msgspec.json.Decoder(int | list[int])
_NULL: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a translation needs to know of its request."""

    api: Api
    answer_id: str
    created: int
    model: str
    text_output: str
    prompt_bytes: int
    output_tokens_max: int


class Generated:
    """Follows one stream of events and holds what is known of it."""

    __slots__ = (
        "_bytes_left",
        "_cutter",
        "_finish",
        "_prompt_tokens",
        "_setting",
        "_told_tokens",
        "answered",
        "error",
        "events",
        "texts",
    )

    def __init__(self, setting: Setting, *, bytes_max: int | None = None) -> None:
        """`bytes_max` bounds the total size of events with text, for callers that keep all of them."""
        self._setting = setting
        self._cutter = EventCutter()
        self._bytes_left = bytes_max
        self.answered = False
        """Whether any was an answer, be it an empty one: a model may have nothing to say."""
        self.events = 0
        """How many have brought text."""
        self.texts: list[str] = []
        """What has come since somebody last took it."""
        self.error: str | None = None
        """What the engine says has gone wrong, or what is wrong with its stream. Nothing after it counts."""
        self._prompt_tokens: int | None = None
        self._told_tokens: int | None = None
        self._finish = ""

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete event."""
        return self._cutter.held_bytes

    def feed(self, data: bytes) -> None:
        if self.error is not None:
            return
        for payload in self._cutter.cut(data):
            self._take(payload)
            if self.error is not None:
                return
        if self._cutter.overlong:
            self.error = "the engine sent an event without end"

    def _take(self, payload: bytes) -> None:
        try:
            event = _EVENT.decode(payload)
            if bytes(event.get("error", _NULL)) != b"null":
                self.error = read_error(payload) or "the engine gave no message"
                return
            text = _joined(event.get(self._setting.text_output, _NULL))
            self._take_figures(event)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self.error = "the engine sent an event that is no part of an answer"
            return
        self.answered = self.answered or self._setting.text_output in event
        if text:
            self.events += 1
            self._keep(text, len(payload))

    def _keep(self, text: str, payload_bytes: int) -> None:
        if self._bytes_left is not None:
            self._bytes_left -= payload_bytes
            if self._bytes_left < 0:
                self.error = "the engine sent an answer that is too long to assemble"
                self.texts.clear()
                return
        self.texts.append(text)

    def _take_figures(self, event: dict[str, msgspec.Raw]) -> None:
        if (read := _number(event.get("num_input_tokens", _NULL))) is not None:
            self._prompt_tokens = read
        if (written := _number(event.get("num_output_tokens", _NULL))) is not None:
            # Each event counts what came with it.
            self._told_tokens = min((self._told_tokens or 0) + written, TOKENS_MAX)
        reason = _joined(event.get("finish_reason", _NULL))
        if reason not in ("", "None"):
            self._finish = reason

    @property
    def finish_reason(self) -> str:
        if self._finish:
            return self._finish
        return "length" if self._output_tokens >= self._setting.output_tokens_max else "stop"

    @property
    def _output_tokens(self) -> int:
        return self.events if self._told_tokens is None else self._told_tokens

    def usage(self) -> dict[str, object]:
        told = self._prompt_tokens is not None and self._told_tokens is not None
        prompt = self._prompt_tokens
        if prompt is None:
            prompt = max(1, self._setting.prompt_bytes // BYTES_PER_TOKEN)
        output = self._output_tokens
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }
        return usage if told else usage | {"usage_source": UsageSource.ESTIMATED}


class ChunkTranslator:
    """The same stream, as chunks."""

    __slots__ = ("_begun", "_generated", "_setting", "closed")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._generated = Generated(setting)
        self._begun = False
        self.closed = False

    def feed(self, data: bytes) -> bytes:
        """What of these and earlier bytes can be passed on."""
        if self.closed:
            return b""
        self._generated.feed(data)
        texts, self._generated.texts = self._generated.texts, []
        return b"".join([self._chunk(text, None) for text in texts]) + self._failure()

    def conclude(self) -> bytes:
        """The engine has said its last. Nothing where no event was an answer."""
        if self.closed or not self._generated.answered:
            return b""
        self.closed = True
        usage: dict[str, object] = {"choices": list[object](), "usage": self._generated.usage()}
        return self._chunk("", self._generated.finish_reason) + _event(self._head() | usage) + b"data: [DONE]\n\n"

    def _failure(self) -> bytes:
        if self._generated.error is None:
            return b""
        self.closed = True
        return error_event(error_body(message=self._generated.error, type="server_error", code="engine_error"))

    def _head(self) -> dict[str, object]:
        setting = self._setting
        kind = "chat.completion.chunk" if setting.api is Api.CHAT else "text_completion"
        return {"id": setting.answer_id, "object": kind, "created": setting.created, "model": setting.model}

    def _chunk(self, text: str, finish_reason: str | None) -> bytes:
        choice: dict[str, object] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self._setting.api is Api.CHAT:
            delta: dict[str, object] = {} if self._begun else {"role": "assistant"}
            choice["delta"] = delta | ({"content": text} if text else {})
        else:
            choice["text"] = text
        self._begun = True
        return _event(self._head() | {"choices": [choice]})


def whole_body(generated: Generated, setting: Setting) -> bytes:
    """The answer that a stream adds up to, once it has ended well."""
    text = "".join(generated.texts)
    choice: dict[str, object] = {"index": 0, "finish_reason": generated.finish_reason, "logprobs": None}
    if setting.api is Api.CHAT:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    kind = "chat.completion" if setting.api is Api.CHAT else "text_completion"
    head = {"id": setting.answer_id, "object": kind, "created": setting.created, "model": setting.model}
    return _ENCODER.encode(head | {"choices": [choice], "usage": generated.usage()})


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + _ENCODER.encode(value) + b"\n\n"


def _joined(value: msgspec.Raw) -> str:
    """A tensor of one text is that text; of several, an array."""
    if bytes(value) == b"null":
        return ""
    text = _TEXT.decode(value)
    return text if isinstance(text, str) else "".join(text)


def _number(value: msgspec.Raw) -> int | None:
    """A count of tokens; None where there is none, or it is one that cannot be."""
    if bytes(value) == b"null":
        return None
    number = _NUMBER.decode(value)
    count = number if isinstance(number, int) else sum(number)
    return count if 0 <= count <= TOKENS_MAX else None
