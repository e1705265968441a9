"""Manage tenant budgets in the database, through a running gateway's admin listener.

To change a budget that is set in the configuration file, edit the file. `show` lists both kinds.
"""

import argparse
import sys

from headgate.cli.input.admin_request import AdminRequestFailed, call_admin_api, print_failure, print_json, print_table
from headgate.cli.input.argument_types import add_actions, add_gateway, add_page, dollars, tenant_path

BUDGET_COLUMNS = ("tenant", "period", "limit_usd", "kind", "created_at")
USAGE_COLUMNS = ("scope", "period", "kind", "limit_usd", "spent_usd", "reserved_usd", "remaining_usd", "resets_in_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    setting = add("set", "Set a tenant's budget for a period.")
    remove = add("remove", "Remove a tenant's budget for a period.")
    listing = add("list", "Show the budgets in the database.")
    show = add("show", "Show how much of each budget is spent, including budgets set in the configuration file.")
    for each in (setting, remove):
        each.add_argument(
            "tenant", type=tenant_path, metavar="PATH", help="ORGANISATION, ORGANISATION/PROJECT or a key path."
        )
        each.add_argument("period", choices=("day", "month"), help="Period; both start at midnight UTC.")
    setting.add_argument("usd", type=dollars, metavar="DOLLARS", help="Amount, such as 100 or 2.5.")
    kinds = setting.add_mutually_exclusive_group()
    kinds.add_argument(
        "--hard",
        dest="kind",
        action="store_const",
        const="hard",
        help="Reject requests once the budget is spent (default).",
    )
    kinds.add_argument(
        "--soft", dest="kind", action="store_const", const="soft", help="Degrade requests once the budget is spent."
    )
    add_page(listing, "tenants")
    show.add_argument(
        "tenant",
        nargs="?",
        type=tenant_path,
        metavar="PATH",
        help="Show only budgets that apply to this tenant (default: all budgets).",
    )
    for each in (setting, remove, listing, show):
        add_gateway(each)


def run(args: argparse.Namespace) -> int:
    try:
        match args.action:
            case "set":
                body = {"tenant": args.tenant, "period": args.period, "limit_usd": args.usd, "kind": args.kind}
                answer = call_admin_api(args, "budgets/set", body)
            case "remove":
                answer = call_admin_api(args, "budgets/remove", {"tenant": args.tenant, "period": args.period})
            case "show":
                answer = call_admin_api(args, "budgets/show", {"tenant": args.tenant})
            case _:
                answer = call_admin_api(
                    args, "budgets/list", {"under": args.under, "after": args.after, "limit": args.limit}
                )
    except AdminRequestFailed as problem:
        return print_failure(problem)
    if args.json:
        print_json(answer)
    elif args.action == "list":
        hint = "no budgets in the database; set one with `headgate budgets set PATH day 100`"
        print_table(answer["data"], BUDGET_COLUMNS, empty=hint)
        if answer["next"]:
            print(f"more tenants: --after {answer['next']}", file=sys.stderr)
    elif args.action == "show":
        whose = "" if args.tenant is None else f' for "{args.tenant}"'
        empty = f"no budget applies{whose}; set one with `headgate budgets set PATH day 100` or in the file"
        print_table(answer["data"], USAGE_COLUMNS, empty=empty)
    elif args.action == "remove":
        print(
            f"removed the budget of {args.tenant}: {answer['limit_usd']} dollars per {args.period} ({answer['kind']})"
        )
    else:
        print_table([answer], BUDGET_COLUMNS[:-1], empty="")
    return 0
