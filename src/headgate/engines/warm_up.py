"""Sends a new engine its first request.

An engine's first request is often the slowest, because the engine has to compile code, allocate memory and fill caches.
The gateway therefore sends a minimal request before the first client request. It uses the first API that the engine
offers: completions, chat or embeddings.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import aiohttp

from headgate.engines.dialect import Dialect
from headgate.engines.engine_tls import EngineTls
from headgate.engines.http_engine import authorization, url_at
from headgate.engines.page import failure_reason
from headgate.model.ticket import Api
from headgate.ports.api_key import ApiKey
from headgate.ports.tls import InvalidTlsFile
from headgate.wire.openai_bodies import read_error

WARM_UP_S_MAX: Final = 120.0
ANSWER_BYTES_MAX: Final = 64 * 1024

_REQUESTS: Final[Mapping[Api, Mapping[str, object]]] = MappingProxyType(
    {
        Api.COMPLETIONS: {"prompt": "Hello", "max_tokens": 1},
        Api.CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
        Api.EMBEDDINGS: {"input": "Hello"},
    }
)


async def warm_up(
    session: aiohttp.ClientSession,
    url: str,
    *,
    dialect: Dialect,
    served_model: str,
    api_key: ApiKey | str | None,
    tls: EngineTls | None = None,
) -> str | None:
    """Returns why the request failed, or None if the engine responded or offers no suitable API."""
    try:
        options: dict[str, Any] = {} if tls is None else {"ssl": tls.context, "server_hostname": tls.server_name}
    except InvalidTlsFile as error:
        return f"the warm-up request failed: {error}"
    headers = authorization(api_key)
    for api, asked in _REQUESTS.items():
        if api not in dialect.paths:
            continue
        body = {"model": served_model, **asked}
        try:
            async with (
                asyncio.timeout(WARM_UP_S_MAX),
                session.post(url_at(url, dialect.paths[api]), json=body, headers=headers, **options) as answer,
            ):
                said = await answer.content.read(ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"the warm-up request failed: {failure_reason(error)}"
        if answer.status == 200:
            return None
        if answer.status >= 500 and not dialect.is_request_error(answer.status, said):
            return f"the warm-up request failed with status {answer.status}: {read_error(said, ApiKey.text(api_key))}"
    return None
