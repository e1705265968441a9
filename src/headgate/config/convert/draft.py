"""The configuration that a conversion builds.

A reader adds endpoints, each with the model that it serves. The draft groups them into pools: endpoints in a pool share
all settings and serve the same models. Everything else is a setting at a path, with a comment about its origin.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headgate.config.convert.source import SourceFile
from headgate.config.fleets import is_dns_name
from headgate.config.pools import InvalidEngineUrl, engine_address, engine_url
from headgate.config.quantities import duration_text, size_text
from headgate.config.references import RESERVED_NAMES, is_model_name
from headgate.config.starter_config import public_name
from headgate.model.units import MILLISECOND, MINUTE

Setting = str | list["Setting"] | dict[str, "Setting"]
DraftPath = tuple[str, ...]

IN_FLIGHT_ESTIMATE: Final = 64
"""Limit for an endpoint without a limit in the source. With continuous batching, engines run about as many requests."""
ENDPOINTS_MAX: Final = 5_000
ANONYMOUS_TENANT: Final = "everyone"
CLASSES: Final = ("interactive", "long", "batch")
_API_PATH: Final = re.compile(r"/v1(/.*)?$")
_STANDBY_LENGTH_MAX: Final = 240
_YEAR_NS: Final = 365 * 24 * 60 * MINUTE
_NAME_LENGTH_MAX: Final = 64
_PLACEHOLDER_KEYS: Final = frozenset({"", "none", "empty", "dummy", "fake", "fake-key", "no-key", "not-needed", "null"})
"""Values that stand for the absence of an API key, in lower case."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class PoolDraft:
    """Settings shared by the endpoints of a pool."""

    name: str
    """Wish for the pool's name."""
    engine: str
    served_model: str | None = None
    api_key: str | None = None
    """Environment variable with the API key."""
    tls: tuple[tuple[str, str], ...] = ()
    fleet: tuple[tuple[str, str], ...] = ()
    """Settings of a `dns` fleet; empty for endpoints with a URL."""
    prices: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class EndpointDraft:
    pool: PoolDraft
    url: str
    in_flight_max: int | None
    zone: str | None
    models: dict[str, None]


