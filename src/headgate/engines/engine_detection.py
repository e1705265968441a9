"""Detects the engine type at an address, and its models.

Detection relies on properties that are unique to one engine type: its metric names or, failing that, the owner in its
model list. An engine without such a property is treated as OpenAI-compatible. A KServe server identifies itself, and
its metrics identify its models.
"""

import asyncio
from dataclasses import dataclass

import aiohttp
import msgspec

from headgate.engines.dialect import Dialect
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_tls import EngineTls
from headgate.engines.http_engine import authorization, metrics_url
from headgate.engines.metrics_page import label_values, read_metrics
from headgate.engines.openai_compatible import OPENAI_COMPATIBLE
from headgate.engines.page import PAGE_BYTES_MAX, Page, PageUnavailable, get_engine_page
from headgate.engines.probe import Probe
from headgate.engines.triton.dialect import SERVER_PATH, TRITON, TRITON_TRTLLM
from headgate.ports.api_key import ApiKey
from headgate.wire.openai_bodies import read_error


@dataclass(frozen=True, slots=True)
class DetectedEngine:
    dialect: Dialect
    models: tuple[str, ...]
    """Names of the engine's models. There is at least one."""
    version: str | None
    concurrency: int | None
    """Maximum number of concurrent requests that the engine accepts. None if the engine does not report it."""
    adapters: tuple[str, ...] = ()
    """Names of the engine's LoRA adapters. They are not in `models`."""
    max_lora: int | None = None
    """Maximum number of adapters in use at the same time. None if the engine does not report it."""


class DetectionError(Exception):
    """No ready engine was found at the address. The message gives the reason and the next step."""


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    parent: object = None
    """Base model, if the model is a LoRA adapter."""


class _Models(msgspec.Struct):
    data: list[_Model]


class _Server(msgspec.Struct):
    """Self-description of a KServe server."""

    name: str = ""


class _Pages:
    """Pages of one server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        api_key: ApiKey | str | None,
        timeout_s: float,
        tls: EngineTls | None,
    ) -> None:
        self._session = session
        self._url = url
        self._headers = authorization(api_key)
        self.key = ApiKey.text(api_key)
        self._timeout_s = timeout_s
        self._tls = tls

    async def get(self, path: str, url: str | None = None) -> Page:
        return await get_engine_page(
            self._session, url or self._url, path, headers=self._headers, timeout_s=self._timeout_s, tls=self._tls
        )

    async def metrics(self, dialect: Dialect) -> bytes:
        """Returns the metrics page, or empty bytes if there is none."""
        path = dialect.metrics_path
        return b"" if path is None else await self.get_or_empty(path, metrics_url(self._url, dialect))

    async def get_or_empty(self, path: str, url: str | None = None) -> bytes:
        try:
            page = await self.get(path, url)
        except PageUnavailable:
            return b""
        return page.body if page.status == 200 else b""


async def detect_engine(
    session: aiohttp.ClientSession,
    url: str,
    *,
    api_key: ApiKey | str | None = None,
    timeout_s: float = 2.0,
    tls: EngineTls | None = None,
) -> DetectedEngine:
    """Detects the engine at `url`. Raises `DetectionError`."""
    pages = _Pages(session, url, api_key, timeout_s, tls)
    dialect, models, adapters = await _detect_kserve(pages) or await _detect_openai(pages)
    probe = Probe(
        session,
        url,
        dialect=dialect,
        served_model=models[0],
        api_key=api_key,
        timeout_s=timeout_s,
        page_bytes_max=PAGE_BYTES_MAX,
        tls=tls,
    )
    version, places = await asyncio.gather(probe.version(), probe.concurrency())
    max_lora = (await probe.scrape()).max_lora if adapters else None
    return DetectedEngine(dialect, models, version, places, adapters, max_lora)


async def _detect_openai(pages: _Pages) -> tuple[Dialect, tuple[str, ...], tuple[str, ...]]:
    """Returns the engine's dialect, its models and its LoRA adapters."""
    models = await _models(pages)
    dialect = await _detect_by_metrics(pages) or DIALECTS.get(models[0].owned_by.lower(), OPENAI_COMPATIBLE)
    adapters: tuple[str, ...] = ()
    if dialect.adapters_metric is not None and any(not model.parent for model in models):
        adapters = tuple(model.id for model in models if model.parent)
    return dialect, tuple(model.id for model in models if model.id not in adapters), adapters


async def _detect_kserve(pages: _Pages) -> tuple[Dialect, tuple[str, ...], tuple[str, ...]] | None:
    """Returns the KServe server at the address and its models, or None if the server is of another type."""
    try:
        server = msgspec.json.decode(await pages.get_or_empty(SERVER_PATH), type=_Server)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if server.name != TRITON.name:
        return None
    page = await pages.metrics(TRITON)
    models = label_values(page, TRITON.models_metric or "", "model")
    if not models:
        raise DetectionError(f"the address is a Triton server, but its metrics name no model; {TRITON.metrics_hint}")
    names = [name for aliases in TRITON_TRTLLM.metrics.values() for name in aliases]
    return (TRITON_TRTLLM if read_metrics(page, names) else TRITON), models, ()


async def _models(pages: _Pages) -> list[_Model]:
    path = OPENAI_COMPATIBLE.models_path
    try:
        page = await pages.get(path)
    except PageUnavailable as unheard:
        said = str(unheard)
        raise DetectionError(said if "; " in said else f"{said}; start the engine or correct the address") from unheard
    if page.status != 200:
        raise DetectionError(_not_serving(path, page, pages.key))
    try:
        models = msgspec.json.decode(page.body, type=_Models).data
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DetectionError(f"GET {path} returned no list of models; check that it is an engine's address") from error
    if not models:
        raise DetectionError(f"GET {path} returned an empty list of models; load a model into the engine")
    return models


def _not_serving(path: str, page: Page, key: str) -> str:
    said = read_error(page.body, key)
    text = f"GET {path} returned {page.status}" + (f": {said}" if said else "")
    match page.status:
        case 401 | 403:
            return f"{text}; provide the engine's API key"
        case 503:
            return f"{text}; retry when the engine has loaded its model"
        case _:
            return f"{text}; check that it is an engine's address"


async def _detect_by_metrics(pages: _Pages) -> Dialect | None:
    """Returns the dialect whose metrics the engine exports, or None if it exports no known metric."""
    known = [each for each in DIALECTS.values() if each.metrics_path is not None and each.adapter is None]
    paths = list(dict.fromkeys(dialect.metrics_path for dialect in known if dialect.metrics_path is not None))
    found = dict(zip(paths, await asyncio.gather(*(pages.get_or_empty(path) for path in paths)), strict=True))
    for dialect in known:
        names = [name for aliases in dialect.metrics.values() for name in aliases]
        if read_metrics(found[dialect.metrics_path or ""], names):
            return dialect
    return None
