"""Cost paths of the administration API. All of them are read-only.

Amounts are integers in billionths of a dollar. A time is a day (`2026-11-15`) or a minute (`2026-11-15T09:30`), in UTC.
Reports for whole days use daily totals. All other reports read individual rows, which are retained for a limited time.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headgate.edge.admin.api import AdminBody, AdminRoute, Name, TenantPath
from headgate.model.units import SECOND, Instant
from headgate.ports.cost_reports import CostReports, LedgerUnavailable, NothingFound, ReportFilter
from headgate.ports.directory import Actor, ChangeRejected, DirectoryUnavailable, NotFound

LINES_MAX: Final = 1_000
ROWS_DAYS_MAX: Final = 31
"""Maximum range of a report that reads individual rows, in days."""
DAYS_MAX: Final = 400

_DAY: Final = r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
Day = Annotated[str, Meta(pattern=rf"^{_DAY}\Z")]
Moment = Annotated[str, Meta(pattern=rf"^{_DAY}(T([01][0-9]|2[0-3]):[0-5][0-9])?\Z")]
Month = Annotated[str, Meta(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])\Z")]


class CostQuery(AdminBody, frozen=True, rename={"service_class": "class"}):
    by: Annotated[str, Meta(pattern=r"^(tenant|model|class|pool|unit|day)\Z")] = "tenant"
    since: Moment | None = None
    """Start of the range.

    Default: start of the month. For units it is the start of the day, because they need individual rows.
    """
    until: Moment | None = None
    """End of the range, exclusive. Default: end of today."""
    tenant: TenantPath | None = None
    service_class: Name | None = None
    model: Name | None = None
    key: Name | None = None
    """Metadata key that identifies the unit. Default: the setting `ledger.unit_key`."""
    depth: Annotated[int, Meta(ge=1, le=3)] | None = None
    """Number of tenant path levels to group by. Default: one more than `tenant` has."""
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX)] = 50


class RequestCostQuery(AdminBody, frozen=True):
    request: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}\Z")]
    day: Day | None = None


class StatementQuery(AdminBody, frozen=True):
    month: Month
    tenant: TenantPath | None = None


class ForecastQuery(AdminBody, frozen=True):
    tenant: TenantPath | None = None


class DriftQuery(AdminBody, frozen=True):
    day: Day | None = None
    tenant: TenantPath | None = None


def cost_routes(reports: CostReports, now_ns: Callable[[], int] = time.time_ns) -> Mapping[bytes, AdminRoute]:
    cost = _Cost(reports, now_ns)
    return {
        b"/admin/v1/cost/report": AdminRoute(CostQuery, cost.report, writes=False),
        b"/admin/v1/cost/request": AdminRoute(RequestCostQuery, cost.request, writes=False),
        b"/admin/v1/cost/statement": AdminRoute(StatementQuery, cost.statement, writes=False),
        b"/admin/v1/cost/forecast": AdminRoute(ForecastQuery, cost.forecast, writes=False),
        b"/admin/v1/cost/drift": AdminRoute(DriftQuery, cost.drift, writes=False),
    }


class _Cost:
    def __init__(self, reports: CostReports, now_ns: Callable[[], int]) -> None:
        self._reports = reports
        self._now_ns = now_ns

    async def report(self, asked: CostQuery, _: Actor) -> Mapping[str, object]:
        if asked.by != "unit" and asked.key is not None:
            raise ChangeRejected('"key" is valid only with "by": "unit"; set "by" or remove "key"')
        tenant = asked.tenant or ""
        rows = ReportFilter(*self._span(asked), tenant, asked.service_class or "", asked.model or "")
        depth = asked.depth or min(3, tenant.count("/") + 2 if tenant else 1)
        report = self._reports.report(rows, by=asked.by, key=asked.key or "", depth=depth, limit=asked.limit)
        with _mapped_errors():
            return _to_builtins(await report)

    async def request(self, asked: RequestCostQuery, _: Actor) -> Mapping[str, object]:
        with _mapped_errors():
            return _to_builtins(await self._reports.request(asked.request, _checked_day(asked.day), now=self._now))

    async def statement(self, asked: StatementQuery, _: Actor) -> Mapping[str, object]:
        with _mapped_errors():
            found = await self._reports.statements(asked.month, asked.tenant or "", now=self._now)
        return {"data": [_to_builtins(each) for each in found]}

    async def forecast(self, asked: ForecastQuery, _: Actor) -> Mapping[str, object]:
        with _mapped_errors():
            return _to_builtins(await self._reports.forecast(asked.tenant or "", now=self._now))

    async def drift(self, asked: DriftQuery, _: Actor) -> Mapping[str, object]:
        with _mapped_errors():
            return _to_builtins(await self._reports.drift(_checked_day(asked.day), asked.tenant or "", now=self._now))

    @property
    def _now(self) -> Instant:
        return Instant(self._now_ns())

    def _span(self, asked: CostQuery) -> tuple[Instant, Instant]:
        today = _midnight(datetime.fromtimestamp(self._now_ns() / SECOND, UTC))
        until = today + timedelta(days=1) if asked.until is None else _moment(asked.until)
        last = min(today, _midnight(until - timedelta(minutes=1)))
        usual = last if asked.by == "unit" else last.replace(day=1)
        since = usual if asked.since is None else _moment(asked.since)
        if since >= until:
            raise ChangeRejected(f"since ({since:%Y-%m-%dT%H:%M}) must be before until ({until:%Y-%m-%dT%H:%M})")
        single = asked.by == "unit" or any((each.hour, each.minute) != (0, 0) for each in (since, until))
        days_max = ROWS_DAYS_MAX if single else DAYS_MAX
        if until - since > timedelta(days=days_max):
            what = " for units and partial days" if single else ""
            raise ChangeRejected(f"the range is {(until - since).days} days; the limit{what} is {days_max}")
        return _instant(since), _instant(until)


@contextmanager
def _mapped_errors() -> Generator[None]:
    """Converts report errors to administration API errors."""
    try:
        yield
    except NothingFound as nothing:
        raise NotFound(str(nothing)) from None
    except LedgerUnavailable as away:
        raise DirectoryUnavailable(str(away)) from None


def _to_builtins(value: object) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(value)
    return shown


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise ChangeRejected(f"{text[:10]} is not a valid date") from None


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _checked_day(text: str | None) -> str:
    if text is not None:
        _moment(text)
    return text or ""


def _instant(moment: datetime) -> Instant:
    return Instant(int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * SECOND)
