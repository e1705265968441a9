"""Tests for merged traffic: order in time and dependence on the seed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model.units import SECOND, Duration
from headgate.simulation.options import RateTraffic, TraceTraffic, Traffic, Uniform
from headgate.simulation.workload.traffic import arrivals, span_ns

POISSON = RateTraffic(
    rate=20.0,
    duration_ns=Duration(10 * SECOND),
    prompt=Uniform(10, 20),
    output=Uniform(10, 20),
    classes=(("interactive", 1.0),),
    tenants=(("acme", 1.0),),
)


def own_trace(folder: Path, name: str = "own.csv", at_s: tuple[float, ...] = (0, 1, 2)) -> TraceTraffic:
    (folder / name).write_text("at_s,prompt_tokens,output_tokens\n" + "".join(f"{at},5,5\n" for at in at_s))
    return TraceTraffic(path=folder / name, classes=(("batch", 1.0),), tenants=(("one", 1.0), ("two", 1.0)))


def test_several_sources_are_merged_in_time_order(tmp_path: Path) -> None:
    traffic: list[Traffic] = [POISSON, own_trace(tmp_path), replace(POISSON, tenants=(("zeta", 1.0),))]
    requests = list(arrivals(traffic, seed=1))
    moments = [each.at for each in requests]

    assert moments == sorted(moments)
    assert all(150 < sum(each.tenant == name for each in requests) < 250 for name in ("acme", "zeta"))
    assert sum(each.service_class == "batch" for each in requests) == 3


def test_simultaneous_arrivals_keep_the_order_of_their_sources(tmp_path: Path) -> None:
    one, other = own_trace(tmp_path), replace(own_trace(tmp_path, "other.csv"), classes=(("late", 1.0),))

    assert [each.service_class for each in arrivals([one, other], seed=1)] == ["batch", "late"] * 3


def test_adding_a_source_does_not_change_other_sources(tmp_path: Path) -> None:
    trace = own_trace(tmp_path, at_s=tuple(range(50)))
    alone = list(arrivals([trace], seed=1))
    among = [each for each in arrivals([POISSON, trace], seed=1) if each.service_class == "batch"]

    assert among == alone


def test_adding_a_source_of_the_same_kind_does_not_change_earlier_sources() -> None:
    busier = replace(POISSON, rate=30.0, tenants=(("zeta", 1.0),))
    alone = list(arrivals([POISSON], seed=1))
    among = [each for each in arrivals([POISSON, busier], seed=1) if each.tenant == "acme"]

    assert among == alone


def test_duplicate_source_draws_different_arrivals() -> None:
    once = [each.at for each in arrivals([POISSON], seed=1)]
    twice = [each.at for each in arrivals([POISSON, POISSON], seed=1)]

    assert set(once) < set(twice)
    assert len(set(twice)) > 1.5 * len(once)


def test_empty_traffic_has_no_requests() -> None:
    assert list(arrivals([], seed=1)) == []
    assert span_ns([]) == 0


def test_span_equals_that_of_the_longest_source(tmp_path: Path) -> None:
    assert span_ns([POISSON, own_trace(tmp_path)]) == 10 * SECOND


@pytest.mark.process
def test_traffic_does_not_depend_on_the_hash_seed(traces: Path) -> None:
    program = """if True:
        import sys
        from hashlib import sha256
        from pathlib import Path
        from headgate.simulation.options import *
        from headgate.simulation.workload.shares import tenant_shares
        from headgate.simulation.workload.traffic import arrivals
        traces, second = Path(sys.argv[1]), 10**9
        mix = (("interactive", 0.7), ("batch", 0.3))
        servegen = (traces / "servegen_deepseek-r1_rates.csv.gz", traces / "servegen_deepseek-r1_lengths.jsonl.gz")
        traffic = [
            TraceTraffic(path=traces / "azure2023_code.csv", classes=mix, keep=0.3,
                         tenants=tenant_shares(traces / "lmsys_arena_27clients.csv")),
            TraceTraffic(path=traces / "mooncake_synthetic.jsonl", classes=mix, tenants=mix, jitter_ns=3 * second),
            ServeGenTraffic(rates=servegen[0], lengths=servegen[1], classes=mix, keep=0.5, duration_ns=1200 * second),
            RateTraffic(rate=5.0, duration_ns=600 * second, prompt=LogNormal(median=100, p95=900, max=1000),
                           output=Uniform(1, 9), classes=mix, tenants=mix),
        ]
        made = list(arrivals(traffic, seed=7))
        print(len(made), sha256(repr(made).encode()).hexdigest())
    """
    said = [
        subprocess.run(
            [sys.executable, "-c", program, str(traces)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    ]

    assert said[0] == said[1]
    assert int(said[0].split()[0]) > 10_000
