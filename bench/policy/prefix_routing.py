"""E4: measures the effect of routing by prompt prefix.

Mooncake's conversations and its synthetic mix, whose prompts share long prefixes, run on eight engines. The load is
computed as if no prefix were cached. Four ways to estimate what the engines have cached are compared:

- `least backlog`: no estimate; the least loaded endpoint receives the request.
- `approximate`: the scheduler's index of the prompts it has sent.
- `stale`: the same index, updated ten seconds late.
- `exact`: the contents of the engines' caches, which a real gateway cannot see.

There is no long lane because most of these prompts are long. E3 measures the long lane.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, data_folder, percent, table
from bench.policy.fleet import MAIN, engines, pool
from headgate.core.commands import Command
from headgate.core.events import EndpointJoined, Event
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.prefix_index import PrefixIndex
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import H200_LLAMA_8B
from headgate.model.policy import HeadroomRules, Model, Policy, RoutingRules, ServiceClass
from headgate.model.prefix import HASHES_MAX, PREFIX_LENGTHS
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, MINUTE, SECOND, ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.options import CallerBehaviour, TraceTraffic
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS
from headgate.simulation.workload.shares import tenant_shares
from headgate.simulation.workload.traffic import arrivals, span_ns

ENGINES = 8
LOADS = (0.7, 0.9, 1.1)
LOAD_QUICK = 0.9
STALE_NS = Duration(10 * SECOND)
IN_FLIGHT_MAX_OVER_MEAN = 1.5
_CHAT, _MODEL = ClassName("chat"), ModelName("m")
_CALLERS = CallerBehaviour(ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND))
_UNLIMITED = Duration(60 * MINUTE)
_PROFILE = replace(H200_LLAMA_8B, block_tokens=128, kv_blocks=H200_LLAMA_8B.kv_blocks // 8)
"""H200 with larger cache blocks. The traces identify prompts in blocks of 512 tokens, and larger blocks run faster."""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    file: str
    jitter_ns: Duration
    engines_busy: float
    """Number of engines the trace keeps busy at its recorded speed if no prefix is cached."""
    quick_s: float
    """Length of the trace in a quick run, in seconds."""


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
                print_progress(f"  seed {seed}: {trace.name} at {load:g}, {name}")
                scene = scenario(trace, load, seed, quick=quick, prefix=name != "least backlog")
                figures.setdefault(trace.name, {}).setdefault(f"{load:g}", {})[name] = outcome(scene, DECIDERS[name])
    return figures


def scenario(trace: Trace, load: float, seed: int, *, quick: bool, prefix: bool) -> Scenario:
    """Scenario without rejections or cancellations, so that TTFT always covers the same requests."""
    tenants = tenant_shares(data_folder() / "traces" / "lmsys_arena_27clients.csv")
    traffic = TraceTraffic(
        path=data_folder() / "traces" / trace.file,
        classes=((_CHAT, 1.0),),
        tenants=tenants,
        speed_up=load * ENGINES / trace.engines_busy,
        jitter_ns=trace.jitter_ns,
        duration_ns=Duration(round(trace.quick_s * SECOND)) if quick else None,
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
            headroom=HeadroomRules(long_lane_percent=100),
            routing=RoutingRules(prefix_affinity=prefix),
        ),
        model=_MODEL,
        engines=engines(_PROFILE, ENGINES),
        callers={_CHAT: _CALLERS},
        arrivals=lambda: arrivals((traffic,), seed=seed),
        span_ns=span_ns((traffic,)),
        decider=Scheduler,
    )


def outcome(scene: Scenario, decider: "Callable[[], IndexedScheduler]") -> dict[str, Any]:
    made: list[IndexedScheduler] = []

    def make() -> Decider:
        made.append(decider())
        return made[0]

    report = SimulationReport(replace(scene, decider=make))
    host = VirtualHost(report.scenario, report)
    made[0].host = host
    host.run()
    figures: dict[str, Any] = json_report(report)
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


# ------------------------------------------------------------------------------------------------ engine cache contents


class IndexedScheduler(Scheduler):
    """Scheduler with a replaceable prefix index."""

    host: VirtualHost

    def index(self, of: PoolRecord) -> PrefixIndex:
        return of.prefixes

    def handle(self, event: Event, now: Instant) -> list[Command]:
        commands = super().handle(event, now)
        if isinstance(event, EndpointJoined):
            of = self._state.fleet.pools[event.endpoint.pool]
            of.prefixes = self.index(of)
        return commands


class ExactScheduler(IndexedScheduler):
    def index(self, of: PoolRecord) -> PrefixIndex:
        # Reads the simulated engine's private state, which a real gateway cannot see.
        return ExactIndex(lambda slot: self.host._endpoints[of.endpoint_at(slot).id].engine._sequences.kv.pool._holders)  # noqa: SLF001


class StaleScheduler(IndexedScheduler):
    def index(self, of: PoolRecord) -> PrefixIndex:
        return of.prefixes if isinstance(of.prefixes, StaleIndex) else StaleIndex(lambda: self._now)


class ExactIndex(PrefixIndex):
    """Index that reads the engines' caches. In a simulation the block name can be computed from the prefix hash."""

    __slots__ = ("_names_at",)

    def __init__(self, names_at: Callable[[int], dict[int, int]]) -> None:
        super().__init__()
        self._names_at = names_at

    def record(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
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
    """The engine's name for the block in which the hashed prefix ends."""
    name, number = divmod(hash_, HASHES_MAX)
    parts = PREFIX_BLOCK_TOKENS // _PROFILE.block_tokens
    return name * parts + (PREFIX_LENGTHS[number] - 1) % PREFIX_BLOCK_TOKENS // _PROFILE.block_tokens


class StaleIndex(PrefixIndex):
    __slots__ = ("_late", "_now")

    def __init__(self, now: Callable[[], Instant]) -> None:
        super().__init__()
        self._now = now
        self._late: list[tuple[Instant, int, Sequence[int], int | None]] = []

    def record(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        self._late.append((self._now(), slot, hashes, kv_tokens))
        while self._late and self._late[0][0] <= self._now() - STALE_NS:
            _, *noted = self._late.pop(0)
            super().record(*noted)


DECIDERS: dict[str, Callable[[], IndexedScheduler]] = {
    "least backlog": IndexedScheduler,
    "approximate": IndexedScheduler,
    "stale": StaleScheduler,
    "exact": ExactScheduler,
}


# ------------------------------------------------------------------------------------------------------------ output


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for trace, loads in figures.items():
        for load, runs in loads.items():
            ours, blind = runs["approximate"], runs["least backlog"]
            for key in ("mean", "p90"):
                ratio = round(ours["ttft_s"][key] / blind["ttft_s"][key], 4)
                found.append(Threshold(f"{trace} at {load}: {key} TTFT relative to least backlog", ratio, most=1.0))
            ratio = round(ours["goodput_per_s"] / blind["goodput_per_s"], 4)
            found.append(Threshold(f"{trace} at {load}: goodput relative to least backlog", ratio, least=1.0))
            over = ours["in_flight_max_over_mean"]
            found.append(
                Threshold(
                    f"{trace} at {load}: ratio of maximum to mean requests in flight",
                    over,
                    most=IN_FLIGHT_MAX_OVER_MEAN,
                )
            )
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
        "mean TTFT",
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
    title="E4: routing by prompt prefix",
    about=(
        "The workload replays Mooncake's conversation and synthetic traces on eight H200 engines. The load is computed "
        "as if no prefix were cached. Requests are assigned to tenants in the same proportions as in the LMSYS "
        "trace. The TTFT target is 2 s and the TPOT target is "
        "100 ms, and no request is rejected or cancelled. `least backlog` ignores prefixes, `approximate` is the "
        "scheduler's index, `stale` is the same index with updates delayed by ten seconds, and `exact` reads the "
        "engines' caches. The cached column shows the share of all prompt tokens that were found in a cache. The long "
        "lane is off because most of these prompts are long."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
    seeds=(1, 2, 3),
)
