"""Check that `headgate tune` finds settings that were changed for the worse at random.

    just tune-faults [--faults N] [--seed N] [--processes N] [--settings PATTERN] [--checks N] [--assert]

The base is a scenario in which `headgate tune` finds nothing to change. A fault is one tunable setting with another
value, both drawn uniformly from all tunable settings of the scenario. A fault is kept only if it makes a class miss its
objective; otherwise it is counted as discarded, and the next one is drawn. The seed draws the faults only: `headgate
tune` does not know it, and does not know the base either. Before the faults, the base itself is tuned several times
with different seeds; each suggestion is a false alarm.

Progress goes to stderr, a table to stdout. The last line is the results as JSON: `in_top_two` is the number of faults
whose setting is among the first two suggestions.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from headgate.compose.simulation import SCHEDULERS
from headgate.compose.tuning.scenario_tuning import TuneOptions, VariantRuns, tune_scenario, tuned_workload
from headgate.compose.tuning.tunables import ScenarioTunables
from headgate.compose.tuning.variants import ScenarioVariants, load_variants
from headgate.model.engine_profile import PROFILES
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.result import Suggestion
from headgate.planning.tuning.score import GAIN_MIN, Comparison, interval, missed
from headgate.planning.tuning.search import TuningCase
from headgate.simulation.report.confidence import CONFIDENCE

BASE: Final = Path(__file__).parents[1] / "scenarios" / "tune.yaml"
FAULTS: Final = 10
IN_TOP: Final = 2
FOUND_MIN: Final = 8
DRAWS_MAX: Final = 5_000
BASE_CHECKS: Final = 3
BASE_SEED_STEP: Final = 1_000
FAULT_SEEDS: Final = range(10_000, 10_006)
"""Seeds of the runs that decide whether a fault does harm. Tuning uses others."""


@dataclass(frozen=True, slots=True)
class FoundFault:
    fault: SettingChange
    rank: int | None
    """Position of the setting among the suggestions, from 1. None if it is not suggested."""
    suggestions: tuple[Suggestion, ...]
    runs: int

    @property
    def is_in_top(self) -> bool:
        return self.rank is not None and self.rank <= IN_TOP


class FaultDraws:
    """Draws faults, and counts by setting how many do no harm."""

    def __init__(self, variants: ScenarioVariants, seed: int, settings: str = "*") -> None:
        self._random = random.Random(seed)
        workload = tuned_workload(variants.settings(), TuneOptions())
        self.tunables: Final = ScenarioTunables(variants, workload.classes, settings)()
        self.discarded: Final[Counter[str]] = Counter()
        self.draws = 0
        self._objectives: Final = variants.settings().objectives
        self._runs = VariantRuns(variants, workload, 1)

    def __iter__(self) -> Iterator[SettingChange]:
        """Yields harmful faults, none of them twice."""
        drawn = set[SettingChange]()
        for self.draws in range(1, DRAWS_MAX + 1):
            tunable = self._random.choice(self.tunables)
            fault = tunable.change(self._random.choice(tunable.values))
            if fault in drawn or not self.does_harm(fault):
                self.discarded[fault.path] += 1
                continue
            drawn.add(fault)
            yield fault

    def does_harm(self, fault: SettingChange) -> bool:
        """Whether a class misses its objective because of the fault, on average and beyond doubt."""
        first, *_ = self._runs([TuningCase((fault,), FAULT_SEEDS[0])])
        base = [each for each in self._runs([TuningCase((), seed) for seed in FAULT_SEEDS]) if each is not None]
        if first is None or first == base[0]:
            return False  # An invalid value, or a setting without any effect.
        cases = [TuningCase((fault,), seed) for seed in FAULT_SEEDS]
        comparison = Comparison(base, [each for each in self._runs(cases) if each is not None], self._objectives)
        worse = interval(comparison.shortfall_change, CONFIDENCE)
        return bool(missed(comparison.after, self._objectives)) and worse.low > 0 and worse.estimate >= GAIN_MIN


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tunes the base with a fault, without further steps after the first."""

    base: ScenarioVariants
    options: TuneOptions

    def look_for(self, fault: SettingChange) -> FoundFault:
        result = tune_scenario(self.base.fixed([fault]), self.options)
        paths = [each.change.path for each in result.suggestions]
        rank = paths.index(fault.path) + 1 if fault.path in paths else None
        return FoundFault(fault, rank, result.suggestions, result.runs)

    def false_alarms(self, checks: int) -> int:
        """Returns how often something is suggested for the base itself."""
        alarms = 0
        for number in range(checks):
            result = tune_scenario(self.base, replace(self.options, first_seed=BASE_SEED_STEP * number))
            alarms += bool(result.suggestions)
            found = "; ".join(str(each.change) for each in result.suggestions) or "nothing to change"
            print_progress(f"base, check {number + 1} of {checks}: {found} ({result.runs} runs)")
            if not result.holds:
                raise FailedRequests("the base misses an objective, so every fault looks harmful")
        return alarms


