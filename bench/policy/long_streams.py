"""E5, second part: does a burst of hour-long streams leave phantom capacity behind?

Twice what the engines can do arrives for a minute, and with it a few streams that go on for an hour. A gateway that
loses count of them sends more than an engine holds, or keeps places for streams that are gone. An observer counts
what each endpoint holds by the commands alone, at every moment; what the engines hold in truth is sampled beside it.
"""

from collections import Counter
from collections.abc import Sequence

from bench.command import tell
from bench.policy.experiment import Bar, Experiment, Figures, ours, percent, table
from bench.policy.fleet import MAIN, engines, pool
from bench.policy.recovery import CourseReport
from headgate.core.commands import Command, Dispatch
from headgate.core.events import AttemptEnded, Event
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.policy import Model, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, EndpointId, Instant, ModelName, TenantId
from headgate.simulation.report.report import Report
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Callers, Scenario
from headgate.simulation.virtual.story import Ending, Sample, Story
from headgate.simulation.workload.traffic import LogNormal, PoissonTraffic, Uniform, arrivals

ENGINES, IN_FLIGHT_MAX = 4, 96
BURST_AT_S, BURST_S = 60.0, 60.0
RATE, BURST_RATE, STREAMS_RATE = 20.0, 50.0, 0.3
INTERACTIVE = ClassName("interactive")
CALLERS = Callers(ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), leave_ns=Duration(10 * SECOND))
_MODEL = ModelName("m")


def run(seed: int, *, quick: bool) -> Figures:
    """The quick one's streams go on for some five minutes."""
    return played(seed, span_s=360 if quick else 2_400, stream_tokens=8_000 if quick else 90_000)


def played(
    seed: int, *, span_s: float, stream_tokens: int, burst_at_s: float = BURST_AT_S, burst_s: float = BURST_S
) -> Figures:
    """A burst that begins and lasts as is said; its figures."""
    scene = scenario(seed, span_s=span_s, stream_tokens=stream_tokens, burst_at_s=burst_at_s, burst_s=burst_s)
    tell(f"  seed {seed}: {scene.title}")
    report, count = CourseReport(scene), Count()
    watch = Watch(report, count, [each.id for each in scene.engines])
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
        "longest_answer_s": round(report.total.e2e.most / SECOND, 1) if report.total.e2e is not None else None,
    }


class Count:
    """An observer: what each endpoint holds by what was ordered and told."""

    def __init__(self) -> None:
        self.held: Counter[EndpointId] = Counter()
        self.most = 0
        self._where: dict[tuple[str, int], EndpointId] = {}

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if isinstance(event, AttemptEnded):
            self.held[self._where.pop((event.request_id, event.attempt))] -= 1
        for command in commands:
            if isinstance(command, Dispatch):
                self._where[command.request_id, command.attempt] = command.endpoint_id
                self.held[command.endpoint_id] += 1
                self.most = max(self.most, self.held[command.endpoint_id])


class Watch:
    """An audience that compares what engines hold with what is counted, and passes all of it on."""

    def __init__(self, report: Report, count: Count, ids: Sequence[EndpointId]) -> None:
        self._report, self._count, self._ids = report, count, ids
        self.more = self.less = 0

    def ended(self, story: Story) -> None:
        self._report.ended(story)

    def sampled(self, sample: Sample) -> None:
        for name, each in zip(self._ids, sample.endpoints, strict=True):
            difference = each.running + each.waiting - self._count.held[name]
            self.more, self.less = max(self.more, difference), max(self.less, -difference)
        self._report.sampled(sample)

    def over(self, ending: Ending) -> None:
        self._report.over(ending)


def scenario(seed: int, *, span_s: float, stream_tokens: int, burst_at_s: float, burst_s: float) -> Scenario:
    span, burst = Duration(round(span_s * SECOND)), Duration(round(burst_s * SECOND))
    shift = Duration(round(burst_at_s * SECOND))
    tenants = (("acme", 4.0), ("globex", 2.0), ("initech", 1.0))
    prompt, output = LogNormal(median=700, p95=2_500, most=6_000), LogNormal(median=130, p95=450, most=1_000)
    classes = ((str(INTERACTIVE), 1.0),)

    def part(rate: float, length: Duration, answer: LogNormal | Uniform, shift_ns: Duration) -> PoissonTraffic:
        return PoissonTraffic(
            rate=rate,
            length_ns=length,
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
        title=f"a burst with streams of {stream_tokens} tokens",
        seed=seed,
        policy=Policy(
            classes=(
                ServiceClass(
                    INTERACTIVE,
                    0,
                    queue_wait_ns_max=CALLERS.leave_ns or Duration(0),
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
        decider=ours,
    )


def bars(figures: Figures) -> list[Bar]:
    return [
        Bar("requests at one endpoint, over its limit", figures["in_flight_most"] / figures["in_flight_max"], most=1.0),
        Bar("recovery over the burst", figures["recovery_over_burst"], most=2.0),
        Bar("places still taken when all is over", figures["in_flight_in_the_end"], most=0),
        Bar("requests that an engine holds and nobody counts", figures["engines_hold_more_by"], most=1),
        Bar("requests that are counted and no engine holds", figures["engines_hold_less_by"], most=0),
    ]


def as_table(figures: Figures) -> str:
    rows = [
        ("good before", percent(figures["attainment_before"])),
        ("recovery", f"{figures['recovery_s']:.0f} s, {figures['recovery_over_burst']:.2f} of the burst"),
        ("good from then on", percent(figures["attainment_after"])),
        ("most at one endpoint", f"{figures['in_flight_most']:.0f} of {figures['in_flight_max']:.0f}"),
        ("held by an engine and not counted, at most", f"{figures['engines_hold_more_by']:g}"),
        ("counted and not held by an engine, at most", f"{figures['engines_hold_less_by']:g}"),
        ("left in the end", f"{figures['in_flight_in_the_end']:g}"),
        ("preemptions", f"{figures['preemptions']:g}"),
        ("longest answer", f"{figures['longest_answer_s']:.0f} s"),
    ]
    return table(("", "mean over the seeds"), rows)


EXPERIMENT = Experiment(
    name="long-streams",
    title="E5: a burst of hour-long streams",
    about=(
        "Four RTX PRO 6000 with 96 places each and 20 requests a second; for a minute 50 a second more, and some "
        "twenty streams of about 90,000 tokens, which go on for an hour. What an endpoint holds is counted from "
        "the scheduler's commands and compared with what the engines say. An attempt that is stopped stays with "
        "its engine until its step ends."
    ),
    run=run,
    table=as_table,
    bars=bars,
)
