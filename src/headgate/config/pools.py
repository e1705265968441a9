"""Pools and their endpoints."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from headgate.config.adapters import has_adapters, pool_adapters
from headgate.config.batching import batch_rules
from headgate.config.engine_profiles import ProfileFinder
from headgate.config.engine_tls import engine_tls
from headgate.config.fleets import (
    STATIC,
    check_can_scale,
    cold_start_ns,
    fleet_options,
    held_requests_max,
    scaling_rules,
)
from headgate.config.money import prices
from headgate.config.pool_schema import HOSTED_ENGINE, EndpointSection, PoolSection, SpeedSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema import ConfigFile, RouteSection
from headgate.config.schema_reader import suggestion
from headgate.config.settings import PoolSettings
from headgate.config.speeds import engine_speed
from headgate.fleets.options import EndpointOptions
from headgate.model.policy import Pool
from headgate.model.units import Duration, EndpointId, PoolName

_PORTS = {"http": 80, "https": 443}
_API_PATH = re.compile(
    r"/(v1(/(chat/completions|completions|embeddings|responses|messages(/count_tokens)?|models))?|v2/(models|health)(/.*)?"
    r"|health|metrics)/?$"
)
"""Path of an engine's API at the end of a URL."""
_BASE_PATH = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)*/?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_BETA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GATEWAY_HEADERS = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"}
    | {"transfer-encoding", "user-agent", "x-request-id"}
)
"""Headers that the gateway sets itself. The header `authorization` is the default."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def pool_settings(file: ConfigFile, engines: Collection[str], report: ConfigReport) -> tuple[PoolSettings, ...]:
    if not file.pools:
        report.add_problem(("pools",), "has no pools; define at least one, with the URLs of its engines")
    reading = _PoolReader(file, sorted(engines), report)
    return tuple(reading.pool(name, section) for name, section in file.pools.items())


def policy_pools(
    sections: Mapping[str, PoolSection], profiles: ProfileFinder, report: ConfigReport
) -> tuple[Pool, ...]:
    """The pools as part of the scheduler's policy."""
    for name, section in sections.items():
        check_ranges(section, ("pools", name), report)
    return tuple(
        Pool(
            PoolName(name),
            Duration(section.warm_up),
            speed=engine_speed(section.speed, profiles, ("pools", name, "speed")),
            speed_assumed=section.speed == SpeedSection(),
            kv_tokens=section.kv_tokens,
            prompt_tokens_min=section.prompt_tokens_min,
            prompt_tokens_max=section.prompt_tokens_max,
            output_tokens_min=section.output_tokens_min,
            output_tokens_max=section.output_tokens_max,
            hold_max=held_requests_max(section.scaling),
            cold_start_ns=cold_start_ns(section.scaling),
            prices=prices(section.prices, ("pools", name), report),
            scales=section.scaling is not None,
            max_lora=section.max_lora,
            discovers_adapters=section.discover_adapters,
            hosted=section.engine == HOSTED_ENGINE,
        )
        for name, section in sections.items()
    )


def check_ranges(section: "TokenRanges", place: SettingPath, report: ConfigReport) -> None:
    for least, most, setting in (
        (section.prompt_tokens_min, section.prompt_tokens_max, "prompt_tokens_max"),
        (section.output_tokens_min, section.output_tokens_max, "output_tokens_max"),
    ):
        if most is not None and most < least:
            smaller = setting.replace("_max", "_min")
            report.add_problem((*place, setting), f"is less than {smaller} {least}; raise it")


