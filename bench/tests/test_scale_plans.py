"""Tests of the plans for 1 million to 1 billion requests per day."""

import re
from pathlib import Path
from typing import Any

import pytest

from bench.scale_plans import PAGE, PROJECT, command_of, figures, page, planned, read_arguments
from headgate.model.policy import Pool
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName
from headgate.planning.volume_plan import CellLoad, DayMix, SimulatedCell, VolumePlan, volume_plan
from headgate.planning.volume_report import volumes_json

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
    text = page(MIX, plans, command="just plan-scale", seeds=2)

    assert "```bash\njust plan-scale\n```" in text
    assert re.search(r"\| GPUs +\| 6 +\| 360 +\| 0.89 +\|", text)
    assert "| 1M " in text
    assert "hold the objectives with 2 seeds" in text
    assert "## What grows wrongly" in text
    assert figures(plans)["100M"]["cells"] == 2


def test_page_in_the_docs_has_the_sections_of_the_program() -> None:
    text = page(MIX, [a_plan(1_000_000, cells=1, engines=3)], command="just plan-scale", seeds=1)
    headings = [line for line in text.splitlines() if line.startswith("#")]

    assert [line for line in PAGE.read_text().splitlines() if line.startswith("#")] == headings


def test_figures_of_the_cell_are_rows_of_its_curve() -> None:
    curve = (
        (PROJECT / "docs/project/cell-verification.md").read_text().partition("`just cell-streams --curve` raises")[2]
    )
    text = page(MIX, [a_plan(1_000_000, cells=1, engines=3)], command="", seeds=1)
    text = " ".join(text.split())

    for rate, p99_ms in (("500", 15), ("1,509", 89)):
        assert re.search(rf"^\| {rate} \|.* and {p99_ms} ms \|$", curve, re.MULTILINE)
    assert "500 new streams per second. At this rate, `just cell-streams --curve` measured a p99 of 15 ms" in text
    assert "1,509 per second, it was 89 ms" in text


def test_finished_volumes_are_kept_for_the_same_seeds_and_scenario_only(tmp_path: Path) -> None:
    scenario, kept = tmp_path / "a.yaml", tmp_path / "plans.json"
    runs: list[tuple[str, int]] = []

    def run(_: Path, volume: str, seeds: int) -> dict[str, Any]:
        runs.append((volume, seeds))
        return volumes_json("", MIX, [a_plan(int(volume), cells=1, engines=3)])

    scenario.write_text("title: a")
    first = planned(scenario, ["1000"], seeds=1, resume=kept, run=run)
    assert planned(scenario, ["1000"], seeds=1, resume=kept, run=run) == first
    planned(scenario, ["1000"], seeds=2, resume=kept, run=run)
    scenario.write_text("title: b")
    planned(scenario, ["1000"], seeds=1, resume=kept, run=run)

    assert runs == [("1000", 1), ("1000", 2), ("1000", 1)]


@pytest.mark.parametrize(("words", "printed"), [([], ""), (["--scenario", "mine.yaml"], " --scenario mine.yaml")])
def test_command_on_the_page_names_another_scenario(words: list[str], printed: str) -> None:
    arguments = read_arguments(["--volumes", "1k", *words])

    assert command_of(arguments) == f"just plan-scale --volumes 1k --seeds 1{printed} --write"


@pytest.mark.process
def test_small_volume_is_planned() -> None:
    found = planned(PROJECT / "scenarios" / "plan.yaml", ["50k"], seeds=1, resume=None)

    assert [each.requests_per_day for each in found[1]] == [50_000]
    assert found[1][0].attainment["interactive"] >= 0.99  # type: ignore[index]
