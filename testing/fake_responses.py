"""The fake engine's responses in the OpenAI formats, as scripted by a test."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from testing.fake_http import Connection, Received

_OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


WITHOUT_OUTPUT: dict[str, dict[str, object]] = {
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}]},
    "/v1/score": {"data": [{"index": 0, "object": "score", "score": 0.5}]},
    "/classify": {"data": [{"index": 0, "label": "a", "probs": [1.0]}]},
    "/pooling": {"data": [{"index": 0, "object": "pooling", "data": [0.5]}]},
    "/tokenize": {"tokens": [1, 2], "count": 2},
    "/detokenize": {"prompt": "word"},
}
"""Responses without generated tokens, by path. All but those of the tokenizer have usage."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Scripted behaviour for one request. By default the response is successful."""

    tokens: int | None = None
    """Number of tokens, one event each. None means the request's own maximum, or 4 if it has none."""
    pace_s: float = 0.0
    """Delay before each token, in seconds."""
    usage: bool = True
    """Whether the response includes usage if the request asks for it."""
    finish_reason: str = "stop"
    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers of the response."""
    status: int = 200
    """HTTP status. Any status except 200 comes with a JSON error body."""
    error: str = "the fake engine failed as scripted"
    """Message in the error body or error event."""
    body: bytes | None = None
    """Raw response body: an event stream if the request asks for a stream, otherwise JSON."""
    content_type: str | None = None
    """Content type with which `body` is sent in one piece, even if the request asks for a stream."""
    hang_before_head: bool = False
    hang_after: int | None = None
    """Number of tokens after which the stream hangs. 0 hangs after the head and before the first token."""
    comment_s: float | None = None
    """Interval between comments while the stream hangs, in seconds. Proxies send them to keep a connection alive."""
    error_after: int | None = None
    """Number of tokens after which an error event and [DONE] follow, as in vLLM. 0 makes the error the first event."""
    cut_after: int | None = None
    """Number of tokens after which the connection closes without a terminal event. A non-streaming response is cut in
    the middle of its body.
    """
    drop_before_head: bool = False
    """Whether the engine closes the connection after it has read the request, without a response."""
    without_done: bool = False
    """Whether the stream ends cleanly but without [DONE], or without the final event of the Responses API."""
    piece_bytes: int | None = None
    """Size of the pieces in which the response is sent, in bytes. None sends each event as one piece."""
    close_after: bool = False
    """Whether the engine closes the connection without notice after a complete response, as engines do with idle
    connections.
    """


class Generation:
    """One response in progress."""

    def __init__(self, connection: Connection, received: Received, behaviour: Behaviour) -> None:
        self._connection = connection
        self._received = received
        self._behaviour = behaviour
        self._events_sent = 0
        self._asked = received.fields
        wanted = next((self._asked[name] for name in _OUTPUT_FIELDS if self._asked.get(name)), 4)
        self._tokens = behaviour.tokens if behaviour.tokens is not None else int(str(wanted))

    async def run(self) -> None:
        behaviour, connection = self._behaviour, self._connection
        connection.extra_headers = behaviour.headers
        if behaviour.hang_before_head:
            await self._hang()
        if behaviour.drop_before_head:
            connection.close()
        elif behaviour.status != 200:
            connection.answer(behaviour.status, behaviour.body or error(behaviour.status, behaviour.error))
        elif behaviour.content_type is not None:
            connection.answer(200, behaviour.body or b"", content_type=behaviour.content_type)
        elif self._asked.get("stream") is True:
            await self._stream()
        else:
            await self._whole()
        if behaviour.close_after:
            connection.close()

    async def _hang(self) -> None:
        self._received.hung.set()
        while (comment_s := self._behaviour.comment_s) is not None and not self._received.resume.is_set():
            await self._send(b": still there\n\n")
            await asyncio.sleep(comment_s)
        await self._received.resume.wait()

    async def _whole(self) -> None:
        behaviour = self._behaviour
        for _ in range(self._tokens):
            await self._pace()
            self._received.tokens_sent += 1
        body = behaviour.body if behaviour.body is not None else self._whole_body()
        if self._is_transcript and self._asked.get("response_format") in ("text", "srt", "vtt"):
            text = "".join(map(token_text, range(self._tokens)))
            self._connection.answer(200, behaviour.body or text.encode(), content_type="text/plain; charset=utf-8")
            return
        if behaviour.cut_after is not None or behaviour.hang_after is not None:
            self._connection.head(200, "application/json", length=len(body))
            self._connection.write(body[: len(body) // 2])
            if behaviour.hang_after is not None:
                await self._hang()
                self._connection.write(body[len(body) // 2 :])
            else:
                self._connection.close()
            return
        self._connection.answer(200, body)

    async def _stream(self) -> None:
        behaviour, connection = self._behaviour, self._connection
        connection.head(200, "text/event-stream; charset=utf-8", length=None)
        if behaviour.body is not None:
            await self._send(behaviour.body)
            connection.last_chunk()
            return
        if self._is_message:
            await self._send(self._message_start())
        if self._is_response:
            for kind in ("response.created", "response.in_progress"):
                await self._send(self._response_event(kind, response=self._response("in_progress")))
        for number in range(self._tokens + 1):
            if number == behaviour.hang_after:
                await self._hang()
            if number == behaviour.cut_after:
                connection.close()
                return
            if number == behaviour.error_after:
                await self._send_error()
                connection.last_chunk()
                return
            if number < self._tokens:
                await self._pace()
                await self._send(self._token_event(number))
                self._received.tokens_sent += 1
        await self._send_ending()
        connection.last_chunk()

    async def _send_error(self) -> None:
        if self._is_response:
            failed = self._response("failed") | {"error": {"code": "server_error", "message": self._behaviour.error}}
            await self._send(self._response_event("response.failed", response=failed))
        elif self._is_message:
            failed = {"type": "api_error", "message": self._behaviour.error}
            await self._send(_named_event("error", error=failed))
        else:
            await self._send(b"data: " + error(500, self._behaviour.error) + b"\n\ndata: [DONE]\n\n")

    async def _send_ending(self) -> None:
        if self._is_response:
            if not self._behaviour.without_done:
                await self._send(self._response_event("response.completed", response=self._response("completed")))
            return
        if self._is_message:
            await self._send_message_ending()
            return
        if self._is_transcript and not self._streams_chunks:
            if not self._behaviour.without_done:
                text = "".join(map(token_text, range(self._tokens)))
                usage = {"usage": self._transcript_usage()} if self._behaviour.usage else {}
                await self._send(_event({"type": "transcript.text.done", "text": text, **usage}))
            return
        options = cast("dict[str, object]", self._asked.get("stream_options") or {})
        if self._behaviour.usage and (options.get("include_usage") is True or self._streams_chunks):
            await self._send(_event(self._frame([]) | {"usage": self._usage()}))
        if not self._behaviour.without_done:
            await self._send(b"data: [DONE]\n\n")

    async def _send_message_ending(self) -> None:
        stop = {"stop_reason": "end_turn", "stop_sequence": None}
        usage = {"usage": {"output_tokens": self._tokens}} if self._behaviour.usage else {}
        await self._send(_named_event("content_block_stop", index=0))
        await self._send(_named_event("message_delta", delta=stop, **usage))
        if not self._behaviour.without_done:
            await self._send(_named_event("message_stop"))

    async def _pace(self) -> None:
        if self._behaviour.pace_s > 0:
            await asyncio.sleep(self._behaviour.pace_s)

    async def _send(self, data: bytes) -> None:
        for piece in _pieces(data, self._behaviour.piece_bytes):
            self._connection.chunk(piece)
            await self._connection.drained()

    def _frame(self, choices: list[dict[str, object]]) -> dict[str, object]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        if self._is_transcript:
            kind = "transcription.chunk"
        return {"id": "fake-1", "object": kind, "created": 0, "model": self._asked.get("model"), "choices": choices}

    def _token_event(self, number: int) -> bytes:
        if self._is_response:
            place: dict[str, object] = {"item_id": "fake-2", "output_index": 0, "content_index": 0, "logprobs": []}
            return self._response_event("response.output_text.delta", delta=token_text(number), **place)
        if self._is_message:
            return _named_event(
                "content_block_delta", index=0, delta={"type": "text_delta", "text": token_text(number)}
            )
        if self._is_transcript and not self._streams_chunks:
            return _event({"type": "transcript.text.delta", "delta": token_text(number)})
        last = number == self._tokens - 1
        choice: dict[str, object] = {"index": 0, "finish_reason": self._behaviour.finish_reason if last else None}
        if not self._is_chat and not self._is_transcript:
            choice["text"] = token_text(number)
        elif number == 0:
            choice["delta"] = {"role": "assistant", "content": token_text(number)}
        else:
            choice["delta"] = {"content": token_text(number)}
        return _event(self._frame([choice]))

    def _whole_body(self) -> bytes:
        if self._received.path == "/v1/embeddings":
            asked = self._asked.get("input")
            count = len(asked) if isinstance(asked, list) else 1
            vectors = [{"object": "embedding", "index": at, "embedding": [0.5, -0.5]} for at in range(count)]
            usage = {"prompt_tokens": 7 * count, "total_tokens": 7 * count}
            return compact({"object": "list", "data": vectors, "model": self._asked.get("model"), "usage": usage})
        if (fixed := WITHOUT_OUTPUT.get(self._received.path)) is not None:
            usage = (
                {} if self._received.path.endswith("tokenize") else {"usage": {"prompt_tokens": 7, "total_tokens": 7}}
            )
            return compact({"model": self._asked.get("model")} | fixed | usage)
        if self._is_response:
            return compact(self._response("completed"))
        if self._is_message:
            return compact(self._message())
        if self._is_transcript:
            return compact(self._transcript())
        text = "".join(token_text(number) for number in range(self._tokens))
        choice: dict[str, object] = {"index": 0, "finish_reason": self._behaviour.finish_reason}
        choice |= {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        body = self._frame([choice]) | {"object": "chat.completion" if self._is_chat else "text_completion"}
        return compact(body | ({"usage": self._usage()} if self._behaviour.usage else {}))

    def _transcript(self) -> dict[str, object]:
        text = "".join(map(token_text, range(self._tokens)))
        if self._asked.get("response_format") == "verbose_json":
            return {"task": "transcribe", "language": "english", "duration": 3.0, "text": text, "segments": []}
        usage = {"type": "duration", "seconds": 3}
        return {"text": text} | ({"usage": usage} if self._behaviour.usage else {})

    def _transcript_usage(self) -> dict[str, object]:
        tokens = self._tokens
        return {"type": "tokens", "input_tokens": 7, "output_tokens": tokens, "total_tokens": 7 + tokens}

    def _response(self, status: str) -> dict[str, object]:
        response: dict[str, object] = {"id": "fake-1", "object": "response", "created_at": 0, "status": status}
        response |= {"model": self._asked.get("model"), "error": None, "output": [], "usage": None}
        if status != "completed":
            return response
        text = "".join(token_text(number) for number in range(self._tokens))
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": "fake-2", "type": "message", "role": "assistant", "status": status, "content": content}
        usage: dict[str, object] = {"input_tokens": 7, "output_tokens": self._tokens, "total_tokens": 7 + self._tokens}
        usage |= {"input_tokens_details": {"cached_tokens": 3}, "output_tokens_details": {"reasoning_tokens": 0}}
        return response | {"output": [message], "usage": usage if self._behaviour.usage else None}

    def _message(self) -> dict[str, object]:
        text = "".join(token_text(number) for number in range(self._tokens))
        usage = self._message_usage() | {"output_tokens": self._tokens}
        message: dict[str, object] = {"id": "fake-1", "type": "message", "role": "assistant"}
        message |= {"model": self._asked.get("model"), "content": [{"type": "text", "text": text}]}
        message |= {"stop_reason": "end_turn", "stop_sequence": None}
        return message | ({"usage": usage} if self._behaviour.usage else {})

    def _message_start(self) -> bytes:
        """The events before the first token, as llama.cpp sends them."""
        message = self._message() | {"content": [], "stop_reason": None, "usage": self._message_usage()}
        block = _named_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        return _named_event("message_start", message=message) + _named_event("ping") + block

    def _message_usage(self) -> dict[str, object]:
        return {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 0}

    def _response_event(self, kind: str, **fields: object) -> bytes:
        self._events_sent += 1
        event = {"type": kind, "sequence_number": self._events_sent - 1, **fields}
        return f"event: {kind}\n".encode() + _event(event)

    def _usage(self) -> dict[str, object]:
        cached = {"cached_tokens": 3}
        total = 7 + self._tokens
        return {
            "prompt_tokens": 7,
            "completion_tokens": self._tokens,
            "total_tokens": total,
            "prompt_tokens_details": cached,
        }

    @property
    def _is_response(self) -> bool:
        return self._received.path == "/v1/responses"

    @property
    def _is_message(self) -> bool:
        return self._received.path == "/v1/messages"

    @property
    def _is_transcript(self) -> bool:
        return self._received.path.startswith("/v1/audio/")

    @property
    def _streams_chunks(self) -> bool:
        """Whether a streamed transcript has vLLM's format rather than OpenAI's."""
        return self._asked.get("stream_include_usage") is True

    @property
    def _is_chat(self) -> bool:
        return self._received.path == "/v1/chat/completions"


def token_text(number: int) -> str:
    """Text of one token, from which a test can compute the expected response."""
    return f"word{number} "


def compact(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + compact(value) + b"\n\n"


def _named_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + _event({"type": kind, **fields})


def error(status: int, message: str) -> bytes:
    return compact({"error": {"message": message, "type": "fake_error", "param": None, "code": status}})


def _pieces(data: bytes, size: int | None) -> Iterator[bytes]:
    step = size or len(data)
    for start in range(0, len(data), step):
        yield data[start : start + step]