class TokenRanges(Protocol):
    """Prompt and output lengths for which a pool is intended."""

    @property
    def prompt_tokens_min(self) -> int: ...
    @property
    def prompt_tokens_max(self) -> int | None: ...
    @property
    def output_tokens_min(self) -> int: ...
    @property
    def output_tokens_max(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _PoolReader:
    file: ConfigFile
    engines: list[str]
    report: ConfigReport
    claimed_addresses: dict[str, dict[str, "_Claim"]] = field(default_factory=dict[str, dict[str, "_Claim"]])
    """The endpoints at each address, by pool."""

    def pool(self, name: str, section: PoolSection) -> PoolSettings:
        place = ("pools", name)
        check_can_scale(name, section, self.report)
        if section.engine not in self.engines:
            hint = suggestion(section.engine, self.engines, otherwise=f"; the engines are {', '.join(self.engines)}")
            self.report.add_problem((*place, "engine"), f'engine "{section.engine}" does not exist{hint}')
        return PoolSettings(
            name=PoolName(name),
            engine=section.engine,
            served_model=self._served_model(name, section),
            endpoints=self._endpoints(name, section),
            api_key=section.api_key,
            api_key_header=self._key_header(name, section),
            anthropic_betas=self._betas(name, section),
            tls=engine_tls(name, section, self.report),
            forward_priority=section.forward_priority,
            always_stream_upstream=section.always_stream_upstream,
            gpu_metrics_port=section.gpu_metrics_port,
            fleet=fleet_options(name, section, self.report),
            scaling=scaling_rules(name, section.scaling, self.file.classes or {}, self.report),
            batching=batch_rules(name, section.batching, _slots_max(section), self.report),
            adapters=pool_adapters(name, section, self.report),
            discover_adapters=section.discover_adapters,
        )

    def _key_header(self, name: str, section: PoolSection) -> str | None:
        header = section.api_key_header
        if header is None:
            return None
        place = ("pools", name, "api_key_header")
        if not _HEADER_NAME.fullmatch(header) or header.lower() in _GATEWAY_HEADERS:
            self.report.add_problem(place, "is not the name of a header for a key; use one such as x-api-key")
        if section.api_key is None:
            self.report.add_problem(place, "has no effect without api_key; set api_key, or remove it")
        return header.lower()

    def _betas(self, name: str, section: PoolSection) -> tuple[str, ...]:
        place = ("pools", name, "anthropic_betas")
        if section.anthropic_betas and section.engine != HOSTED_ENGINE:
            self.report.add_problem(place, "has no effect on your own engines, only with engine provider; remove it")
        for number, beta in enumerate(section.anthropic_betas):
            if not _BETA.fullmatch(beta):
                problem = "is not the name of a beta feature; use one such as interleaved-thinking-2025-05-14"
                self.report.add_problem((*place, number), problem)
        return tuple(section.anthropic_betas)

    def _served_model(self, name: str, section: PoolSection) -> str:
        """The configured name, or the name of the only model that uses the pool."""
        models = [
            model
            for model, its in self.file.models.items()
            if name in its.pools
            or any(name in (*route.pools, *_mirror_pools(route)) for route in its.routes)
            or (its.overflow is not None and name in its.overflow.pools)
        ]
        if not models and not has_adapters(section):
            self.report.add_warning(("pools", name), "no model uses this pool; add it to a model, or remove it")
        elif len(models) > 1 and section.served_model is None:
            listed = ", ".join(f'"{each}"' for each in models)
            problem = f"missing; models {listed} share this pool, so set the name that its engines use"
            self.report.add_problem(("pools", name, "served_model"), problem)
        return section.served_model or (models[0] if models else name)

    def _endpoints(self, pool: str, section: PoolSection) -> tuple[EndpointOptions, ...]:
        place = ("pools", pool, "endpoints")
        if not section.endpoints and section.fleet.kind == STATIC:
            wrong = "has no endpoints; list the URL of at least one engine, or configure fleet"
            self.report.add_problem(place, wrong)
        found: dict[EndpointId, EndpointOptions] = {}
        for number, each in enumerate(section.endpoints):
            endpoint = self._endpoint(pool, section, each, (*place, number))
            if endpoint is None:
                continue
            if endpoint.id in found:
                problem = f'pool "{pool}" already has an endpoint named "{each.name}"; choose another name'
                self.report.add_problem((*place, number, "name"), problem)
            found[endpoint.id] = endpoint
        return tuple(found.values())

    def _endpoint(
        self, pool: str, section: PoolSection, endpoint: EndpointSection, place: SettingPath
    ) -> EndpointOptions | None:
        if self.report.has_problem((*place, "url")):
            return None
        try:
            url = _parse_url(endpoint.url)
        except InvalidEngineUrl as error:
            self.report.add_problem((*place, "url"), str(error))
            return None
        if endpoint.name is not None and not _NAME.fullmatch(endpoint.name):
            self.report.add_problem((*place, "name"), "must have only letters, digits, and . _ : -")
        for setting, word in (("device", endpoint.device), ("zone", endpoint.zone)):
            if word is not None and not _NAME.fullmatch(word):
                self.report.add_problem((*place, setting), "must have only letters, digits, and . _ : -")
        identity = EndpointId(f"{pool}/{endpoint.name or _address(url)}")
        options = EndpointOptions(
            identity,
            f"{url.scheme}://{url.netloc}{url.path}",
            self._in_flight_max(pool, section, endpoint),
            device=endpoint.device or "",
            zone=endpoint.zone or "",
        )
        return options if self._claim_address(_address(url), pool, _Claim(options, section), place) else None

    def _claim_address(self, address: str, pool: str, claim: "_Claim", place: SettingPath) -> bool:
        """Records the endpoint's address. An address may belong to several pools if they agree about the engine.

        The pools of a hosted provider do not share an engine: its models have prices and limits of their own.
        """
        key = f"{address} {pool}" if claim.section.engine == HOSTED_ENGINE else address
        others = self.claimed_addresses.setdefault(key, {})
        if (same := others.get(pool)) is not None:
            problem = f'{address} is already endpoint "{same.endpoint.id}"; remove one of the two'
            self.report.add_problem((*place, "url"), problem)
            return False
        with_adapters = [each for each in others.values() if has_adapters(each.section)]
        differences = [(other, each) for other in list(others.values())[:1] for each in claim.differences(other)]
        differences += [(other, each) for other in with_adapters[:1] for each in claim.adapter_differences(other)]
        for other, (setting, ours, theirs) in differences:
            self.report.add_problem(
                place,
                f'{setting} is {ours}, but {theirs} for endpoint "{other.endpoint.id}" on the same engine; '
                "set the same value, because the pools share the engine",
            )
        if others and (scaled := [each for each in (claim, *others.values()) if each.section.scaling is not None]):
            self.report.add_problem(
                place,
                f'{address} belongs to several pools, and the pool of endpoint "{scaled[0].endpoint.id}" has scaling; '
                "remove scaling, because the size of a pool with shared engines cannot be planned",
            )
        others[pool] = claim
        return True

    def _in_flight_max(self, pool: str, section: PoolSection, endpoint: EndpointSection) -> int:
        limit = endpoint.in_flight_max or section.in_flight_max
        if limit is None:
            self.report.add_problem(
                ("pools", pool, "in_flight_max"),
                "missing; set the number of concurrent requests per endpoint (llama.cpp: its --parallel; vLLM: try 64)",
            )
        return limit or 1


@dataclass(frozen=True, slots=True)
class _Claim:
    """An endpoint at an address, with the settings of its pool."""

    endpoint: EndpointOptions
    section: PoolSection

    def differences(self, other: "_Claim") -> Iterator[tuple[str, object, object]]:
        """Yields the settings that describe the engine and are not the same: name, our value, their value."""
        pairs = (
            ("the scheme of url", self.endpoint.url.split(":")[0], other.endpoint.url.split(":")[0]),
            ("engine", self.section.engine, other.section.engine),
            ("in_flight_max", self.endpoint.in_flight_max, other.endpoint.in_flight_max),
            ("kv_tokens", self.section.kv_tokens or "not set", other.section.kv_tokens or "not set"),
            ("device", self.endpoint.device or "not set", other.endpoint.device or "not set"),
            ("zone", self.endpoint.zone or "not set", other.endpoint.zone or "not set"),
        )
        for setting, ours, theirs in pairs:
            if ours != theirs:
                yield setting, ours, theirs
        if self.section.prices != other.section.prices:
            yield "the price (prices)", "different", "set otherwise"

    def adapter_differences(self, other: "_Claim") -> Iterator[tuple[str, object, object]]:
        """Yields the settings of the engine's adapters that are not the same, if both pools have adapters."""
        if not has_adapters(self.section):
            return
        ours, theirs = self.section, other.section
        if ours.max_lora != theirs.max_lora:
            yield "max_lora", ours.max_lora or "not set", theirs.max_lora or "not set"
        known = {each.name: each.source for each in theirs.adapters}
        for each in ours.adapters:
            source = known.get(each.name)
            if source is not None and each.source not in (None, source):
                yield f'the source of adapter "{each.name}"', each.source, source


class InvalidEngineUrl(Exception):
    """The text is not an engine URL. The message gives the reason and never quotes a password."""


def engine_url(text: str) -> str:
    """Normalized engine URL. The input may end with `/v1`. Raises `InvalidEngineUrl`."""
    url = _parse_url(text.rstrip("/").removesuffix("/v1"))
    return f"{url.scheme}://{url.netloc}{url.path}"


def engine_address(url: str) -> str:
    """Host, port and base path of a normalized engine URL. Two endpoints cannot have the same address."""
    return _address(urlsplit(url))


def _parse_url(text: str) -> SplitResult:
    """Normalized URL without a trailing slash."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = url = None
    if url is None or url.scheme not in _PORTS or not host or port == 0 or re.search(r"[\s\\%]", url.netloc):
        raise InvalidEngineUrl("is not the URL of an engine; write it as http://HOST:PORT or https://HOST")
    if "@" in url.netloc:
        raise InvalidEngineUrl("has credentials; remove them and set the pool's api_key")
    found = _API_PATH.search(url.path)
    if url.query or url.fragment or found is not None:
        rest = text.split(url.netloc, 1)[1] if found is None else found[0]
        raise InvalidEngineUrl(f'ends with "{rest}"; remove it, because Headgate adds the API paths')
    if not _BASE_PATH.fullmatch(url.path):
        raise InvalidEngineUrl("has a base path with characters other than letters, digits, and . _ ~ - /; correct it")
    return SplitResult(url.scheme, url.netloc.lower(), url.path.rstrip("/"), "", "")


def _address(url: SplitResult) -> str:
    return _host_and_port(url) + url.path


def _host_and_port(url: SplitResult) -> str:
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{host}:{url.port or _PORTS[url.scheme]}"


def _mirror_pools(route: RouteSection) -> list[str]:
    return [] if route.mirror is None else route.mirror.pools


def _slots_max(section: PoolSection) -> int:
    """Highest `in_flight_max` of the pool's endpoints, or 0 if the gateway determines it."""
    return max([section.in_flight_max or 0, *(each.in_flight_max or 0 for each in section.endpoints)])
