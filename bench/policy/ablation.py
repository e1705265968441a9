"""E9: what is each mechanism worth?

The overload of E1, each time without one of the scheduler's parts.
"""

from dataclasses import replace
from typing import Any

from bench.command import tell
from bench.policy.experiment import Bar, Experiment, Figures, data, percent, seconds, table
from bench.policy.overload import told
from bench.policy.variations import WITHOUT, Variation
from bench.sim_overload_workload import FLEETS, Overload
from headgate.simulation.report.fate import Fate
from headgate.simulation.report.figures import figures_of
from headgate.simulation.report.report import Report
from headgate.simulation.report.spread import Spread, nanoseconds
from headgate.simulation.report.tally import Tally
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.virtual.story import Story

ALL = "nothing: all of it"
QUICK_S = 100.0
QUICK = (
    "both of them",
    "both gates by time per token",
    "gate by pending prompts",
    "fairness between tenants",
    "bands",
    "ladder",
)


class AnsweredReport(Report):
    """A report that also keeps how long those had to wait for a word who were not served."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.until_refused_ns = nanoseconds()

    def ended(self, story: Story) -> None:
        super().ended(story)
        if Tally().add(story, self.callers(story.service_class)) in (Fate.REFUSED, Fate.GIVEN_UP, Fate.LEFT):
            self.until_refused_ns.append(story.ended_at - story.arrived_at)


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name in ("rtxpro6000",) if quick else FLEETS:
        overload = Overload(fleet=FLEETS[name], data=data(), seed=seed, first_s=QUICK_S if quick else None)
        parts = {ALL: Variation()} | {each: WITHOUT[each] for each in (QUICK if quick else WITHOUT)}
        figures[name] = {without: outcome(overload, without, variation) for without, variation in parts.items()}
    return figures


def outcome(overload: Overload, name: str, variation: Variation) -> dict[str, Any]:
    tell(f"  seed {overload.seed}: {overload.fleet.name} without {name}")
    scene = overload.scenario(variation.scheduler, limits=True)
    scene = replace(scene, policy=variation.policy(scene.policy))
    report = AnsweredReport(scene)
    VirtualHost(scene, report).run()
    refused = Spread.of(report.until_refused_ns)
    fairness = report.classes[next(iter(report.classes))].fairness
    return told(figures_of(report)) | {
        "until_refused_s": None if refused is None else round(refused.mean / 1e9, 3),
        "worst_tenant": None if fairness.worst is None else fairness.worst[1].attainment,
    }


def bars(figures: Figures) -> list[Bar]:
    """That the parts which an overload is about do pay."""
    found: list[Bar] = []
    for name, of in figures.items():
        for part in ("both of them", "gate by pending prompts"):
            ratio = of[part]["goodput"] / of[ALL]["goodput"]
            found.append(Bar(f"{name}: goodput without {part}, over the whole", ratio, most=0.95))
        for part in ("bands", "fairness between tenants"):
            ratio = of[part]["worst_tenant"] / of[ALL]["worst_tenant"]
            found.append(Bar(f"{name}: worst interactive tenant without {part}, over the whole", ratio, most=1.0))
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            without,
            f"{each['goodput']:.1f}",
            f"{100 * (each['goodput'] / of[ALL]['goodput'] - 1):+.1f} %",
            *(percent(each[key]) for key in ("interactive", "worst_tenant", "code", "batch")),
            seconds(each["ttft_s_p99"]),
            percent(each["wasted"]),
            seconds(each["until_refused_s"]),
        )
        for name, of in figures.items()
        for without, each in of.items()
    ]
    header = (
        "engine",
        "without",
        "goodput req/s",
        "difference",
        "interactive",
        "its worst tenant",
        "code",
        "batch",
        "p99 TTFT",
        "wasted",
        "until refused",
    )
    return table(header, rows)


EXPERIMENT = Experiment(
    name="ablation",
    title="E9: what each mechanism is worth",
    about=(
        "The overload of E1 at the table's loads, each time without one part of the scheduler "
        "(`bench/policy/variations.py`). Until refused: how long callers who were not served waited for a word, "
        "on the mean. Prefix routing is judged by E4, the long lane by E3, retry budgets by E5; hedging is off "
        "unless a class asks for it."
    ),
    run=run,
    table=as_table,
    bars=bars,
    seeds=(1, 2, 3),
)
