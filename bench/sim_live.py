"""Does the simulator say what life then shows?

    just sim-live [--requests N] [--load L] [--seed N] [--assert]

One list of requests goes through the simulator and, in real time, through a live gateway with four live simulated
engines (bench/sim_live_workload.py says which requests, bench/sim_live_sides.py how they go). The policy, the scheduler
and the engines' loop are the same code on both sides. What life adds are three processes, sockets, timers with a grain
of a millisecond, and whatever else the machine does.

Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON. A ratio is the larger
figure by the smaller.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.command import WrongAnswers, stop_cleanly_on_sigterm, tell
from bench.sim_live_sides import Machine, Side, live, simulated, steady
from bench.sim_live_workload import Workload
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND
from headgate.simulation.report.spread import percentile
from headgate.simulation.workload.arrival import Arrival
from testing.processes import ProcessFailedError

RATIO_MAX = 1.1
ENDLESS = 1_000.0
"""What something is to nothing; JSON has no word for more."""
LAG_MS_MAX = 25.0
"""A gateway whose loop is later than this in more than 1 of 100 wakings has a busy machine around it."""


@dataclass(frozen=True, slots=True)
class Figure:
    live: float
    simulated: float

    @property
    def ratio(self) -> float:
        low, high = sorted((self.live, self.simulated))
        return 1.0 if low == high else high / max(low, high / ENDLESS)


def _throughput(side: Side) -> float:
    """Tokens of answers per second, from the first arrival to the last ending."""
    took_ns = max(each.ended_at for each in side) - min(each.arrived_at for each in side)
    return sum(each.output_tokens for each in side) / (took_ns / SECOND)


def _ttfts(side: Side) -> Iterator[int]:
    return (each.first_token_at - each.arrived_at for each in side if each.first_token_at is not None)


def _seconds(values: Iterable[int], percent: int) -> float:
    return percentile(sorted(values), percent) / SECOND


FIGURES: Mapping[str, Callable[[Side], float]] = {
    "throughput_tokens_per_s": _throughput,
    "ttft_s_p50": lambda side: _seconds(_ttfts(side), 50),
    "ttft_s_p95": lambda side: _seconds(_ttfts(side), 95),
    "queue_wait_s_p95": lambda side: _seconds((each.waited_ns for each in side), 95),
}


def compare(lived: Side, imagined: Side) -> dict[str, Figure]:
    return {name: Figure(figure(lived), figure(imagined)) for name, figure in FIGURES.items()}


def check_same_requests(asked: Sequence[Arrival], *sides: Side) -> None:
    """Both sides must have computed the very tokens that the list names, else they were not asked the same."""
    wanted = [(each.prompt_tokens, each.output_tokens) for each in asked]
    for side in sides:
        for story in side:
            if story.outcome is not Outcome.COMPLETED:
                raise WrongAnswers(f"request {story.number} was {story.outcome}, and all must be completed")
        if [(each.prompt_tokens, each.output_tokens) for each in side] != wanted:
            raise WrongAnswers("a prompt or an answer had another length than the list says; compare the two records")


def table_of(figures: Mapping[str, Figure]) -> str:
    lines = [f"{'':26}{'live':>10}{'simulated':>12}{'ratio':>8}"]
    lines += [f"{name:26}{each.live:10.3f}{each.simulated:12.3f}{each.ratio:8.3f}" for name, each in figures.items()]
    return "\n".join(lines)


def as_data(figures: Mapping[str, Figure], machine: Machine) -> dict[str, object]:
    rounded = {
        name: {"live": round(each.live, 6), "simulated": round(each.simulated, 6), "ratio": round(each.ratio, 4)}
        for name, each in figures.items()
    }
    worst = max(each.ratio for each in figures.values())
    return {"worst_ratio": round(worst, 4), "figures": rounded, "machine": asdict(machine)}


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    workload = Workload(requests=args.requests, load=args.load, seed=args.seed)
    asked = workload.asked()
    tell(
        f"{len(asked)} requests in {asked[-1].at / SECOND:.0f} s, {args.load:g} of what {workload.engines} engines "
        f"({workload.profile.name}, {workload.in_flight_max} places each) complete"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-sim-live-") as name:
            imagined = simulated(steady(workload), asked, Path(name))
            lived, machine = live(steady(workload), asked, Path(name))
        check_same_requests(asked, lived, imagined)
    except (WrongAnswers, ProcessFailedError) as problem:
        return _problem(str(problem))
    except KeyboardInterrupt:
        return _problem("interrupted; nothing is left running", status=130)
    figures = compare(lived, imagined)
    print(table_of(figures))
    missed = _missed(figures) if args.check else []
    for sentence in (*lagged(machine), *missed):
        tell(sentence)
    print(json.dumps(as_data(figures, machine)), flush=True)
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made, usual = argparse.ArgumentParser(prog="sim-live", description="The simulator against life."), Workload()
    made.add_argument(
        "--requests", type=_count, default=usual.requests, metavar="N", help=f"how many ({usual.requests})"
    )
    made.add_argument(
        "--load", type=_load, default=usual.load, metavar="L", help=f"1 is all that the engines can do ({usual.load})"
    )
    made.add_argument("--seed", type=int, default=usual.seed, help=f"which requests ({usual.seed})")
    made.add_argument("--assert", dest="check", action="store_true", help=f"exit 1 when a ratio is over {RATIO_MAX:g}")
    return made


def _count(text: str) -> int:
    count = int(text)
    if not 2 <= count <= 10_000:
        raise argparse.ArgumentTypeError("give from 2 to 10000 requests")
    return count


def _load(text: str) -> float:
    load = float(text)
    if not 0.05 <= load <= 2:
        raise argparse.ArgumentTypeError("give from 0.05 to 2")
    return load


def _missed(figures: Mapping[str, Figure]) -> list[str]:
    return [
        f"missed: {name} differs by a factor of {each.ratio:.3f}, and at most {RATIO_MAX:g} is allowed"
        for name, each in figures.items()
        if not each.ratio <= RATIO_MAX
    ]


def lagged(machine: Machine) -> list[str]:
    said: list[str] = []
    if machine.behind:
        said.append(f"the load generator fell behind ({machine.late_ms_p99:.0f} ms at p99): life was not as planned")
    if machine.loop_lag_ms_p99 > LAG_MS_MAX:
        said.append(f"the gateway's loop was up to {machine.loop_lag_ms_p99:g} ms late at p99: the machine is busy")
    return said


def _problem(text: str, *, status: int = 2) -> int:
    tell(f"sim-live: {text}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
