"""Requests at one and a half times the capacity of four engines, and their objectives.

The load consists of interactive and batch requests from a few tenants, one of which sends half of them. All are random,
so no data file is needed. The gateway's configuration file contains the objectives and the engines' parameters, as an
operator would write it. Load 1 is the rate at which engines with a backlog complete requests, as in
bench/sim_vs_live_workload.py.

The engines have the slowest profile and the prompts are long. Each request is therefore a lot of work but few tokens,
so that three processes on two cores can relay more than four engines can compute.
"""

from dataclasses import dataclass, replace
from itertools import islice

from bench.sim_vs_live_runs import RunSetup
from bench.sim_vs_live_workload import busy_duration
from headgate.model.engine_profile import H100X8_LLAMA_70B, EngineProfile
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, TenantId
from headgate.simulation.options import CallerBehaviour, LogNormal, RateTraffic, Shares
from headgate.simulation.workload.arrival import Arrival, Arrivals
from headgate.simulation.workload.traffic import arrivals
from headgate.wire.keys import digest, format_digest

INTERACTIVE, BATCH = ClassName("interactive"), ClassName("batch")
CLASSES: Shares = ((INTERACTIVE, 0.7), (BATCH, 0.3))
TENANTS: Shares = (("arena", 0.5), ("bakery", 0.25), ("canteen", 0.15), ("depot", 0.1))
LEAVE_NS = Duration(10 * SECOND)
CALLERS = {
    INTERACTIVE: CallerBehaviour(
        ttft_ns=Duration(2 * SECOND),
        tpot_ns=Duration(100 * MILLISECOND),
        client_timeout_ns=LEAVE_NS,
        sends_max_tokens=True,
    ),
    BATCH: CallerBehaviour(ttft_ns=LEAVE_NS, client_timeout_ns=LEAVE_NS, sends_max_tokens=True),
}
_PROMPT = LogNormal(median=2_000, p95=6_000, max=7_500)
_OUTPUT = LogNormal(median=60, p95=200, max=400)
_SECRET = "of the benchmark, and long enough"
_SOME = 500
"""Number of requests from which the time per request is estimated."""
_FOR_EVER = Duration(1_000_000 * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadWorkload:
    seconds: float = 120.0
    load: float = 1.5
    engines: int = 4
    in_flight_max: int = 24
    """Maximum requests in flight per engine. More would miss the objectives and barely increase throughput."""
    profile: EngineProfile = H100X8_LLAMA_70B
    seed: int = 1

    def requests(self) -> tuple[Arrival, ...]:
        """Return the requests in order of arrival, the first at 0 and the last after `seconds`."""
        some = [(each.prompt_tokens, each.output_tokens) for each in islice(self._drawn(), _SOME)]
        each_ns = busy_duration(self.profile, some, at_once=self.in_flight_max) / _SOME
        requests = max(2, round(self.load * self.engines * self.seconds * SECOND / each_ns))
        drawn = tuple(islice(self._drawn(), requests))
        start, end = drawn[0].at, drawn[-1].at
        grain = self.seconds * SECOND / (end - start)
        return tuple(replace(each, at=Instant(round((each.at - start) * grain))) for each in drawn)

    def _drawn(self) -> Arrivals:
        """Draw one request per second. The caller rescales the times."""
        traffic = RateTraffic(
            rate=1.0, duration_ns=_FOR_EVER, prompt=_PROMPT, output=_OUTPUT, classes=CLASSES, tenants=TENANTS
        )
        return arrivals((traffic,), seed=self.seed)

    def setup(self) -> RunSetup:
        keys = {TenantId(name): f"sk-of-{name}" for name, _ in TENANTS}
        tenants = {name: {"keys": [format_digest(digest(_SECRET.encode(), key))]} for name, key in keys.items()}
        profile = self.profile
        return RunSetup(
            seed=self.seed,
            engines=self.engines,
            profile=profile,
            in_flight_max=self.in_flight_max,
            pool={"speed": profile.name, "kv_tokens": profile.kv_blocks * profile.block_tokens},
            settings={
                "classes": {
                    INTERACTIVE: {"ttft": "2s", "tpot": "100ms"},
                    BATCH: {"priority_band": 1, "queue_wait_max": "8s", "min_share_percent": 5},
                },
                "key_secret": _SECRET,
                "tenants": tenants,
                "anonymous_tenant": next(iter(tenants)),
            },
            callers=CALLERS,
            keys=keys,
        )
