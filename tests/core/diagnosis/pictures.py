"""Builders for the diagnosis tests: the healthy pool "p", with the deviations that a test specifies."""

from typing import Any

from headgate.core.diagnosis.endpoint_stats import EndpointStats
from headgate.core.diagnosis.pool_observation import EndpointObservation, PoolObservation
from headgate.core.diagnosis.window_counts import COUNTS, WindowCounts
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, Duration, EndpointId, PoolName
from testing.builders import at, duration

POOL = PoolName("p")


def seen(seconds: int, **counts: Any) -> WindowCounts:
    """Returns a pool's counts at ten requests per second over this period. `counts` overrides individual values."""
    whole = WindowCounts()
    whole.seconds = seconds
    usual = {
        "arrivals": 10 * seconds,
        "prompt_tokens": 10_000 * seconds,
        "prompt_squares": 10_000_000 * seconds,
        "judged": 10 * seconds,
        "sent": 10 * seconds,
        "begun": 10 * seconds,
        "prefill_ns": 2_000_000_000 * seconds,
        "asked_tokens": 10_000 * seconds,
        "cached_tokens": 4_000 * seconds,
    }
    tenants = counts.pop("tenants", {"acme": 5 * seconds, "bolt": 5 * seconds})
    for name, value in (usual | counts).items():
        assert name in COUNTS, name
        setattr(whole, name, value)
    for name, count in tenants.items():
        whole.tenants.add(name, count)
        whole.tenants_work.add(name, 1_000 * count)
    lengths = whole.lengths_of(ClassName("interactive"))
    lengths.asked, lengths.count, lengths.tokens = 10 * seconds, 10 * seconds, 1_000 * seconds
    lengths.squares = 150_000 * seconds
    whole.ttft_by[ClassName("interactive")] = (10 * seconds, 2_000_000_000 * seconds)
    return whole


def endpoint(
    name: str = "p/1",
    *,
    state: EndpointState = EndpointState.READY,
    in_flight: int = 10,
    in_flight_max: int = 64,
    leaving: bool = False,
    silent: float = 0,
    trouble: EndpointProblem | None = None,
    detail: str = "",
    probe_fails: bool = False,
    **facts: Any,
) -> EndpointObservation:
    watched = EndpointStats(EndpointId(name), POOL, at(0))
    watched.open_streams = watched.decoding = 5
    watched.tpot_ns, watched.pace_percent, watched.kv_percent = Duration(20_000_000), 100, 40
    watched.readied_at = at(0)
    for _ in range(facts.pop("paced", 10)):
        watched.pace_baseline.add(facts.get("pace_usual_percent", 100))
    facts.pop("pace_usual_percent", None)
    for fact, value in facts.items():
        setattr(watched, fact, value)
    summary = EndpointSummary(
        EndpointId(name),
        POOL,
        state,
        leaving,
        in_flight,
        in_flight_max,
        trouble=trouble,
        trouble_detail=detail,
        probe_fails=probe_fails,
    )
    return EndpointObservation(summary, watched, duration(silent))


HARM: dict[str, Any] = {"late": 20, "rejected": 10}


def picture(*, harm: bool = True, recent: dict[str, Any] | None = None, **facts: Any) -> PoolObservation:
    counted = (HARM if harm else {}) | (recent or {})
    given: dict[str, Any] = {
        "pool": POOL,
        "now": at(1_000),
        "recent": seen(10, **counted),
        "last_seconds": seen(3, **counted),
        "longer_window": seen(20),
        "baseline": seen(100),
        "endpoints": (endpoint("p/1"), endpoint("p/2")),
        "queued": 5,
        "level": 0,
        "speed": EngineSpeed(),
        "tpot_ns": duration(0.1),
        "ttft_ns": duration(2),
        "transport_ns": duration(0.001),
        "transport_usual_ns": duration(0.001),
        "earlier_prompt_tokens": 1_000,
        "reported": None,
        "backlog": 0,
        "first_look_at": at(0),
        "cold_start_ns": duration(120),
        "scales": False,
        "unsent_reason": "",
        "overrides_enabled": False,
    }
    return PoolObservation(**(given | facts))
