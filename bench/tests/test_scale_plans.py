"""Tests of the plans for 1 million to 1 billion requests per day."""

import re
from pathlib import Path

import pytest

from bench.scale_plans import PAGE, PROJECT, figures, page, planned
from headgate.model.policy import Pool
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName
from headgate.planning.volume_plan import CellLoad, DayMix, SimulatedCell, VolumePlan, volume_plan

MIX = DayMix(
    requests=2e8,
    peaks=(Instant(0),),
    peak_ns=Duration(600 * SECOND),
    peak_ratio=1.5,
    gateway_peak_us=5e3,
    prompt_tokens=300.0,
    output_tokens=50.0,
)


def a_plan(requests_per_day: int, *, cells: int, engines: int) -> VolumePlan:
    cell = SimulatedCell(
        endpoints=((PoolName("main"), engines),),
        attainment={ClassName("chat"): 0.995},
        requests=5_000,
        window_ns=Duration(60 * SECOND),
    )
    load = CellLoad(cells=cells, requests_per_s=requests_per_day / 57_600 / cells, traffic=0.1)
    return volume_plan(
        MIX,
        requests_per_day,
        load,
        cell,
        pools=(Pool(PoolName("main")),),
        gpus={PoolName("main"): 2},
        core_usd_per_hour=0.05,
    )


def test_page_has_all_volumes_and_the_command() -> None:
    plans = [a_plan(1_000_000, cells=1, engines=3), a_plan(100_000_000, cells=2, engines=90)]
    text = page(MIX, plans, command="just plan-scale")

    assert "```bash\njust plan-scale\n```" in text
    assert re.search(r"\| GPUs +\| 6 +\| 360 +\| 0.89 +\|", text)
    assert "| 1M " in text
    assert "## What grows wrongly" in text
    assert figures(plans)["100M"]["cells"] == 2


def test_page_in_the_docs_has_the_sections_of_the_program() -> None:
    text = page(MIX, [a_plan(1_000_000, cells=1, engines=3)], command="just plan-scale")
    headings = [line for line in text.splitlines() if line.startswith("#")]

    assert [line for line in PAGE.read_text().splitlines() if line.startswith("#")] == headings


@pytest.mark.process
def test_small_volume_is_planned_and_kept_for_a_later_run(tmp_path: Path) -> None:
    kept = tmp_path / "plans.json"
    found = planned(PROJECT / "scenarios" / "plan.yaml", ["50k"], seeds=1, resume=kept)

    assert [each.requests_per_day for each in found[1]] == [50_000]
    assert found[1][0].attainment["interactive"] >= 0.99  # type: ignore[index]
    assert planned(Path("missing.yaml"), ["50k"], seeds=1, resume=kept) == found
