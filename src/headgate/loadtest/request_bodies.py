"""Paths and bodies of load test requests, by API."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headgate.loadtest.conversation import Turn
from headgate.model.ticket import Api

PATHS: Final[Mapping[Api, str]] = MappingProxyType(
    {
        Api.CHAT: "/v1/chat/completions",
        Api.COMPLETIONS: "/v1/completions",
        Api.RESPONSES: "/v1/responses",
        Api.MESSAGES: "/v1/messages",
        Api.COUNT_TOKENS: "/v1/messages/count_tokens",
        Api.EMBEDDINGS: "/v1/embeddings",
        Api.RERANK: "/v1/rerank",
        Api.SCORE: "/v1/score",
        Api.CLASSIFY: "/classify",
        Api.POOLING: "/pooling",
        Api.TOKENIZE: "/tokenize",
    }
)
_OUTPUT_FIELDS: Final[Mapping[Api, bytes]] = MappingProxyType(
    {
        Api.CHAT: b"max_tokens",
        Api.COMPLETIONS: b"max_tokens",
        Api.RESPONSES: b"max_output_tokens",
        Api.MESSAGES: b"max_tokens",
    }
)
_PROMPTS: Final[Mapping[Api, bytes]] = MappingProxyType(
    {
        Api.COMPLETIONS: b'"prompt":"%b"',
        Api.EMBEDDINGS: b'"input":"%b"',
        Api.RERANK: b'"query":"which one","documents":["%b"]',
        Api.SCORE: b'"text_1":"which one","text_2":"%b"',
        Api.CLASSIFY: b'"input":"%b"',
        Api.POOLING: b'"input":"%b"',
        Api.TOKENIZE: b'"prompt":"%b"',
    }
)
"""Fields with the prompt in APIs without messages."""


def variable_fields(api: Api, prompt: bytes, output_tokens: int, turns: Sequence[Turn] = ()) -> bytes:
    """Returns the fields of a body that differ between the requests of a sender, without braces."""
    most = b'"%b":%d,' % (_OUTPUT_FIELDS[api], output_tokens) if api in _OUTPUT_FIELDS else b""
    if api in _PROMPTS:
        said = b"".join(b"%b\\n%b\\n" % (turn.prompt, turn.answer) for turn in turns)
        return most + _PROMPTS[api] % (said + prompt)
    messages = b"".join(
        b'{"role":"user","content":"%b"},{"role":"assistant","content":"%b"},' % (turn.prompt, turn.answer)
        for turn in turns
    )
    name = b"input" if api is Api.RESPONSES else b"messages"
    return b'%b"%b":[%b{"role":"user","content":"%b"}]' % (most, name, messages, prompt)
