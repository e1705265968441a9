"""Overload with live processes: the provider's cost in the ledger equals the tokens that the provider has counted.

`just hosted-overflow-live` measures how many more requests meet their target.
"""

from pathlib import Path

import pytest

from testing.live_overflow import run_overload, vendor_behind_litellm


@pytest.mark.litellm
async def test_ledger_contains_the_cost_of_the_provider(tmp_path: Path) -> None:
    with vendor_behind_litellm(tmp_path) as vendor:
        run = await run_overload(vendor, tmp_path, seconds=4.0, overflows=True)

    assert 0 < run.recorded.requests < run.sent
    assert run.billed == run.recorded
    assert run.billed_nano_usd == run.reported_nano_usd == run.recorded.nano_usd
