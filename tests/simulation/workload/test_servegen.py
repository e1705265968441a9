"""Tests for ServeGen traffic: rates, burstiness and lengths match the measured clients."""

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import pytest

from headgate.model.units import SECOND, Duration
from headgate.simulation.options import ServeGenTraffic
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.traffic import arrivals, span_ns

HOUR = 3_600 * SECOND
START_S, LENGTH_S = 36_000, 7_200
CLASSES = (("interactive", 0.7), ("batch", 0.3))


def traffic(traces: Path, model: str = "deepseek-r1", **options: Any) -> ServeGenTraffic:
    return ServeGenTraffic(
        rates=traces / f"servegen_{model}_rates.csv.gz",
        lengths=traces / f"servegen_{model}_lengths.jsonl.gz",
        **{
            "classes": CLASSES,
            "start_ns": Duration(START_S * SECOND),
            "duration_ns": Duration(LENGTH_S * SECOND),
            **options,
        },
    )


@pytest.fixture(scope="module")
def two_hours(traces: Path) -> list[Arrival]:
    return list(arrivals([traffic(traces)], seed=1))


@pytest.fixture(scope="module")
def measured(traces: Path) -> list[dict[str, str]]:
    with gzip.open(traces / "servegen_deepseek-r1_rates.csv.gz", "rt") as text:
        rows = list(csv.DictReader(text))
    return [row for row in rows if START_S <= int(row["window_start_s"]) < START_S + LENGTH_S]


