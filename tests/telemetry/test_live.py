"""The console's live state: contents and bounds."""

import asyncio
import json
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from headgate.core.events import FirstToken, PolicyChanged
from headgate.core.summary import EndpointSummary, PoolDegradation, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName, EndpointId, PoolName
from headgate.model.verdict import Affected, Cause, Incident, Verdict
from headgate.ports.engine import Capabilities, ProbeState, Telemetry
from headgate.telemetry.histogram import LATENCY_BUCKETS
from headgate.telemetry.live.live_state import (
    ENDPOINTS_SHOWN_MAX,
    POINTS_MAX,
    CellInfo,
    GatewayInfo,
    LiveSources,
    LiveState,
)
from headgate.telemetry.live.rate_window import quantiles_ms
from headgate.telemetry.meters import Meters
from headgate.telemetry.scaling_metrics import PoolScaling
from testing.builders import a_class, a_policy
from testing.records import a_record
from tests.telemetry.histories import START, arrived, at, attempt_over, over, sent

ENDPOINT = EndpointSummary(EndpointId("main/2"), PoolName("main"), EndpointState.READY, False, 3, 8)
LOAD = Telemetry(running=3, waiting=1, kv_used_fraction=0.425)


@dataclass
class Watched:
    """A gateway whose state is set by the test."""

    seconds: float = 0.0
    summary: Summary = field(default_factory=lambda: Summary("hash", {ClassName("interactive"): 0}, 0, ()))
    verdicts: tuple[Verdict, ...] = ()
    engines: tuple[Capabilities, ...] = ()
    scaling: tuple[PoolScaling, ...] = ()
    cell: CellInfo | None = None
    priced: bool = True

    def __post_init__(self) -> None:
        self.meters = Meters()
        classes = (replace(a_class(), ttft_ns=SECOND), a_class("batch"))
        policy = a_policy(classes=classes, pools=("main",), tenants=("acme",))
        self.saw(PolicyChanged(policy, "hash"))
        sources = LiveSources(
            now=lambda: at(self.seconds),
            gateway=lambda: GatewayInfo("g", "1.0", 12.34, "hash", False, self.cell),
            summary=lambda: self.summary,
            engines=lambda: self.engines,
            scaling=lambda: self.scaling,
            verdicts=lambda: self.verdicts,
            has_prices=lambda: self.priced,
        )
        self.live = LiveState(self.meters, sources, {})

    def saw(self, event: object, *commands: object) -> None:
        self.meters.observe(event, commands, at(self.seconds))  # type: ignore[arg-type]

    def after(self, seconds: int) -> dict[str, object]:
        """Take one snapshot per second for `seconds` seconds and return the resulting state."""
        for _ in range(seconds):
            self.seconds += 1
            self.live.tick()
        state: dict[str, object] = json.loads(self.live.state_event().decode().partition("data: ")[2])
        return state


def of(state: dict[str, object], part: str, place: int = 0) -> dict[str, object]:
    rows = state[part]
    assert isinstance(rows, list)
    row: dict[str, object] = rows[place]
    return row


def test_idle_gateway_reports_a_complete_state() -> None:
    state = Watched().after(1)

    assert state["version"] == 1
    assert state["at"] == "2026-01-01T00:00:01+00:00"
    assert state["gateway"] == {
        "name": "g",
        "version": "1.0",
        "uptime_s": 12.3,
        "config_hash": "hash",
        "draining": False,
        "cell": None,
    }
    assert of(state, "classes") == {
        "class": "interactive",
        "queued": 0,
        "arrived_per_s": 0.0,
        "completed_per_s": 0.0,
        "rejected_per_s": 0.0,
        "ttft_ms": None,
        "duration_ms": None,
        "ttft_target_ms": 1000.0,
        "goodput_percent": None,
    }
    assert [state[part] for part in ("tenants", "endpoints", "rejections", "recent", "verdicts")] == [[]] * 5
    assert state["degradation_level"] == 0


def test_rates_and_percentiles_cover_the_last_ten_seconds() -> None:
    watched = Watched()
    for number in range(10):
        name = f"r{number}"
        watched.saw(arrived(name), replace(sent(), request_id=name))
        watched.saw(replace(attempt_over(), request_id=name), replace(over(), request_id=name))
    state = watched.after(10)
    assert of(state, "classes")["completed_per_s"] == 1.0
    assert of(state, "classes")["duration_ms"] is not None

    assert of(watched.after(11), "classes")["completed_per_s"] == 0.0


def test_goodput_compares_first_tokens_with_their_target() -> None:
    watched = Watched()
    for number, waits in enumerate((0.2, 0.2, 0.2, 3.0)):
        watched.seconds = 0.0
        watched.saw(arrived(f"r{number}"), replace(sent(), request_id=f"r{number}"))
        watched.seconds = waits
        watched.saw(FirstToken(f"r{number}", 1))  # type: ignore[arg-type]
    watched.seconds = 3.0

    interactive = of(watched.after(1), "classes")
    assert interactive["goodput_percent"] == 75.0
    ttft = interactive["ttft_ms"]
    assert isinstance(ttft, dict)
    assert 150 < ttft["p50"] < 250
    assert 2_500 < ttft["p99"] <= 3_500


