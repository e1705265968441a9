"""Measure a cell's scheduler with thousands of open streams, through kills of the scheduler.

    just cell-streams [--quick | --smoke] [--rate N] [--curve] [--assert] [--parts PART ...] [--store STORE]

There are 1,000 new requests per second, each a stream of 15 s, through 16 members without HTTP:

- `leader`: the scheduler's CPU time without a store, in virtual time. Other load on the machine hardly affects it
  (leader_cost.py).
- `watch`: the CPU time for watching 1,000 engines (watch.py)
- `cell`: the cell on a real store, and five kills of its scheduler (streams.py)
- `http`: 500 streams through two real gateways of a cell, and a kill of its scheduler (http_streams.py)

Progress goes to stderr, a table to stdout. The last line is the results as JSON. A result that was not measured is
null.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from bench.cell_process import CellProcessFailed
from bench.cell_streams import http_streams, leader_cost, streams, watch
from bench.cell_streams.streams import Setting, StreamFigures
from bench.cell_streams.watch import UnwatchedEngines
from bench.cli import print_progress, report_problem, stop_cleanly_on_sigterm
from bench.cpu_cores import Cores, TooFewCores, started_on, two_cores
from testing.processes import MissingProgram, ProcessFailedError
from testing.stores import Server, redis, valkey

PARTS: Final = ("leader", "watch", "cell", "http")
STORES: Final = {"redis": redis, "valkey": valkey}
AT_MOST: Final = {
    "leader_cores": 0.7,
    "grant_ms_p99": 25.0,
    "readmit_s_worst": 2.0,
    "lost": 0.0,
    "watch_cores": 0.3,
    "http_lost": 0.0,
}
CURVE: Final = (500.0, 1_000.0, 1_500.0, 2_000.0, 3_000.0)
"""New requests per second at each step of the curve, which ends at the first step that is not sustained."""
KEEPS_UP: Final = 0.97
"""Minimum share of the offered requests that must be granted for a step to count as sustained."""
ENGINES: Final = 1_000
SMOKE_ENGINES: Final = 20
HTTP_STREAMS: Final = 500
SMOKE_HTTP_STREAMS: Final = 10
FULL: Final = Setting(rate=1_000.0, stream_s=15.0, members=16, window_s=20.0, kills=5)
QUICK: Final = Setting(rate=300.0, stream_s=5.0, members=16, window_s=6.0, kills=1)
SMOKE: Final = Setting(rate=50.0, stream_s=1.0, members=4, window_s=1.0, kills=1)


def measure_parts(arguments: argparse.Namespace) -> dict[str, object]:
    cores = two_cores()
    setting = SMOKE if arguments.smoke else QUICK if arguments.quick else FULL
    rate = setting.rate if arguments.rate is None else arguments.rate
    setting = _with_rate(setting, rate)
    figures: dict[str, object] = {}
    figures.update(dict.fromkeys(AT_MOST))
    if "leader" in arguments.parts:
        print_progress(f"measuring the scheduler's CPU time with {setting.rate:g} requests/s in virtual time")
        with started_on(cores.target):
            cost = leader_cost.measure(
                rate=setting.rate,
                stream_s=setting.stream_s,
                members=setting.members,
                seconds=setting.window_s / 4,
            )
        figures["leader"] = asdict(cost)
        print_progress(f"  {cost}")
    if "watch" in arguments.parts:
        engines = SMOKE_ENGINES if arguments.smoke else ENGINES
        print_progress(f"watching {engines} engines")
        figures |= asdict(watch.measure(cores, engines=engines, seconds=setting.window_s))
    with STORES[arguments.store]() as store:
        if "cell" in arguments.parts:
            figures |= stream_figures(streams.measure(store, cores, setting))
        if "http" in arguments.parts:
            opened = SMOKE_HTTP_STREAMS if arguments.smoke else HTTP_STREAMS
            print_progress(f"measuring {opened} streams through two gateways of a cell")
            figures |= asdict(http_streams.measure(store, cores, opened=opened, stream_s=setting.stream_s))
        if arguments.curve:
            figures["curve"] = [asdict(each) for each in _curve(store, cores, setting)]
    return figures


def _with_rate(setting: Setting, rate: float, *, kills: int | None = None) -> Setting:
    kills = setting.kills if kills is None else kills
    return Setting(rate, setting.stream_s, setting.members, setting.window_s, kills)


def _curve(store: Server, cores: Cores, setting: Setting) -> list[StreamFigures]:
    found: list[StreamFigures] = []
    for rate in CURVE:
        found.append(streams.measure(store, cores, _with_rate(setting, rate, kills=0)))
        if found[-1].lost or found[-1].new_per_s < KEEPS_UP * found[-1].offered_per_s:
            break
    return found


def stream_figures(found: StreamFigures) -> dict[str, object]:
    figures: dict[str, object] = asdict(found)
    for name, (p50_ms, p99_ms) in found.grant_stages_ms.items():
        figures[f"{name}_ms_p50"], figures[f"{name}_ms_p99"] = p50_ms, p99_ms
    figures["readmit_s_worst"] = max(found.readmit_s, default=None)
    figures["takeover_turn_ms_worst"] = max(found.takeover_turn_ms, default=None)
    return figures


def missed_thresholds(figures: Mapping[str, object]) -> list[str]:
    missed: list[str] = []
    for name, most in AT_MOST.items():
        figure = figures.get(name)
        if isinstance(figure, float | int) and figure > most:
            missed.append(f"missed: {name} is {figure:g}; the limit is {most:g}")
    return missed


def table_of(figures: Mapping[str, object]) -> str:
    wrong = {sentence.split()[1] for sentence in missed_thresholds(figures)}
    lines = [
        f"{name:28}{'not measured' if figure is None else f'{figure}':>14}"
        + (f"   at most {AT_MOST[name]:g}: {'MISSED' if name in wrong else 'met'}" if name in AT_MOST else "")
        for name, figure in figures.items()
        if not isinstance(figure, list | tuple | dict)
    ]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    stop_cleanly_on_sigterm()
    try:
        figures = measure_parts(arguments)
    except (MissingProgram, TooFewCores, ProcessFailedError, CellProcessFailed, UnwatchedEngines) as problem:
        return report_problem("cell-streams", str(problem))
    except subprocess.TimeoutExpired as problem:
        return report_problem("cell-streams", f"a load generator did not exit in time: {problem}")
    except KeyboardInterrupt:
        return report_problem("cell-streams", "interrupted; all processes were stopped", status=130)
    print(table_of(figures))
    sentences = missed_thresholds(figures) if arguments.check else []
    for sentence in sentences:
        print_progress(sentence)
    print(json.dumps(figures), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="cell-streams", description="Measure a cell with thousands of open streams.")
    length = made.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="use fewer and shorter streams, and one kill")
    length.add_argument("--smoke", action="store_true", help="run for seconds, only to check that it works")
    made.add_argument("--rate", type=float, help=f"new requests per second (default {FULL.rate:g})")
    made.add_argument("--curve", action="store_true", help="also raise the rate until the cell cannot sustain it")
    made.add_argument("--store", choices=tuple(STORES), default="redis", help="store to use (default redis)")
    made.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"parts to run: {', '.join(PARTS)}"
    )
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a limit is missed")
    return made


if __name__ == "__main__":
    sys.exit(main())
