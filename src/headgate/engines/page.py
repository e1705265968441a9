"""How is one small page read over HTTP, whole, in time and bounded in size?"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from headgate.engines.http import reason, url_at

PAGE_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    headers: Mapping[str, str]
    """By their names as aiohttp gives them: in any case."""
    body: bytes


class Unheard(Exception):
    """No whole answer came. The message says why, without the address."""


async def get_page(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    page_bytes_max: int = PAGE_BYTES_MAX,
) -> Page:
    """The page at a path of whoever listens at the address; raises `Unheard`."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(url_at(url, path), headers=headers, allow_redirects=False) as answer,
        ):
            body = bytearray()
            while data := await answer.content.readany():
                body += data
                if len(body) > page_bytes_max:
                    answer.close()
                    raise Unheard(f"GET {path} answers with more than {page_bytes_max} bytes")
            return Page(answer.status, answer.headers, bytes(body))
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise Unheard(f"GET {path} failed: {reason(error)}") from error
