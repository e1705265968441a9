"""Place overrides on a running gateway: hold a class, throttle a tenant, drain an endpoint, pin a pool's degradation
level or raise its minimum number of endpoints.

Each override expires. With a database, an override applies to all gateways that share the database. Without one, it
applies only to the gateway that received it, until that gateway restarts.
"""

import argparse
import sys
from typing import Any

from headgate.cli.input.admin_request import (
    AdminRequestFailed,
    call_admin_api,
    duration_s,
    print_failure,
    print_json,
    print_table,
)
from headgate.cli.input.argument_types import add_actions, add_gateway, page_size

_COLUMNS = (
    "override",
    "verb",
    "target",
    "level",
    "interrupt",
    "endpoints",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
)
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    throttle = add("throttle", "Limit a tenant and its descendants.")
    for name in _LIMITS:
        words = name.replace("_", " ")
        throttle.add_argument(
            f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"Maximum {words} (default: no change)."
        )
    hold = add("hold", "Keep a class's requests in the queue.")
    drain = add("drain", "Send no new requests to an endpoint.")
    drain.add_argument(
        "--interrupt",
        action="store_true",
        help="Abort the endpoint's open requests, as if it had failed (default: they continue).",
    )
    pin = add("pin", "Pin a pool's degradation level.")
    pin.add_argument("--level", type=int, required=True, metavar="N", help="Degradation level, 0 to 6 (required).")
    scale = add("scale", "Keep a minimum number of endpoints in an autoscaled pool.")
    scale.add_argument("--endpoints", type=int, required=True, metavar="N", help="Minimum number (required).")
    targets = ((throttle, "TENANT"), (hold, "CLASS"), (drain, "ENDPOINT"), (pin, "POOL"), (scale, "POOL"))
    for each, what in targets:
        each.add_argument("target", metavar=what, help=f"Name of the {what.lower()}.")
        each.add_argument(
            "--for",
            dest="duration_s",
            type=duration_s,
            required=True,
            metavar="DURATION",
            help="Duration of the override, such as 15m or 2h (required).",
        )
        each.add_argument("--reason", default="", metavar="TEXT", help="Reason for the audit log (default: none).")
    listing = add("list", "Show the active overrides.")
    end = add("end", "End an override before it expires.")
    end.add_argument("override", metavar="OVERRIDE", help="Name of the override in `headgate operate list`.")
    audit = add("audit", "Show the audit log, newest entries first.")
    audit.add_argument(
        "--before", type=int, metavar="N", help="Show only entries older than this entry number (default: none)."
    )
    audit.add_argument(
        "--limit", type=page_size, default=50, metavar="N", help="Maximum number of entries (default 50)."
    )
    for each in (throttle, hold, drain, pin, scale, listing, end, audit):
        add_gateway(each)


def run(args: argparse.Namespace) -> int:
    try:
        answer = _ask(args)
    except AdminRequestFailed as problem:
        return print_failure(problem)
    if args.json:
        print_json(answer)
    elif args.action == "audit":
        columns = ("number", "at", "actor", "origin", "action", "target", "before", "after")
        print_table(answer["data"], columns, empty="no entries" if args.before is None else "no earlier entries")
        if answer["next"]:
            print(f"more entries: --before {answer['next']}", file=sys.stderr)
    elif args.action == "list":
        print_table(answer["data"], (*_COLUMNS, "created_by", "expires_at", "reason"), empty="no active overrides")
    elif args.action == "end":
        print(f"ended {answer['override']}: {answer['verb']} {answer['target']}")
    else:
        print(f"{answer['override']}: {answer['verb']} {answer['target']} until {answer['expires_at']}")
    return 0


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    match args.action:
        case "list":
            return call_admin_api(args, "overrides/list", {})
        case "end":
            return call_admin_api(args, "overrides/end", {"override": args.override})
        case "audit":
            return call_admin_api(args, "audit/list", {"before": args.before, "limit": args.limit})
        case verb:
            terms = {name: getattr(args, name, None) for name in (*_LIMITS, "level", "interrupt", "endpoints")}
            terms["interrupt"] = terms["interrupt"] or None
            order = {"verb": verb, "target": args.target, "duration_s": args.duration_s, "reason": args.reason}
            return call_admin_api(args, "overrides/create", {**order, **terms})
