"""Converts event streams from Triton's generate extension to OpenAI responses.

Triton sends one event per model response, and none at the end. Each event becomes a chunk. The end becomes the three
chunks that OpenAI clients expect: the finish reason, the usage and `[DONE]`.

Few models report how many tokens they processed. For other models, each event counts as one token, the prompt tokens
are estimated from the prompt length, and the usage is marked as estimated.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.model.usage import TOKENS_MAX, UsageSource
from headgate.wire.event_splitter import EventSplitter
from headgate.wire.openai_bodies import error_body, whole_error
from headgate.wire.sse import error_event

_ENCODER: Final = msgspec.json.Encoder()
_EVENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str | list[str])
_NUMBER: Final = msgspec.json.Decoder(int | list[int])
_NULL: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class TranslationContext:
    """Request data needed for the conversion."""

    api: Api
    answer_id: str
    created: int
    model: str
    text_output: str
    prompt_bytes: int
    output_tokens_max: int


class GeneratedText:
    """Parses one event stream and collects its text, usage and finish reason."""

    __slots__ = (
        "_bytes_left",
        "_cutter",
        "_finish",
        "_prompt_tokens",
        "_reported_tokens",
        "_setting",
        "error",
        "events",
        "has_answer",
        "texts",
    )

    def __init__(self, setting: TranslationContext, *, bytes_max: int | None = None) -> None:
        """`bytes_max` limits the total size of events with text, for callers that keep all of the events."""
        self._setting = setting
        self._cutter = EventSplitter()
        self._bytes_left = bytes_max
        self.has_answer = False
        """Whether any event contained the text output, even an empty one."""
        self.events = 0
        """Number of events with text."""
        self.texts: list[str] = []
        """Texts received since the list was last emptied."""
        self.error: str | None = None
        """Error reported by the engine or found in its stream. Later events are ignored. None if there was no error."""
        self._prompt_tokens: int | None = None
        self._reported_tokens: int | None = None
        self._finish = ""

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete event."""
        return self._cutter.held_bytes

    def feed(self, data: bytes) -> None:
        if self.error is not None:
            return
        for payload in self._cutter.split(data):
            self._add_event(payload)
            if self.error is not None:
                return
        if self._cutter.overlong:
            self.error = "the engine sent an event that is too long"

    def _add_event(self, payload: bytes) -> None:
        try:
            event = _EVENT.decode(payload)
            if bytes(event.get("error", _NULL)) != b"null":
                self.error = whole_error(payload) or "the engine sent no error message"
                return
            text = _joined(event.get(self._setting.text_output, _NULL))
            self._add_counts(event)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self.error = "the engine sent an invalid event"
            return
        self.has_answer = self.has_answer or self._setting.text_output in event
        if text:
            self.events += 1
            self._keep(text, len(payload))

    def _keep(self, text: str, payload_bytes: int) -> None:
        if self._bytes_left is not None:
            self._bytes_left -= payload_bytes
            if self._bytes_left < 0:
                self.error = "the engine's response is too long to assemble"
                self.texts.clear()
                return
        self.texts.append(text)

    def _add_counts(self, event: dict[str, msgspec.Raw]) -> None:
        if (read := _number(event.get("num_input_tokens", _NULL))) is not None:
            self._prompt_tokens = read
        if (written := _number(event.get("num_output_tokens", _NULL))) is not None:
            # Each event reports only its own tokens.
            self._reported_tokens = min((self._reported_tokens or 0) + written, TOKENS_MAX)
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
        return self.events if self._reported_tokens is None else self._reported_tokens

    def usage(self) -> dict[str, object]:
        told = self._prompt_tokens is not None and self._reported_tokens is not None
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
    """Converts one event stream to OpenAI chunks."""

    __slots__ = ("_begun", "_generated", "_setting", "closed")

    def __init__(self, setting: TranslationContext) -> None:
        self._setting = setting
        self._generated = GeneratedText(setting)
        self._begun = False
        self.closed = False

    def feed(self, data: bytes) -> bytes:
        """Adds received bytes. Returns the chunks to forward."""
        if self.closed:
            return b""
        self._generated.feed(data)
        texts, self._generated.texts = self._generated.texts, []
        return b"".join([self._chunk(text, None) for text in texts]) + self._failure()

    def finish(self) -> bytes:
        """Returns the final chunks at the end of the stream, or empty bytes if there was no output."""
        if self.closed or not self._generated.has_answer:
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


def whole_body(generated: GeneratedText, setting: TranslationContext) -> bytes:
    """Returns the non-streaming response for a stream that ended without an error."""
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
    """Returns the text of a tensor, which is a string if it has one element and an array if it has several."""
    if bytes(value) == b"null":
        return ""
    text = _TEXT.decode(value)
    return text if isinstance(text, str) else "".join(text)


def _number(value: msgspec.Raw) -> int | None:
    """Returns a token count, or None if it is missing or impossible."""
    if bytes(value) == b"null":
        return None
    number = _NUMBER.decode(value)
    count = number if isinstance(number, int) else sum(number)
    return count if 0 <= count <= TOKENS_MAX else None
