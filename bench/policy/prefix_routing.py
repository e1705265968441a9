"""E4: is it worth sending a prompt where its beginning was sent before?

Mooncake's conversations and its synthetic mix, whose prompts share long beginnings, on eight engines, at loads that
count what all prompts would take if nothing were ever found in a cache. Four ways to know what the engines hold:

- nobody asks: the least loaded endpoint takes the request (`least backlog`);
- by what was sent where, as the scheduler does it (`approximate`);
- the same, but each note comes ten seconds late (`stale`);
- by asking the engines' own caches, which no gateway can do (`exact`).

There is no lane for long prompts, for most of these are long; whether it pays is E3's question.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.command import tell
from bench.policy.experiment import Bar, Experiment, Figures, data, percent, table
from bench.policy.fleet import MAIN, engines, pool
from headgate.core.commands import Command
from headgate.core.events import EndpointJoined, Event
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.prefix_index import PrefixIndex
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import H200_LLAMA_8B
from headgate.model.policy import HeadroomRules, Model, Policy, RoutingRules, ServiceClass
from headgate.model.prefix import DISTANCES, HASHES_MAX
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, MINUTE, SECOND, ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.report.figures import figures_of
from headgate.simulation.report.report import Report
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Callers, Decider, Scenario
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS
from headgate.simulation.workload.traffic import TraceTraffic, arrivals, client_shares, span_ns

ENGINES = 8
LOADS = (0.7, 0.9, 1.1)
LOAD_QUICK = 0.9
STALE_NS = Duration(10 * SECOND)
IN_FLIGHT_MAX_OVER_MEAN = 1.5
_CHAT, _MODEL = ClassName("chat"), ModelName("m")
_CALLERS = Callers(ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND))
_UNLIMITED = Duration(60 * MINUTE)
_PROFILE = replace(H200_LLAMA_8B, block_tokens=128, kv_blocks=H200_LLAMA_8B.kv_blocks // 8)
"""With larger blocks than its own: the traces tell prompts apart by 512 tokens, and it is simulated sooner."""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    file: str
    jitter_ns: Duration
    engines_busy: float
    """How many engines work all the time at the trace's own pace, if nothing is found in a cache."""
    quick_s: float
    """How much of it a quick run takes."""


TRACES = (
    Trace("conversation", "mooncake_conversation.jsonl", Duration(3 * SECOND), engines_busy=1.797, quick_s=900),
    Trace("synthetic", "mooncake_synthetic.jsonl", Duration(0), engines_busy=2.118, quick_s=800),
)


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for trace in TRACES:
        for load in (LOAD_QUICK,) if quick else LOADS:
            wanted = ("least backlog", "approximate") if quick else tuple(DECIDERS)
            for name in wanted:
                tell(f"  seed {seed}: {trace.name} at {load:g}, {name}")
                scene = scenario(trace, load, seed, quick=quick, prefix=name != "least backlog")
                figures.setdefault(trace.name, {}).setdefault(f"{load:g}", {})[name] = outcome(scene, DECIDERS[name])
    return figures


def scenario(trace: Trace, load: float, seed: int, *, quick: bool, prefix: bool) -> Scenario:
    """Nobody is refused and nobody leaves, so that times to first token are of the same requests everywhere."""
    tenants = client_shares(data() / "traces" / "lmsys_arena_27clients.csv")
    traffic = TraceTraffic(
        path=data() / "traces" / trace.file,
        classes=((_CHAT, 1.0),),
        tenants=tenants,
        speed_up=load * ENGINES / trace.engines_busy,
        jitter_ns=trace.jitter_ns,
        length_ns=Duration(round(trace.quick_s * SECOND)) if quick else None,
    )
    chat = ServiceClass(
        _CHAT,
        0,
        queue_wait_ns_max=_UNLIMITED,
        queue_length_max=100_000,
        queue_length_per_tenant_max=100_000,
        first_token_ns_max=_UNLIMITED,
        total_ns_max=_UNLIMITED,
        tpot_ns=_CALLERS.tpot_ns,
    )
    return Scenario(
        title=f"{trace.name}, {load:g} of {ENGINES} engines",
        seed=seed,
        policy=Policy(
            classes=(chat,),
            tenants=tuple(Tenant(TenantId(name)) for name, _ in tenants),
            pools=(pool(MAIN, _PROFILE),),
            models=(Model(_MODEL, (MAIN,)),),
            headroom=HeadroomRules(long_percent=100),
            routing=RoutingRules(prefix=prefix),
        ),
        model=_MODEL,
        engines=engines(_PROFILE, ENGINES),
        callers={_CHAT: _CALLERS},
        arrivals=lambda: arrivals((traffic,), seed=seed),
        span_ns=span_ns((traffic,)),
        decider=Scheduler,
    )


def outcome(scene: Scenario, decider: "Callable[[], Informed]") -> dict[str, Any]:
    made: list[Informed] = []

    def make() -> Decider:
        made.append(decider())
        return made[0]

    report = Report(replace(scene, decider=make))
    host = VirtualHost(report.scenario, report)
    made[0].host = host
    host.run()
    figures: dict[str, Any] = figures_of(report)
    total, accounts = figures["total"], [account for account, _ in report.engines]
    found = sum(each.prefix_hit_tokens for each in accounts)
    asked = sum(each.prefix_queried_tokens for each in accounts)
    return {
        "ttft_s": {key: total["ttft_s"][key] for key in ("mean", "p50", "p90", "p99")},
        "goodput_per_s": total["goodput_per_s"],
        "attainment": total["attainment"],
        "cached_share": round(found / asked, 4),
        "in_flight_max_over_mean": figures["fleet"]["in_flight_max_over_mean"],
    }


