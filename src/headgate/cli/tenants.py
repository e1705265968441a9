"""Who may call, beside those in the file?

Organisations and projects of the database, by a running gateway's admin listener. Keys below them are another verb's
(`headgate keys`).
"""

import argparse
import sys

from headgate.cli.input.admin_request import NotDone, add_place, ask, failed, show_json, table
from headgate.cli.input.arguments import listed, tenant_path

TERMS = ("classes", "models", "weight", "plan", "requests_per_minute", "tokens_per_minute", "concurrency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show tenants")
    listing.add_argument("--below", type=tenant_path, metavar="PATH", help="only this one and what is below it")
    listing.add_argument("--after", default="", metavar="PATH", help="go on after this one")
    listing.add_argument("--limit", type=listed, default=100, help="so many at most (100)")
    create = actions.add_parser("create", help="make an organisation, or a project below one")
    change = actions.add_parser("change", help="give it these terms instead of all that it had")
    remove = actions.add_parser("remove", help="end it, with all below it and their keys")
    for each in (create, change, remove):
        each.add_argument("tenant", type=tenant_path, metavar="PATH", help="ORGANISATION or ORGANISATION/PROJECT")
    for each in (create, change):
        add_terms(each)
    for each in (listing, create, change, remove):
        add_place(each)


def add_terms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--class", dest="classes", action="append", metavar="NAME", help="a class it may use; any")
    parser.add_argument("--model", dest="models", action="append", metavar="NAME", help="a model it may use; any")
    parser.add_argument("--weight", type=int, help="its share beside others (100)")
    parser.add_argument("--plan", choices=("free", "standard", "critical"), help="as the level above, else standard")
    for name in ("requests-per-minute", "tokens-per-minute", "concurrency"):
        parser.add_argument(f"--{name}", type=int, metavar="N", help="at most; no limit of its own")


def terms_of(args: argparse.Namespace) -> dict[str, object]:
    return {name: getattr(args, name) for name in TERMS}


def run(args: argparse.Namespace) -> int:
    try:
        match args.action:
            case "list":
                answer = ask(args, "tenants/list", {"below": args.below, "after": args.after, "limit": args.limit})
            case "remove":
                answer = ask(args, "tenants/remove", {"tenant": args.tenant})
            case action:
                answer = ask(args, f"tenants/{action}", {"tenant": args.tenant, **terms_of(args)})
    except NotDone as problem:
        return failed(problem)
    if args.json:
        show_json(answer)
    elif args.action == "list":
        hint = "no tenant in the database; `headgate tenants create NAME` makes one"
        table(answer["data"], ("tenant", *TERMS, "created_at"), empty=hint)
        if answer["next"]:
            print(f"there are more: --after {answer['next']}", file=sys.stderr)
    elif args.action == "remove":
        print(f"{answer['removed']} removed: {args.tenant} and all below it; their keys work no more")
    else:
        table([answer], ("tenant", *TERMS), empty="")
    return 0