def test_rejections_are_counted_by_outcome_over_one_minute() -> None:
    watched = Watched()
    watched.saw(arrived(), over(Outcome.SHED))
    watched.meters.count_rejected(Outcome.UNAUTHORIZED)
    state = watched.after(1)
    assert of(state, "classes")["rejected_per_s"] == 1.0
    assert state["rejections"] == [
        {"outcome": "unauthorized", "per_min": 1, "total": 1, "unsuccessful": True},
        {"outcome": "shed", "per_min": 1, "total": 1, "unsuccessful": True},
    ]

    assert [each["per_min"] for each in watched.after(61)["rejections"]] == [0, 0]  # type: ignore[attr-defined]


def test_cancelled_request_is_not_counted_as_unserved() -> None:
    watched = Watched()
    watched.saw(arrived(), over(Outcome.CANCELLED))
    state = watched.after(1)

    assert state["rejections"] == [{"outcome": "cancelled", "per_min": 1, "total": 1, "unsuccessful": False}]
    assert of(state, "classes")["rejected_per_s"] == 0.0


def test_request_rate_includes_all_arrivals_at_this_gateway() -> None:
    """Queued, running and rejected requests count. The cell's queue does not."""
    watched = Watched(summary=Summary("hash", {ClassName("interactive"): 0}, 0, ()))
    watched.saw(arrived("waits"))
    watched.saw(arrived("runs"), replace(sent(), request_id="runs"))
    watched.saw(arrived("refused"), replace(over(Outcome.SHED, attempts=0), request_id="refused"))
    watched.saw(arrived("other", requested_class="batch"))
    watched.saw(arrived("none", requested_class="no such class"))
    watched.summary = Summary("hash", {ClassName("interactive"): 500}, 500, ())
    state = watched.after(1)

    assert [of(state, "classes", place)["arrived_per_s"] for place in (0, 1)] == [3.0, 1.0]
    assert of(watched.after(11), "classes")["arrived_per_s"] == 0.0


def test_large_fleet_lists_unhealthy_endpoints_first_and_counts_all() -> None:
    sound = tuple(replace(ENDPOINT, id=EndpointId(f"main/{number}")) for number in range(250))
    worse = (
        replace(ENDPOINT, id=EndpointId("main/warming"), state=EndpointState.WARMING),
        replace(ENDPOINT, id=EndpointId("main/leaving"), leaving=True),
        replace(ENDPOINT, id=EndpointId("main/suspected"), suspected=True),
        replace(ENDPOINT, id=EndpointId("main/unprobed"), probe_fails=True, drained=True),
        replace(ENDPOINT, id=EndpointId("main/ejected"), state=EndpointState.EJECTED),
    )
    state = Watched(summary=Summary("hash", {}, 0, (*sound, *worse))).after(1)

    shown = [of(state, "endpoints", place)["id"] for place in range(6)]
    assert shown == ["main/ejected", "main/suspected", "main/unprobed", "main/leaving", "main/warming", "main/0"]
    assert [of(state, "endpoints", place)["drained"] for place in (1, 2)] == [False, True]
    assert [of(state, "endpoints", place)["probe_fails"] for place in (1, 2)] == [False, True]
    assert len(state["endpoints"]) == ENDPOINTS_SHOWN_MAX  # type: ignore[arg-type]
    assert state["endpoints_known"] == 255
    assert of(state, "pools")["ready"] == 251


def test_tenants_are_listed_while_they_are_active() -> None:
    watched = Watched()
    watched.saw(arrived(), sent())
    watched.meters.tenants["acme"].nano_usd += 1_000_000_000
    state = watched.after(1)
    assert state["tenants"] == [
        {"tenant": "acme", "queued": 0, "in_flight": 1, "arrived_per_s": 1.0, "usd_per_hour": 0.0}
    ]

    watched.meters.tenants["acme"].nano_usd += 1_000_000_000
    assert of(watched.after(1), "tenants")["usd_per_hour"] == 1800.0

    watched.priced = False
    assert of(watched.after(1), "tenants")["usd_per_hour"] is None

    watched.saw(attempt_over(), over())
    assert watched.after(61)["tenants"] == []


