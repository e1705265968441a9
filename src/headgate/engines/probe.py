"""Probes a single engine for health, models, version, limits and load.

A probe consists of a few small GET requests, each limited in time and size. The result distinguishes a negative
response from a missing one. Only a response may make an endpoint unready: a gateway that cannot reach its engines for a
moment, or cannot reach them on this path, must not stop all work.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from headgate.engines.dialect import GPU_UTILISATION, ConcurrencySource, Dialect, Signal, VersionSource
from headgate.engines.engine_tls import EngineTls
from headgate.engines.http_engine import authorization, metrics_url
from headgate.engines.metrics_page import Metric, label_steps, metrics_steps, run_in_turns
from headgate.engines.page import PageUnavailable, get_engine_page
from headgate.model.endpoint import EndpointProblem
from headgate.ports.api_key import ApiKey
from headgate.ports.engine import EngineLimits, Telemetry
from headgate.wire.openai_bodies import read_error

MODELS_SHOWN_MAX: Final = 8
OBJECTS_MAX: Final = 20_000
"""Maximum number of objects in a model list, which is parsed in one step. vLLM writes two objects per model."""

_T = TypeVar("_T")


class ProbeVerdict(Enum):
    SERVING = auto()
    """The engine is healthy and lists the model."""
    NOT_SERVING = auto()
    """The engine responded that it cannot serve the model, or cannot serve it yet."""
    UNCLEAR = auto()
    """The engine responded, but the response was inconclusive."""
    NO_RESPONSE = auto()
    """The engine did not respond."""


@dataclass(frozen=True, slots=True)
class Health:
    verdict: ProbeVerdict
    models: tuple[str, ...] = ()
    problem: str | None = None
    trouble: EndpointProblem | None = None
    """Reason why the engine is not ready. None if it is ready, or if this process could not send the probe."""
    adapters: tuple[str, ...] = ()
    """Models that have a parent: LoRA adapters."""


@dataclass(frozen=True, slots=True)
class Scrape:
    telemetry: Telemetry | None = None
    """Load values. None if the page could not be read or contains no signal."""
    signals: dict[Signal, str] | None = None
    """The metric that supplied each signal."""
    problem: str | None = None
    max_lora: int | None = None
    """Maximum number of LoRA adapters in use at the same time. None if not reported."""


class _Model(msgspec.Struct):
    id: str
    parent: object = None


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)
PROBES_PER_MODEL_LIST: Final = 6
"""Number of probes of a ready engine per request for its list of models. The others check only its health: an engine
changes its model only by a restart, which usually makes a probe fail."""
_DIGITS_MAX: Final = 4
_NOT_READY_STATUSES: Final = (400, 404, 503)
"""Statuses that a server returns if a model is missing or not ready."""
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Probe:
    """Probes one engine."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        dialect: Dialect,
        served_model: str,
        api_key: ApiKey | str | None,
        timeout_s: float,
        page_bytes_max: int,
        tls: EngineTls | None = None,
    ) -> None:
        self._session = session
        self._url = url
        self._metrics_url = metrics_url(url, dialect)
        self._dialect = dialect
        self._served_model = served_model
        self._headers = authorization(api_key)
        self._key = ApiKey.text(api_key)
        self._timeout_s = timeout_s
        self._page_bytes_max = page_bytes_max
        self._tls = tls
        self._last_health: Health | None = None
        """Result of the last probe that read the list of models, if probes have succeeded since then."""
        self._probes_since_models = 0
        self._models_outdated = False
        """Whether the next probe must read the list of models, even if one that is under way reads it."""

    async def health(self) -> Health:
        health = await self._health()
        if health.verdict is not ProbeVerdict.SERVING:
            self._last_health = None
        return health

    def health_from(self, other: Health) -> Health | None:
        """Returns the health that follows from a probe of the same engine for another model.

        Returns None if the engine must be asked about this model.
        """
        if other.verdict is ProbeVerdict.NO_RESPONSE:
            return other
        if self._dialect.model_ready_path is not None:
            return None
        if other.verdict is not ProbeVerdict.SERVING and other.trouble is not EndpointProblem.MODEL_UNKNOWN:
            return other
        if self._served_model in other.models:
            return Health(ProbeVerdict.SERVING, other.models, adapters=other.adapters)
        return self._wrong_model(other.models, other.adapters)

    async def _health(self) -> Health:
        try:
            if self._dialect.model_ready_path is not None:
                return await self._model_health(self._dialect.model_ready_path)
            if self._dialect.health_path is not None:
                status, body = await self._get(self._dialect.health_path)
                if status != 200:
                    return _unhealthy(status, self._error(self._dialect.health_path, status, body))
                known = None if self._models_outdated else self._last_health
                if known is not None and self._probes_since_models < PROBES_PER_MODEL_LIST - 1:
                    self._probes_since_models += 1
                    return known
            self._models_outdated = False
            status, body = await self._get(self._dialect.models_path)
        except PageUnavailable as unheard:
            return Health(ProbeVerdict.NO_RESPONSE, problem=str(unheard), trouble=unheard.trouble)
        if status != 200:
            return _unhealthy(status, self._error(self._dialect.models_path, status, body))
        self._probes_since_models = 0
        self._last_health = self._check_models(body)
        return self._last_health

    async def _model_health(self, template: str) -> Health:
        """Returns the health of one model. The engine's other models are ignored."""
        path = template.format(model=quote(self._served_model, safe=""))
        status, body = await self._get(path)
        if status == 200:
            return Health(ProbeVerdict.SERVING, (self._served_model,))
        if status not in _NOT_READY_STATUSES:
            return _unhealthy(status, self._error(path, status, body))
        well_path = self._dialect.health_path
        if well_path is not None:
            well, said = await self._get(well_path)
            if well != 200:
                problem = self._error(well_path, well, said)
                return Health(ProbeVerdict.NOT_SERVING, problem=problem, trouble=EndpointProblem.LOADING)
        models = await self._models_in_metrics()
        if models and self._served_model not in models:
            return self._wrong_model(models)
        problem = self._error(path, status, body)
        return Health(ProbeVerdict.NOT_SERVING, models, problem, trouble=EndpointProblem.LOADING)

    async def _models_in_metrics(self) -> tuple[str, ...]:
        """Returns the models on the metrics page, or nothing if there is no page."""
        metric, path = self._dialect.models_metric, self._dialect.metrics_path
        if metric is None or path is None:
            return ()
        try:
            status, page = await self._get(path, self._metrics_url)
        except PageUnavailable:
            return ()
        return await run_in_turns(label_steps(page, metric, "model")) if status == 200 else ()

    def _check_models(self, body: bytes) -> Health:
        path = self._dialect.models_path
        if body.count(b"{") > OBJECTS_MAX:
            problem = f"GET {path} lists more than {OBJECTS_MAX} objects"
            return Health(ProbeVerdict.UNCLEAR, problem=problem, trouble=EndpointProblem.ERRORS)
        try:
            listed = _MODELS.decode(body).data
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            problem = f"GET {path} returned no list of models: {error}"
            return Health(ProbeVerdict.UNCLEAR, problem=problem, trouble=EndpointProblem.ERRORS)
        models = tuple(model.id for model in listed)
        adapters = tuple(model.id for model in listed if model.parent)
        if self._served_model in models:
            return Health(ProbeVerdict.SERVING, models, adapters=adapters)
        return self._wrong_model(models, adapters)

    def forget_models(self) -> None:
        """Makes the next probe read the list of models."""
        self._models_outdated = True

    def _wrong_model(self, models: tuple[str, ...], adapters: tuple[str, ...] = ()) -> Health:
        shown = ", ".join(models[:MODELS_SHOWN_MAX]) + (", …" if len(models) > MODELS_SHOWN_MAX else "")
        return Health(
            ProbeVerdict.NOT_SERVING,
            models,
            f'the engine serves {shown or "no model"}, not "{self._served_model}"; correct served_model',
            trouble=EndpointProblem.MODEL_UNKNOWN,
            adapters=adapters,
        )

    async def version(self) -> str | None:
        return await self._read_field(self._dialect.version, str)

    async def scrape(self) -> Scrape:
        dialect = self._dialect
        if dialect.metrics_path is None:
            return Scrape()
        try:
            status, page = await self._get(dialect.metrics_path, self._metrics_url)
        except PageUnavailable as unheard:
            return Scrape(problem=str(unheard))
        if status != 200:
            said = self._error(dialect.metrics_path, status, page)
            return Scrape(problem=f"{said}; {dialect.metrics_hint}" if dialect.metrics_hint else said)
        names = [name for aliases in dialect.metrics.values() for name in aliases]
        found = await run_in_turns(metrics_steps(page, (*names, *dialect.extra_metrics.values())))
        signals = {
            signal: name
            for signal, aliases in dialect.metrics.items()
            if (name := next((alias for alias in aliases if alias in found), None)) is not None
        }
        telemetry = _telemetry(found, signals, _extra_metrics(found, dialect)) if signals else None
        return Scrape(telemetry, signals, _missing_problem(dialect, signals), await self._max_lora(page))

    async def _max_lora(self, page: bytes) -> int | None:
        """Returns the number of adapters that the engine can hold.

        The page has one series for each state since the start. All of them report the same limit.
        """
        metric = self._dialect.adapters_metric
        if metric is None or metric.encode() not in page:
            return None
        found = await run_in_turns(label_steps(page, metric, "max_lora"))
        numbers = [int(each) for each in found if each.isascii() and each.isdigit() and len(each) <= _DIGITS_MAX]
        return max(numbers, default=0) or None

    async def concurrency(self) -> int | None:
        """Returns the engine's maximum number of concurrent requests, or None if the engine does not report it."""
        return await self._read_field(self._dialect.concurrency, int)

    async def limits(self) -> EngineLimits:
        """Reads the limits that the engine reports. Limits from unavailable pages stay None."""
        read, dialect = self._dialect.read_limits, self._dialect
        if read is None:
            return EngineLimits()
        pages: dict[str, bytes] = {}
        for path in dialect.limits_paths:
            url = self._metrics_url if path == dialect.metrics_path else None
            await self._add_page(pages, path, path.format(model=quote(self._served_model, safe="")), url)
        return read(pages)

    async def _add_page(self, pages: dict[str, bytes], name: str, path: str, url: str | None = None) -> None:
        try:
            status, body = await self._get(path, url)
        except PageUnavailable:
            return
        if status == 200 and body.count(b"{") <= OBJECTS_MAX:
            pages[name] = body

    async def _read_field(self, source: VersionSource | ConcurrencySource | None, kind: type[_T]) -> _T | None:
        if source is None:
            return None
        try:
            _, body = await self._get(source.path)
            return msgspec.json.decode(_FIELDS.decode(body)[source.field], type=kind)
        except (PageUnavailable, KeyError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    async def _get(self, path: str, url: str | None = None) -> tuple[int, bytes]:
        """Returns the status and body of a complete response."""
        page = await get_engine_page(
            self._session,
            url or self._url,
            path,
            headers=self._headers,
            timeout_s=self._timeout_s,
            page_bytes_max=self._page_bytes_max,
            tls=self._tls,
        )
        return page.status, page.body

    def _error(self, path: str, status: int, body: bytes) -> str:
        """Returns a message about a response. Some servers repeat a wrong key in their errors, which are logged."""
        return f"GET {path} returned {status}: {read_error(body, self._key)}"


def _unhealthy(status: int, said: str) -> Health:
    verdict = ProbeVerdict.NOT_SERVING if status == 503 else ProbeVerdict.UNCLEAR
    rejected = status in (401, 403)
    hint = "; set api_key to the engine's key" if rejected else ""
    trouble = EndpointProblem.LOADING if status == 503 else EndpointProblem.ERRORS
    return Health(
        verdict,
        problem=f"{said}{hint}",
        trouble=EndpointProblem.KEY_REJECTED if rejected else trouble,
    )


def _missing_problem(dialect: Dialect, signals: dict[Signal, str]) -> str | None:
    missing = [aliases[0] for signal, aliases in dialect.metrics.items() if signal not in signals]
    if not missing:
        return None
    return f"{dialect.metrics_path} lacks {', '.join(missing)}; check that this engine is {dialect.name}"


def _extra_metrics(found: dict[str, Metric], dialect: Dialect) -> dict[str, float]:
    return {
        # Utilisation is averaged over the GPUs. All other values are summed.
        ours: found[name].mean if ours == GPU_UTILISATION else found[name].total
        for ours, name in dialect.extra_metrics.items()
        if name in found
    }


def _telemetry(found: dict[str, Metric], signals: dict[Signal, str], further: dict[str, float]) -> Telemetry:
    def total(signal: Signal) -> int | None:
        return round(found[signals[signal]].total) if signal in signals else None

    kv = signals.get(Signal.KV_USED_FRACTION)
    return Telemetry(
        running=total(Signal.RUNNING),
        waiting=total(Signal.WAITING),
        # Each rank reports a fraction of its own memory, so the ranks are averaged.
        kv_used_fraction=None if kv is None else found[kv].mean,
        preemptions=total(Signal.PREEMPTIONS),
        extra=further,
    )
