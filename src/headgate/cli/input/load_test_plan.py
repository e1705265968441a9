"""Plan of a load test, from the arguments of `headgate loadtest`."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from headgate.config.scenarios.workload import load_workload
from headgate.loadtest.cost import HourlyPrice, Price, TokenPrice
from headgate.loadtest.load_test import LoadTestPlan, raise_file_limit
from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.schedule import Schedule, from_trace, poisson
from headgate.loadtest.senders import Sender, SenderTable, TokenRange, parse_sender, read_key
from headgate.loadtest.tally import LoadTestTargets
from headgate.loadtest.target import TargetUrl
from headgate.loadtest.workload import scaled_workload, workload_schedule
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.trace_row import TraceRow

_WITHOUT_WORKLOAD: Final[Mapping[str, object]] = {
    "speed_up": 1.0,
    "jitter": 0.0,
    "prompt_tokens": "200:800",
    "output_tokens": "20:200",
    "mix": [],
    "shared_prefix_tokens": 0,
}
"""Options that a workload file replaces, with their defaults."""
_CHAT_APIS: Final = (None, "chat", "completions", "responses", "messages")
"""APIs of a trace whose requests are sent as chat completions. None if the trace has no APIs."""


def load_test_plan(args: argparse.Namespace, rows: Sequence[TraceRow], *, url: str, load: float = 1.0) -> LoadTestPlan:
    """Returns the plan for one target. `rows` are those of the trace, and `load` multiplies the rate of requests."""
    target = TargetUrl.parse(url)
    schedule, senders = _traffic(args, rows, load)
    connections = raise_file_limit(args.connections_max)
    if connections < args.connections_max:
        hint = "raise the limit on open files (ulimit -n) for more"
        print(f"headgate loadtest: at most {connections} connections; {hint}", file=sys.stderr)
    return LoadTestPlan(
        target=target,
        model=args.model or ", ".join(sorted({each.model for each in senders if each.model})),
        schedule=schedule,
        senders=tuple(senders),
        targets=LoadTestTargets(_ns(args.slo_ttft), _ns(args.slo_tpot), _ns(args.slo_e2e)),
        seed=args.seed,
        stream=not args.no_stream,
        exact_output=args.ignore_eos,
        shared_prefix_tokens=args.shared_prefix_tokens,
        patience_s=args.client_timeout,
        retries_max=args.retries,
        duplicate_after_s=args.hedge_after,
        connections_max=connections,
        drain_s=args.drain_timeout,
        price=_price(args),
    )


def _price(args: argparse.Namespace) -> Price | None:
    if args.price_per_hour is not None:
        return HourlyPrice(args.price_per_hour)
    return None if args.price_per_million is None else TokenPrice.parse(args.price_per_million)


def trace_rows(args: argparse.Namespace) -> list[TraceRow]:
    """Returns the rows of the trace that the load test can send, if there is a trace. Prints how many others it has."""
    if args.trace is None:
        return []
    rows = [
        replace(row, model=None if args.model else row.model, stream=None if args.no_stream else row.stream)
        for row in read_trace(args.trace)
    ]
    if args.model is None and any(row.model is None for row in rows):
        raise WorkloadError(f"{args.trace} has requests without a model; specify one for all requests with --model")
    chats = [row for row in rows if row.api in _CHAT_APIS]
    first_tries = [row for row in chats if not args.retries or not row.previous_tries]
    for left_out, why in (
        (len(rows) - len(chats), "APIs other than chats are not sent"),
        (len(chats) - len(first_tries), "retries are not sent, because the load test retries by itself (--retries)"),
    ):
        if left_out:
            message = f"left out {left_out} of {len(rows)} requests in the trace: {why}"
            print(f"headgate loadtest: {message}", file=sys.stderr)
    return first_tries


def _traffic(args: argparse.Namespace, rows: Sequence[TraceRow], load: float) -> tuple[Schedule, list[Sender]]:
    if args.workload is None:
        roster = _roster(args)
        schedule, senders = _schedule(args, rows, roster, load), roster.senders
    else:
        schedule, senders = _workload(args, load)
    if not schedule:
        raise WorkloadError("the schedule has no requests; raise --rate or --duration")
    return schedule, senders


def _workload(args: argparse.Namespace, load: float) -> tuple[Schedule, list[Sender]]:
    for name, default in _WITHOUT_WORKLOAD.items():
        if getattr(args, name) != default:
            option = name.replace("_", "-")
            raise WorkloadError(f"--{option} has no effect with --workload; set it in the file")
    workload = scaled_workload(load_workload(args.workload, os.environ), load)
    key = read_key(args.api_key, os.environ) if args.api_key else None
    return workload_schedule(workload, seed=args.seed, key=key, duration_s=args.duration, limit=args.limit)


def _roster(args: argparse.Namespace) -> SenderTable:
    prompt, output = TokenRange.parse(args.prompt_tokens), TokenRange.parse(args.output_tokens)
    key = read_key(args.api_key, os.environ) if args.api_key else None
    senders = [parse_sender(text, os.environ, prompt=prompt, output=output, key=key) for text in args.mix]
    return SenderTable(senders or [Sender(prompt=prompt, output=output, key=key)])


def _schedule(args: argparse.Namespace, rows: Sequence[TraceRow], roster: SenderTable, load: float) -> Schedule:
    if args.trace is None:
        duration_s = args.duration or 30.0
        return poisson(roster, rate=args.rate * load, duration_s=duration_s, seed=args.seed, limit=args.limit)
    return from_trace(
        rows,
        roster,
        seed=args.seed,
        speed_up=args.speed_up * load,
        jitter_s=args.jitter,
        duration_s=args.duration,
        limit=args.limit,
    )


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
