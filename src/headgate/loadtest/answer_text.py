"""Text of a response, which the next turn of a session repeats."""

from typing import Final

import msgspec

from headgate.model.ticket import Api

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of a response whose text is kept."""


class _Text(msgspec.Struct):
    content: str | None = None
    text: str | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None
    text: str | None = None


class _Completion(msgspec.Struct):
    """Response or event of the Chat Completions and Completions APIs."""

    choices: list[_Choice] = []

    def pieces(self) -> list[str | None]:
        parts = [part for each in self.choices for part in (each.delta, each.message, each)]
        return [part.content if isinstance(part, _Text) else part.text for part in parts if part is not None]


class _Message(msgspec.Struct):
    """Response or event of the Messages API."""

    delta: _Text | None = None
    content: list[_Text] = []

    def pieces(self) -> list[str | None]:
        return [part.text for part in (*self.content, self.delta) if part is not None]


class _Item(msgspec.Struct):
    content: list[_Text] = []


class _Response(msgspec.Struct):
    """Response or event of the Responses API."""

    type: str = ""
    delta: str | msgspec.Raw | None = None
    output: list[_Item] = []

    def pieces(self) -> list[str | None]:
        said = self.delta if self.type == "response.output_text.delta" and isinstance(self.delta, str) else None
        return [said, *(part.text for item in self.output for part in item.content)]


_COMPLETION: Final = msgspec.json.Decoder(_Completion)
_MESSAGE: Final = msgspec.json.Decoder(_Message)
_RESPONSE: Final = msgspec.json.Decoder(_Response)


def answer_text(api: Api, body: bytes) -> bytes:
    """Returns the text in the body of a response, a stream or not, escaped for JSON and without quotes."""
    lines = body.splitlines() if body.lstrip().startswith((b"data:", b"event:", b":")) else [b"data:" + body]
    texts: list[str] = []
    for line in lines:
        if line.startswith(b"data:"):
            texts += _pieces(api, line[5:])
    return msgspec.json.encode("".join(texts))[1:-1]


def _pieces(api: Api, data: bytes) -> list[str]:
    decoder = {Api.MESSAGES: _MESSAGE, Api.RESPONSES: _RESPONSE}.get(api, _COMPLETION)
    try:
        return [piece for piece in decoder.decode(data).pieces() if piece]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # Such as [DONE].
        return []
