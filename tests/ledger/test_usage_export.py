"""Usage rows exported to Parquet, read back and compared with the ledger's own sums."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyarrow import parquet

from headgate.ledger.usage_export import COLUMNS, ExportImpossible, export_usage
from headgate.model.money import BillCause, NanoUsd
from headgate.ports.cost_reports import ReportFilter
from tests.ledger.ledgers import at, reading, usage, written

SINCE, UNTIL = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
LARGEST = 2**62


def read(file: Path) -> list[dict[str, Any]]:
    return parquet.read_table(file).to_pylist()


async def fill(url: str, folder: Path) -> None:
    rows = [
        usage("2026-10-31T23:59", "before"),
        usage("2026-11-01", "first", tenant="acme/search/web", metadata=(("feature", "søk"), ("conversation", "c1"))),
        usage("2026-11-30T23:59", "last", tenant="bolt", input=1, output=2, overhead=3),
        usage("2026-11-15", "rejected", cause=None),
        usage("2026-11-15", "large", input=LARGEST, output=0, overhead=1, input_us=1, output_us=0, overhead_us=0),
        usage("2026-11-15", "large", correction=1, input=-LARGEST, output=0, overhead=0, tokens_in=-50, tokens_out=0),
        usage("2026-11-16", "wasted", cause=BillCause.ENGINE_ERROR, input=500, output=0, overhead=0),
        usage("2026-12-01", "after"),
    ]
    rows += [usage(f"2026-11-{day:02}", f"r{day}-{number}") for day in (3, 4, 5) for number in range(40)]
    await written(url, folder, rows)


@pytest.mark.process
async def test_exported_sums_equal_those_of_the_ledger(url: str, tmp_path: Path) -> None:
    await fill(url, tmp_path)
    file = tmp_path / "usage.parquet"
    done = await export_usage(url, SINCE, UNTIL, file, page_rows=50)

    rows = read(file)
    assert len(rows) == done.rows == 126
    assert parquet.ParquetFile(file).num_row_groups == done.row_groups == 3
    assert sum(row["BilledCost"] for row in rows) == done.billed
    assert sum(row["EffectiveCost"] for row in rows) == done.cost
    async with reading(url) as reports:
        asked = ReportFilter(at("2026-11-01"), at("2026-12-01"))
        report = await reports.report(asked, by="tenant", key="", depth=1, limit=50)
    for line in report.lines:
        own = [row for row in rows if row["BillingAccountId"] == line.name]
        billed = line.input_nano_usd + line.output_nano_usd + line.overhead_nano_usd
        assert sum(row["BilledCost"] for row in own) == Decimal(billed).scaleb(-9)
        cost = Decimal(billed + line.retries_nano_usd).scaleb(-9)
        assert sum(row["EffectiveCost"] for row in own) == cost
        tokens = [row["x_HeadgateInputTokens"] for row in own if row["x_HeadgatePayer"] == "tenant"]
        assert sum(tokens) == line.tokens_in
    assert {line.name for line in report.lines} == {row["BillingAccountId"] for row in rows}


@pytest.mark.process
async def test_row_has_exact_amounts_times_and_tags(url: str, tmp_path: Path) -> None:
    await fill(url, tmp_path)
    file = tmp_path / "usage.parquet"
    await export_usage(url, SINCE, UNTIL, file)

    rows = {(row["x_HeadgateRequestId"], row["x_HeadgateCorrection"]): row for row in read(file)}
    assert ("before", 0) not in rows
    assert ("after", 0) not in rows
    first = rows["first", 0]
    assert (first["BilledCost"], first["EffectiveCost"]) == (Decimal("0.000001000"), Decimal("0.000001000"))
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == (SINCE, UNTIL)
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == (SINCE, SINCE + timedelta(microseconds=2_005))
    assert (first["SubAccountId"], first["ServiceName"], first["ResourceId"]) == ("acme/search/web", "chat", "small-0")
    assert (first["ConsumedQuantity"], first["ConsumedUnit"]) == (90, "Tokens")
    assert (first["PricingQuantity"], first["PricingUnit"]) == (Decimal("0.001000"), "Seconds")
    assert first["Tags"] == '{"conversation": "c1", "feature": "søk"}'
    assert first["ChargeClass"] is None

    assert rows["large", 0]["BilledCost"] == Decimal(LARGEST + 1).scaleb(-9)
    assert rows["large", 1]["BilledCost"] == Decimal(-LARGEST).scaleb(-9)
    assert rows["large", 1]["ChargeClass"] == "Correction"
    wasted = rows["wasted", 0]
    assert (wasted["BilledCost"], wasted["EffectiveCost"]) == (Decimal(0), Decimal("0.000000500"))
    rejected = rows["rejected", 0]
    assert (rejected["BilledCost"], rejected["ResourceId"], rejected["ConsumedQuantity"]) == (Decimal(0), None, 0)
    assert list(first) == [each.name for each in COLUMNS]


@pytest.mark.process
async def test_existing_file_is_kept_and_a_failed_export_leaves_no_file(url: str, tmp_path: Path) -> None:
    await fill(url, tmp_path)
    file = tmp_path / "usage.parquet"
    file.write_text("mine")
    with pytest.raises(ExportImpossible, match="already exists"):
        await export_usage(url, SINCE, UNTIL, file)
    assert file.read_text() == "mine"

    file.unlink()
    connection = await asyncpg.connect(url)
    await connection.execute("drop table headgate.usage")
    await connection.close()
    with pytest.raises(asyncpg.UndefinedTableError):
        await export_usage(url, SINCE, UNTIL, file)
    assert not list(tmp_path.glob("usage*"))  # noqa: ASYNC240


@pytest.mark.process
async def test_command_exports_a_period(url: str, tmp_path: Path) -> None:
    await fill(url, tmp_path)
    (tmp_path / "headgate.yaml").write_text(f"database: {url}\n")
    command = [sys.executable, "-m", "headgate.cli.main", "ledger", "export", "--config", "headgate.yaml"]
    command += ["--since", "2026-11-03", "--until", "2026-11-05", "--out", "usage.parquet"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)  # noqa: ASYNC221

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (
        "usage.parquet: 80 rows in 1 row group, 2026-11-03 to 2026-11-05 (exclusive)\n"
        "BilledCost 0.000080000 USD, EffectiveCost 0.000080000 USD\n"
    )
    rows = read(tmp_path / "usage.parquet")
    assert {row["ChargePeriodStart"].day for row in rows} == {3, 4}
    assert sum(row["BilledCost"] for row in rows) == Decimal(NanoUsd(80_000)).scaleb(-9)
