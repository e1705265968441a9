"""Exports usage rows to Parquet files with the columns of FOCUS 1.2.

FOCUS is the FinOps Open Cost and Usage Specification (https://focus.finops.org). Each usage row becomes one charge.
Columns that FOCUS does not define have names that start with `x_Headgate`. Amounts are exact decimals in US dollars.

The rows are read in pages, in one transaction, and each page becomes one row group of the file. Memory is therefore
bounded by the page. The file appears under its name only when it is complete.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from headgate.ledger.connection import DatabaseConnection, DatabaseRow
from headgate.ledger.database import Database, close
from headgate.model.money import Payer

PAGE_ROWS: Final = 10_000
"""Number of rows in a page, and therefore in a row group. A page takes about 40 MB."""
QUERY_S_MAX: Final = 60.0
PROVIDER: Final = "Headgate"

_PAGE: Final = (
    "select at, request, attempt, correction, tenant, class, model, served_model, pool, endpoint, api, stream,"
    " tokens_in, tokens_cached, tokens_out, tokens_reasoning, usage_source, queue_us, ttft_us, duration_us, input_us,"
    " output_us, overhead_us, outcome, ending, cause, payer, level, input_nano_usd, output_nano_usd, overhead_nano_usd,"
    " reserved_nano_usd, metadata from headgate.usage"
    " where at >= $1 and at < $2 and (at, request, attempt, correction) > ($1, $3, $4, $5)"
    " order by at, request, attempt, correction limit $6"
)
_NANO_DIGITS: Final = 9
_MICROSECOND: Final = timedelta(microseconds=1)

_TEXT, _COUNT, _FLAG, _TIME = "text", "count", "flag", "time"
_MONEY, _SECONDS, _TOKENS = "money", "seconds", "tokens"
"""Kinds of decimals. FOCUS requires that all of its quantities are decimals."""


class ExportImpossible(Exception):
    """The export cannot be written. The message contains the next step."""


@dataclass(frozen=True, slots=True)
class Exported:
    rows: int
    row_groups: int
    billed: Decimal
    """Sum of `BilledCost`."""
    cost: Decimal
    """Sum of `EffectiveCost`."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: str
    value: Callable[[DatabaseRow], object]
    nullable: bool = False


def _field(name: str) -> Callable[[DatabaseRow], object]:
    return lambda row: row[name]


def _text(name: str) -> Callable[[DatabaseRow], object]:
    """Returns the text, or null if it is empty."""
    return lambda row: row[name] or None


def _usd(name: str) -> Callable[[DatabaseRow], object]:
    return lambda row: _decimal(row[name], _NANO_DIGITS)


def _decimal(amount: int, digits: int) -> Decimal:
    return Decimal(amount).scaleb(-digits)


def _cost(row: DatabaseRow) -> Decimal:
    return _decimal(row["input_nano_usd"] + row["output_nano_usd"] + row["overhead_nano_usd"], _NANO_DIGITS)


def _billed(row: DatabaseRow) -> Decimal:
    return _cost(row) if row["payer"] == Payer.TENANT.value else Decimal(0)


def _engine_seconds(row: DatabaseRow) -> Decimal:
    return _decimal(row["input_us"] + row["output_us"] + row["overhead_us"], 6)


def _tokens(row: DatabaseRow) -> Decimal:
    return Decimal(row["tokens_in"] + row["tokens_out"])


def _month(row: DatabaseRow) -> datetime:
    return row["at"].astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _next_month(row: DatabaseRow) -> datetime:
    # No month has more than 31 days, so this is always in the next month.
    return (_month(row) + timedelta(days=31)).replace(day=1)


def _charge_end(row: DatabaseRow) -> datetime:
    """Returns the end of the attempt. FOCUS requires it to be after the start."""
    return row["at"] + max(_MICROSECOND, timedelta(microseconds=row["queue_us"] + row["duration_us"]))


def _description(row: DatabaseRow) -> str:
    where = f"on pool {row['pool']}" if row["pool"] else "not sent to an engine"
    return f"{row['api']} request to model {row['model']}, {where}"


