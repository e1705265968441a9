"""What may an operator ask about cost?

The paths of cost below `/admin/v1/`, all of which only read. Amounts are whole billionths of a dollar. A time is a day
(`2026-11-15`) or a minute (`2026-11-15T09:30`), in UTC; whole days are answered from their sums, anything else from
single rows, as far as these are kept.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headgate.edge.admin.api import READ, Body, Name, Route, TenantPath
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import Actor, DirectoryAway, Unknown, Unwritten
from headgate.ports.reports import LedgerAway, NothingFound, Reports, Rows

LINES_MAX: Final = 1_000
ROWS_DAYS_MAX: Final = 31
"""Of single rows no more are looked at for one answer."""
DAYS_MAX: Final = 400

_DAY: Final = r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
Day = Annotated[str, Meta(pattern=rf"^{_DAY}\Z")]
Moment = Annotated[str, Meta(pattern=rf"^{_DAY}(T([01][0-9]|2[0-3]):[0-5][0-9])?\Z")]
Month = Annotated[str, Meta(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])\Z")]


class CostAsked(Body, frozen=True, rename={"service_class": "class"}):
    by: Annotated[str, Meta(pattern=r"^(tenant|model|class|pool|unit|day)\Z")] = "tenant"
    since: Moment | None = None
    """The beginning of the month, where nothing is said; of the day, for units, which are looked for in all rows."""
    until: Moment | None = None
    """The end of today, likewise."""
    tenant: TenantPath | None = None
    service_class: Name | None = None
    model: Name | None = None
    key: Name | None = None
    """Which key of the metadata names the unit; ledger.unit, where nothing is said."""
    depth: Annotated[int, Meta(ge=1, le=3)] | None = None
    """How many steps of a tenant's path; one more than those of the tenant that is asked for."""
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX)] = 50


class RequestAsked(Body, frozen=True):
    request: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}\Z")]
    day: Day | None = None


class StatementAsked(Body, frozen=True):
    month: Month
    tenant: TenantPath | None = None


class ForecastAsked(Body, frozen=True):
    tenant: TenantPath | None = None


class DriftAsked(Body, frozen=True):
    day: Day | None = None
    tenant: TenantPath | None = None


def cost_routes(reports: Reports, now_ns: Callable[[], int] = time.time_ns) -> Mapping[bytes, Route]:
    cost = _Cost(reports, now_ns)
    return {
        b"/admin/v1/cost/report": Route(READ, CostAsked, cost.report, writes=False),
        b"/admin/v1/cost/request": Route(READ, RequestAsked, cost.request, writes=False),
        b"/admin/v1/cost/statement": Route(READ, StatementAsked, cost.statement, writes=False),
        b"/admin/v1/cost/forecast": Route(READ, ForecastAsked, cost.forecast, writes=False),
        b"/admin/v1/cost/drift": Route(READ, DriftAsked, cost.drift, writes=False),
    }


class _Cost:
    def __init__(self, reports: Reports, now_ns: Callable[[], int]) -> None:
        self._reports = reports
        self._now_ns = now_ns

    async def report(self, asked: CostAsked, _: Actor) -> Mapping[str, object]:
        if asked.by != "unit" and asked.key is not None:
            raise Unwritten("only units are named by a key of the metadata; send by: unit with it, or leave it out")
        tenant = asked.tenant or ""
        rows = Rows(*self._span(asked), tenant, asked.service_class or "", asked.model or "")
        depth = asked.depth or min(3, tenant.count("/") + 2 if tenant else 1)
        report = self._reports.report(rows, by=asked.by, key=asked.key or "", depth=depth, limit=asked.limit)
        with _told():
            return _shown(await report)

    async def request(self, asked: RequestAsked, _: Actor) -> Mapping[str, object]:
        with _told():
            return _shown(await self._reports.request(asked.request, _real_day(asked.day), now=self._now))

    async def statement(self, asked: StatementAsked, _: Actor) -> Mapping[str, object]:
        with _told():
            found = await self._reports.statements(asked.month, asked.tenant or "", now=self._now)
        return {"data": [_shown(each) for each in found]}

    async def forecast(self, asked: ForecastAsked, _: Actor) -> Mapping[str, object]:
        with _told():
            return _shown(await self._reports.forecast(asked.tenant or "", now=self._now))

    async def drift(self, asked: DriftAsked, _: Actor) -> Mapping[str, object]:
        with _told():
            return _shown(await self._reports.drift(_real_day(asked.day), asked.tenant or "", now=self._now))

    @property
    def _now(self) -> Instant:
        return Instant(self._now_ns())

    def _span(self, asked: CostAsked) -> tuple[Instant, Instant]:
        today = _midnight(datetime.fromtimestamp(self._now_ns() / SECOND, UTC))
        until = today + timedelta(days=1) if asked.until is None else _moment(asked.until)
        last = min(today, _midnight(until - timedelta(minutes=1)))
        usual = last if asked.by == "unit" else last.replace(day=1)
        since = usual if asked.since is None else _moment(asked.since)
        if since >= until:
            raise Unwritten(f"since ({since:%Y-%m-%dT%H:%M}) is not before until ({until:%Y-%m-%dT%H:%M}); turn them")
        single = asked.by == "unit" or any((each.hour, each.minute) != (0, 0) for each in (since, until))
        days_max = ROWS_DAYS_MAX if single else DAYS_MAX
        if until - since > timedelta(days=days_max):
            what = "for units and parts of days single rows are read, and " if single else ""
            raise Unwritten(
                f"{what}{(until - since).days} days are too many for one answer; ask for {days_max} at most"
            )
        return _instant(since), _instant(until)


@contextmanager
def _told() -> Generator[None]:
    """What reports raise, as what the admin API answers with."""
    try:
        yield
    except NothingFound as nothing:
        raise Unknown(str(nothing)) from None
    except LedgerAway as away:
        raise DirectoryAway(str(away)) from None


def _shown(value: object) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(value)
    return shown


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise Unwritten(f"{text[:10]} is no day of the calendar; correct it") from None


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _real_day(text: str | None) -> str:
    if text is not None:
        _moment(text)
    return text or ""


def _instant(moment: datetime) -> Instant:
    return Instant(int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * SECOND)
