"""What is it worth to give something up under overload?

The overload of E1, with nothing given up, with the ladder, with the ladder and classes that declare what they can do
without, and with a shedder that refuses by rank.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.command import tell
from bench.policy.ablation import AnsweredReport
from bench.policy.experiment import Bar, Experiment, Figures, data, ours, percent, seconds, table
from bench.policy.overload import told
from bench.sim_overload_workload import FLEETS, Overload
from headgate.model.caps import Caps
from headgate.model.policy import Policy, Variant
from headgate.simulation.report.figures import figures_of
from headgate.simulation.report.spread import Spread
from headgate.simulation.virtual.host import VirtualHost

LOADS = (1.5, 3.0)
OUTPUT_TOKENS = 128
NOTHING, LADDER, VARIANTS, SHEDDER = "nothing", "ladder", "ladder, shorter answers", "shedder"
QUICK_S = 100.0


def _switched(policy: Policy, *, ladder: bool = False, shedder: bool = False) -> Policy:
    return replace(
        policy,
        ladder=replace(policy.ladder, enabled=ladder),
        shedding=replace(policy.shedding, enabled=shedder),
    )


def _shortening(policy: Policy) -> Policy:
    """From level 1 on batch, from level 2 on everybody has shorter answers."""
    shorter = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None, output_tokens=OUTPUT_TOKENS)
    return replace(policy, classes=tuple(replace(each, variants=(Variant(1, shorter),)) for each in policy.classes))


GIVING_UP: dict[str, Callable[[Policy], Policy]] = {
    NOTHING: _switched,
    LADDER: lambda policy: _switched(policy, ladder=True),
    VARIANTS: lambda policy: _shortening(_switched(policy, ladder=True)),
    SHEDDER: lambda policy: _switched(policy, shedder=True),
}


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name in ("rtxpro6000",) if quick else FLEETS:
        for load in LOADS[-1:] if quick else LOADS:
            overload = Overload(
                fleet=FLEETS[name], data=data(), seed=seed, load=load, first_s=QUICK_S if quick else None
            )
            figures[f"{name} at {load:g}"] = {what: _outcome(overload, what) for what in GIVING_UP}
    return figures


def _outcome(overload: Overload, what: str) -> dict[str, Any]:
    tell(f"  seed {overload.seed}: {overload.fleet.name} at {overload.load:g} giving up: {what}")
    scene = overload.scenario(ours, limits=True)
    scene = replace(scene, policy=GIVING_UP[what](scene.policy))
    report = AnsweredReport(scene)
    VirtualHost(scene, report).run()
    refused = Spread.of(report.until_refused_ns)
    return told(figures_of(report)) | {"until_refused_s": None if refused is None else round(refused.mean / 1e9, 3)}


def bars(figures: Figures) -> list[Bar]:
    found: list[Bar] = []
    for case, of in figures.items():
        ladder, shorter = (of[what]["goodput"] / of[NOTHING]["goodput"] for what in (LADDER, VARIANTS))
        found.append(Bar(f"{case}: goodput with the ladder alone, over that without", ladder, least=0.99))
        found.append(
            Bar(f"{case}: goodput with the ladder and shorter answers, over that without", shorter, least=1.05)
        )
        kept = of[LADDER]["interactive"] - of[NOTHING]["interactive"]
        found.append(
            Bar(f"{case}: interactive attainment with the ladder alone, less that without", kept, least=-0.005)
        )
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            case,
            what,
            f"{each['goodput']:.1f}",
            f"{100 * (each['goodput'] / of[NOTHING]['goodput'] - 1):+.1f} %",
            *(percent(each[key]) for key in ("interactive", "code", "batch")),
            seconds(each["ttft_s_p99"]),
            seconds(each["until_refused_s"]),
        )
        for case, of in figures.items()
        for what, each in of.items()
    ]
    header = ("engine, load", "gives up by", "goodput req/s", "difference", "interactive", "code", "batch")
    return table((*header, "p99 TTFT", "until refused"), rows)


EXPERIMENT = Experiment(
    name="giving-way",
    title="What it is worth to give something up",
    about=(
        "The overload of E1 at 1.5 and 3 times what the engines can do; batch promises `cost`, the others `latency`. "
        f"Shorter answers: every class declares a variant of {OUTPUT_TOKENS} tokens, which batch takes from level 1 on "
        "and the others from level 2. Until refused: how long callers who were not served waited for a word, on the "
        "mean."
    ),
    run=run,
    table=as_table,
    bars=bars,
)
