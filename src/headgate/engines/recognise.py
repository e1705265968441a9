"""Which engine stands at this address, and what does it serve?

Nobody has said which dialect it speaks, so it is told by what no other engine has: the names of its metrics, else the
owner that its list of models names. What fits no dialect is taken to speak the OpenAI wire and nothing more. A
server of KServe's protocol says so of itself, and its metrics name its models.
"""

import asyncio
from dataclasses import dataclass

import aiohttp
import msgspec

from headgate.engines.dialect import Dialect
from headgate.engines.dialects import DIALECTS
from headgate.engines.http import authorization, metrics_url
from headgate.engines.metrics_page import label_values, read_metrics
from headgate.engines.openai_compatible import OPENAI_COMPATIBLE
from headgate.engines.page import PAGE_BYTES_MAX, Page, Unheard, get_page
from headgate.engines.probe import Probe
from headgate.engines.triton.dialect import SERVER_PATH, TRITON, TRITON_TRTLLM
from headgate.wire.replies import read_error


@dataclass(frozen=True, slots=True)
class Recognised:
    dialect: Dialect
    models: tuple[str, ...]
    """At least one, as the engine names them."""
    version: str | None
    places: int | None
    """How many requests it says that it runs at once."""


class Unrecognised(Exception):
    """What answers there, if anything does, is no engine that serves. The message says why, with the next step."""


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


class _Server(msgspec.Struct):
    """What a server of KServe's protocol says of itself."""

    name: str = ""


class _Pages:
    """The pages of one address, each asked for once."""

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str | None, timeout_s: float) -> None:
        self._session = session
        self._url = url
        self._headers = authorization(api_key)
        self._timeout_s = timeout_s

    async def get(self, path: str, url: str | None = None) -> Page:
        return await get_page(self._session, url or self._url, path, headers=self._headers, timeout_s=self._timeout_s)

    async def metrics(self, dialect: Dialect) -> bytes:
        """Nothing where it has none."""
        path = dialect.metrics_path
        return b"" if path is None else await self.get_if_there(path, metrics_url(self._url, dialect))

    async def get_if_there(self, path: str, url: str | None = None) -> bytes:
        try:
            page = await self.get(path, url)
        except Unheard:
            return b""
        return page.body if page.status == 200 else b""


async def recognise(
    session: aiohttp.ClientSession, url: str, *, api_key: str | None = None, timeout_s: float = 2.0
) -> Recognised:
    """Raises `Unrecognised`."""
    pages = _Pages(session, url, api_key, timeout_s)
    dialect, models = await _kserve(pages) or await _openai(pages)
    probe = Probe(
        session,
        url,
        dialect=dialect,
        served_model=models[0],
        api_key=api_key,
        timeout_s=timeout_s,
        page_bytes_max=PAGE_BYTES_MAX,
    )
    version, places = await asyncio.gather(probe.version(), probe.places())
    return Recognised(dialect, models, version, places)


async def _openai(pages: _Pages) -> tuple[Dialect, tuple[str, ...]]:
    models = await _models(pages)
    dialect = await _by_metrics(pages) or DIALECTS.get(models[0].owned_by.lower(), OPENAI_COMPATIBLE)
    return dialect, tuple(model.id for model in models)


async def _kserve(pages: _Pages) -> tuple[Dialect, tuple[str, ...]] | None:
    """The server of KServe's protocol that stands there, and its models; None where another engine does."""
    try:
        server = msgspec.json.decode(await pages.get_if_there(SERVER_PATH), type=_Server)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if server.name != TRITON.name:
        return None
    page = await pages.metrics(TRITON)
    models = label_values(page, TRITON.models_metric or "", "model")
    if not models:
        raise Unrecognised(f"a Triton server is there, but its metrics name no model; {TRITON.metrics_hint}")
    names = [name for aliases in TRITON_TRTLLM.metrics.values() for name in aliases]
    return (TRITON_TRTLLM if read_metrics(page, names) else TRITON), models


async def _models(pages: _Pages) -> list[_Model]:
    path = OPENAI_COMPATIBLE.models_path
    try:
        page = await pages.get(path)
    except Unheard as unheard:
        raise Unrecognised(f"{unheard}; start the engine, or correct the address") from unheard
    if page.status != 200:
        raise Unrecognised(_not_serving(path, page))
    try:
        models = msgspec.json.decode(page.body, type=_Models).data
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unrecognised(f"GET {path} gives no list of models; is this the address of an engine?") from error
    if not models:
        raise Unrecognised(f"GET {path} lists no model; load one into the engine")
    return models


def _not_serving(path: str, page: Page) -> str:
    said = read_error(page.body)
    text = f"GET {path} answered {page.status}" + (f": {said}" if said else "")
    match page.status:
        case 401 | 403:
            return f"{text}; give the engine's key"
        case 503:
            return f"{text}; try again when it has loaded its model"
        case _:
            return f"{text}; is this the address of an engine?"


async def _by_metrics(pages: _Pages) -> Dialect | None:
    """The dialect whose metrics the engine shows; None where it shows none that we know."""
    known = [each for each in DIALECTS.values() if each.metrics_path is not None and each.speaker is None]
    paths = list(dict.fromkeys(dialect.metrics_path for dialect in known if dialect.metrics_path is not None))
    found = dict(zip(paths, await asyncio.gather(*(pages.get_if_there(path) for path in paths)), strict=True))
    for dialect in known:
        names = [name for aliases in dialect.metrics.values() for name in aliases]
        if read_metrics(found[dialect.metrics_path or ""], names):
            return dialect
    return None
