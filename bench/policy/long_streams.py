"""E5, second part: checks capacity accounting after a burst of hour-long streams.

For a minute, traffic arrives at twice the capacity of the engines, including some streams that run for an hour. A
gateway that miscounts them sends an engine more than it can hold or reserves slots for streams that have ended. An
observer counts the requests on each endpoint from the commands. The requests actually running on the engines are
sampled and compared with that count.
"""

from collections import Counter
from collections.abc import Sequence

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, headgate_scheduler, percent, table
from bench.policy.fleet import MAIN, engines, pool
from bench.policy.recovery import RecoveryReport
from headgate.core.commands import Command, Dispatch
from headgate.core.events import AttemptEnded, Event
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.policy import Model, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, EndpointId, Instant, ModelName, TenantId
from headgate.simulation.options import CallerBehaviour, LogNormal, RateTraffic, Uniform
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.traffic import arrivals

ENGINES, IN_FLIGHT_MAX = 4, 96
BURST_AT_S, BURST_S = 60.0, 60.0
RATE, BURST_RATE, STREAMS_RATE = 20.0, 50.0, 0.3
INTERACTIVE = ClassName("interactive")
CALLERS = CallerBehaviour(
    ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), client_timeout_ns=Duration(10 * SECOND)
)
_MODEL = ModelName("m")


def run(seed: int, *, quick: bool) -> Figures:
    """Run the experiment. In a quick run, the streams last about five minutes."""
    return run_burst(seed, span_s=360 if quick else 2_400, stream_tokens=8_000 if quick else 90_000)


def run_burst(
    seed: int, *, span_s: float, stream_tokens: int, burst_at_s: float = BURST_AT_S, burst_s: float = BURST_S
) -> Figures:
    """Run the scenario with a burst at `burst_at_s` that lasts `burst_s`, and return its figures."""
    scene = scenario(seed, span_s=span_s, stream_tokens=stream_tokens, burst_at_s=burst_at_s, burst_s=burst_s)
    print_progress(f"  seed {seed}: {scene.title}")
    report, count = RecoveryReport(scene), InFlightCount()
    watch = InFlightWatch(report, count, [each.id for each in scene.engines])
    VirtualHost(scene, watch, observers=(count,)).run()
    burst_at, burst = Instant(round(burst_at_s * SECOND)), Duration(round(burst_s * SECOND))
    before, recovery_s = report.recovery(burst_at, burst)
    return {
        "attainment_before": before,
        "recovery_s": recovery_s,
        "recovery_over_burst": round(recovery_s / burst_s, 4),
        "attainment_after": report.share_after(Instant(burst_at + 2 * burst)),
        "in_flight_most": count.most,
        "in_flight_max": IN_FLIGHT_MAX,
        "in_flight_in_the_end": sum(count.held.values()),
        "engines_hold_more_by": watch.more,
        "engines_hold_less_by": watch.less,
        "preemptions": sum(account.preemptions for account, _ in report.engines),
        "longest_answer_s": round(report.total.e2e.max_ns / SECOND, 1) if report.total.e2e is not None else None,
    }


class InFlightCount:
    """Observer that counts the requests on each endpoint from commands and events."""

    def __init__(self) -> None:
        self.held: Counter[EndpointId] = Counter()
        self.most = 0
        self._where: dict[tuple[str, int], EndpointId] = {}

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if isinstance(event, AttemptEnded):
            self.held[self._where.pop((event.request_id, event.attempt))] -= 1
        for command in commands:
            if isinstance(command, Dispatch):
                self._where[command.request_id, command.attempt] = command.endpoint_id
                self.held[command.endpoint_id] += 1
                self.most = max(self.most, self.held[command.endpoint_id])


class InFlightWatch:
    """Observer that compares requests running on the engines with the count and forwards all calls to the report."""

    def __init__(self, report: SimulationReport, count: InFlightCount, ids: Sequence[EndpointId]) -> None:
        self._report, self._count, self._ids = report, count, ids
        self.more = self.less = 0

    def request_ended(self, story: RequestTrace) -> None:
        self._report.request_ended(story)

    def sample_taken(self, sample: FleetSample) -> None:
        for name, each in zip(self._ids, sample.endpoints, strict=True):
            difference = each.running + each.waiting - self._count.held[name]
            self.more, self.less = max(self.more, difference), max(self.less, -difference)
        self._report.sample_taken(sample)

    def run_ended(self, ending: RunSummary) -> None:
        self._report.run_ended(ending)


