"""Which requests are one and a half times what four engines can do, and what is promised to them?

Interactive requests and batch of a few tenants, one of which sends half of all; drawn by chance, so that no data is
needed. What the classes promise and what the engines are stands in the gateway's configuration file, as an operator
would write it. Load 1 is what the engines complete while somebody always waits, as in bench/sim_live_workload.py.

The engines are the slowest there are and the prompts long. Each request is then much work in few tokens, so that three
processes on two cores carry what four engines cannot.
"""

from dataclasses import dataclass, replace
from itertools import islice

from bench.sim_live_sides import Stage
from bench.sim_live_workload import busy
from headgate.model.engine_profile import H100X8_LLAMA_70B, EngineProfile
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, TenantId
from headgate.simulation.virtual.scenario import Callers
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.traffic import LogNormal, PoissonTraffic, Shares, arrivals
from headgate.wire.keys import digest, format_digest

INTERACTIVE, BATCH = ClassName("interactive"), ClassName("batch")
CLASSES: Shares = ((INTERACTIVE, 0.7), (BATCH, 0.3))
TENANTS: Shares = (("arena", 0.5), ("bakery", 0.25), ("canteen", 0.15), ("depot", 0.1))
LEAVE_NS = Duration(10 * SECOND)
CALLERS = {
    INTERACTIVE: Callers(
        ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), leave_ns=LEAVE_NS, names_length=True
    ),
    BATCH: Callers(ttft_ns=LEAVE_NS, leave_ns=LEAVE_NS, names_length=True),
}
_PROMPT = LogNormal(median=2_000, p95=6_000, most=7_500)
_OUTPUT = LogNormal(median=60, p95=200, most=400)
_SECRET = "of the benchmark, and long enough"
_SOME = 500
"""So many requests tell how long one takes."""
_FOR_EVER = Duration(1_000_000 * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadWorkload:
    seconds: float = 120.0
    load: float = 1.5
    engines: int = 4
    in_flight_max: int = 24
    """More would make answers slower than is promised, and hardly any quicker in sum."""
    profile: EngineProfile = H100X8_LLAMA_70B
    seed: int = 1

    def asked(self) -> tuple[Arrival, ...]:
        """In the order of time, the first at once and the last after so many seconds."""
        some = [(each.prompt_tokens, each.output_tokens) for each in islice(self._drawn(), _SOME)]
        each_ns = busy(self.profile, some, at_once=self.in_flight_max) / _SOME
        requests = max(2, round(self.load * self.engines * self.seconds * SECOND / each_ns))
        drawn = tuple(islice(self._drawn(), requests))
        start, end = drawn[0].at, drawn[-1].at
        grain = self.seconds * SECOND / (end - start)
        return tuple(replace(each, at=Instant(round((each.at - start) * grain))) for each in drawn)

    def _drawn(self) -> Arrivals:
        """One a second; how fast they really come follows from how many there are."""
        traffic = PoissonTraffic(
            rate=1.0, length_ns=_FOR_EVER, prompt=_PROMPT, output=_OUTPUT, classes=CLASSES, tenants=TENANTS
        )
        return arrivals((traffic,), seed=self.seed)

    def stage(self) -> Stage:
        keys = {TenantId(name): f"sk-of-{name}" for name, _ in TENANTS}
        tenants = {name: {"keys": [format_digest(digest(_SECRET.encode(), key))]} for name, key in keys.items()}
        profile = self.profile
        return Stage(
            seed=self.seed,
            engines=self.engines,
            profile=profile,
            in_flight_max=self.in_flight_max,
            pool={"speed": profile.name, "kv_tokens": profile.kv_blocks * profile.block_tokens},
            settings={
                "classes": {
                    INTERACTIVE: {"ttft": "2s", "tpot": "100ms"},
                    BATCH: {"band": 1, "queue_wait_max": "8s", "floor_percent": 5},
                },
                "key_secret": _SECRET,
                "tenants": tenants,
                "anonymous_tenant": next(iter(tenants)),
            },
            callers=CALLERS,
            keys=keys,
        )
