"""Place orders on a running gateway: hold a class, throttle a tenant, drain an endpoint, pin the level of a pool.

Each order ends by itself. With a database it applies to all gateways that share it; without one, to the gateway that
received it, until it restarts.
"""

import argparse
import sys
from typing import Any

from headgate.cli.input.admin_request import NotDone, add_place, ask, failed, length_s, show_json, table

_COLUMNS = ("order", "verb", "target", "level", "requests_per_minute", "tokens_per_minute", "concurrency")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    throttle = actions.add_parser("throttle", help="let a tenant and all below it do no more than this")
    for name in _LIMITS:
        throttle.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help="at most")
    hold = actions.add_parser("hold", help="let requests of a class wait, and send none")
    drain = actions.add_parser("drain", help="send nothing new to an endpoint")
    pin = actions.add_parser("pin", help="keep the ladder of a pool at a level")
    pin.add_argument("--level", type=int, required=True, metavar="0-6", help="what is given up")
    for each, what in ((throttle, "TENANT"), (hold, "CLASS"), (drain, "ENDPOINT"), (pin, "POOL")):
        each.add_argument("target", metavar=what)
        each.add_argument(
            "--for", dest="lasts_s", type=length_s, required=True, metavar="TIME", help="such as 15m or 2h"
        )
        each.add_argument("--reason", default="", help="for whoever reads the audit log")
    listing = actions.add_parser("list", help="show the orders that are in force")
    end = actions.add_parser("end", help="end an order before its time")
    end.add_argument("order", metavar="ORDER", help="its name, as `headgate operate list` shows it")
    audit = actions.add_parser("audit", help="show who changed what, the newest first")
    audit.add_argument("--before", type=int, metavar="NUMBER", help="go on before this line")
    audit.add_argument("--limit", type=int, default=50, help="so many at most (50)")
    for each in (throttle, hold, drain, pin, listing, end, audit):
        add_place(each)


def run(args: argparse.Namespace) -> int:
    try:
        answer = _ask(args)
    except NotDone as problem:
        return failed(problem)
    if args.json:
        show_json(answer)
    elif args.action == "audit":
        columns = ("number", "at", "actor", "origin", "action", "target", "before", "after")
        table(answer["data"], columns, empty="nothing yet" if args.before is None else "nothing before it")
        if answer["next"]:
            print(f"there are more: --before {answer['next']}", file=sys.stderr)
    elif args.action == "list":
        table(answer["data"], (*_COLUMNS, "ordered_by", "expires_at", "reason"), empty="no order is in force")
    elif args.action == "end":
        print(f"{answer['order']} has ended: {answer['verb']} {answer['target']}")
    else:
        print(f"{answer['order']}: {answer['verb']} {answer['target']} until {answer['expires_at']}")
    return 0


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    match args.action:
        case "list":
            return ask(args, "orders/list", {})
        case "end":
            return ask(args, "orders/end", {"order": args.order})
        case "audit":
            return ask(args, "audit/list", {"before": args.before, "limit": args.limit})
        case verb:
            terms = {name: getattr(args, name, None) for name in (*_LIMITS, "level")}
            order = {"verb": verb, "target": args.target, "lasts_s": args.lasts_s, "reason": args.reason}
            return ask(args, "orders/place", {**order, **terms})
