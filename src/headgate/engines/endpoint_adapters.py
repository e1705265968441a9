"""LoRA adapters of one engine: observed, reported, loaded and unloaded.

The engine's list of models shows which adapters it holds, and its metrics show how many it computes at the same time.
Adapters with a source are loaded if the engine lacks them. An adapter that this process has loaded is unloaded when no
pool of the engine has it any more and no request in flight uses it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from headgate.engines.engine_tls import EngineTls
from headgate.engines.http_engine import authorization, url_at
from headgate.engines.page import failure_reason
from headgate.model.units import EndpointId
from headgate.ports.api_key import ApiKey
from headgate.ports.tls import InvalidTlsFile
from headgate.wire.openai_bodies import read_error

LOAD_S_MAX: Final = 60.0
"""Maximum time to load or unload an adapter, in seconds."""
HELD_MAX: Final = 1_000
"""Maximum number of adapters of one engine. Further ones are ignored."""
NAME_CHARS_MAX: Final = 256
"""Maximum length of an adapter's name. Adapters with longer names are ignored."""
ROUNDS_BETWEEN_TRIES: Final = 6
"""Number of probes between two attempts to load an adapter."""
_ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """Adapters of a pool."""

    sources: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Source of each declared adapter. None if the engines have the adapter already."""
    discover: bool = False
    """Whether all adapters that the engine lists are reported."""

    def __bool__(self) -> bool:
        return self.discover or bool(self.sources)


class AdapterApi:
    """Loads and unloads adapters of one engine (vLLM: `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`)."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, api_key: ApiKey | str | None, tls: EngineTls | None = None
    ) -> None:
        self._session = session
        self._url = url
        self._headers = authorization(api_key)
        self._key = ApiKey.text(api_key)
        self._tls = tls

    async def load(self, name: str, source: str) -> str | None:
        """Returns why the adapter could not be loaded, or None."""
        body = {"lora_name": name, "lora_path": source}
        return await self._post("/v1/load_lora_adapter", body, unnecessary=b"already been loaded")

    async def unload(self, name: str) -> str | None:
        """Returns why the adapter could not be unloaded, or None."""
        return await self._post("/v1/unload_lora_adapter", {"lora_name": name}, unnecessary=b"cannot be found")

    async def _post(self, path: str, body: Mapping[str, str], *, unnecessary: bytes) -> str | None:
        """`unnecessary` is part of the error that the engine returns if another gateway was faster."""
        tls = self._tls
        try:
            options: dict[str, Any] = {} if tls is None else {"ssl": tls.context, "server_hostname": tls.server_name}
            async with (
                asyncio.timeout(LOAD_S_MAX),
                self._session.post(url_at(self._url, path), json=body, headers=self._headers, **options) as answer,
            ):
                said = await answer.content.read(_ANSWER_BYTES_MAX)
        except InvalidTlsFile as error:
            return f"POST {path} failed: {error}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"POST {path} failed: {failure_reason(error)}"
        if answer.status == 200 or unnecessary in said:
            return None
        # Without this setting, the path does not exist.
        missing = answer.status == 404 and b"adapter" not in said
        hint = "; start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if missing else ""
        return f"POST {path} returned {answer.status}: {read_error(said, self._key)}{hint}"


