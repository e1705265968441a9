"""What does one look at an engine show?

A look is a few small GETs, each bounded in time and size. What an engine says of itself is told apart from our not
hearing it: only the first may make an endpoint unready, because a gateway that cannot reach its engines for a moment,
or not by this path, must not stop all work.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from headgate.engines.dialect import GPU_UTILISATION, Dialect, PlacesSource, Signal, VersionSource
from headgate.engines.http import authorization, metrics_url
from headgate.engines.metrics_page import Metric, in_turns, label_steps, metrics_steps
from headgate.engines.page import Unheard, get_page
from headgate.model.endpoint import EndpointTrouble
from headgate.ports.engine import EngineLimits, Telemetry
from headgate.wire.replies import read_error

MODELS_SHOWN_MAX: Final = 8
OBJECTS_MAX: Final = 20_000
"""Maximum number of objects in a list of models, which is parsed in one turn of the event loop. vLLM writes two
objects per model."""

_T = TypeVar("_T")


class Verdict(Enum):
    SERVES = auto()
    """It is well and lists our model."""
    SAYS_NO = auto()
    """It answers, and says that it cannot serve our model, yet or at all."""
    UNCLEAR = auto()
    """It answers, but not so that anything follows from it."""
    UNHEARD = auto()
    """Nothing came from it."""


@dataclass(frozen=True, slots=True)
class Health:
    verdict: Verdict
    models: tuple[str, ...] = ()
    problem: str | None = None
    trouble: EndpointTrouble | None = None
    """Why the engine does not serve; None if it does, or if this process could not send the probe."""


@dataclass(frozen=True, slots=True)
class Scrape:
    telemetry: Telemetry | None = None
    """None where the page could not be read, or has nothing of what is wanted."""
    signals: dict[Signal, str] | None = None
    """Which metric each signal was found under."""
    problem: str | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)
_SAYS_NO: Final = (400, 404, 503)
"""How a server says of one of its models that it is not ready, or not there."""
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Probe:
    """Looks at one engine."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        dialect: Dialect,
        served_model: str,
        api_key: str | None,
        timeout_s: float,
        page_bytes_max: int,
    ) -> None:
        self._session = session
        self._url = url
        self._metrics_url = metrics_url(url, dialect)
        self._dialect = dialect
        self._served_model = served_model
        self._headers = authorization(api_key)
        self._timeout_s = timeout_s
        self._page_bytes_max = page_bytes_max

    async def health(self) -> Health:
        try:
            if self._dialect.model_ready_path is not None:
                return await self._model_health(self._dialect.model_ready_path)
            if self._dialect.health_path is not None:
                status, body = await self._get(self._dialect.health_path)
                if status != 200:
                    return _unwell(self._dialect.health_path, status, body)
            status, body = await self._get(self._dialect.models_path)
        except Unheard as unheard:
            return Health(Verdict.UNHEARD, problem=str(unheard), trouble=unheard.trouble)
        if status != 200:
            return _unwell(self._dialect.models_path, status, body)
        return self._judge_models(body)

    async def _model_health(self, template: str) -> Health:
        """What an engine says of one model. Its other models may be as they like."""
        path = template.format(model=quote(self._served_model, safe=""))
        status, body = await self._get(path)
        if status == 200:
            return Health(Verdict.SERVES, (self._served_model,))
        if status not in _SAYS_NO:
            return _unwell(path, status, body)
        well_path = self._dialect.health_path
        if well_path is not None:
            well, said = await self._get(well_path)
            if well != 200:
                problem = f"GET {well_path} answered {well}: {read_error(said)}"
                return Health(Verdict.SAYS_NO, problem=problem, trouble=EndpointTrouble.LOADING)
        models = await self._models_measured()
        if models and self._served_model not in models:
            return self._serves_others(models)
        problem = f"GET {path} answered {status}: {read_error(body)}"
        return Health(Verdict.SAYS_NO, models, problem, EndpointTrouble.LOADING)

    async def _models_measured(self) -> tuple[str, ...]:
        """The models that the metrics page has figures of; none where there is no page."""
        metric, path = self._dialect.models_metric, self._dialect.metrics_path
        if metric is None or path is None:
            return ()
        try:
            status, page = await self._get(path, self._metrics_url)
        except Unheard:
            return ()
        return await in_turns(label_steps(page, metric, "model")) if status == 200 else ()

    def _judge_models(self, body: bytes) -> Health:
        path = self._dialect.models_path
        if body.count(b"{") > OBJECTS_MAX:
            problem = f"GET {path} lists more than {OBJECTS_MAX} objects"
            return Health(Verdict.UNCLEAR, problem=problem, trouble=EndpointTrouble.ERRORS)
        try:
            models = tuple(model.id for model in _MODELS.decode(body).data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            problem = f"GET {path} gives no list of models: {error}"
            return Health(Verdict.UNCLEAR, problem=problem, trouble=EndpointTrouble.ERRORS)
        if self._served_model in models:
            return Health(Verdict.SERVES, models)
        return self._serves_others(models)

    def _serves_others(self, models: tuple[str, ...]) -> Health:
        shown = ", ".join(models[:MODELS_SHOWN_MAX]) + (", …" if len(models) > MODELS_SHOWN_MAX else "")
        return Health(
            Verdict.SAYS_NO,
            models,
            f'it serves {shown or "no model"}, not "{self._served_model}"; set served_model to a name it serves',
            EndpointTrouble.MODEL_UNKNOWN,
        )

    async def version(self) -> str | None:
        return await self._told(self._dialect.version, str)

    async def scrape(self) -> Scrape:
        dialect = self._dialect
        if dialect.metrics_path is None:
            return Scrape()
        try:
            status, page = await self._get(dialect.metrics_path, self._metrics_url)
        except Unheard as unheard:
            return Scrape(problem=str(unheard))
        if status != 200:
            said = f"GET {dialect.metrics_path} answered {status}: {read_error(page)}"
            return Scrape(problem=f"{said}; {dialect.metrics_hint}" if dialect.metrics_hint else said)
        names = (name for aliases in dialect.metrics.values() for name in aliases)
        found = await in_turns(metrics_steps(page, names))
        signals = {
            signal: name
            for signal, aliases in dialect.metrics.items()
            if (name := next((alias for alias in aliases if alias in found), None)) is not None
        }
        telemetry = _telemetry(found, signals, await _further(page, dialect)) if signals else None
        return Scrape(telemetry, signals, _missing_problem(dialect, signals))

    async def places(self) -> int | None:
        """How many requests it says that it runs at once; None where it does not say."""
        return await self._told(self._dialect.places, int)

    async def limits(self) -> EngineLimits:
        """The limits that the engine reports; pages that it does not have leave theirs unknown."""
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
        except Unheard:
            return
        if status == 200 and body.count(b"{") <= OBJECTS_MAX:
            pages[name] = body

    async def _told(self, source: VersionSource | PlacesSource | None, kind: type[_T]) -> _T | None:
        if source is None:
            return None
        try:
            _, body = await self._get(source.path)
            return msgspec.json.decode(_FIELDS.decode(body)[source.field], type=kind)
        except (Unheard, KeyError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    async def _get(self, path: str, url: str | None = None) -> tuple[int, bytes]:
        """Status and body of an answer, whole and in time."""
        page = await get_page(
            self._session,
            url or self._url,
            path,
            headers=self._headers,
            timeout_s=self._timeout_s,
            page_bytes_max=self._page_bytes_max,
        )
        return page.status, page.body


def _unwell(path: str, status: int, body: bytes) -> Health:
    verdict = Verdict.SAYS_NO if status == 503 else Verdict.UNCLEAR
    rejected = status in (401, 403)
    hint = "; set api_key to the engine's key" if rejected else ""
    trouble = EndpointTrouble.LOADING if status == 503 else EndpointTrouble.ERRORS
    return Health(
        verdict,
        problem=f"GET {path} answered {status}: {read_error(body)}{hint}",
        trouble=EndpointTrouble.KEY_REJECTED if rejected else trouble,
    )


def _missing_problem(dialect: Dialect, signals: dict[Signal, str]) -> str | None:
    missing = [aliases[0] for signal, aliases in dialect.metrics.items() if signal not in signals]
    if not missing:
        return None
    return f"{dialect.metrics_path} lacks {', '.join(missing)}; is this engine really {dialect.name}?"


async def _further(page: bytes, dialect: Dialect) -> dict[str, float]:
    found = await in_turns(metrics_steps(page, dialect.further_metrics.values()))
    return {
        # How busy several GPUs are is their mean; of all else it is the sum that counts.
        ours: found[name].mean if ours == GPU_UTILISATION else found[name].total
        for ours, name in dialect.further_metrics.items()
        if name in found
    }


def _telemetry(found: dict[str, Metric], signals: dict[Signal, str], further: dict[str, float]) -> Telemetry:
    def total(signal: Signal) -> int | None:
        return round(found[signals[signal]].total) if signal in signals else None

    kv = signals.get(Signal.KV_USED_FRACTION)
    return Telemetry(
        running=total(Signal.RUNNING),
        waiting=total(Signal.WAITING),
        # A fraction of each part's own memory, so the parts' mean.
        kv_used_fraction=None if kv is None else found[kv].mean,
        preemptions=total(Signal.PREEMPTIONS),
        further=further,
    )
