"""Figures of a comparison: ratios of pairs, with their medians and intervals.

Both sides of a pair run one after the other under nearly the same conditions, so the ratio of each pair varies less
than either side. The interval for the median consists of two of the sorted ratios. It needs no assumption about their
distribution, and one disturbed pair cannot shift it far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import median

CONFIDENCE = 0.95
PAIRS_MIN = 6
"""Minimum number of pairs for an interval at this confidence. With fewer pairs it is only the range of the ratios."""


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    load: str
    over: str
    """The side whose cost is the denominator of CPU time ratios."""
    of: str = "here"
    inverted: bool = False
    """True for a ratio of speeds rather than of CPU times."""
    description: str = ""


FIGURES = (
    Figure("request_ratio", "request", "there", description="CPU per non-streaming request, here / there"),
    Figure("request_ratio_pure", "request", "there", of="pure", description="the same, uncompiled build"),
    Figure("chunk_ratio", "chunk", "there", description="CPU per chunk with 200 streams, here / there"),
    Figure("core_ratio", "core", "there", inverted=True, description="scheduler requests/s, here / there"),
    Figure("cell_ratio", "cell", "there", description="CPU per request of a cell's scheduler, here / there"),
    Figure("request_over_nginx", "request", "nginx", description="CPU per non-streaming request, here / nginx"),
    Figure("chunk_over_nginx", "chunk", "nginx", description="CPU per chunk with 200 streams, here / nginx"),
    Figure("request_over_envoy", "request", "envoy", description="CPU per non-streaming request, here / Envoy"),
    Figure("chunk_over_envoy", "chunk", "envoy", description="CPU per chunk with 200 streams, here / Envoy"),
)


@dataclass(frozen=True, slots=True)
class Ratio:
    median: float
    low: float
    high: float
    pairs: int


@dataclass(slots=True)
class Costs:
    """Costs by load and side. The entries at the same position ran one after the other."""

    of: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, load: str, side: str, cost: float) -> None:
        self.of.setdefault((load, side), []).append(cost)

    def ratio(self, figure: Figure) -> Ratio | None:
        """Return a figure, or None if one of its sides was not measured."""
        ours = self.of.get((figure.load, figure.of))
        if ours is None and figure.of == "pure":
            # Without a compiled build, the installed build is the uncompiled one.
            ours = self.of.get((figure.load, "here"))
        theirs = self.of.get((figure.load, figure.over))
        if not ours or not theirs:
            return None
        pairs = zip(ours, theirs, strict=True)
        return ratio_of([their / our if figure.inverted else our / their for our, their in pairs])


def ratio_of(ratios: Sequence[float]) -> Ratio:
    ordered = sorted(ratios)
    cut = ranks_cut(len(ordered))
    return Ratio(median(ordered), ordered[cut], ordered[-1 - cut], len(ordered))


def ranks_cut(count: int) -> int:
    """Return how many of the sorted values to leave out at each end of the interval for the median.

    The median lies below the k-th of n values with the probability that fewer than k of n fair coins show heads.
    """
    cut, outside = 0, 2 * 0.5**count
    while cut + 1 < count / 2:
        outside += 2 * comb(count, cut + 1) * 0.5**count
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    return cut


def figures_of(costs: Costs) -> dict[str, Ratio | None]:
    return {figure.name: costs.ratio(figure) for figure in FIGURES}


def as_json(figures: Mapping[str, Ratio | None]) -> dict[str, float | None]:
    return {name: None if ratio is None else round(ratio.median, 4) for name, ratio in figures.items()}


def table_of(costs: Costs, figures: Mapping[str, Ratio | None]) -> str:
    lines = [f"{'':20}{'ratio':>8}   {'95 % interval':18}{'pairs':>5}"]
    for figure in FIGURES:
        ratio = figures[figure.name]
        if ratio is None:
            lines.append(f"{figure.name:20}{'skipped':>8}")
            continue
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
        lines.append(f"{figure.name:20}{ratio.median:>8.3f}   {interval:18}{ratio.pairs:>5}   {figure.description}")
    lines.append("")
    lines += [f"{load:8} {side:6} {median(each):10,.1f} µs" for (load, side), each in costs.of.items()]
    return "\n".join(lines)