class AdapterLoader:
    """Loads and unloads the adapters of one engine, for its endpoints in all pools.

    An adapter is loaded if any pool has it with a source. It is unloaded once no pool has it.
    """

    def __init__(self, in_use: Callable[[Collection[EndpointId]], Collection[str]]) -> None:
        """`in_use` returns the adapters with requests in flight on these endpoints."""
        self._in_use = in_use
        self.members: dict[EndpointAdapters, None] = {}
        """Endpoints on the engine, as an ordered set."""
        self._known: dict[EndpointId, None] = {}
        """All endpoints that have been on the engine. Those that have left may still have requests in flight."""
        self.listed: Collection[str] = ()
        """The engine's list of models."""
        self._loaded: dict[str, str] = {}
        """Source of each adapter that was loaded by this process."""
        self._rounds_left: dict[str, int] = {}
        """Number of probes until the next attempt to load or unload an adapter may be made."""

    def add(self, member: "EndpointAdapters") -> None:
        self.members[member] = self._known[member.endpoint_id] = None

    def retry(self) -> None:
        """Makes the next attempts possible at once, because the configuration has changed."""
        self._rounds_left.clear()

    def forget(self) -> None:
        """Called when a different engine may be running at the address."""
        self._loaded.clear()
        self._rounds_left.clear()

    def begin_round(self) -> bool:
        """Called for each probe. Returns whether there are adapters to load or unload."""
        for name in list(self._rounds_left):
            self._rounds_left[name] -= 1
            if not self._rounds_left[name]:
                del self._rounds_left[name]
        return next(self._missing(), None) is not None or next(self._unneeded(), None) is not None

    async def sync(self, changed: Callable[[], None]) -> None:
        """Loads and unloads adapters, one after another. Calls `changed` when the list of models must be read again."""
        while (unneeded := next(self._unneeded(), None)) is not None:
            member = next(iter(self.members))
            if self._record(member, unneeded, await member.api.unload(unneeded)):
                self._loaded.pop(unneeded, None)
                # It may have to be loaded from another source.
                self._rounds_left.pop(unneeded, None)
            changed()
        while (missing := next(self._missing(), None)) is not None:
            member, name, source = missing
            if self._record(member, name, await member.api.load(name, source)):
                self._loaded[name] = source
            changed()

    def _missing(self) -> Iterator[tuple["EndpointAdapters", str, str]]:
        """Yields adapters that can be loaded now, with an endpoint that needs each and its source."""
        for member in self.members:
            for name, source in member.options.sources.items():
                if source is not None and name not in self.listed and name not in self._rounds_left:
                    yield member, name, source

    def _unneeded(self) -> Iterator[str]:
        """Yields adapters that can be unloaded now."""
        for name, loaded in self._loaded.items():
            sources = {each.options.sources[name] for each in self.members if name in each.options.sources}
            # A pool without a source uses the adapter as it is.
            needed = loaded in sources or None in sources
            if not needed and self.members and name not in self._rounds_left and name not in self._in_use(self._known):
                yield name

    def _record(self, member: "EndpointAdapters", name: str, problem: str | None) -> bool:
        """Returns whether there was no problem. In any case, the next attempt is made a few probes later."""
        self._rounds_left[name] = ROUNDS_BETWEEN_TRIES
        if problem is not None:
            member.log_problem(name, problem)
        return problem is None


class EndpointAdapters:
    """Adapters of one endpoint, as its engine lists them and its pool needs them."""

    def __init__(
        self,
        endpoint_id: EndpointId,
        api: AdapterApi,
        loader: AdapterLoader,
        report: Callable[[tuple[str, ...], int | None], None],
        log_problem: Callable[[str, str], None],
    ) -> None:
        """`loader` belongs to the engine. `report` receives the adapters that the engine holds and their maximum number
        in use, after each change. `log_problem` receives an adapter and its problem.
        """
        self.endpoint_id = endpoint_id
        self.api = api
        self.loader = loader
        self._report = report
        self.log_problem = log_problem
        self.options = AdapterOptions()
        """Adapters of the pool, as given to `change`."""
        self._held: tuple[str, ...] = ()
        self._max_lora: int | None = None
        self._reported: tuple[tuple[str, ...], int | None] | None = None
        loader.add(self)

    def change(self, options: AdapterOptions) -> None:
        """Applies the configuration. The next list of models shows which of the adapters the engine holds."""
        self.options = options
        self.loader.retry()
        self.report_again()

    def close(self) -> None:
        """Called when the endpoint leaves the engine."""
        self.loader.members.pop(self, None)

    def report_again(self) -> None:
        """Makes the next list of models be reported, even if nothing has changed."""
        self._reported = None

    def observe_models(self, listed: Collection[str], children: Collection[str]) -> None:
        """Records the engine's list of models. `children` are those that have a parent."""
        options = self.options
        held = [
            name
            for name in listed
            if len(name) <= NAME_CHARS_MAX and (name in options.sources or (options.discover and name in children))
        ]
        self._held = tuple(sorted(held[:HELD_MAX]))
        self.loader.listed = listed
        self._report_changes()

    def observe_limit(self, max_lora: int | None) -> None:
        """Records the maximum number of adapters in use. Engines report it only after their first request."""
        if max_lora is not None:
            self._max_lora = max_lora
            self._report_changes()

    def _report_changes(self) -> None:
        now = (self._held, self._max_lora)
        if self.options and now != self._reported:
            self._reported = now
            self._report(*now)

    def forget_limit(self) -> None:
        """Called when a different engine may be running at the address."""
        self._max_lora = None
