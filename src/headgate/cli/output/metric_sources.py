"""Metric sources for a report: a single gateway since it started, or a Prometheus server over a time range."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from headgate.cli.input.operator_key import operator_headers

if TYPE_CHECKING:
    import ssl

    from headgate.slo.measurements import MetricSample

_ANSWER_S_MAX: Final = 30.0


class MeasurementFailed(Exception):
    """The metrics could not be read. The message gives the reason and the next step."""


async def from_gateway(url: str, tls: "ssl.SSLContext | None" = None) -> "tuple[list[MetricSample], float]":
    """The gateway's counters, and its uptime in seconds."""
    import msgspec

    status = msgspec.json.decode(await _fetch(f"{url}/status", tls, operator_headers()), type=dict[str, Any])
    return list(_samples(await _fetch(f"{url}/metrics", tls, operator_headers()))), float(status.get("uptime_s", 0.0))


def _samples(page: bytes) -> "Iterator[MetricSample]":
    from headgate.engines.metrics_page import read_series
    from headgate.slo.measurements import REQUIRED_SERIES, MetricSample

    for name in REQUIRED_SERIES:
        for labels, value in read_series(page, name):
            yield MetricSample(name, labels, value)


async def from_prometheus(url: str, since: str) -> "list[MetricSample]":
    """Counter increases over the time range up to now, for all gateways scraped by this Prometheus server."""
    from headgate.slo.measurements import REQUIRED_SERIES, MetricSample

    found: list[MetricSample] = []
    for series, labels in REQUIRED_SERIES.items():
        query = f"sum by ({', '.join(labels)}) (increase({series}[{since}]))"
        for given, value in await _query(url, query):
            found.append(MetricSample(series, given, value))
    return found


async def _query(url: str, query: str) -> list[tuple[Mapping[str, str], float]]:
    import msgspec

    page = await _fetch(f"{url}/api/v1/query?{urlencode({'query': query})}")
    try:
        answer = msgspec.json.decode(page, type=dict[str, Any])
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise MeasurementFailed(
            f"the server at {redacted_url(url)} is not a Prometheus server ({error}); correct --prometheus-url"
        ) from None


def redacted_url(url: str) -> str:
    """The URL without its credentials and query."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


async def _fetch(url: str, tls: "ssl.SSLContext | None" = None, headers: Mapping[str, str] | None = None) -> bytes:
    import aiohttp

    place = redacted_url(url)
    try:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S_MAX)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=headers, allow_redirects=False, ssl=True if tls is None else tls) as answer,
        ):
            status, page = answer.status, await answer.read()
    except TimeoutError:
        raise MeasurementFailed(f"no response from {place} within {_ANSWER_S_MAX:.0f} s; see its log") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        hint = "start it, or specify another server with --url or --prometheus-url"
        why = type(error).__name__ if "@" in url else error
        raise MeasurementFailed(f"no response from {place}: {why}; {hint}") from None
    if status != 200:
        raise MeasurementFailed(f"{place} responded with status {status}; check the address")
    return page