def scenario(seed: int, *, span_s: float, stream_tokens: int, burst_at_s: float, burst_s: float) -> Scenario:
    span, burst = Duration(round(span_s * SECOND)), Duration(round(burst_s * SECOND))
    shift = Duration(round(burst_at_s * SECOND))
    tenants = (("acme", 4.0), ("globex", 2.0), ("initech", 1.0))
    prompt, output = LogNormal(median=700, p95=2_500, max=6_000), LogNormal(median=130, p95=450, max=1_000)
    classes = ((str(INTERACTIVE), 1.0),)

    def part(rate: float, length: Duration, answer: LogNormal | Uniform, shift_ns: Duration) -> RateTraffic:
        return RateTraffic(
            rate=rate,
            duration_ns=length,
            prompt=prompt,
            output=answer,
            classes=classes,
            tenants=tenants,
            shift_ns=shift_ns,
        )

    traffic = (
        part(RATE, span, output, Duration(0)),
        part(BURST_RATE, burst, output, shift),
        part(STREAMS_RATE, burst, Uniform(stream_tokens * 9 // 10, stream_tokens), shift),
    )
    return Scenario(
        title=f"burst with streams of {stream_tokens} tokens",
        seed=seed,
        policy=Policy(
            classes=(
                ServiceClass(
                    INTERACTIVE,
                    0,
                    queue_wait_ns_max=CALLERS.client_timeout_ns or Duration(0),
                    ttft_ns=CALLERS.ttft_ns,
                    tpot_ns=CALLERS.tpot_ns,
                    total_ns_max=Duration(7_200 * SECOND),
                ),
            ),
            tenants=tuple(Tenant(TenantId(name)) for name, _ in tenants),
            pools=(pool(MAIN, RTXPRO6000_LLAMA_8B),),
            models=(Model(_MODEL, (MAIN,)),),
        ),
        model=_MODEL,
        engines=engines(RTXPRO6000_LLAMA_8B, ENGINES, in_flight_max=IN_FLIGHT_MAX),
        callers={INTERACTIVE: CALLERS},
        arrivals=lambda: arrivals(traffic, seed=seed),
        span_ns=span,
        decider=headgate_scheduler,
    )


def bars(figures: Figures) -> list[Threshold]:
    return [
        Threshold(
            "maximum number of requests on one endpoint relative to its limit",
            figures["in_flight_most"] / figures["in_flight_max"],
            most=1.0,
        ),
        Threshold("recovery time relative to the burst duration", figures["recovery_over_burst"], most=2.0),
        Threshold("number of slots still occupied at the end", figures["in_flight_in_the_end"], most=0),
        Threshold("number of requests in an engine but not counted", figures["engines_hold_more_by"], most=1),
        Threshold("number of requests counted but not in an engine", figures["engines_hold_less_by"], most=0),
    ]


def as_table(figures: Figures) -> str:
    rows = [
        ("attainment before the burst", percent(figures["attainment_before"])),
        ("recovery time", f"{figures['recovery_s']:.0f} s, or {figures['recovery_over_burst']:.2f} times the burst"),
        ("attainment after the burst", percent(figures["attainment_after"])),
        ("maximum requests on one endpoint", f"{figures['in_flight_most']:.0f} of {figures['in_flight_max']:.0f}"),
        ("maximum requests in an engine but not counted", f"{figures['engines_hold_more_by']:g}"),
        ("maximum requests counted but not in an engine", f"{figures['engines_hold_less_by']:g}"),
        ("slots occupied at the end", f"{figures['in_flight_in_the_end']:g}"),
        ("preemptions", f"{figures['preemptions']:g}"),
        ("longest response", f"{figures['longest_answer_s']:.0f} s"),
    ]
    return table(("", "mean over seeds"), rows)


EXPERIMENT = Experiment(
    name="long-streams",
    title="E5: burst of hour-long streams",
    about=(
        "Four RTX PRO 6000 engines with 96 slots each serve 20 requests per second. For one minute, another 50 "
        "requests per second arrive, together with about twenty streams of about 90,000 tokens, each of which runs for "
        "an hour. The experiment counts the requests on each endpoint from the scheduler's commands and compares this "
        "count with the number of requests inside the engine. An aborted attempt stays in its engine until the current "
        "step ends."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
)
