"""Does COPY read from a row what is in it?"""

from datetime import UTC, datetime

import pytest

from headgate.ledger import copying
from headgate.ledger.copying import COLUMNS, Unfit, chunks, copied
from headgate.ledger.partitions import Partitions
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
    await Partitions().make(link, {day_of(row.at) for row in rows})
    source = chunks(rows, rows_per_turn, **limits)
    await link.copy_to_table("usage", source=source, columns=COLUMNS, schema_name="headgate", format="binary")


@pytest.mark.process
@pytest.mark.parametrize("rows_per_turn", [1, 2, 100])
async def test_every_column_comes_through_whatever_is_in_it(link: Link, rows_per_turn: int) -> None:
    rows = sorted([FULL, a_row("b", ttft_us=None, metadata=()), a_row("c")], key=lambda row: row.request)
    await copy(link, rows, rows_per_turn)

    assert sorted(await all_rows(link), key=lambda row: row.request) == rows
    assert await link.fetchval("select min(at) from headgate.usage") == datetime(2026, 11, 15, 12, tzinfo=UTC)


def test_it_names_every_column_once() -> None:
    assert sorted(COLUMNS) == sorted(USAGE_COLUMNS)


@pytest.mark.parametrize("change", [{"tokens_in": 2**31}, {"attempt": 2**15}, {"reserved_nano_usd": 2**63}])
def test_a_number_that_its_column_has_no_room_for_is_told(change: dict[str, int]) -> None:
    with pytest.raises(Unfit):
        copied(a_row(**change))


@pytest.mark.process
async def test_texts_that_were_packed_are_not_kept_for_ever(link: Link) -> None:
    await copy(link, [a_row(f"req_{number:03}", model=f"m{number}") for number in range(100)], 10, texts_max=20)

    assert len(copying._packed) < 60
    assert [row.model for row in await all_rows(link)] == [f"m{number}" for number in range(100)]
