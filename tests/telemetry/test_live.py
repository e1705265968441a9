"""Does the console's state say what the gateway does, within its bounds?"""

import asyncio
import json
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from headgate.core.events import FirstToken, PolicyChanged
from headgate.core.summary import EndpointSummary, GivenUp, Summary
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName, EndpointId, PoolName
from headgate.model.verdict import Affected, Cause, Incident, Verdict
from headgate.ports.engine import Capabilities, ProbeState, Telemetry
from headgate.telemetry.histogram import LATENCY
from headgate.telemetry.live.state import ENDPOINTS_SHOWN_MAX, POINTS_MAX, CellNow, GatewayNow, LiveSources, LiveState
from headgate.telemetry.live.window import quantiles_ms
from headgate.telemetry.meters import Meters
from headgate.telemetry.scaling import PoolScaling
from headgate.telemetry.tenants_now import TenantsNow
from testing.builders import a_class, a_policy
from testing.records import a_record
from tests.telemetry.histories import START, arrived, at, attempt_over, over, sent

ENDPOINT = EndpointSummary(EndpointId("main/2"), PoolName("main"), EndpointState.READY, False, 3, 8)
LOAD = Telemetry(running=3, waiting=1, kv_used_fraction=0.425)


@dataclass
class Watched:
    """A gateway that says what a test wants."""

    seconds: float = 0.0
    summary: Summary = field(default_factory=lambda: Summary("hash", {ClassName("interactive"): 0}, 0, ()))
    verdicts: tuple[Verdict, ...] = ()
    engines: tuple[Capabilities, ...] = ()
    scaling: tuple[PoolScaling, ...] = ()
    cell: CellNow | None = None
    priced: bool = True

    def __post_init__(self) -> None:
        self.meters, self.tenants = Meters(), TenantsNow()
        classes = (replace(a_class(), ttft_ns=SECOND), a_class("batch"))
        policy = a_policy(classes=classes, pools=("main",), tenants=("acme",))
        self.saw(PolicyChanged(policy, "hash"))
        sources = LiveSources(
            now=lambda: at(self.seconds),
            gateway=lambda: GatewayNow("g", "1.0", 12.34, "hash", False, self.cell),
            summary=lambda: self.summary,
            engines=lambda: self.engines,
            scaling=lambda: self.scaling,
            verdicts=lambda: self.verdicts,
            has_prices=lambda: self.priced,
        )
        self.live = LiveState(self.meters, self.tenants, sources, {})

    def saw(self, event: object, *commands: object) -> None:
        for observer in (self.meters, self.tenants):
            observer.saw(event, commands, at(self.seconds))  # type: ignore[arg-type]

    def after(self, seconds: int) -> dict[str, object]:
        """The state after so many seconds, each of which was seen."""
        for _ in range(seconds):
            self.seconds += 1
            self.live.second()
        state: dict[str, object] = json.loads(self.live.state_event().decode().partition("data: ")[2])
        return state


def of(state: dict[str, object], part: str, place: int = 0) -> dict[str, object]:
    rows = state[part]
    assert isinstance(rows, list)
    row: dict[str, object] = rows[place]
    return row


def test_an_idle_gateway_has_a_whole_state() -> None:
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
        "per_s": 0.0,
        "completed_per_s": 0.0,
        "refused_per_s": 0.0,
        "ttft_ms": None,
        "duration_ms": None,
        "ttft_target_ms": 1000.0,
        "goodput_percent": None,
    }
    assert [state[part] for part in ("tenants", "endpoints", "refusals", "recent", "verdicts")] == [[]] * 5
    assert state["ladder"] == 0


def test_rates_and_tails_are_of_the_last_ten_seconds() -> None:
    watched = Watched()
    for number in range(10):
        name = f"r{number}"
        watched.saw(arrived(name), replace(sent(), request_id=name))
        watched.saw(replace(attempt_over(), request_id=name), replace(over(), request_id=name))
    state = watched.after(10)
    assert of(state, "classes")["completed_per_s"] == 1.0
    assert of(state, "classes")["duration_ms"] is not None

    assert of(watched.after(11), "classes")["completed_per_s"] == 0.0


def test_a_first_token_is_judged_by_its_target() -> None:
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


def test_refusals_are_counted_by_reason_over_a_minute() -> None:
    watched = Watched()
    watched.saw(arrived(), over(Outcome.SHED))
    watched.meters.turned_away(Outcome.UNAUTHORIZED)
    state = watched.after(1)
    assert of(state, "classes")["refused_per_s"] == 1.0
    assert state["refusals"] == [
        {"outcome": "unauthorized", "per_min": 1, "total": 1, "unserved": True},
        {"outcome": "shed", "per_min": 1, "total": 1, "unserved": True},
    ]

    assert [each["per_min"] for each in watched.after(61)["refusals"]] == [0, 0]  # type: ignore[attr-defined]


def test_whoever_left_by_itself_was_not_let_down() -> None:
    watched = Watched()
    watched.saw(arrived(), over(Outcome.CANCELLED))
    state = watched.after(1)

    assert state["refusals"] == [{"outcome": "cancelled", "per_min": 1, "total": 1, "unserved": False}]
    assert of(state, "classes")["refused_per_s"] == 0.0


