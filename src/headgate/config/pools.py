"""Which engines are there, where do they listen, and what do they call the model?"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from headgate.config.batching import batch_rules
from headgate.config.fleets import STATIC, cold_start_ns, fleet_options, hold_max, scaling_rules
from headgate.config.money import prices
from headgate.config.problems import Place, Report
from headgate.config.schema import EndpointSection, File, PoolSection, SpeedSection
from headgate.config.settings import PoolSettings
from headgate.config.shape import suggestion
from headgate.config.speeds import SpeedFigures, engine_speed
from headgate.fleets.options import EndpointOptions
from headgate.model.policy import Pool
from headgate.model.units import Duration, EndpointId, PoolName

_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def pool_settings(file: File, engines: Collection[str], report: Report) -> tuple[PoolSettings, ...]:
    if not file.pools:
        report.problem(("pools",), "names no pool; name at least one, with the addresses of its engines")
    reading = _Pools(file, sorted(engines), report)
    return tuple(reading.pool(name, section) for name, section in file.pools.items())


def pools(
    sections: Mapping[str, PoolSection], profiles: Mapping[str, SpeedFigures], report: Report
) -> tuple[Pool, ...]:
    """What the scheduler knows of them."""
    for name, section in sections.items():
        check_ranges(section, ("pools", name), report)
    return tuple(
        Pool(
            PoolName(name),
            Duration(section.warm_up),
            speed=engine_speed(section.speed, profiles, ("pools", name, "speed"), report),
            speed_assumed=section.speed == SpeedSection(),
            kv_tokens=section.kv_tokens,
            prompt_tokens_min=section.prompt_tokens_min,
            prompt_tokens_max=section.prompt_tokens_max,
            output_tokens_min=section.output_tokens_min,
            output_tokens_max=section.output_tokens_max,
            hold_max=hold_max(section.scaling),
            cold_start_ns=cold_start_ns(section.scaling),
            prices=prices(section, ("pools", name), report),
        )
        for name, section in sections.items()
    )


def check_ranges(section: "Ranged", place: Place, report: Report) -> None:
    for least, most, setting in (
        (section.prompt_tokens_min, section.prompt_tokens_max, "prompt_tokens_max"),
        (section.output_tokens_min, section.output_tokens_max, "output_tokens_max"),
    ):
        if most is not None and most < least:
            smaller = setting.replace("_max", "_min")
            report.problem((*place, setting), f"is less than {smaller} {least}, so nothing is between them; raise it")


class Ranged(Protocol):
    """A pool that may say which prompts and answers it is meant for."""

    @property
    def prompt_tokens_min(self) -> int: ...
    @property
    def prompt_tokens_max(self) -> int | None: ...
    @property
    def output_tokens_min(self) -> int: ...
    @property
    def output_tokens_max(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _Pools:
    file: File
    engines: list[str]
    report: Report
    taken: dict[str, EndpointId] = field(default_factory=dict[str, EndpointId])
    """Each address, and the endpoint that has it."""

    def pool(self, name: str, section: PoolSection) -> PoolSettings:
        place = ("pools", name)
        if section.engine not in self.engines:
            hint = suggestion(section.engine, self.engines, quiet=f"; the engines are {', '.join(self.engines)}")
            self.report.problem((*place, "engine"), f'engine "{section.engine}" is not known{hint}')
        return PoolSettings(
            name=PoolName(name),
            engine=section.engine,
            served_model=self._served_model(name, section),
            endpoints=self._endpoints(name, section),
            api_key=section.api_key,
            passes_priority=section.passes_priority,
            watches_whole_answers=section.watches_whole_answers,
            gpu_metrics_port=section.gpu_metrics_port,
            fleet=fleet_options(name, section, self.report),
            scaling=scaling_rules(name, section, self.file.classes or {}, self.report),
            batching=batch_rules(name, section, self.report),
        )

    def _served_model(self, name: str, section: PoolSection) -> str:
        """What the file says, else the name of the one model that uses the pool."""
        models = [model for model, its in self.file.models.items() if name in its.pools]
        if not models:
            self.report.warn(("pools", name), "no model uses this pool; name it in models, or remove it")
        elif len(models) > 1 and section.served_model is None:
            listed = ", ".join(f'"{each}"' for each in models)
            problem = f"missing; models {listed} share this pool, so say under which name its engines know theirs"
            self.report.problem(("pools", name, "served_model"), problem)
        return section.served_model or (models[0] if models else name)

    def _endpoints(self, pool: str, section: PoolSection) -> tuple[EndpointOptions, ...]:
        place = ("pools", pool, "endpoints")
        if not section.endpoints and section.fleet.kind == STATIC:
            wrong = "names no endpoint; list the address of at least one engine, or say in fleet where they come from"
            self.report.problem(place, wrong)
        found: dict[EndpointId, EndpointOptions] = {}
        for number, each in enumerate(section.endpoints):
            endpoint = self._endpoint(pool, section, each, (*place, number))
            if endpoint is None:
                continue
            if endpoint.id in found:
                problem = f'an endpoint of pool "{pool}" is already called "{each.name}"; give it another name'
                self.report.problem((*place, number, "name"), problem)
            found[endpoint.id] = endpoint
        return tuple(found.values())

    def _endpoint(
        self, pool: str, section: PoolSection, endpoint: EndpointSection, place: Place
    ) -> EndpointOptions | None:
        if self.report.is_wrong((*place, "url")):
            return None
        try:
            url = _url(endpoint.url)
        except NotAnAddress as error:
            self.report.problem((*place, "url"), str(error))
            return None
        if endpoint.name is not None and not _NAME.fullmatch(endpoint.name):
            self.report.problem((*place, "name"), "a name is made of letters, digits, and . _ : -")
        for setting, word in (("device", endpoint.device), ("zone", endpoint.zone)):
            if word is not None and not _NAME.fullmatch(word):
                self.report.problem((*place, setting), "a name is made of letters, digits, and . _ : -")
        identity = EndpointId(f"{pool}/{endpoint.name or _host_and_port(url)}")
        if not self._take(url, identity, place):
            return None
        return EndpointOptions(
            identity,
            f"{url.scheme}://{url.netloc}",
            self._in_flight_max(pool, section, endpoint),
            device=endpoint.device or "",
            zone=endpoint.zone or "",
        )

    def _take(self, url: SplitResult, identity: EndpointId, place: Place) -> bool:
        address = _host_and_port(url)
        if address in self.taken:
            problem = f'{address} is already endpoint "{self.taken[address]}"; keep one, or its places are given twice'
            self.report.problem((*place, "url"), problem)
            return False
        self.taken[address] = identity
        return True

    def _in_flight_max(self, pool: str, section: PoolSection, endpoint: EndpointSection) -> int:
        limit = endpoint.in_flight_max or section.in_flight_max
        if limit is None:
            self.report.problem(
                ("pools", pool, "in_flight_max"),
                "missing; say how many requests an endpoint may hold at once (llama.cpp: its --parallel; vLLM: try 64)",
            )
        return limit or 1


class NotAnAddress(Exception):
    """The text is no address of an engine. The message says why, without repeating what may hold a password."""


def engine_url(text: str) -> str:
    """An address as people paste it, with or without `/v1` at its end, in its normal form. Raises `NotAnAddress`."""
    url = _url(text.rstrip("/").removesuffix("/v1"))
    return f"{url.scheme}://{url.netloc}"


def _url(text: str) -> SplitResult:
    """The address in its normal form, with neither path nor trailing slash."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = url = None
    if url is None or url.scheme not in _PORTS or not host or port == 0 or re.search(r"[\s\\%]", url.netloc):
        raise NotAnAddress("is not the address of an engine; write it as http://HOST:PORT or https://HOST")
    if "@" in url.netloc:
        raise NotAnAddress("holds a user or password; remove it and set api_key on the pool")
    if url.path not in ("", "/") or url.query or url.fragment:
        rest = text.split(url.netloc, 1)[1]
        raise NotAnAddress(f'ends in "{rest}"; leave it out, since Headgate adds the paths of the API itself')
    return SplitResult(url.scheme, url.netloc.lower(), "", "", "")


def _host_and_port(url: SplitResult) -> str:
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{host}:{url.port or _PORTS[url.scheme]}"