def _metadata(row: DatabaseRow) -> Mapping[str, str]:
    stored = row["metadata"]
    return {} if stored is None else json.loads(stored)


def _tags(row: DatabaseRow) -> str:
    return json.dumps(_metadata(row), ensure_ascii=False, sort_keys=True)


def _always(value: object) -> Callable[[DatabaseRow], object]:
    return lambda _: value


COLUMNS: Final = (
    _Column("BilledCost", _MONEY, _billed),
    _Column("BillingAccountId", _TEXT, lambda row: row["tenant"].partition("/")[0]),
    _Column("BillingAccountName", _TEXT, lambda row: row["tenant"].partition("/")[0]),
    _Column("BillingCurrency", _TEXT, _always("USD")),
    _Column("BillingPeriodEnd", _TIME, _next_month),
    _Column("BillingPeriodStart", _TIME, _month),
    _Column("ChargeCategory", _TEXT, _always("Usage")),
    _Column("ChargeClass", _TEXT, lambda row: "Correction" if row["correction"] else None, nullable=True),
    _Column("ChargeDescription", _TEXT, _description),
    _Column("ChargeFrequency", _TEXT, _always("Usage-Based")),
    _Column("ChargePeriodEnd", _TIME, _charge_end),
    _Column("ChargePeriodStart", _TIME, _field("at")),
    _Column("ConsumedQuantity", _TOKENS, _tokens),
    _Column("ConsumedUnit", _TEXT, _always("Tokens")),
    _Column("ContractedCost", _MONEY, _cost),
    _Column("EffectiveCost", _MONEY, _cost),
    _Column("InvoiceIssuerName", _TEXT, _always(PROVIDER)),
    _Column("ListCost", _MONEY, _cost),
    _Column("PricingCategory", _TEXT, _always("Standard")),
    _Column("PricingQuantity", _SECONDS, _engine_seconds),
    _Column("PricingUnit", _TEXT, _always("Seconds")),
    _Column("ProviderName", _TEXT, _always(PROVIDER)),
    _Column("PublisherName", _TEXT, _always(PROVIDER)),
    _Column("ResourceId", _TEXT, _text("endpoint"), nullable=True),
    _Column("ResourceName", _TEXT, _text("endpoint"), nullable=True),
    _Column("ResourceType", _TEXT, lambda row: "Inference engine" if row["endpoint"] else None, nullable=True),
    _Column("ServiceCategory", _TEXT, _always("AI and Machine Learning")),
    _Column("ServiceName", _TEXT, _field("model")),
    _Column("ServiceSubcategory", _TEXT, _always("Generative AI")),
    _Column("SkuId", _TEXT, _text("pool"), nullable=True),
    _Column("SubAccountId", _TEXT, _field("tenant")),
    _Column("SubAccountName", _TEXT, _field("tenant")),
    _Column("Tags", _TEXT, _tags),
    _Column("x_HeadgateRequestId", _TEXT, _field("request")),
    _Column("x_HeadgateAttempt", _COUNT, _field("attempt")),
    _Column("x_HeadgateCorrection", _COUNT, _field("correction")),
    _Column("x_HeadgateClass", _TEXT, _text("class"), nullable=True),
    _Column("x_HeadgateServedModel", _TEXT, _text("served_model"), nullable=True),
    _Column("x_HeadgatePool", _TEXT, _text("pool"), nullable=True),
    _Column("x_HeadgateApi", _TEXT, _field("api")),
    _Column("x_HeadgateStream", _FLAG, _field("stream")),
    _Column("x_HeadgateInputTokens", _COUNT, _field("tokens_in")),
    _Column("x_HeadgateCachedTokens", _COUNT, _field("tokens_cached")),
    _Column("x_HeadgateOutputTokens", _COUNT, _field("tokens_out")),
    _Column("x_HeadgateReasoningTokens", _COUNT, _field("tokens_reasoning")),
    _Column("x_HeadgateUsageSource", _TEXT, _text("usage_source"), nullable=True),
    _Column("x_HeadgateQueueMicroseconds", _COUNT, _field("queue_us")),
    _Column("x_HeadgateFirstTokenMicroseconds", _COUNT, _field("ttft_us"), nullable=True),
    _Column("x_HeadgateDurationMicroseconds", _COUNT, _field("duration_us")),
    _Column("x_HeadgateOutcome", _TEXT, _field("outcome")),
    _Column("x_HeadgateEnding", _TEXT, _text("ending"), nullable=True),
    _Column("x_HeadgateCause", _TEXT, _text("cause"), nullable=True),
    _Column("x_HeadgatePayer", _TEXT, _text("payer"), nullable=True),
    _Column("x_HeadgateDegradationLevel", _COUNT, _field("level")),
    _Column("x_HeadgateInputCost", _MONEY, _usd("input_nano_usd")),
    _Column("x_HeadgateOutputCost", _MONEY, _usd("output_nano_usd")),
    _Column("x_HeadgateOverheadCost", _MONEY, _usd("overhead_nano_usd")),
    _Column("x_HeadgateReservedCost", _MONEY, _usd("reserved_nano_usd")),
)
"""Columns of the file: first those of FOCUS, then Headgate's own."""


