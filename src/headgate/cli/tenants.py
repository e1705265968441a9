"""Manage the organisations and projects in the database, through a running gateway's admin listener.

`headgate keys` manages their keys. Tenants defined in the configuration file are not in the database.
"""

import argparse
import sys

from headgate.cli.input.admin_request import AdminRequestFailed, call_admin_api, print_failure, print_json, print_table
from headgate.cli.input.argument_types import add_actions, add_gateway, add_page, tenant_path

TENANT_FIELDS = ("classes", "models", "weight", "plan", "requests_per_minute", "tokens_per_minute", "concurrency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    listing = add("list", "Show tenants.")
    add_page(listing, "tenants")
    create = add("create", "Create an organisation or a project.")
    change = add("change", "Replace all terms of a tenant; omitted options return to their defaults.")
    remove = add("remove", "Remove a tenant with its descendants and their keys.")
    for each in (create, change, remove):
        each.add_argument("tenant", type=tenant_path, metavar="PATH", help="ORGANISATION or ORGANISATION/PROJECT.")
    for each in (create, change):
        add_tenant_options(each)
    for each in (listing, create, change, remove):
        add_gateway(each)


def add_tenant_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class", dest="classes", action="append", metavar="NAME", help="Allowed class, repeatable (default: all)."
    )
    parser.add_argument(
        "--model", dest="models", action="append", metavar="NAME", help="Allowed model, repeatable (default: all)."
    )
    parser.add_argument("--weight", type=int, metavar="N", help="Fair-share weight (default 100).")
    parser.add_argument(
        "--plan",
        choices=("free", "standard", "critical"),
        help="Plan (default: the parent's plan, otherwise standard).",
    )
    for name in ("requests-per-minute", "tokens-per-minute", "concurrency"):
        words = name.replace("-", " ")
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"Maximum {words} (default: no limit of its own).")


def tenant_fields(args: argparse.Namespace) -> dict[str, object]:
    return {name: getattr(args, name) for name in TENANT_FIELDS}


def run(args: argparse.Namespace) -> int:
    try:
        match args.action:
            case "list":
                answer = call_admin_api(
                    args, "tenants/list", {"under": args.under, "after": args.after, "limit": args.limit}
                )
            case "remove":
                answer = call_admin_api(args, "tenants/remove", {"tenant": args.tenant})
            case action:
                answer = call_admin_api(args, f"tenants/{action}", {"tenant": args.tenant, **tenant_fields(args)})
    except AdminRequestFailed as problem:
        return print_failure(problem)
    if args.json:
        print_json(answer)
    elif args.action == "list":
        hint = "no tenants in the database; create one with `headgate tenants create NAME`"
        print_table(answer["data"], ("tenant", *TENANT_FIELDS, "created_at"), empty=hint)
        if answer["next"]:
            print(f"more tenants: --after {answer['next']}", file=sys.stderr)
    elif args.action == "remove":
        print(f"removed {answer['removed']}: {args.tenant} and its descendants; their keys are revoked")
    else:
        print_table([answer], ("tenant", *TENANT_FIELDS), empty="")
    return 0
