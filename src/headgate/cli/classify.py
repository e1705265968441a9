"""Show the class of a request and the rule that chose it.

The command reads the configuration and a request body, and classifies the request as a gateway would. It works offline.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_config, add_json
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.config.settings import Settings
    from headgate.core.classify import ClassChoice
    from headgate.core.rules import Rules
    from headgate.model.ticket import Api, Ticket

_APIS = ("chat", "completions", "embeddings", "responses")
_PLANS = ("free", "standard", "critical")


class _InvalidInput(Exception):
    """The arguments or the request are invalid. The message includes the next step."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request", metavar="REQUEST.json", help="Request body; - for stdin.")
    add_config(parser)
    parser.add_argument("--tenant", metavar="NAME", help="Tenant of the API key (default: anonymous_tenant).")
    parser.add_argument("--plan", choices=_PLANS, help="The tenant's plan (default: from the configuration).")
    parser.add_argument(
        "--class", dest="requested_class", metavar="NAME", help="x-headgate-class header (default: none)."
    )
    parser.add_argument("--api", choices=_APIS, help="API of the request (default: inferred from the body).")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Returns exit code 1 if the request would be rejected, and 2 if it cannot be read."""
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.core.admission.gate import Rejection, check_policy
    from headgate.core.classify import choose_class
    from headgate.core.rules import Rules
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    try:
        settings = load(args.config, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
        settings = _with_tenant(settings, _tenant_of(args, settings), args.plan)
        ticket = _ticket(args, settings)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    except _InvalidInput as problem:
        print(f"headgate: {escaped(str(problem))}", file=sys.stderr)
        return 2
    rules = Rules(settings.policy, settings.hash)
    verdict = check_policy(ticket, rules)
    rejected = verdict.reason if isinstance(verdict, Rejection) else None
    choice = choose_class(ticket, rules)
    if args.json:
        _print_json(ticket, rules, choice, rejected)
    else:
        _print(ticket, rules, choice, rejected)
    return 0 if rejected is None else 1


# The request


def _tenant_of(args: argparse.Namespace, settings: "Settings") -> str:
    if args.tenant is not None:
        return args.tenant
    if settings.anonymous_tenant is None:
        raise _InvalidInput(f"{args.config} has no anonymous_tenant; specify the tenant with --tenant")
    return settings.anonymous_tenant


def _with_tenant(settings: "Settings", name: str, plan: str | None) -> "Settings":
    """The settings with this tenant and plan added. For a tenant in the database, only the plan is known."""
    from headgate.model.tenant import Plan, Tenant
    from headgate.model.units import TenantId

    policy = settings.policy
    tenant = next((each for each in policy.tenants if each.id == name), None)
    if tenant is None and plan is None:
        raise _InvalidInput(f'the configuration has no tenant "{name}"; if it is in the database, add --plan')
    tenant = tenant or Tenant(TenantId(name))
    tenant = tenant if plan is None else replace(tenant, plan=Plan(plan))
    others = tuple(each for each in policy.tenants if each.id != name)
    return replace(settings, policy=replace(policy, tenants=(*others, tenant)))


def _ticket(args: argparse.Namespace, settings: "Settings") -> "Ticket":
    from headgate.model.ticket import Ticket
    from headgate.model.units import ModelName, RequestId, TenantId
    from headgate.wire.request_body import BadRequest, RequestBody

    raw = _read(args.request)
    try:
        api = _api(args.api, raw)
        body = RequestBody.parse(raw, api)
    except BadRequest as bad:
        raise _InvalidInput(f"{args.request} is not a valid request: {bad.message}") from None
    return Ticket(
        request_id=RequestId("req_sample"),
        api=api,
        model=ModelName(body.model),
        tenant=TenantId(_tenant_of(args, settings)),
        stream=body.stream,
        prompt_bytes=body.prompt_bytes,
        requested_class=args.requested_class,
        service_tier=body.service_tier,
        untrimmable_bytes=body.prompt_bytes_kept,
        n=body.n,
        output_tokens_max=body.output_tokens_max,
        metadata=body.metadata(settings.metadata_names),
        prompts=body.length.prompts,
    )


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise _InvalidInput(
            f"cannot read {name}: {error.strerror}; specify a file that contains a request body"
        ) from None


def _api(named: str | None, raw: bytes) -> "Api":
    from headgate.model.ticket import Api
    from headgate.wire.fields import split_fields

    if named is not None:
        return Api(named)
    fields = split_fields(raw)
    if "messages" in fields:
        return Api.CHAT
    if "prompt" in fields:
        return Api.COMPLETIONS
    raise _InvalidInput(f"the API cannot be derived from the body; set --api to one of {', '.join(_APIS)}")


# The result


def _print(ticket: "Ticket", rules: "Rules", choice: "ClassChoice", rejected: str | None) -> None:
    from headgate.config.class_rules import class_table
    from headgate.model.units import BYTES_PER_TOKEN

    streamed = "streamed" if ticket.stream else "not streamed"
    plan, tokens = rules.tenants[ticket.tenant].plan, ticket.prompt_bytes // BYTES_PER_TOKEN
    lines = [f"{ticket.api}, {streamed}, about {tokens:,} prompt tokens, tenant {ticket.tenant} (plan {plan})"]
    steps, applies = list(class_table(rules.policy)), _step(choice)
    width = max(len(name) for name, _ in steps)
    lines += [f"{'->' if name == applies else '  '} {name:<{width}}  {said}" for name, said in steps]
    if choice.service_class is not None:
        lines.append(f"class {choice.service_class.name}, by {applies}")
    if rejected is not None:
        lines.append(f"rejected: {rejected}")
    print("\n".join(map(escaped, lines)))


def _print_json(ticket: "Ticket", rules: "Rules", choice: "ClassChoice", rejected: str | None) -> None:
    import json

    chosen = choice.service_class
    found = {
        "class": None if chosen is None else chosen.name,
        "by": choice.by.value,
        "rule": choice.rule,
        "rejected": rejected,
        "tenant": ticket.tenant,
        "plan": rules.tenants[ticket.tenant].plan.value,
        "api": ticket.api.value,
        "stream": ticket.stream,
    }
    print(json.dumps(found, indent=2))


def _step(choice: "ClassChoice") -> str:
    """Name of the matching table row."""
    from headgate.config.class_rules import rule_name
    from headgate.core.classify import ChosenBy

    match choice.by:
        case ChosenBy.NAME:
            return "x-headgate-class"
        case ChosenBy.TIER:
            return "service_tier"
        case ChosenBy.RULE:
            return rule_name(choice.rule or 0)
        case ChosenBy.ONLY_CLASS:
            return "tenant"
        case ChosenBy.SIZE:
            return "prompt length"