def figures_of(found: Sequence[FoundFault], draws: FaultDraws) -> dict[str, Any]:
    return {
        "faults": len(found),
        "in_top_two": sum(each.is_in_top for each in found),
        "first": sum(each.rank == 1 for each in found),
        "draws": draws.draws,
        "settings": len(draws.tunables),
        "settings_drawn_in_vain": len(draws.discarded),
    }


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    base = load_variants(BASE, os.environ, profiles=PROFILES, schedulers=SCHEDULERS)
    draws = FaultDraws(base, arguments.seed, arguments.settings)
    options = TuneOptions(settings=arguments.settings, only_rank=True, processes=arguments.processes)
    tuning, found = Tuning(base, options), list[FoundFault]()
    try:
        alarms = tuning.false_alarms(arguments.checks)
        for fault in islice(draws, arguments.faults):
            found.append(tuning.look_for(fault))
            _print_fault(found[-1], draws.draws)
    except FailedRequests as problem:
        return report_problem("tune-faults", str(problem))
    figures = figures_of(found, draws) | {"seed": arguments.seed, "checks": arguments.checks, "false_alarms": alarms}
    print("\n".join(_table(found, draws.discarded)))
    print(json.dumps(figures), flush=True)
    return int(arguments.check and (figures["in_top_two"] < FOUND_MIN or alarms > 0))


def _print_fault(each: FoundFault, draws: int) -> None:
    first = "; ".join(str(one.change) for one in each.suggestions[:IN_TOP]) or "nothing"
    rank = f"{_rank(each)} of {len(each.suggestions)} suggestions"
    print_progress(f"draw {draws}: {each.fault}: {rank} ({each.runs} runs); first: {first}")


def _table(found: Sequence[FoundFault], discarded: Mapping[str, int]) -> Iterator[str]:
    yield f"{'fault':60} rank  first suggestion"
    for each in found:
        first = str(each.suggestions[0].change) if each.suggestions else "nothing to change"
        yield f"{each.fault!s:60} {_rank(each):>4}  {first}"
    yield ""
    yield "draws without harm, by setting"
    for path, count in sorted(discarded.items()):
        yield f"{count:>4}  {path}"


def _rank(found: FoundFault) -> str:
    return "none" if found.rank is None else str(found.rank)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just tune-faults", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--faults", type=int, default=FAULTS, metavar="N", help=f"Number of faults (default {FAULTS}).")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Random seed of the faults (default 0).")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="Maximum number of processes (default 1)."
    )
    parser.add_argument(
        "--settings", default="*", metavar="PATTERN", help="Settings to draw from and tune (default: all)."
    )
    parser.add_argument(
        "--checks",
        type=int,
        default=BASE_CHECKS,
        metavar="N",
        help=f"Number of checks of the base (default {BASE_CHECKS}).",
    )
    parser.add_argument(
        "--assert", dest="check", action="store_true", help=f"Exit 1 if fewer than {FOUND_MIN} faults are found."
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
