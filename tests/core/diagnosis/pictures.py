"""How do the tests of the diagnosis say what they arrange? A pool "p" that is well, but for what a test says."""

from typing import Any

from headgate.core.diagnosis.endpoint_seen import EndpointSeen
from headgate.core.diagnosis.picture import EndpointLook, Picture
from headgate.core.diagnosis.seconds_seen import COUNTS, Seen
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointState, EndpointTrouble
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, Duration, EndpointId, PoolName
from testing.builders import at, lasting

POOL = PoolName("p")


def seen(seconds: int, **counts: Any) -> Seen:
    """As much as a pool of ten requests a second sees in so long, but for what is named."""
    whole = Seen()
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
    lengths = whole.of(ClassName("interactive"))
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
    trouble: EndpointTrouble | None = None,
    detail: str = "",
    probe_fails: bool = False,
    **facts: Any,
) -> EndpointLook:
    watched = EndpointSeen(EndpointId(name), POOL, at(0))
    watched.open = watched.decoding = 5
    watched.tpot_ns, watched.pace_percent, watched.kv_percent = Duration(20_000_000), 100, 40
    watched.readied_at = at(0)
    for _ in range(facts.pop("paced", 10)):
        watched.pace_usual.add(facts.get("pace_usual_percent", 100))
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
    return EndpointLook(summary, watched, lasting(silent))


HARM: dict[str, Any] = {"late": 20, "refused": 10}


def picture(*, harm: bool = True, late: dict[str, Any] | None = None, **facts: Any) -> Picture:
    counted = (HARM if harm else {}) | (late or {})
    given: dict[str, Any] = {
        "pool": POOL,
        "now": at(1_000),
        "late": seen(10, **counted),
        "latest": seen(3, **counted),
        "later": seen(20),
        "usual": seen(100),
        "endpoints": (endpoint("p/1"), endpoint("p/2")),
        "queued": 5,
        "level": 0,
        "speed": EngineSpeed(),
        "tpot_ns": lasting(0.1),
        "ttft_ns": lasting(2),
        "transport_ns": lasting(0.001),
        "transport_usual_ns": lasting(0.001),
        "prompts_before": 1_000,
        "told": None,
        "backlog": 0,
        "began": at(0),
        "cold_start_ns": lasting(120),
        "unsent_why": "",
        "operable": False,
    }
    return Picture(**(given | facts))
