"""Rows written with COPY are read back unchanged."""

from datetime import UTC, datetime

import pytest

from headgate.ledger import pg_copy
from headgate.ledger.partitions import Partitions
from headgate.ledger.pg_copy import COLUMNS, PackError, copy_chunks, pack_row
from headgate.ledger.rows import USAGE_COLUMNS, day_of
from headgate.ports.ledger import UsageRow
from tests.ledger.rows import a_row, all_rows

Link = "asyncpg.Connection[Any]"
FULL = a_row(
    "reqé",
    3,
    correction=2,
    tokens_in=2**31 - 1,
    tokens_cached=1,
    tokens_out=-2,
    tokens_reasoning=3,
    queue_us=2**62,
    ttft_us=0,
    duration_us=4,
    input_us=5,
    output_us=6,
    overhead_us=7,
    level=8,
    input_nano_usd=-(2**63),
    output_nano_usd=2**63 - 1,
    overhead_nano_usd=9,
    reserved_nano_usd=10,
    tenant="t",
    service_class="s",
    model="a\tb\\N\n",
    served_model="",
    pool="p",
    endpoint="e",
    api="embeddings",
    usage_source="engine",
    outcome="o",
    ending="n",
    cause="c",
    payer="y",
    stream=False,
    metadata=(("a", '"\\ü'), ("b", "")),
)


async def copy(link: Link, rows: list[UsageRow], rows_per_turn: int, **limits: int) -> None:
    await Partitions().ensure(link, {day_of(row.at) for row in rows})
    source = copy_chunks(rows, rows_per_turn, **limits)
    await link.copy_to_table("usage", source=source, columns=COLUMNS, schema_name="headgate", format="binary")


@pytest.mark.process
@pytest.mark.parametrize("rows_per_turn", [1, 2, 100])
async def test_copy_preserves_every_column(link: Link, rows_per_turn: int) -> None:
    rows = sorted([FULL, a_row("b", ttft_us=None, metadata=()), a_row("c")], key=lambda row: row.request)
    await copy(link, rows, rows_per_turn)

    assert sorted(await all_rows(link), key=lambda row: row.request) == rows
    assert await link.fetchval("select min(at) from headgate.usage") == datetime(2026, 11, 15, 12, tzinfo=UTC)


def test_copy_lists_every_column_once() -> None:
    assert sorted(COLUMNS) == sorted(USAGE_COLUMNS)


@pytest.mark.parametrize("change", [{"tokens_in": 2**31}, {"attempt": 2**15}, {"reserved_nano_usd": 2**63}])
def test_number_too_large_for_its_column_raises_an_error(change: dict[str, int]) -> None:
    with pytest.raises(PackError):
        pack_row(a_row(**change))


@pytest.mark.process
async def test_packed_text_cache_is_bounded(link: Link) -> None:
    await copy(link, [a_row(f"req_{number:03}", model=f"m{number}") for number in range(100)], 10, texts_max=20)

    assert len(pg_copy._text_cache) < 60
    assert [row.model for row in await all_rows(link)] == [f"m{number}" for number in range(100)]
