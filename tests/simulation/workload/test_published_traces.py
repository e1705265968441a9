"""Tests for published traces: request counts, prefixes and tenants."""

import json
from functools import cache
from pathlib import Path

import pytest

from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND, Duration
from headgate.simulation.options import TraceTraffic, Traffic
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS, Arrival
from headgate.simulation.workload.shares import tenant_shares
from headgate.simulation.workload.traffic import arrivals, span_ns

ALL = (("all", 1.0),)


def overload(traces: Path, speed_up: float) -> list[Traffic]:
    """Workload of experiment E1."""
    return [
        TraceTraffic(
            path=traces / "azure2023_conv.csv",
            classes=(("interactive", 0.7), ("batch", 0.3)),
            tenants=tenant_shares(traces / "lmsys_arena_27clients.csv"),
            speed_up=speed_up,
        ),
        TraceTraffic(
            path=traces / "azure2023_code.csv",
            classes=(("code", 1.0),),
            tenants=(("code", 1.0),),
            shift_ns=Duration(77 * SECOND),
            speed_up=speed_up,
        ),
    ]


@cache
def overload_requests(traces: Path, speed_up: float) -> tuple[Arrival, ...]:
    """Generates the requests once, because reading both traces is slow."""
    return tuple(arrivals(overload(traces, speed_up), seed=1))


def test_overload_workload_has_28185_requests_in_439_seconds_at_speed_up_8(traces: Path) -> None:
    traffic = overload(traces, 8)
    requests = overload_requests(traces, 8)
    moments = [each.at for each in requests]

    assert len(requests) == 28_185
    assert round(span_ns(traffic) / SECOND) == 439
    assert moments == sorted(moments)
    assert (moments[0], moments[-1]) == (0, span_ns(traffic))
    assert round(span_ns(overload(traces, 17.5)) / SECOND, 1) == 200.7


def test_overload_workload_matches_the_classes_and_tenants_of_experiment_e1(traces: Path) -> None:
    requests = overload_requests(traces, 8)
    code = [each for each in requests if each.service_class == "code"]
    conversations = [each for each in requests if each.service_class != "code"]
    largest, share = tenant_shares(traces / "lmsys_arena_27clients.csv")[0]

    assert len(code) == 8_819
    assert {each.tenant for each in code} == {"code"}
    batch = sum(each.service_class == "batch" for each in conversations)
    assert batch / len(conversations) == pytest.approx(0.3, abs=0.015)
    assert sum(each.tenant == largest for each in conversations) / len(conversations) == pytest.approx(share, abs=0.015)
    assert len({each.tenant for each in conversations}) == 27


@pytest.mark.parametrize(
    ("speed_up", "profile", "load"), [(8, "rtxpro6000-llama-8b", 1.51), (17.5, "h200-llama-8b", 1.37)]
)
def test_overload_workload_matches_the_load_of_experiment_e1(
    traces: Path, speed_up: float, profile: str, load: float
) -> None:
    traffic, engine = overload(traces, speed_up), PROFILES[profile]
    work_ps = 0.0
    for each in overload_requests(traces, speed_up):
        per_token_ps = engine.decode_sequence_ps + engine.step_ps / 96
        kv_ps = engine.kv_token_ps * (each.prompt_tokens + each.output_tokens / 2)
        work_ps += engine.prefill_token_ps * each.prompt_tokens + each.output_tokens * (per_token_ps + kv_ps)

    # These loads exclude the attention cost, which is quadratic in the prompt length. It would add 0.01 and 0.07.
    assert work_ps / 1_000 / span_ns(traffic) / 4 == pytest.approx(load, abs=0.005)


def test_only_labels_depend_on_the_seed(traces: Path) -> None:
    one, other = overload_requests(traces, 8), list(arrivals(overload(traces, 8), seed=2))

    assert [(each.at, each.prompt_tokens, each.output_tokens) for each in one] == [
        (each.at, each.prompt_tokens, each.output_tokens) for each in other
    ]
    assert [each.service_class for each in one] != [each.service_class for each in other]


def test_client_shares_are_sorted_relative_frequencies(traces: Path) -> None:
    shares = tenant_shares(traces / "lmsys_arena_27clients.csv")

    assert len(shares) == 27
    assert [share for _, share in shares] == sorted((share for _, share in shares), reverse=True)
    assert sum(share for _, share in shares) == pytest.approx(1)


def test_trace_with_clients_uses_them_as_tenants(traces: Path) -> None:
    path = traces / "lmsys_arena_27clients.csv"
    requests = list(arrivals([TraceTraffic(path=path, classes=ALL)], seed=1))
    counted = dict(tenant_shares(path))

    assert len(requests) == 1_500
    assert sum(each.tenant == "0" for each in requests) == round(1_500 * counted["0"])


@pytest.mark.parametrize(("name", "rows"), [("conversation", 12_031), ("synthetic", 3_993), ("arxiv_first1000", 1_000)])
def test_prefixes_are_the_hash_ids_in_the_trace(traces: Path, name: str, rows: int) -> None:
    path = traces / f"mooncake_{name}.jsonl"
    requests = list(arrivals([TraceTraffic(path=path, classes=ALL, tenants=ALL)], seed=1))

    assert [list(each.prefix) for each in requests] == [
        json.loads(line)["hash_ids"] for line in path.read_text().splitlines()
    ]
    assert len(requests) == rows
    assert all(len(each.prefix) == -(-each.prompt_tokens // PREFIX_BLOCK_TOKENS) for each in requests)


def test_block_name_determines_the_preceding_block(traces: Path) -> None:
    path = traces / "mooncake_conversation.jsonl"
    behind: dict[int, tuple[int, ...]] = {}
    for each in arrivals([TraceTraffic(path=path, classes=ALL, tenants=ALL)], seed=1):
        for place, name in enumerate(each.prefix):
            assert (
                behind.setdefault(name, each.prefix[max(0, place - 1) : place])
                == each.prefix[max(0, place - 1) : place]
            )

    assert len(behind) == 182_790


def test_block_names_in_two_traces_are_disjoint(traces: Path) -> None:
    names = ("conversation", "synthetic")
    paths = [traces / f"mooncake_{name}.jsonl" for name in names]
    tenants = [((name, 1.0),) for name in names]
    traffic = [TraceTraffic(path=path, classes=ALL, tenants=each) for path, each in zip(paths, tenants, strict=True)]
    blocks: dict[str, set[int]] = {name: set() for name in names}
    for each in arrivals(traffic, seed=1):
        blocks[each.tenant].update(each.prefix)

    assert len(blocks["conversation"]) == 182_790
    assert not blocks["conversation"] & blocks["synthetic"]


def test_jitter_spreads_arrivals_on_a_three_second_grid(traces: Path) -> None:
    def in_same_second(jitter_ns: int) -> int:
        traffic = TraceTraffic(
            path=traces / "mooncake_conversation.jsonl", classes=ALL, tenants=ALL, jitter_ns=Duration(jitter_ns)
        )
        seconds = [each.at // SECOND for each in arrivals([traffic], seed=1)]
        return max(seconds.count(second) for second in range(seconds[0], seconds[0] + 300))

    assert in_same_second(3 * SECOND) < 0.6 * in_same_second(0)
