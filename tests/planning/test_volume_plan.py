"""Tests for plans of numbers of requests per day."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.compose.volume_planning import VolumeOptions, day_mix, plan_volumes
from headgate.model.units import SECOND, Duration, Instant, PoolName
from headgate.planning import measured
from headgate.planning.measured import FIGURES, power_law, scheduler_cores
from headgate.planning.volume_plan import DayMix, VolumePlan, cell_load, growth_exponent
from headgate.planning.volume_report import mix_sentences, read_volumes, render_volumes, volumes_json, wrong_growth
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.quantiles import QUANTILE_LEVELS
from tests.house.small_tree import PROJECT
from tests.planning.builders import CHAT, settings_of

MIX = DayMix(
    requests=1_000_000.0,
    peaks=(Instant(0),),
    peak_ns=Duration(600 * SECOND),
    peak_ratio=1.5,
    gateway_peak_us=9_000.0,
    prompt_tokens=500.0,
    output_tokens=100.0,
)
OPTIONS = VolumeOptions(
    requests_per_day=(400_000, 1_600_000),
    headroom=0.0,
    cell_requests_per_s=10.0,
    window_ns=Duration(10 * SECOND),
    seeds=(0,),
)


@pytest.fixture(scope="module")
def planned() -> tuple[DayMix, list[VolumePlan]]:
    return plan_volumes(settings_of(CHAT.replace("in_flight_max: 2", "in_flight_max: 2, gpus: 4")), OPTIONS)


def test_cells_share_the_peak_equally() -> None:
    load = cell_load(MIX, 86_400 * 1_000, headroom=0.2, cell_requests_per_s=1_000)

    assert load.cells == 2
    assert load.requests_per_s == pytest.approx(900)
    assert load.traffic * load.cells == pytest.approx(86.4 * 1.2)


def test_volume_has_the_mix_of_the_scenario(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    mix, _ = planned

    assert mix.requests == pytest.approx(12 * 86_400, rel=0.1)
    assert mix.peak_ratio == pytest.approx(1)
    assert mix.output_tokens == pytest.approx(300, rel=0.05)
    per_request = (737 + 49.9 * mix.output_tokens) * 1.14
    assert mix.gateway_peak_us == pytest.approx(per_request, rel=0.01)


def test_each_cell_is_simulated_at_its_real_size(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    small, large = planned[1]

    assert (small.load.cells, large.load.cells) == (1, 2)
    for each in (small, large):
        assert each.load.cells * each.load.requests_per_s == pytest.approx(each.requests_per_day / 86_400)
        assert 0.9 < each.simulated_per_s / each.load.requests_per_s < 1.5
        assert each.attainment["interactive"] >= 0.97  # type: ignore[index]


def test_gpus_cost_and_processes_follow_from_the_cells(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    for each in planned[1]:
        [(pool, count)] = each.endpoints
        assert pool == PoolName("main")
        assert (each.engines, each.gpus) == (each.load.cells * count, 4 * each.load.cells * count)
        assert each.gpu_usd_per_day == pytest.approx(24 * 1.25 * each.engines)
        assert each.gateways >= 2 * each.load.cells
        assert each.control_usd_per_day == pytest.approx(24 * 0.05 * (each.gateways + each.schedulers + each.stores))
        assert each.ledger_rows_per_day == 1.2 * each.requests_per_day + 8_640 * each.engines
        assert each.record_bytes_per_day == 193 * each.requests_per_day
        assert each.series == 3_514 * (each.gateways + each.schedulers) + 14 * each.engines


def test_json_can_be_read_again(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    mix, plans = planned
    tree = json.loads(json.dumps(volumes_json("A chat", mix, plans)))

    assert read_volumes(tree) == (mix, plans)
    assert set(tree["exponents"]) >= {"cells", "GPUs", "ledger rows per day"}


def test_report_has_every_volume_and_every_measured_figure(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    text = render_volumes("A chat", *planned, width=200)

    assert "400k" in text
    assert "1.6M" in text
    assert all(each.command in text for each in FIGURES)
    assert "simulated requests/s" in text


def test_figure_that_grows_faster_than_the_traffic_is_named(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    small, large = planned[1]
    worse = replace(large, series=5 * small.series)
    grown = [each for each in wrong_growth([small, worse]) if each.startswith("metric series")]

    assert grown == ["metric series: exponent 1.16, so it grows faster than the traffic"]
    assert growth_exponent([small], [1.0]) is None


def test_ledger_writes_above_the_measured_rate_are_named(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    small, large = planned[1]
    busy = replace(large, ledger_rows_per_s=20_000.0)

    assert any("20,000 ledger rows per second" in each for each in wrong_growth([small, busy]))
    assert not any("ledger rows per second at the peak" in each for each in wrong_growth([small, large]))


SPIKE = CHAT.replace("duration: 30s", "duration: 40m").replace(
    "rate: 12,", "rate: 1, spikes: [{at: 20m, duration: 90s, factor: 20}],"
)


def test_busiest_minute_of_the_busiest_part_is_simulated() -> None:
    """All requests are equal, so that the earliest ten minutes with the spike are the busiest: it is at their end."""
    even = SPIKE.replace("rate: 1,", "rate: 1, burstiness: 0,").replace("100:900", "500").replace("200:400", "300")
    settings = settings_of(even.replace("in_flight_max: 2", "in_flight_max: 8"))
    options = replace(OPTIONS, requests_per_day=(100_000,), cell_requests_per_s=500, window_ns=Duration(60 * SECOND))
    mix, [found] = plan_volumes(settings, options)
    spike_per_s = 20 * 100_000 / mix.requests

    assert mix.peaks[0] < 800 * SECOND
    assert found.simulated_per_s == pytest.approx(spike_per_s, rel=0.1)
    assert found.simulated_per_s > 2 * found.load.requests_per_s


def test_peak_across_a_boundary_is_not_halved() -> None:
    """The spike starts 45 s before the twentieth minute, and ends 45 s after it."""
    mix = day_mix(settings_of(SPIKE.replace("at: 20m", "at: 1155s")), 0)
    whole = (510 + 20 * 90) / (2310 + 20 * 90)

    assert mix.peak_ratio == pytest.approx(4 * whole, rel=0.1)
    assert 1245 * SECOND - mix.peak_ns <= mix.peaks[0] <= 1155 * SECOND


def test_length_of_the_peak_is_that_of_a_short_scenario() -> None:
    mix = day_mix(settings_of(CHAT.replace("duration: 30s", "duration: 2m")), 0)

    assert mix.peak_ratio == pytest.approx(1)
    assert "peak: 1.00 times the mean rate of the day, over 2 minutes" in mix_sentences(mix)


def test_busiest_ten_minutes_of_servegen_start_where_its_rates_change(tmp_path: Path) -> None:
    rates = "".join(f"1,{600 * number},{rate},Gamma,1\n" for number, rate in enumerate((1, 20, 1)))
    (tmp_path / "day_rates.csv").write_text(f"client,window_start_s,rate_rps,iat_dist,shape\n{rates}")
    tokens = json.dumps([100] * len(QUANTILE_LEVELS))
    lengths = f'{{"client": 1, "window_start_s": 0, "input_tokens": {tokens}, "output_tokens": {tokens}}}\n'
    (tmp_path / "day_lengths.jsonl").write_text(lengths)
    entry = CHAT[CHAT.index("  - {rate") :]
    text = CHAT.replace(entry, f"  - {{servegen: {tmp_path}/day, classes: interactive}}\n").replace(
        "duration: 30s\n", ""
    )
    settings = settings_of(text.replace("in_flight_max: 2", "in_flight_max: 8"))
    options = replace(OPTIONS, requests_per_day=(632_000,), cell_requests_per_s=500, window_ns=Duration(60 * SECOND))
    mix, [found] = plan_volumes(settings, options)

    assert mix.peaks == (600 * SECOND,)
    assert mix.peak_ratio == pytest.approx(20 / 22 * 3, rel=0.02)
    assert found.simulated_per_s == pytest.approx(found.load.requests_per_s, rel=0.3)
    assert found.simulated_per_s >= found.load.requests_per_s


def test_traces_cannot_be_planned_for_a_number_of_requests(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("at_s,prompt_tokens,output_tokens\n0,100,10\n")
    entry = CHAT[CHAT.index("  - {rate") :]
    settings = settings_of(CHAT.replace(entry, f"  - {{trace: {trace}, classes: interactive}}\n"))

    with pytest.raises(WorkloadError, match="a trace cannot be planned"):
        plan_volumes(settings, OPTIONS)


@pytest.mark.parametrize(
    "pools",
    [
        "  main: {engine: provider, engines: [tiny], in_flight_max: 2}\n",
        "  main: {engines: [tiny], in_flight_max: 2}\n  cloud: {engine: provider, engines: [tiny], in_flight_max: 2}\n",
    ],
)
def test_pools_of_providers_cannot_be_planned_for_a_number_of_requests(pools: str) -> None:
    own = CHAT[CHAT.index("  main:") : CHAT.index("callers:")]

    with pytest.raises(WorkloadError, match=r"cannot plan pools of hosted providers \((main|cloud)\)"):
        plan_volumes(settings_of(CHAT.replace(own, pools)), OPTIONS)


def test_costs_without_prices_are_unknown() -> None:
    settings = settings_of(CHAT.replace(", prices: {per_hour: 1.25}", ""))
    mix, plans = plan_volumes(settings, OPTIONS)
    lines = render_volumes("A chat", mix, plans, width=200).splitlines()

    assert [each.gpu_usd_per_day for each in plans] == [None, None]
    for name in ("GPU cost per day", "GPU cost per million requests", "… relative to the GPUs"):
        [line] = [each for each in lines if each.startswith(name)]
        assert line.split()[-2:] == ["unknown", "unknown"]
    assert read_volumes(json.loads(json.dumps(volumes_json("A chat", mix, plans)))) == (mix, plans)


def test_sample_of_sparse_traffic_is_all_of_it() -> None:
    mix = day_mix(settings_of(CHAT.replace("rate: 12", "rate: 1")), 0)

    assert mix.requests == pytest.approx(86_400, rel=0.5)


def test_power_law_is_fitted_exactly() -> None:
    factor, exponent = power_law([(x, 3 * x**0.5) for x in (1, 10, 200)])

    assert (factor, exponent) == pytest.approx((3, 0.5))
    rates = [scheduler_cores(rate) for rate in (100, 500, 1_000, 2_000)]
    assert all(low < high for low, high in pairwise(rates))


def _claims(page: str) -> Iterator[tuple[str, str]]:
    """Yields each paragraph or table row of a page, and the text with its command: a row and its introduction."""
    introduction = ""
    for block in page.split("\n\n"):
        if not block.lstrip().startswith("|"):
            introduction = " ".join(block.split())
            yield introduction, introduction
        else:
            yield from ((row, f"{introduction} {row}") for row in block.splitlines())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.what)
def test_measured_figure_is_on_a_page_with_its_command(figure: measured.Measured) -> None:
    pages = [(PROJECT / "docs" / name).read_text() for name in ("operations/sizing.md", "project/cell-verification.md")]
    value = re.compile(rf"(?<![\d.,]){re.escape(f'{figure.value:,g}')}(?![\d.,]*\d)")
    claims = [each for page in pages for each in _claims(page)]

    assert any(value.search(claim) and f"`{figure.command}`" in source for claim, source in claims)


def test_cause_is_named_only_if_a_gpu_serves_more(planned: tuple[DayMix, list[VolumePlan]]) -> None:
    small, large = planned[1]
    more, fewer = replace(large, gpus=2 * small.gpus), replace(large, gpus=8 * small.gpus)

    assert any("serves 2.0 times" in each and "whole engines" in each for each in wrong_growth([small, more]))
    assert "a GPU serves 0.5 times as many requests at 1.6M as at 400k" in list(wrong_growth([small, fewer]))


def test_scheduler_points_are_in_the_verification_page() -> None:
    page = (PROJECT / "docs/project/cell-verification.md").read_text()

    for rate, cores in measured.SCHEDULER_CORES:
        assert any(f"| {rate:,} |" in line and f"| {cores:.2f} |" in line for line in page.splitlines())
