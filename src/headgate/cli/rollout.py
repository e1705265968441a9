"""Shift the traffic of a model to another of its routes in steps: 1, 5, 25, 50 and 100 percent.

The gateway compares both routes and reverts by itself if the candidate is worse.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from headgate.cli.input.admin_request import (
    AdminRequestFailed,
    call_admin_api,
    duration_s,
    print_failure,
    print_json,
    print_table,
)
from headgate.cli.input.argument_types import add_actions, add_gateway
from headgate.wire.escape import escaped

_COLUMNS = ("model", "base", "candidate", "phase", "percent", "since", "reason")
_COMPARED = ("property", "estimate", "interval", "limit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    start = add("start", "Start a rollout at 1 percent.")
    step = add("step", "Move to the next step without waiting.")
    abort = add("abort", "Send all traffic of both routes to the base.")
    status = add("status", "Show rollouts and their measurements.")
    for each in (start, step, abort):
        each.add_argument("model", metavar="MODEL", help="Name of the model.")
    status.add_argument("model", nargs="?", metavar="MODEL", help="Name of the model (default: all rollouts).")
    start.add_argument("--candidate", required=True, metavar="ROUTE", help="Route that gets more traffic (required).")
    start.add_argument("--base", metavar="ROUTE", help="Route that gets less (default: the group's only other route).")
    start.add_argument(
        "--step-time", type=duration_s, default=300, metavar="DURATION", help="Minimum time per step (default 5m)."
    )
    start.add_argument(
        "--tolerance",
        type=int,
        default=10,
        metavar="PERCENT",
        help="By how much TTFT and TPOT of the candidate may exceed those of the base (default 10).",
    )
    for each in (start, step, abort, status):
        add_gateway(each)


def run(args: argparse.Namespace) -> int:
    """Returns exit code 1 if `status` finds a rollout that was reverted."""
    try:
        answer = _ask(args)
    except AdminRequestFailed as problem:
        return print_failure(problem)
    rollouts: list[dict[str, Any]] = answer["data"] if args.action == "status" else [answer]
    if args.json:
        print_json(answer)
    else:
        print_table(rollouts, _COLUMNS, empty="no rollouts; start one with `headgate rollout start`")
        for each in rollouts:
            if each["measurements"]:
                print()
                print(escaped(f"{each['model']}: {each['candidate']} compared with {each['base']}"))
                print_table([_row(found) for found in each["measurements"]], _COMPARED, empty="")
    return int(args.action == "status" and any(each["phase"] == "reverted" for each in rollouts))


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    if args.action != "start":
        return call_admin_api(args, f"rollouts/{args.action}", {"model": args.model})
    body = {
        "model": args.model,
        "candidate": args.candidate,
        "base": args.base,
        "step_s": args.step_time,
        "tolerance_percent": args.tolerance,
    }
    return call_admin_api(args, "rollouts/start", body)


def _row(found: Mapping[str, Any]) -> dict[str, str]:
    if found["estimate"] is None:
        return {"property": found["name"], "estimate": "too few samples", "interval": "", "limit": ""}
    points = found["unit"] == "points"
    numbers = {name: found[name] for name in ("low", "estimate", "high", "limit")}
    shown = {
        name: "" if value is None else (f"{100 * value:+.2f} points" if points else f"x {value:.3f}")
        for name, value in numbers.items()
    }
    return {
        "property": found["name"],
        "estimate": shown["estimate"],
        "interval": f"{shown['low']} to {shown['high']}",
        "limit": shown["limit"],
    }
