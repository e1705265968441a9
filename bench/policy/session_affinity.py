"""E10: measures the effect of session affinity on conversations.

Mooncake's conversations run on eight engines, as in E4, and each request names its conversation. Four kinds of routing
are compared:

- `neither`: the least loaded endpoint receives the request.
- `session`: the preference for the endpoint that served the conversation last, without the prefix index.
- `prefix`: the prefix index, without sessions.
- `both`: the prefix index and the preference.

The trace does not name its conversations. They are reconstructed from its block ids: a request continues the
conversation of the last request with the longest common prefix, not counting blocks that many requests share, such as
those of a system prompt.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, percent, table
from bench.policy.prefix_routing import LOAD_QUICK, LOADS, TRACES, IndexedScheduler, outcome, scenario
from headgate.model.policy import RoutingRules
from headgate.model.units import MILLISECOND, Duration
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival

PREFERENCE: Final = Duration(250 * MILLISECOND)
SHARED_BY_MIN: Final = 50
"""Number of requests from which on a block is not part of a conversation: the longest ones have fewer turns."""
ROUTING: Final = {
    "neither": RoutingRules(prefix_affinity=False),
    "session": RoutingRules(prefix_affinity=False, session_preference_ns=PREFERENCE),
    "prefix": RoutingRules(),
    "both": RoutingRules(session_preference_ns=PREFERENCE),
}
_TRACE: Final = TRACES[0]


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for load in (LOAD_QUICK,) if quick else LOADS:
        for name, routing in ROUTING.items():
            print_progress(f"  seed {seed}: {load:g}, {name}")
            scene = with_sessions(scenario(_TRACE, load, seed, quick=quick, prefix=routing.prefix_affinity))
            scene = replace(scene, policy=replace(scene.policy, routing=routing))
            figures.setdefault(f"{load:g}", {})[name] = outcome(scene, IndexedScheduler)
    return figures


def with_sessions(scene: Scenario) -> Scenario:
    found = tuple(name_sessions(list(scene.arrivals())))
    return replace(scene, arrivals=lambda: iter(found))


def name_sessions(arrivals: list[Arrival]) -> Iterator[Arrival]:
    """Returns the arrivals with the names of their conversations."""
    uses = Counter(block for each in arrivals for block in each.prefix)
    session_of: dict[int, str] = {}
    for number, each in enumerate(arrivals):
        own = [block for block in each.prefix if uses[block] < SHARED_BY_MIN]
        known = (session_of[block] for block in reversed(own) if block in session_of)
        session = next(known, f"{number}")
        session_of |= dict.fromkeys(own, session)
        yield replace(each, session=session)


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for load, runs in figures.items():
        blind, session, prefix, both = (runs[name] for name in ROUTING)
        pairs = (("sessions", session, "neither", blind, 1.2), ("both", both, "the prefix index", prefix, 0.98))
        for name, ours, other, theirs, least in pairs:
            more = round(ours["cached_share"] / theirs["cached_share"], 4)
            found.append(Threshold(f"{load}: cached share of {name} relative to {other}", more, least=least))
            ratio = round(ours["goodput_per_s"] / theirs["goodput_per_s"], 4)
            found.append(Threshold(f"{load}: goodput of {name} relative to {other}", ratio, least=1.0))
            ratio = round(ours["ttft_s"]["mean"] / theirs["ttft_s"]["mean"], 4)
            found.append(Threshold(f"{load}: mean TTFT of {name} relative to {other}", ratio, most=1.0))
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            load,
            name,
            *(f"{each['ttft_s'][key]:.3f} s" for key in ("mean", "p50", "p90", "p99")),
            percent(each["cached_share"]),
            f"{each['goodput_per_s']:.2f}",
            percent(each["attainment"]),
            f"{each['in_flight_max_over_mean']:.2f}",
        )
        for load, runs in figures.items()
        for name, each in runs.items()
    ]
    columns = ("mean TTFT", "p50", "p90", "p99", "cached", "goodput req/s", "in SLO", "in flight max/mean")
    return table(("load", "routing", *columns), rows)


EXPERIMENT = Experiment(
    name="session-affinity",
    title="E10: session affinity",
    about=(
        "The workload replays Mooncake's conversation trace on eight simulated H200 engines, as in the experiment on "
        "routing by prompt prefix. Each request names its conversation, which is reconstructed from the trace's block "
        "ids. `neither` ignores prefixes and sessions, `session` uses a preference of 250 ms without the prefix "
        "index, `prefix` uses only the index, and `both` uses the two together. The cached column shows the share of "
        "all prompt tokens that were found in a cache."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
    seeds=(1, 2),
)
