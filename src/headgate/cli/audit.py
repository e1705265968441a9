"""Show the change log and the read log through a running gateway's admin listener."""

import argparse
import sys

from headgate.cli.input.admin_request import AdminRequestFailed, call_admin_api, print_failure, print_json, print_table
from headgate.cli.input.argument_types import add_actions, add_gateway, page_size, tenant_path

CHANGE_COLUMNS = ("number", "at", "actor", "origin", "action", "target", "before", "after")
READ_COLUMNS = ("at", "operator", "address", "route", "tenant", "target", "status")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    changes = add("changes", "Show changes to tenants, keys, budgets and overrides, newest first.")
    reads = add("reads", "Show reads of tenants' requests, costs, budgets and keys, newest first.")
    reads.add_argument(
        "--tenant",
        type=tenant_path,
        metavar="PATH",
        help="Show only reads of this tenant's data (default: all reads).",
    )
    changes.add_argument(
        "--before", type=int, metavar="N", help="Show entries with a lower number, to continue after a previous page."
    )
    reads.add_argument("--before", metavar="CURSOR", help="Continue at this cursor, which the previous page shows.")
    for each in (changes, reads):
        each.add_argument(
            "--limit", type=page_size, default=100, metavar="N", help="Maximum number of entries (default 100)."
        )
        add_gateway(each)


def run(args: argparse.Namespace) -> int:
    body: dict[str, object] = {"before": args.before, "limit": args.limit}
    try:
        if args.action == "reads":
            answer = call_admin_api(args, "audit/reads", {**body, "tenant": args.tenant})
        else:
            answer = call_admin_api(args, "audit/list", body)
    except AdminRequestFailed as problem:
        return print_failure(problem)
    if args.json:
        print_json(answer)
        return 0
    columns = READ_COLUMNS if args.action == "reads" else CHANGE_COLUMNS
    print_table(answer["data"], columns, empty=f"no {args.action} are recorded")
    if skipped := answer.get("skipped"):
        print(f"{skipped} damaged {'line' if skipped == 1 else 'lines'} in the read log skipped", file=sys.stderr)
    if answer["next"]:
        print(f"more: --before {answer['next']}", file=sys.stderr)
    return 0
