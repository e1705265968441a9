"""Exported files follow the rules of FOCUS 1.2 for the columns that they contain.

The tables below restate the specification: the columns that a cost and usage dataset must contain, and for each column
that the export writes, its type, whether it may be null, and its allowed values.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pytest
from pyarrow import parquet

from headgate.ledger.usage_export import export_usage
from headgate.model.money import BillCause
from tests.ledger.ledgers import usage, written

pytestmark = pytest.mark.process

MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}
DECIMALS = {
    *("BilledCost", "ConsumedQuantity", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity"),
}
TIMES = {"BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"}
TEXTS = {
    *("BillingAccountId", "BillingAccountName", "BillingCurrency", "ChargeCategory", "ChargeClass"),
    *("ChargeDescription", "ChargeFrequency", "ConsumedUnit", "InvoiceIssuerName", "PricingCategory", "PricingUnit"),
    *("ProviderName", "PublisherName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("ServiceSubcategory", "SkuId", "SubAccountId", "SubAccountName", "Tags"),
}
NEVER_NULL = {
    *("BilledCost", "BillingAccountId", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory"),
    *("ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost", "EffectiveCost"),
    *("InvoiceIssuerName", "ListCost", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
    *("ServiceSubcategory",),
}
NOT_NULL_IN_USAGE = {"ConsumedQuantity", "PricingCategory", "PricingQuantity", "SkuId"}
"""Columns that must have a value in charges of the category `Usage` that are not corrections."""
ALLOWED = {
    "BillingCurrency": {"USD"},
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {None, "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {
        *("AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing"),
        "Other (AI and Machine Learning)",
    },
}
TOGETHER = (("ConsumedQuantity", "ConsumedUnit"), ("PricingQuantity", "PricingUnit"), ("ResourceId", "ResourceType"))
"""Pairs in which both columns are null or neither is."""
OCTOBER, NOVEMBER, DECEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (10, 11, 12))
METADATA = (("feature", "søk"), ("conversation", 'a "quoted" one'))


async def exported(url: str, folder: Path, since: datetime, until: datetime) -> Any:
    file = folder / f"{since:%m}-{until:%m}.parquet"
    await export_usage(url, since, until, file)
    return parquet.read_table(file)


async def filled(url: str, folder: Path) -> None:
    rows = [
        usage("2026-10-31T23:59:59", "last-of-october", duration_us=90_000_000),
        usage("2026-11-01T00:00", "first-of-november", metadata=METADATA),
        usage("2026-11-10T10:00", "retried", cause=BillCause.RETRY),
        usage("2026-11-10T10:00", "retried", attempt=2),
        usage("2026-11-10T10:00", "retried", attempt=2, correction=1, input=-40, output=0, overhead=0, tokens_in=-5),
        usage("2026-11-11T10:00", "rejected", cause=None),
        usage("2026-11-12T10:00", "instant", queue_us=0, duration_us=0),
    ]
    await written(url, folder, rows)


async def test_columns_have_the_names_and_types_of_focus(url: str, tmp_path: Path) -> None:
    await filled(url, tmp_path)
    table = await exported(url, tmp_path, NOVEMBER, DECEMBER)

    names = set(table.column_names)
    assert names >= MANDATORY
    assert {name for name in names if not name.startswith("x_")} == DECIMALS | TIMES | TEXTS
    assert all(re.fullmatch(r"(x_)?([A-Z][a-z]*)+", name) for name in names)
    types = {field.name: field.type for field in table.schema}
    assert all(pa.types.is_decimal(types[name]) for name in DECIMALS)
    assert all(types[name] == pa.timestamp("us", tz="UTC") for name in TIMES)
    assert all(types[name] == pa.string() for name in TEXTS)
    assert not {name for name in NEVER_NULL if table.schema.field(name).nullable}


async def test_values_are_present_and_allowed(url: str, tmp_path: Path) -> None:
    await filled(url, tmp_path)
    rows = (await exported(url, tmp_path, OCTOBER, DECEMBER)).to_pylist()

    assert len(rows) == 7
    for row in rows:
        assert not {name for name in NEVER_NULL if row[name] is None}
        assert not {name for name, allowed in ALLOWED.items() if row[name] not in allowed}
        assert not {pair for pair in TOGETHER if (row[pair[0]] is None) != (row[pair[1]] is None)}
        # A request that was never sent has no SKU, which docs/guides/export-usage.md states.
        unsent = {"SkuId"} if row["x_HeadgateAttempt"] == 0 else set()
        if row["ChargeClass"] is None:
            assert {name for name in NOT_NULL_IN_USAGE if row[name] is None} == unsent
        assert (row["ChargeClass"] is None) == (row["x_HeadgateCorrection"] == 0)
        assert "" not in {row[name] for name in TEXTS}
        tags = json.loads(row["Tags"])
        assert all(isinstance(value, str) for value in tags.values())
    [first] = [row for row in rows if row["x_HeadgateRequestId"] == "first-of-november"]
    assert json.loads(first["Tags"]) == dict(METADATA)
    [rejected] = [row for row in rows if row["x_HeadgateRequestId"] == "rejected"]
    assert (rejected["ConsumedQuantity"], rejected["PricingQuantity"]) == (Decimal(0), Decimal(0))


async def test_periods_include_their_start_and_exclude_their_end(url: str, tmp_path: Path) -> None:
    await filled(url, tmp_path)
    before = (await exported(url, tmp_path, OCTOBER, NOVEMBER)).to_pylist()
    after = (await exported(url, tmp_path, NOVEMBER, DECEMBER)).to_pylist()

    assert [row["x_HeadgateRequestId"] for row in before] == ["last-of-october"]
    assert "first-of-november" in {row["x_HeadgateRequestId"] for row in after}
    for rows, start, end in ((before, OCTOBER, NOVEMBER), (after, NOVEMBER, DECEMBER)):
        for row in rows:
            assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (start, end)
            assert start <= row["ChargePeriodStart"] < end
            assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]
    [instant] = [row for row in after if row["x_HeadgateRequestId"] == "instant"]
    assert instant["ChargePeriodEnd"] - instant["ChargePeriodStart"] == timedelta(microseconds=1)
