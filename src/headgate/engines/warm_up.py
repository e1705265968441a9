"""Has an engine that says it serves ever answered?

The first request of an engine is often its slowest: it compiles, allocates and fills caches. So the first one is ours,
as small as can be, and only then callers come. An engine is asked for what it offers: text, a chat, or embeddings.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import aiohttp

from headgate.engines.dialect import Dialect
from headgate.engines.http import authorization, url_at
from headgate.engines.page import reason
from headgate.model.ticket import Api
from headgate.wire.replies import read_error

WARM_UP_S_MAX: Final = 120.0
ANSWER_BYTES_MAX: Final = 64 * 1024

_QUESTIONS: Final[Mapping[Api, Mapping[str, object]]] = MappingProxyType(
    {
        Api.COMPLETIONS: {"prompt": "Hello", "max_tokens": 1},
        Api.CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
        Api.EMBEDDINGS: {"input": "Hello"},
    }
)


async def warm_up(
    session: aiohttp.ClientSession, url: str, *, dialect: Dialect, served_model: str, api_key: str | None
) -> str | None:
    """None where it has answered, or offers nothing that we could ask; else why it has not."""
    for api, asked in _QUESTIONS.items():
        if api not in dialect.paths:
            continue
        body = {"model": served_model, **asked}
        try:
            async with (
                asyncio.timeout(WARM_UP_S_MAX),
                session.post(url_at(url, dialect.paths[api]), json=body, headers=authorization(api_key)) as answer,
            ):
                said = await answer.content.read(ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"its first request failed: {reason(error)}"
        if answer.status == 200:
            return None
        if answer.status >= 500 and not dialect.blames_request(answer.status, said):
            return f"its first request was answered with {answer.status}: {read_error(said)}"
    return None
