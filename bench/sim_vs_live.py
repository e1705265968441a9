"""Compare the simulator's predictions with a live gateway.

    just sim-live [--requests N] [--load L] [--seed N] [--assert]

The same requests run in the simulator and, in real time, through a live gateway with four live simulated engines.
bench/sim_vs_live_workload.py defines the requests, bench/sim_vs_live_runs.py how they are sent. The policy, the
scheduler and the engines' loop are the same code on both sides. The live side adds three processes, sockets, timers
with millisecond resolution, and other load on the machine.

Progress goes to stderr, a table to stdout. The last line is the results as JSON. A ratio is the larger value divided by
the smaller one.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.sim_vs_live_runs import Machine, Side, live, simulated, steady_setup
from bench.sim_vs_live_workload import Workload
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND
from headgate.simulation.report.latency_summary import percentile
from headgate.simulation.workload.arrival import Arrival
from testing.processes import ProcessFailedError

RATIO_MAX = 1.1
ENDLESS = 1_000.0
"""Ratio reported when a positive value is divided by zero, because JSON cannot represent infinity."""
LAG_MS_MAX = 25.0
"""Limit for the gateway's loop lag at p99. A higher lag means that the machine is busy."""


@dataclass(frozen=True, slots=True)
class Figure:
    live: float
    simulated: float

    @property
    def ratio(self) -> float:
        low, high = sorted((self.live, self.simulated))
        return 1.0 if low == high else high / max(low, high / ENDLESS)


def _throughput(side: Side) -> float:
    """Output tokens per second, from the first arrival until the last request ends."""
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
    """Raise an error unless both sides completed every request with exactly the listed token counts."""
    wanted = [(each.prompt_tokens, each.output_tokens) for each in asked]
    for side in sides:
        for story in side:
            if story.outcome is not Outcome.COMPLETED:
                raise FailedRequests(f"request {story.number} ended as {story.outcome}; all must be completed")
        if [(each.prompt_tokens, each.output_tokens) for each in side] != wanted:
            raise FailedRequests("a prompt or response had an unexpected length; compare the two records")


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
    asked = workload.arrivals()
    print_progress(
        f"{len(asked)} requests in {asked[-1].at / SECOND:.0f} s, {args.load:g} times the capacity of "
        f"{workload.engines} engines ({workload.profile.name}, {workload.in_flight_max} slots each)"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-sim-live-") as name:
            imagined = simulated(steady_setup(workload), asked, Path(name))
            lived, machine = live(steady_setup(workload), asked, Path(name))
        check_same_requests(asked, lived, imagined)
    except (FailedRequests, ProcessFailedError) as problem:
        return report_problem("sim-live", str(problem))
    except KeyboardInterrupt:
        return report_problem("sim-live", "interrupted; all processes were stopped", status=130)
    figures = compare(lived, imagined)
    print(table_of(figures))
    missed = _missed(figures) if args.check else []
    for sentence in (*lag_warnings(machine), *missed):
        print_progress(sentence)
    print(json.dumps(as_data(figures, machine)), flush=True)
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="sim-live", description="Compare the simulator with a live gateway.")
    usual = Workload()
    made.add_argument(
        "--requests",
        type=_count,
        default=usual.requests,
        metavar="N",
        help=f"number of requests (default {usual.requests})",
    )
    made.add_argument(
        "--load",
        type=_load,
        default=usual.load,
        metavar="L",
        help=f"multiple of the engines' capacity (default {usual.load})",
    )
    made.add_argument("--seed", type=int, default=usual.seed, help=f"random seed (default {usual.seed})")
    made.add_argument("--assert", dest="check", action="store_true", help=f"exit 1 if a ratio exceeds {RATIO_MAX:g}")
    return made


def _count(text: str) -> int:
    count = int(text)
    if not 2 <= count <= 10_000:
        raise argparse.ArgumentTypeError("must be between 2 and 10000 requests")
    return count


def _load(text: str) -> float:
    load = float(text)
    if not 0.05 <= load <= 2:
        raise argparse.ArgumentTypeError("must be between 0.05 and 2")
    return load


def _missed(figures: Mapping[str, Figure]) -> list[str]:
    return [
        f"missed: {name} differs by a factor of {each.ratio:.3f}; the limit is {RATIO_MAX:g}"
        for name, each in figures.items()
        if not each.ratio <= RATIO_MAX
    ]


def lag_warnings(machine: Machine) -> list[str]:
    said: list[str] = []
    if machine.behind:
        said.append(f"the load generator was late ({machine.late_ms_p99:.0f} ms at p99), so the live load differed")
    if machine.loop_lag_ms_p99 > LAG_MS_MAX:
        said.append(f"the gateway's loop lag was {machine.loop_lag_ms_p99:g} ms at p99: the machine is busy")
    return said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
