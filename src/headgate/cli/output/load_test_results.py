"""Results of load tests on stdout."""

import argparse
import json as encoding
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.cli.output.html_file import write_html_file
from headgate.loadtest.comparison import REQUESTS_MIN, MeasureComparison, RequestSample, compare
from headgate.loadtest.comparison_report import comparison_json, render_comparison
from headgate.loadtest.html_report import runs_page, sweep_page
from headgate.loadtest.report import LoadTestResult, report_json
from headgate.loadtest.request import LoadTestOutcome
from headgate.loadtest.sweep import SweepLevel, render_sweep, sweep_json
from headgate.loadtest.table import render, warnings


@dataclass(frozen=True, slots=True)
class LoadTestRun:
    result: LoadTestResult
    samples: Sequence[RequestSample]


def print_runs(runs: Sequence[LoadTestRun], args: argparse.Namespace) -> int:
    """Prints one run, or two runs at the same time with their comparison. Returns the exit code."""
    results = [run.result for run in runs]
    # A run that was stopped may have too few requests to compare.
    compared = [run.samples for run in runs if len(run.samples) >= REQUESTS_MIN]
    measures = compare(*compared) if len(compared) > 1 else []
    if len(runs) == 1:
        _print(_json(report_json(results[0])) if args.json else render(results[0], width=_width()))
    else:
        names = (results[0].url, results[1].url)
        if args.json:
            base, other = map(report_json, results)
            _print(_json({"base": base, "other": other, "comparison": comparison_json(measures, names)}))
        else:
            texts = [render(result, width=_width()) for result in results]
            _print("\n\n".join([*texts, render_comparison(measures, names, width=_width())]))
    if args.html is not None:
        write_html_file(args.html, runs_page(results, [run.samples for run in runs], measures))
    return _exit_code(results, json=args.json)


def print_comparison(measures: Sequence[MeasureComparison], names: tuple[str, str], *, json: bool) -> None:
    _print(_json(comparison_json(measures, names)) if json else render_comparison(measures, names, width=_width()))


def print_sweep(runs: Sequence[tuple[float, LoadTestRun]], args: argparse.Namespace) -> int:
    levels = [SweepLevel(factor, run.result) for factor, run in runs]
    share = args.slo_percent / 100
    _print(_json(sweep_json(levels, share)) if args.json else render_sweep(levels, share, width=_width()))
    if args.html is not None:
        write_html_file(args.html, sweep_page(levels, share))
    return _exit_code([level.result for level in levels], json=args.json)


def _exit_code(results: Sequence[LoadTestResult], *, json: bool) -> int:
    """Returns 0 if the results are reliable. Warnings go to stderr unless a terminal shows them in the report."""
    if json or not sys.stdout.isatty():
        for warning in dict.fromkeys(each for result in results for each in warnings(result.counts)):
            print(warning, file=sys.stderr)
    return 0 if all(map(_is_trusted, results)) else 1


def _is_trusted(result: LoadTestResult) -> bool:
    counts = result.counts
    return not counts.is_behind and not counts.stopped_early and counts.outcomes[LoadTestOutcome.COMPLETED] > 0


def _width() -> int:
    return shutil.get_terminal_size(fallback=(100, 24)).columns


def _json(value: object) -> str:
    return encoding.dumps(value, indent=2)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # The reader closed the pipe. Without this, Python would report the error again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