# ------------------------------------------------------------------------------------------------ what engines hold


class Informed(Scheduler):
    """The scheduler, with an index that may be another than its own."""

    host: VirtualHost

    def index(self, of: PoolRecord) -> PrefixIndex:
        return of.prefixes

    def handle(self, event: Event, now: Instant) -> list[Command]:
        commands = super().handle(event, now)
        if isinstance(event, EndpointJoined):
            of = self._state.fleet.pools[event.endpoint.pool]
            of.prefixes = self.index(of)
        return commands


class Exact(Informed):
    def index(self, of: PoolRecord) -> PrefixIndex:
        # What no gateway can see is nobody's to ask for but an oracle's.
        return ExactIndex(lambda slot: self.host._endpoints[of.at(slot).id].engine._sequences.kv.pool._names)  # noqa: SLF001


class Stale(Informed):
    def index(self, of: PoolRecord) -> PrefixIndex:
        return of.prefixes if isinstance(of.prefixes, StaleIndex) else StaleIndex(lambda: self._now)


class ExactIndex(PrefixIndex):
    """Asks the engines. A hash of a simulation is made of the name of a block, which is what an engine knows it by."""

    __slots__ = ("_names_at",)

    def __init__(self, names_at: Callable[[int], dict[int, int]]) -> None:
        super().__init__()
        self._names_at = names_at

    def note(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        pass

    def depth(self, slot: int, hashes: Sequence[int]) -> int:
        names = self._names_at(slot)
        for count, each in enumerate(hashes):
            if _block(each) not in names:
                return count
        return len(hashes)

    def depth_anywhere(self, hashes: Sequence[int]) -> int:
        return max(self.depth(slot, hashes) for slot in range(ENGINES))

    def holders(self, hashes: Sequence[int], *, beyond: int) -> Iterator[tuple[int, int]]:
        depths = [self.depth(slot, hashes) for slot in range(ENGINES)]
        for count in sorted(set(depths), reverse=True):
            if count > beyond:
                yield count, sum(1 << slot for slot, depth in enumerate(depths) if depth == count)


def _block(hash_: int) -> int:
    """The engine's own name for the block in which the distance of a hash ends."""
    name, number = divmod(hash_, HASHES_MAX)
    parts = PREFIX_BLOCK_TOKENS // _PROFILE.block_tokens
    return name * parts + (DISTANCES[number] - 1) % PREFIX_BLOCK_TOKENS // _PROFILE.block_tokens


class StaleIndex(PrefixIndex):
    __slots__ = ("_late", "_now")

    def __init__(self, now: Callable[[], Instant]) -> None:
        super().__init__()
        self._now = now
        self._late: list[tuple[Instant, int, Sequence[int], int | None]] = []

    def note(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        self._late.append((self._now(), slot, hashes, kv_tokens))
        while self._late and self._late[0][0] <= self._now() - STALE_NS:
            _, *noted = self._late.pop(0)
            super().note(*noted)


DECIDERS: dict[str, Callable[[], Informed]] = {
    "least backlog": Informed,
    "approximate": Informed,
    "stale": Stale,
    "exact": Exact,
}


# ------------------------------------------------------------------------------------------------------------ output


def bars(figures: Figures) -> list[Bar]:
    found: list[Bar] = []
    for trace, loads in figures.items():
        for load, runs in loads.items():
            ours, blind = runs["approximate"], runs["least backlog"]
            for key in ("mean", "p90"):
                ratio = round(ours["ttft_s"][key] / blind["ttft_s"][key], 4)
                found.append(Bar(f"{trace} at {load}: TTFT {key}, over that of least backlog", ratio, most=1.0))
            ratio = round(ours["goodput_per_s"] / blind["goodput_per_s"], 4)
            found.append(Bar(f"{trace} at {load}: goodput, over that of least backlog", ratio, least=1.0))
            over = ours["in_flight_max_over_mean"]
            found.append(Bar(f"{trace} at {load}: in flight, max over mean", over, most=IN_FLIGHT_MAX_OVER_MEAN))
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            trace,
            load,
            name,
            *(f"{each['ttft_s'][key]:.3f} s" for key in ("mean", "p50", "p90", "p99")),
            percent(each["cached_share"]),
            f"{each['goodput_per_s']:.2f}",
            percent(each["attainment"]),
            f"{each['in_flight_max_over_mean']:.2f}",
        )
        for trace, loads in figures.items()
        for load, runs in loads.items()
        for name, each in runs.items()
    ]
    header = (
        "trace",
        "load",
        "index",
        "TTFT mean",
        "p50",
        "p90",
        "p99",
        "cached",
        "goodput req/s",
        "in SLO",
        "in flight max/mean",
    )
    return table(header, rows)


EXPERIMENT = Experiment(
    name="prefix-routing",
    title="E4: prompts that begin as others did",
    about=(
        "Mooncake's conversations and its synthetic mix on eight H200, at loads that count what all prompts would take "
        "if nothing were found in a cache; tenants by LMSYS shares. TTFT 2 s, TPOT 100 ms; nobody is refused and "
        "nobody leaves. `least backlog` does not look at beginnings, `approximate` is the scheduler, `stale` learns "
        "ten seconds late what was sent where, `exact` asks the engines' caches. Cached: of all prompt tokens, those "
        "that were found. Long prompts have no lane here, since most of these are long."
    ),
    run=run,
    table=as_table,
    bars=bars,
    seeds=(1, 2, 3),
)
