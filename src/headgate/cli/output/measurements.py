"""Where does a report get its figures: from one gateway since its start, or from a Prometheus over a time?"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from headgate.slo.measured import Sample

_ANSWER_S_MAX: Final = 30.0


class NotMeasured(Exception):
    """The message says why, and the next step."""


async def of_gateway(url: str) -> "tuple[list[Sample], float]":
    """What the gateway has counted, and for how many seconds it has run."""
    import msgspec

    status = msgspec.json.decode(await _page(f"{url}/status"), type=dict[str, Any])
    return list(_told(await _page(f"{url}/metrics"))), float(status.get("uptime_s", 0.0))


def _told(page: bytes) -> "Iterator[Sample]":
    from headgate.engines.metrics_page import read_series
    from headgate.slo.measured import NEEDED, Sample

    for name in NEEDED:
        for labels, value in read_series(page, name):
            yield Sample(name, labels, value)


async def of_prometheus(url: str, since: str) -> "list[Sample]":
    """What was counted by all gateways that this Prometheus knows, within the time up to this moment."""
    from headgate.slo.measured import NEEDED, Sample

    found: list[Sample] = []
    for series, labels in NEEDED.items():
        query = f"sum by ({', '.join(labels)}) (increase({series}[{since}]))"
        for given, value in await _asked(url, query):
            found.append(Sample(series, given, value))
    return found


async def _asked(url: str, query: str) -> list[tuple[Mapping[str, str], float]]:
    import msgspec

    page = await _page(f"{url}/api/v1/query?{urlencode({'query': query})}")
    try:
        answer = msgspec.json.decode(page, type=dict[str, Any])
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise NotMeasured(
            f"what answers at {shown(url)} is no Prometheus ({error}); name one by --prometheus"
        ) from None


def shown(url: str) -> str:
    """Without the name and the password that it may hold, and without what was asked."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


async def _page(url: str) -> bytes:
    import aiohttp

    place = shown(url)
    try:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, allow_redirects=False) as answer:
            status, page = answer.status, await answer.read()
    except TimeoutError:
        raise NotMeasured(f"nothing answered at {place} within {_ANSWER_S_MAX:.0f} s; look at its log") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        hint = "start it, or name another by --gateway or --prometheus"
        why = type(error).__name__ if "@" in url else error
        raise NotMeasured(f"nothing answers at {place}: {why}; {hint}") from None
    if status != 200:
        raise NotMeasured(f"{place} answered with status {status}; is this the right address?")
    return page