def by_client_and_window(requests: Iterable[Arrival]) -> dict[tuple[str, int], list[int]]:
    moments = defaultdict[tuple[str, int], list[int]](list)
    for each in requests:
        moments[each.tenant, START_S + each.at // (600 * SECOND) * 600].append(each.at)
    return moments


def test_each_client_sends_at_its_measured_rate_in_each_window(
    two_hours: list[Arrival], measured: list[dict[str, str]]
) -> None:
    moments = by_client_and_window(two_hours)
    expected = {(row["client"], int(row["window_start_s"])): 600 * float(row["rate_rps"]) for row in measured}

    assert len(two_hours) > 50_000
    assert moments.keys() <= expected.keys()
    assert all(abs(len(moments[key]) - count) < 1.01 for key, count in expected.items())


def test_gaps_between_requests_have_the_measured_variation(
    two_hours: list[Arrival], measured: list[dict[str, str]]
) -> None:
    moments = by_client_and_window(two_hours)
    ratios = [
        variation(moments[row["client"], int(row["window_start_s"])]) / float(row["iat_cv"])
        for row in measured
        if row["iat_dist"] == "Gamma" and float(row["rate_rps"]) > 0.5
    ]

    assert len(ratios) > 20
    assert median(ratios) == pytest.approx(1, abs=0.05)
    assert all(0.6 < ratio < 1.5 for ratio in ratios)


def variation(moments: list[int]) -> float:
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    return pstdev(gaps) / fmean(gaps)


def test_lengths_follow_each_clients_distribution(traces: Path, two_hours: list[Arrival]) -> None:
    with gzip.open(traces / "servegen_deepseek-r1_lengths.jsonl.gz", "rt") as text:
        told = {(str(said["client"]), said["window_start_s"]): said for said in map(json.loads, text)}
    prompts, outputs = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for each in two_hours:
        prompts[each.tenant].append(each.prompt_tokens)
        outputs[each.tenant].append(each.output_tokens)
    large = [client for client, sizes in prompts.items() if len(sizes) > 2_000]

    assert len(large) >= 5
    for client in large:
        # The period from 10:00 to 12:00 is in the six-hour window that starts at 6:00.
        said = told[client, 21_600]
        assert median(prompts[client]) == pytest.approx(said["input_tokens"][7], rel=0.15)
        assert median(outputs[client]) == pytest.approx(said["output_tokens"][7], rel=0.15)
        assert max(prompts[client]) <= said["input_tokens"][-1]


def test_requests_are_sorted_by_time_and_within_the_window(two_hours: list[Arrival]) -> None:
    moments = [each.at for each in two_hours]

    assert moments == sorted(moments)
    assert 0 <= moments[0] < SECOND
    assert LENGTH_S * SECOND - SECOND < moments[-1] < LENGTH_S * SECOND


def test_classes_occur_in_proportion_to_their_weights(two_hours: list[Arrival]) -> None:
    batch = sum(each.service_class == "batch" for each in two_hours)

    assert batch / len(two_hours) == pytest.approx(0.3, abs=0.01)


def test_shorter_range_is_a_subset_of_a_longer_one(traces: Path, two_hours: list[Arrival]) -> None:
    later, length = Duration(1_000 * SECOND), Duration(500 * SECOND)
    part = arrivals([traffic(traces, start_ns=START_S * SECOND + later, duration_ns=length)], seed=1)
    same = [each for each in two_hours if later <= each.at < later + length]

    assert [(each.at + later, each.tenant, each.prompt_tokens, each.service_class) for each in part] == [
        (each.at, each.tenant, each.prompt_tokens, each.service_class) for each in same
    ]


def test_keep_scales_each_clients_request_count(traces: Path, two_hours: list[Arrival]) -> None:
    kept = list(arrivals([traffic(traces, keep=0.01)], seed=1))
    whole, part = (len(each) for each in (two_hours, kept))

    assert part == pytest.approx(0.01 * whole, abs=60)
    for client in {each.tenant for each in two_hours}:
        sent, expected = (sum(each.tenant == client for each in requests) for requests in (kept, two_hours))
        assert abs(sent - 0.01 * expected) < 1.1


def test_speed_up_only_divides_times(traces: Path) -> None:
    plain, fast = (
        list(arrivals([traffic(traces, duration_ns=600 * SECOND, speed_up=speed_up)], seed=1))
        for speed_up in (1.0, 4.0)
    )

    assert [each.at // 4 for each in plain] == [each.at for each in fast]
    assert [each.prompt_tokens for each in plain] == [each.prompt_tokens for each in fast]


def test_span_is_the_requested_length_or_the_rest_of_the_file(traces: Path) -> None:
    assert span_ns([traffic(traces, speed_up=2.0)]) == HOUR
    assert span_ns([traffic(traces, start_ns=0, duration_ns=None)]) == 24 * HOUR
    assert span_ns([traffic(traces, start_ns=22 * HOUR, duration_ns=5 * HOUR)]) == 2 * HOUR


@pytest.mark.parametrize(
    ("count_most", "tenants_min"), [(50_000, 60), pytest.param(1_000_000, 96, marks=pytest.mark.nightly)]
)
def test_requests_over_a_complete_day_are_sorted_by_time(traces: Path, count_most: int, tenants_min: int) -> None:
    day, keep = 24 * HOUR, 0.0553426 * count_most / 1_000_000
    requests = arrivals([traffic(traces, "m-large", start_ns=day, duration_ns=day, keep=keep)], seed=1)
    count, last, tenants = 0, 0, set[str]()
    for each in requests:
        assert each.at >= last
        count, last = count + 1, each.at
        tenants.add(each.tenant)

    assert count == pytest.approx(count_most, rel=0.01)
    assert day - 60 * SECOND < last < day
    # 97 clients send requests on this day. The smallest has 12 requests, so it may have none after sampling.
    assert tenants_min <= len(tenants) <= 97


# ---------------------------------------------------------------------------------------------------- small files
RATES = "client,window_start_s,rate_rps,iat_cv,iat_dist,shape,scale\n"
SIXTEEN = "[" + ",".join(["7"] * 16) + "]"


def small(folder: Path, rates: str, lengths: str | None = None, **options: Any) -> list[Arrival]:
    (folder / "rates.csv").write_text(rates)
    line = f'{{"client":0,"window_start_s":0,"input_tokens":{SIXTEEN},"output_tokens":{SIXTEEN}}}\n'
    (folder / "lengths.jsonl").write_text(line if lengths is None else lengths)
    source = ServeGenTraffic(
        rates=folder / "rates.csv", lengths=folder / "lengths.jsonl", classes=(("all", 1.0),), **options
    )
    return list(arrivals([source], seed=1))


def test_fractional_requests_carry_over_to_the_next_window(tmp_path: Path) -> None:
    rows = "".join(f"0,{600 * window},0.0005,1,Gamma,1,2000\n" for window in range(100))

    assert len(small(tmp_path, RATES + rows)) == 30


def test_very_small_shape_parameters_produce_bursts(tmp_path: Path) -> None:
    requests = small(tmp_path, RATES + "0,0,1,99,Weibull,0.0001,1\n1,0,1,99,Gamma,0.0001,1\n")

    for client in ("0", "1"):
        moments = [each.at for each in requests if each.tenant == client]
        assert len(moments) == 600
        # For u uniform in 0..1, one in seven values of u ** (1 / 0.006) is longer than a nanosecond relative to ten
        # minutes.
        assert len(set(moments)) < 150


def test_window_with_rate_zero_has_no_requests(tmp_path: Path) -> None:
    requests = small(tmp_path, RATES + "0,0,0,,,,\n0,600,1,1,Gamma,1,1\n")

    assert len(requests) == 600
    assert min(each.at for each in requests) >= 600 * SECOND


def test_client_uses_the_lengths_of_its_nearest_window(tmp_path: Path) -> None:
    lines = [
        f'{{"client":{client},"window_start_s":{window},"input_tokens":{[size] * 16},"output_tokens":{SIXTEEN}}}'
        for client, window, size in [(0, 0, 10), (0, 86_400, 20), (1, 43_200, 99)]
    ]
    requests = small(tmp_path, RATES + "0,64800,1,1,Gamma,1,1\n", "\n".join(lines))

    assert {each.prompt_tokens for each in requests} == {20}


def test_client_without_lengths_uses_the_lengths_of_all_clients_weighted_by_requests(tmp_path: Path) -> None:
    rows = "0,0,3,1,Gamma,1,1\n1,21600,1,1,Gamma,1,1\n2,43200,5,1,Gamma,1,1\n"
    lines = [
        f'{{"client":{client},"window_start_s":{window},"input_tokens":{[size] * 16},"output_tokens":{SIXTEEN}}}'
        for client, window, size in [(0, 0, 100), (1, 21_600, 900)]
    ]
    requests = small(tmp_path, RATES + rows, "\n".join(lines))
    borrowed = [each.prompt_tokens for each in requests if each.tenant == "2"]

    assert len(borrowed) == 3_000
    assert (min(borrowed), max(borrowed)) == (100, 900)
    # Lengths are interpolated between the quantiles at 0.7 and 0.8.
    assert sum(size == 100 for size in borrowed) / 3_000 == pytest.approx(0.7, abs=0.05)


def test_lengths_from_clients_without_requests_are_weighted_equally(tmp_path: Path) -> None:
    line = f'{{"client":9,"window_start_s":0,"input_tokens":{SIXTEEN},"output_tokens":{SIXTEEN}}}\n'

    assert {each.prompt_tokens for each in small(tmp_path, RATES + "0,0,1,1,Gamma,1,1\n", line)} == {7}


def test_zero_token_lengths_become_one(tmp_path: Path) -> None:
    nothing = f'{{"client":0,"window_start_s":0,"input_tokens":{[0] * 16},"output_tokens":{[0] * 16}}}\n'

    assert {
        (each.prompt_tokens, each.output_tokens) for each in small(tmp_path, RATES + "0,0,1,1,Gamma,1,1\n", nothing)
    } == {(1, 1)}


@pytest.mark.parametrize(
    ("rates", "lengths", "message"),
    [
        ("", None, r"rates\.csv:1: the file has no columns; expected a ServeGen rates file"),
        ("client,rate\n", None, r'rates\.csv:1: unknown columns: "client", "rate"; expected a ServeGen'),
        (RATES, None, r"rates\.csv contains no rates"),
        (RATES + "0,0,many,1,Gamma,1,1\n", None, r"rates\.csv:2: could not convert"),
        (RATES + "0,0,-1,1,Gamma,1,1\n", None, r'rates\.csv:2: "-1" is not a valid rate'),
        (RATES + "0,0,1,1,Gamma,nan,1\n", None, r'rates\.csv:2: "nan" is not a valid shape'),
        (RATES + "0,0,1,1,Pareto,1,1\n", None, r'rates\.csv:2: unknown iat_dist "Pareto"; use Gamma'),
        (RATES + "0,7,1,1,Gamma,1,1\n", None, r"rates\.csv:2: window_start_s is 7; it must be"),
        (RATES + "0,0\n", None, r"rates\.csv:2: list index out of range"),
        (RATES + "0,0,1,1,Gamma,1,1\n", "", r"lengths\.jsonl contains no lengths"),
        (RATES + "0,0,1,1,Gamma,1,1\n", "{}\n", r"lengths\.jsonl:1: .*client.*; expected a ServeGen lengths"),
        (
            RATES + "0,0,1,1,Gamma,1,1\n",
            '{"client":0,"window_start_s":0,"input_tokens":[2,1],"output_tokens":[]}\n',
            r"lengths\.jsonl:1: the quantiles are not 16 increasing values",
        ),
    ],
)
def test_invalid_file_error_names_the_line(tmp_path: Path, rates: str, lengths: str | None, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        small(tmp_path, rates, lengths)


def test_missing_file_error_names_the_environment_variable(tmp_path: Path) -> None:
    with pytest.raises(
        WorkloadError, match="cannot be read: No such file or directory; set HEADGATE_DATA to the directory"
    ):
        arrivals([traffic(tmp_path)], seed=1)


def test_start_after_the_end_of_the_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"rates\.csv ends at 600 s; the start must be earlier"):
        small(tmp_path, RATES + "0,0,1,1,Gamma,1,1\n", start_ns=Duration(600 * SECOND))