@dataclass(slots=True)
class Draft:
    file: SourceFile
    settings: dict[str, Setting] = field(default_factory=dict[str, Setting])
    comments: dict[DraftPath, list[str]] = field(default_factory=dict[DraftPath, list[str]])
    fallbacks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables that the result needs, with their meaning."""
    classes: list[str] = field(default_factory=lambda: list(CLASSES))
    """Classes of the result, if it sets any of their settings."""
    manifests: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    """Kubernetes objects that the result needs, as lines of YAML."""
    key_reason: str = ""
    """Why clients need a key. If empty, the source admits clients without a key, and so does the result."""
    _endpoints: dict[str, EndpointDraft] = field(default_factory=dict[str, EndpointDraft])
    _literal_keys: dict[str, str] = field(default_factory=dict[str, str])

    # Endpoints

    def add_endpoint(
        self,
        model: str,
        url: str,
        pool: PoolDraft,
        place: tuple[int | None, str],
        *,
        in_flight_max: int | None = None,
        zone: str | None = None,
    ) -> None:
        """Adds an endpoint that serves this model, or reports at this place why it cannot be used."""
        try:
            url = engine_url(url)
        except InvalidEngineUrl as error:
            self.file.drop(*place, f"the URL {error}")
            return
        self._add(engine_address(url), EndpointDraft(pool, url, in_flight_max, zone, {model: None}), place)

    def add_fleet(
        self, model: str, pool: PoolDraft, place: tuple[int | None, str], *, in_flight_max: int | None
    ) -> None:
        """Adds a `dns` fleet that serves this model, or reports at this place why it cannot be used."""
        settings = dict(pool.fleet)
        if not is_dns_name(settings["name"]) or not 1 <= int(settings["port"]) <= 65_535:
            self.file.drop(*place, "it needs a DNS name and a port from 1 to 65535")
            return
        self._add(
            f"{pool.fleet}{pool.served_model}", EndpointDraft(pool, "", in_flight_max, None, {model: None}), place
        )

    def _add(self, address: str, endpoint: EndpointDraft, place: tuple[int | None, str]) -> None:
        if len(self._endpoints) >= ENDPOINTS_MAX:
            raise self.file.error(*place, f"has more than {ENDPOINTS_MAX} endpoints; convert a part of the file")
        known = self._endpoints.setdefault(address, endpoint)
        first = known.pool.served_model or next(iter(known.models))
        if first != (endpoint.pool.served_model or next(iter(endpoint.models))):
            problem = f'the same engine already serves "{first}", and a Headgate endpoint serves one model'
            self.file.drop(*place, problem)
        else:
            if known is not endpoint and known.pool != endpoint.pool and set(known.models) == set(endpoint.models):
                self.file.change(*place, "the endpoint is listed more than once; the first entry applies")
            known.models.update(endpoint.models)

    def standby(self, model: str, pool: PoolDraft, place: tuple[int | None, str]) -> tuple[str, PoolDraft]:
        """Returns the fallback model and pool for endpoints that serve a model only when its other endpoints cannot."""
        standby = f"{model[:_STANDBY_LENGTH_MAX]}-backup"
        self.file.change(*place, f'it belongs to the model "{standby}", which is a fallback of "{model}"')
        self.fallbacks.setdefault(model, []).append(standby)
        return standby, replace(pool, name=f"{pool.name}-backup", served_model=model)

    def add_alias(self, alias: str, model: str) -> bool:
        """Makes the endpoints of a model serve another name as well. Returns whether the model has endpoints."""
        served = [each for each in self._endpoints.values() if model in each.models]
        for each in served:
            each.models[alias] = None
        return bool(served)

    def pools(self) -> dict[str, list[EndpointDraft]]:
        """Endpoints by the name of their pool."""
        groups: dict[tuple[PoolDraft, tuple[str, ...]], list[EndpointDraft]] = {}
        for each in self._endpoints.values():
            key = (each.pool, tuple(each.models))
            groups.setdefault(key, []).append(each)
        pools: dict[str, list[EndpointDraft]] = {}
        for (pool, _), endpoints in groups.items():
            pools[unused_name(pool.name, pools, RESERVED_NAMES["pools"])] = endpoints
        return pools

    def models(self) -> list[str]:
        return list(dict.fromkeys(model for each in self._endpoints.values() for model in each.models))

    # Settings

    def put(self, path: DraftPath, value: Setting, comment: str = "") -> None:
        inner = self.settings
        for name in path[:-1]:
            following = inner.setdefault(name, {})
            assert isinstance(following, dict)
            inner = following
        inner[path[-1]] = value
        if comment:
            self.comment(path, comment)

    def get(self, path: DraftPath) -> Setting | None:
        inner: Setting | None = self.settings
        for name in path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        return inner

    def comment(self, path: DraftPath, text: str) -> None:
        self.comments.setdefault(path, []).append(text)

    def put_number(self, path: DraftPath, value: int, place: tuple[int | None, str], comment: str = "") -> None:
        """Sets a number of at least 1. If the path has another value, the first one stays."""
        if value < 1:
            self.file.drop(*place, f"{value} is below the minimum of {'.'.join(path)}, which is 1")
        else:
            self._put_first(path, str(value), place, comment)

    def put_duration(self, path: DraftPath, value_ns: int, place: tuple[int | None, str], comment: str = "") -> None:
        if not MILLISECOND <= value_ns <= _YEAR_NS:
            self.file.drop(*place, f"{'.'.join(path)} must be between 1ms and 365 days")
        else:
            # Durations have a resolution of one millisecond in most sources.
            self._put_first(path, duration_text(value_ns // MILLISECOND * MILLISECOND), place, comment)

    def put_timeout(self, setting: str, value_ns: int, place: tuple[int | None, str]) -> None:
        """Sets a timeout for all classes."""
        for name in self.classes:
            if self.get(("classes", name, setting)) is None:
                self.put_duration(("classes", name, setting), value_ns, place)
            elif name == self.classes[0]:
                self._put_first(("classes", name, setting), duration_text(value_ns), place, "")
        self.comment(("classes",), f"{setting}: from {described(place)}.")

    def put_ejection_time(self, value_ns: int, place: tuple[int | None, str]) -> None:
        self.put_duration(("health", "ejection_time"), value_ns, place, f"From {described(place)}.")
        if 5 * MINUTE < value_ns <= _YEAR_NS and self.get(("health", "ejection_time_max")) is None:
            self.put(("health", "ejection_time_max"), duration_text(value_ns // MILLISECOND * MILLISECOND))

    def put_body_size(self, size: int, place: tuple[int | None, str]) -> None:
        if not 1024 <= size <= 2**40:
            self.file.drop(*place, "limits.body_bytes_max must be between 1KiB and 1024GiB")
            return
        self._put_first(("limits", "body_bytes_max"), size_text(size), place, f"From {described(place)}.")
        if size > 2**30:
            self.put(("limits", "total_body_bytes_max"), size_text(size))

    def _put_first(self, path: DraftPath, value: str, place: tuple[int | None, str], comment: str) -> None:
        known = self.get(path)
        if known is None:
            self.put(path, value, comment)
        elif known != value:
            self.file.drop(*place, f"{'.'.join(path)} applies to the whole gateway and is already {known}")

    # Names and secrets

    def model_name(self, name: str, place: tuple[int | None, str]) -> str:
        """The name, or the most similar name that is valid."""
        if is_model_name(name):
            return name
        valid = public_name(name)
        self.file.change(*place, f'the model is called "{valid}", because its name has other characters')
        return valid

    def secret(self, value: str, name: str, meaning: str) -> str | None:
        """Environment variable for a secret; None if the value is a placeholder for no secret. The value is not kept
        in the result.
        """
        if value.strip().lower() in _PLACEHOLDER_KEYS:
            return None
        if value not in self._literal_keys:
            wish = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()[:_NAME_LENGTH_MAX]
            wish = wish if _VARIABLE.fullmatch(wish) else f"KEY_{wish}"
            self._literal_keys[value] = unused_name(wish, self.variables, separator="_")
        variable = self._literal_keys[value]
        self.variables.setdefault(variable, meaning)
        return variable

    def variable(self, name: str, meaning: str) -> str | None:
        """The environment variable that the source itself reads; None if its name is not valid."""
        if _VARIABLE.fullmatch(name) is None:
            return None
        self.variables.setdefault(name, meaning)
        return name


def described(place: tuple[int | None, str]) -> str:
    line, setting = place
    return setting if line is None else f"{setting} (line {line})"


def base_path(path: str) -> str:
    """Returns the part of a path before the API version, because clients and engines always use /v1."""
    return _API_PATH.sub("", path.rstrip("/"))


def unused_name(
    wish: str, taken: Container[str], reserved: Mapping[str, str] | None = None, *, separator: str = "-"
) -> str:
    """A valid pool, class or tenant name, similar to the wish, that is not taken."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", wish).lstrip("._-").rstrip("-")[:_NAME_LENGTH_MAX] or "engines"
    number, found = 2, name
    while found in taken or found in (reserved or {}):
        end = f"{separator}{number}"
        found, number = name[: _NAME_LENGTH_MAX - len(end)] + end, number + 1
    return found