def test_pools_and_endpoints_include_engine_telemetry() -> None:
    given = (PoolDegradation(PoolName("main"), 2, 125_000),)
    warming = replace(ENDPOINT, id=EndpointId("main/3"), state=EndpointState.WARMING, decode_percent=180)
    summary = Summary("hash", {ClassName("interactive"): 7}, 7, (ENDPOINT, warming), given)
    engines = (Capabilities(ENDPOINT.id, "vllm", ProbeState.READY, telemetry=LOAD),)
    scaling = (PoolScaling(PoolName("main"), 4, 1_500_000, 1),)
    state = Watched(summary=summary, engines=engines, scaling=scaling).after(1)

    assert state["pools"] == [
        {
            "pool": "main",
            "level": 2,
            "shed_percent": 12.5,
            "demand_to_capacity_ratio": 1.5,
            "ready": 1,
            "warming": 1,
            "desired": 4,
        }
    ]
    assert state["degradation_level"] == 2
    new, ready = of(state, "endpoints"), of(state, "endpoints", 1)
    assert (ready["kv_percent"], ready["running"], ready["waiting"], ready["speed_percent"]) == (42.5, 3, 1, 100)
    assert (new["state"], new["kv_percent"], new["running"], new["speed_percent"]) == ("warming", None, None, 180)
    assert of(state, "classes")["queued"] == 7


def test_verdict_is_shown_with_all_fields() -> None:
    verdict = Verdict(
        PoolName("main"),
        Cause.COMPUTE,
        Incident.LONG_PROMPTS,
        START,
        "Prompts have grown.",
        ("9 tokens, usually 1",),
        (Affected(ClassName("interactive"), None, "late"),),
        "Add endpoints.",
    )

    assert of(Watched(verdicts=(verdict,)).after(5), "verdicts") == {
        "pool": "main",
        "cause": "compute",
        "incident": "long_prompts",
        "since_s": 5,
        "sentence": "Prompts have grown.",
        "evidence": ["9 tokens, usually 1"],
        "affected": [{"class": "interactive", "tenant": None, "effect": "late"}],
        "action": "Add endpoints.",
        "runbook": "docs/operations/runbooks/long_prompts.md",
    }


def test_cell_member_shows_the_scheduler() -> None:
    state = Watched(cell=CellInfo("following", False, ("g2", "10.0.0.2:9090"))).after(1)

    gateway = state["gateway"]
    assert isinstance(gateway, dict)
    scheduler = {"name": "g2", "admin": "10.0.0.2:9090"}
    assert gateway["cell"] == {"mode": "following", "is_leader": False, "scheduler": scheduler}


def test_new_console_receives_fifteen_minutes_of_history_and_the_current_state() -> None:
    watched = Watched()
    watched.after(6 * POINTS_MAX)

    history, state = watched.live.initial_events().decode().strip().split("\n\n")
    assert state.startswith("event: state\ndata: {")
    points = json.loads(history.removeprefix("event: history\ndata: "))["points"]
    times = sorted({point["t"] for point in points})
    assert len(times) == POINTS_MAX
    assert {later - earlier for earlier, later in pairwise(times)} == {5}
    assert {point["class"] for point in points} == {"interactive", "batch"}


def test_failed_request_is_listed_as_recent() -> None:
    watched = Watched()
    watched.live.requests.add(a_record())

    assert of(watched.after(1), "recent")["outcome"] == "queue_full"


async def test_no_state_is_sent_without_a_connected_console() -> None:
    watched, told = Watched(), []
    watching = 0
    task = asyncio.create_task(watched.live.run(lambda: watching, told.append, every_s=0.01))
    async with asyncio.timeout(30):
        while watched.live._seconds < 3:
            await asyncio.sleep(0.005)
    assert told == []

    watching = 1
    async with asyncio.timeout(30):
        while not told:
            await asyncio.sleep(0.005)
    task.cancel()
    assert told[0].startswith(b"event: state\n")


@pytest.mark.parametrize(
    ("added", "p50", "p99"), [([10], 0.5, 1.0), ([0, 10], 1.8, 2.5), ([0] * 200, None, None)], ids=str
)
def test_quantiles_lie_within_their_bucket(added: list[int], p50: float | None, p99: float | None) -> None:
    empty = [0] * (len(LATENCY_BUCKETS.bounds) + 1)
    new = (added + empty)[: len(empty)]
    found = quantiles_ms(empty, new)

    assert found is None if p50 is None else found is not None and (found["p50"], found["p99"]) == (p50, p99)


def test_quantile_beyond_the_last_bound_is_the_last_bound() -> None:
    empty = [0] * (len(LATENCY_BUCKETS.bounds) + 1)

    found = quantiles_ms(empty, [*empty[:-1], 5])
    assert found is not None
    assert found["p99"] == LATENCY_BUCKETS.bounds[-1] / 1e6


def test_state_is_small_and_fast_to_build() -> None:
    """The state is built on the event loop that relays streams."""
    watched = Watched(summary=Summary("hash", {ClassName("interactive"): 0}, 0, (ENDPOINT,) * 200))
    for number in range(500):
        watched.saw(arrived(f"r{number}", f"t{number}"))
    watched.live.tick()
    took: list[float] = []
    for _ in range(10):
        started = time.thread_time()
        watched.live.tick()
        size = len(watched.live.state_event())
        took.append(time.thread_time() - started)

    assert size < 100_000
    assert min(took) < 0.05, f"the fastest of ten runs took {min(took) * 1e3:.1f} ms"