async def export_usage(
    url: str, since: datetime, until: datetime, file: Path, *, page_rows: int = PAGE_ROWS
) -> Exported:
    """Writes the usage rows of requests that arrived in this time to a Parquet file.

    Raises `ExportImpossible` if pyarrow is missing or the file exists, and the exceptions of the database and the disk.
    """
    parquet = _ParquetFile(file)
    database = Database(url, query_s_max=QUERY_S_MAX)
    link = await database.connect()
    try:
        with parquet:
            return await _write_pages(link, since, until, parquet, page_rows)
    finally:
        await close(link)


async def _write_pages(
    link: DatabaseConnection, since: datetime, until: datetime, parquet: "_ParquetFile", page_rows: int
) -> Exported:
    total, groups, billed, cost = 0, 0, Decimal(0), Decimal(0)
    after: tuple[datetime, str, int, int] = (since, "", -1, -1)
    async with link.transaction(isolation="repeatable_read", readonly=True):
        while True:
            at, *rest = after
            rows = await link.fetch(_PAGE, at, until, *rest, page_rows)
            if rows:
                parquet.write(rows)
                total, groups = total + len(rows), groups + 1
                billed, cost = billed + sum(map(_billed, rows)), cost + sum(map(_cost, rows))
                last = rows[-1]
                after = (last["at"], last["request"], last["attempt"], last["correction"])
            if len(rows) < page_rows:
                break
    parquet.finish()
    return Exported(total, groups, billed, cost)


class _ParquetFile:
    """A Parquet file that replaces its partial file when it is complete. pyarrow has no type annotations."""

    def __init__(self, file: Path) -> None:
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ExportImpossible(f"{error}; install headgate[parquet]") from error
        if file.exists():
            raise ExportImpossible(f"{file} already exists; delete it or choose another name")
        self._file, self._partial = file, file.with_name(f"{file.name}.partial")
        arrow = self._arrow
        kinds = {
            _TEXT: arrow.string(),
            _COUNT: arrow.int64(),
            _FLAG: arrow.bool_(),
            _TIME: arrow.timestamp("us", tz="UTC"),
            _MONEY: arrow.decimal128(28, _NANO_DIGITS),
            _SECONDS: arrow.decimal128(28, 6),
            _TOKENS: arrow.decimal128(28, 0),
        }
        self._schema = arrow.schema(
            [arrow.field(each.name, kinds[each.kind], nullable=each.nullable) for each in COLUMNS],
            metadata={"focus_version": "1.2"},
        )
        self._writer = parquet.ParquetWriter(self._partial, self._schema, compression="zstd")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._partial.unlink(missing_ok=True)

    def write(self, rows: Sequence[DatabaseRow]) -> None:
        columns = [[each.value(row) for row in rows] for each in COLUMNS]
        arrays = [
            self._arrow.array(column, type=field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group_size=len(rows))

    def finish(self) -> None:
        self._writer.close()
        self._partial.replace(self._file)
