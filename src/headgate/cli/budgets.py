"""How much may a tenant spend, and where does it stand?

Budgets of tenants in the database, by a running gateway's admin listener; those of the file stand in the file.
"""

import argparse
import sys

from headgate.cli.input.admin_request import NotDone, add_place, ask, failed, show_json, table
from headgate.cli.input.arguments import dollars, listed, tenant_path

COLUMNS = ("tenant", "period", "usd", "kind", "since")
LEFT = ("scope", "period", "kind", "usd", "spent_usd", "reserved_usd", "left_usd", "resets_in_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    setting = actions.add_parser("set", help="say how much a tenant may spend in a period")
    remove = actions.add_parser("remove", help="lift what a tenant may spend in a period")
    listing = actions.add_parser("list", help="show the budgets in the database")
    show = actions.add_parser("show", help="show where budgets stand, those of the file and of classes too")
    for each in (setting, remove):
        each.add_argument(
            "tenant", type=tenant_path, metavar="PATH", help="ORGANISATION, ORGANISATION/PROJECT or the path of a key"
        )
        each.add_argument("period", choices=("day", "month"), help="both begin at midnight UTC")
    setting.add_argument("usd", type=dollars, metavar="DOLLARS", help="a plain number such as 100 or 2.5")
    kinds = setting.add_mutually_exclusive_group()
    kinds.add_argument("--hard", dest="kind", action="store_const", const="hard", help="then refuse (the usual)")
    kinds.add_argument("--soft", dest="kind", action="store_const", const="soft", help="then give up quality instead")
    listing.add_argument("--below", type=tenant_path, metavar="PATH", help="only this one and what is below it")
    listing.add_argument("--after", default="", metavar="PATH", help="go on after this one")
    listing.add_argument("--limit", type=listed, default=100, help="of so many tenants at most (100)")
    show.add_argument(
        "tenant", nargs="?", type=tenant_path, metavar="PATH", help="those that a request of it counts for; all"
    )
    for each in (setting, remove, listing, show):
        add_place(each)


def run(args: argparse.Namespace) -> int:
    try:
        match args.action:
            case "set":
                body = {"tenant": args.tenant, "period": args.period, "usd": args.usd, "kind": args.kind}
                answer = ask(args, "budgets/set", body)
            case "remove":
                answer = ask(args, "budgets/remove", {"tenant": args.tenant, "period": args.period})
            case "show":
                answer = ask(args, "budgets/show", {"tenant": args.tenant})
            case _:
                answer = ask(args, "budgets/list", {"below": args.below, "after": args.after, "limit": args.limit})
    except NotDone as problem:
        return failed(problem)
    if args.json:
        show_json(answer)
    elif args.action == "list":
        table(answer["data"], COLUMNS, empty="no budget in the database; `headgate budgets set PATH day 100` makes one")
        if answer["next"]:
            print(f"there are more: --after {answer['next']}", file=sys.stderr)
    elif args.action == "show":
        whose = "" if args.tenant is None else f' for "{args.tenant}"'
        empty = f"no budget counts{whose}; `headgate budgets set PATH day 100` makes one, or write it into the file"
        table(answer["data"], LEFT, empty=empty)
    elif args.action == "remove":
        print(f"{args.tenant} may spend any amount a {args.period}; it had {answer['usd']} dollars ({answer['kind']})")
    else:
        table([answer], COLUMNS[:-1], empty="")
    return 0