def test_what_is_asked_for_counts_when_it_arrives_here() -> None:
    """Whether it waits, is under way or was refused; what waits in the whole cell is of no account."""
    watched = Watched(summary=Summary("hash", {ClassName("interactive"): 0}, 0, ()))
    watched.saw(arrived("waits"))
    watched.saw(arrived("runs"), replace(sent(), request_id="runs"))
    watched.saw(arrived("refused"), replace(over(Outcome.SHED, attempts=0), request_id="refused"))
    watched.saw(arrived("other", class_named="batch"))
    watched.saw(arrived("none", class_named="there is no such class"))
    watched.summary = Summary("hash", {ClassName("interactive"): 500}, 500, ())
    state = watched.after(1)

    assert [of(state, "classes", place)["per_s"] for place in (0, 1)] == [3.0, 1.0]
    assert of(watched.after(11), "classes")["per_s"] == 0.0


def test_of_a_large_fleet_the_worst_is_shown_and_all_is_counted() -> None:
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


def test_tenants_are_there_while_they_have_anything_to_show() -> None:
    watched = Watched()
    watched.saw(arrived(), sent())
    watched.meters.tenants["acme"].nano_usd += 1_000_000_000
    state = watched.after(1)
    assert state["tenants"] == [{"tenant": "acme", "queued": 0, "in_flight": 1, "per_s": 1.0, "usd_per_hour": 0.0}]

    watched.meters.tenants["acme"].nano_usd += 1_000_000_000
    assert of(watched.after(1), "tenants")["usd_per_hour"] == 1800.0

    watched.priced = False
    assert of(watched.after(1), "tenants")["usd_per_hour"] is None

    watched.saw(attempt_over(), over())
    assert watched.after(61)["tenants"] == []


def test_the_fleet_is_shown_with_what_engines_tell() -> None:
    given = (GivenUp(PoolName("main"), 2, 125_000),)
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
            "demand_over_capacity": 1.5,
            "ready": 1,
            "warming": 1,
            "wanted": 4,
        }
    ]
    assert state["ladder"] == 2
    new, ready = of(state, "endpoints"), of(state, "endpoints", 1)
    assert (ready["kv_percent"], ready["running"], ready["waiting"], ready["speed_percent"]) == (42.5, 3, 1, 100)
    assert (new["state"], new["kv_percent"], new["running"], new["speed_percent"]) == ("warming", None, None, 180)
    assert of(state, "classes")["queued"] == 7


def test_a_verdict_is_told_whole() -> None:
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
        "affected": [{"class": "interactive", "tenant": None, "how": "late"}],
        "action": "Add endpoints.",
        "runbook": "docs/operations/runbooks/long_prompts.md",
    }


def test_in_a_cell_it_is_said_who_schedules() -> None:
    state = Watched(cell=CellNow("following", False, ("g2", "10.0.0.2:9090"))).after(1)

    gateway = state["gateway"]
    assert isinstance(gateway, dict)
    scheduler = {"name": "g2", "admin": "10.0.0.2:9090"}
    assert gateway["cell"] == {"mode": "following", "leads": False, "scheduler": scheduler}


def test_who_comes_late_is_told_a_quarter_of_an_hour_and_the_present() -> None:
    watched = Watched()
    watched.after(6 * POINTS_MAX)

    history, state = watched.live.first_events().decode().strip().split("\n\n")
    assert state.startswith("event: state\ndata: {")
    points = json.loads(history.removeprefix("event: history\ndata: "))["points"]
    times = sorted({point["t"] for point in points})
    assert len(times) == POINTS_MAX
    assert {later - earlier for earlier, later in pairwise(times)} == {5}
    assert {point["class"] for point in points} == {"interactive", "batch"}


def test_a_record_that_failed_is_shown() -> None:
    watched = Watched()
    watched.live.take(a_record())

    assert of(watched.after(1), "recent")["outcome"] == "queue_full"


async def test_nothing_is_made_while_nobody_watches() -> None:
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
    empty = [0] * (len(LATENCY.bounds) + 1)
    new = (added + empty)[: len(empty)]
    found = quantiles_ms(empty, new)

    assert found is None if p50 is None else found is not None and (found["p50"], found["p99"]) == (p50, p99)


def test_beyond_the_last_bound_the_last_bound_is_told() -> None:
    empty = [0] * (len(LATENCY.bounds) + 1)

    found = quantiles_ms(empty, [*empty[:-1], 5])
    assert found is not None
    assert found["p99"] == LATENCY.bounds[-1] / 1e6


def test_a_state_is_small_and_soon_made() -> None:
    """It is made on the loop that carries streams."""
    watched = Watched(summary=Summary("hash", {ClassName("interactive"): 0}, 0, (ENDPOINT,) * 200))
    for number in range(500):
        watched.saw(arrived(f"r{number}", f"t{number}"))
    watched.live.second()
    took: list[float] = []
    for _ in range(10):
        started = time.thread_time()
        watched.live.second()
        size = len(watched.live.state_event())
        took.append(time.thread_time() - started)

    assert size < 100_000
    assert min(took) < 0.05, f"best of ten took {min(took) * 1e3:.1f} ms"
